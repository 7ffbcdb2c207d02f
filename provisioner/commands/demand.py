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
from provisioner.demand.settings import FILE, load
from provisioner.demand.sources import SourceError
from provisioner.hostfactory import templates
from provisioner.hostfactory.provider_config import Directories
from provisioner.hostfactory.script_calls import CALL_SECONDS, HostFactory
from provisioner.process_end import end, interruptible
from provisioner.settings.definitions import Settings
from provisioner.state.errors import StateError
from provisioner.state.locks import LockFile, describe_holder, identity
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
    demand = load(Path(directories.conf) / FILE, provider)
    prepare(around.ca_bundle)
    states = open_states()

    def repeat(calls: Calls, show: Callable[[Report], None]) -> int:
        try:
            service = DemandService(demand, provider.templates, states, calls)
        except SourceError as error:
            raise UsageError(str(error)) from error
        while True:
            report = service.step(time.time())
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


def _serve(listen: str, metrics: DemandMetrics, interval: float, around: Settings) -> None:
    """Answer requests for metrics, health and the last report, in threads that end with the process."""

    def health() -> Health:
        report = metrics.latest
        is_alive = time.time() - max(report.at, metrics.started) < LATE_STEPS * interval + CALL_SECONDS
        return Health(is_alive, bool(report.at) and not report.problem, report.problem or "The steps are made in time.")

    Server(listen, metrics.registry, health, lambda: asdict(metrics.latest), files=around.server).start()
