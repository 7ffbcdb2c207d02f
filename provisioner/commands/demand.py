"""The command ``provisioner demand``: request and return machines as HostFactory does, as many as sources want."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from prometheus_client import CollectorRegistry

from provisioner.backends.proxies_and_authorities import prepare
from provisioner.commands.demand_metrics import DemandMetrics
from provisioner.commands.run import parse_address
from provisioner.commands.shared_options import FINE, PROBLEM, UsageError, open_states, settings
from provisioner.demand.preview import PreviewedCalls
from provisioner.demand.service import Calls, DemandService, Report
from provisioner.demand.settings import FILE, Demand, load
from provisioner.demand.slurm_power import SlurmPower
from provisioner.demand.sources import SourceError
from provisioner.files.config_error import ConfigError
from provisioner.hostfactory import slurm_file, templates
from provisioner.hostfactory.provider_config import Directories
from provisioner.hostfactory.script_calls import CALL_SECONDS, HostFactory, ScriptFailed
from provisioner.process_end import end, interruptible
from provisioner.settings.definitions import Settings
from provisioner.state.directory import SLURM_NODES_FILE
from provisioner.state.errors import StateError
from provisioner.state.locks import LockFile, describe_holder, identity
from provisioner.state.slurm_nodes import SlurmNodes
from provisioner.telemetry.server import Health, ListenError, Server
from provisioner.utc import format_utc

log = logging.getLogger(__name__)

LATE_STEPS = 5
"""Intervals without the end of a step after which the process counts as stuck."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("--once", action="store_true", help="make one step, print it, and end")
    command.add_argument("--dry-run", action="store_true", help="print each step, without any effect")
    command.add_argument("--listen", type=parse_address, metavar="HOST:PORT", help="address of metrics and health")


def run(options: argparse.Namespace) -> int:
    """Make steps until SIGTERM, and return an exit code. PROBLEM means that another process makes the steps, that the
    server could not listen, or that with ``--once`` the step or a source failed. Raises ConfigError, TemplatesError,
    UsageError, StateError."""
    signal.signal(signal.SIGTERM, lambda *_: end(FINE))
    directories, around = Directories(os.environ), settings(None)
    provider = templates.load(directories.conf, os.environ)
    slurm, problems = slurm_file.load(directories.conf, [template.id for template in provider.templates])
    if problems:
        raise ConfigError(problems)
    file, nodes = Path(directories.conf) / FILE, SlurmNodes(os.path.join(directories.state, SLURM_NODES_FILE))
    demand = load(file, provider) if file.exists() or not slurm else Demand(sources={})
    prepare(around.ca_bundle)
    states = open_states()

    def repeat(calls: Calls, show: Callable[[Report], None]) -> int:
        try:
            service = DemandService(demand, provider.templates, states, calls)
        except SourceError as error:
            raise UsageError(str(error)) from error
        power = SlurmPower(slurm, nodes, calls, states) if slurm and not options.dry_run else None
        while True:
            report = service.step(time.time())
            if power is not None:
                _step_slurm(power, report)
            show(report)
            if options.once or options.dry_run:
                print(json.dumps(asdict(report)), flush=True)
            if options.once:
                return PROBLEM if report.problem or any(one["problem"] for one in report.sources.values()) else FINE
            time.sleep(demand.interval_seconds)

    if options.dry_run:
        return repeat(PreviewedCalls(states), lambda report: None)
    lock = LockFile(os.path.join(directories.state, "demand.lock"))
    # A script that outlives a killed process holds the lock, too, so no step begins before its request is recorded.
    if not lock.acquire(CALL_SECONDS):
        print(describe_holder(lock.path, CALL_SECONDS), file=sys.stderr)
        return PROBLEM
    lock.sign(identity() | {"since": format_utc(time.time())})
    metrics = DemandMetrics(CollectorRegistry())
    made = tempfile.mkdtemp(prefix="demand-")

    def publish(report: Report) -> None:
        metrics.show(report)
        lock.check_in_place()
        try:
            states[0].write_demand(asdict(report))
        except StateError as error:
            log.warning("Report could not be published", extra={"problem": str(error)})

    with interruptible(lambda: shutil.rmtree(made, ignore_errors=True)):
        try:
            if options.listen:
                _serve(options.listen, metrics, demand.interval_seconds, around)
            return repeat(HostFactory(os.environ, Path(made), (lock.fileno(),)), publish)
        except ListenError as error:
            print(error, file=sys.stderr)
            return PROBLEM
        finally:
            lock.release()


def _step_slurm(power: SlurmPower, report: Report) -> None:
    """Make a step for Slurm's nodes, and add its problem to the report."""
    try:
        power.step()
    except (StateError, ScriptFailed, SourceError) as error:
        report.problem = report.problem or str(error)
        log.warning("Step of Slurm's nodes failed", extra={"problem": str(error)})


def _serve(listen: str, metrics: DemandMetrics, interval: float, around: Settings) -> None:
    """Answer requests for metrics, health and the last report, in threads that end with the process."""

    def health() -> Health:
        report = metrics.latest
        is_alive = time.time() - max(report.at, metrics.started) < LATE_STEPS * interval + CALL_SECONDS
        return Health(is_alive, bool(report.at) and not report.problem, report.problem or "The steps are made in time.")

    Server(listen, metrics.registry, health, lambda: asdict(metrics.latest), files=around.server).start()
