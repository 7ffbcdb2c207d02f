"""The command ``provisioner demand``: request and return machines by HostFactory's scripts.

Sources, for example the queue of a scheduler, say how many machines are wanted. The command keeps that many machines.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from prometheus_client import CollectorRegistry

from provisioner.backends.proxies_and_authorities import prepare
from provisioner.commands.demand_metrics import DemandMetrics
from provisioner.commands.run import parse_address
from provisioner.commands.shared_options import FINE, PROBLEM, find_store, open_states, settings
from provisioner.demand.service import DemandService, PreviewedCalls, Report
from provisioner.demand.settings import FILE, load, load_both
from provisioner.demand.slurm_power import SlurmPower
from provisioner.hostfactory import templates
from provisioner.hostfactory.provider_config import Directories
from provisioner.hostfactory.script_calls import CALL_SECONDS, HostFactory
from provisioner.process_end import end
from provisioner.settings.definitions import Settings
from provisioner.state.directory import SLURM_NODES_FILE
from provisioner.state.errors import LockTimeout
from provisioner.state.kube.lease import KubeTurn
from provisioner.state.locks import LockFile, describe_holder, identity
from provisioner.state.protocols import State
from provisioner.state.slurm_nodes import SlurmNodes
from provisioner.telemetry.server import Health, Server
from provisioner.utc import format_utc

LATE_STEPS, LONGEST_STEP = 5, 900.0
"""The process counts as stuck if no step has ended for ``LATE_STEPS`` intervals plus ``LONGEST_STEP`` seconds. A step
may wait for many time-outs of its sources, for example for one of each schedd."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("--once", action="store_true", help="make one step, print it, and end")
    command.add_argument("--dry-run", action="store_true", help="print each step, without any effect")
    command.add_argument("--listen", type=parse_address, metavar="HOST:PORT", help="address of metrics and health")


def run(options: argparse.Namespace) -> int:
    """Make steps until SIGTERM, and return an exit code.

    With ``--once``, return PROBLEM if the step or a source fails. Raises ConfigError and TemplatesError. Raises
    ListenError if the server cannot listen, and StateError, for example if another process makes the steps.
    """
    signal.signal(signal.SIGTERM, lambda *_: end(FINE))
    directories, around = Directories(os.environ), settings(None)
    provider = templates.load(directories.conf, os.environ)
    written, slurm = load_both(Path(directories.conf), provider)
    demand = written or load(Path(directories.conf) / FILE, provider)
    prepare(around.ca_bundle)
    states, metrics = open_states(), DemandMetrics(CollectorRegistry())
    with nullcontext(PreviewedCalls(states)) if options.dry_run else _only_service(directories) as calls:
        service = DemandService(demand, provider.templates, states, calls)
        if options.listen:
            _serve(options.listen, metrics, demand.interval_seconds, around)
        nodes = SlurmNodes(os.path.join(directories.state, SLURM_NODES_FILE))
        power = SlurmPower(slurm, nodes, calls, states) if slurm and not options.dry_run else None
        while True:
            report = service.step(time.time())
            if power is not None:
                with report.noted_problems():
                    calls.check()
                    power.step()
            metrics.show(report)
            _publish(options, states[0], report)
            if options.once:
                return PROBLEM if report.problem or any(one["problem"] for one in report.sources.values()) else FINE
            time.sleep(demand.interval_seconds)


@contextmanager
def _only_service(directories: Directories) -> Iterator[HostFactory]:
    """Acquire the right to make the steps, yield a ``HostFactory`` that calls the scripts, and release the right.

    The right is a lock in the state directory. If the state is in a Kubernetes API, the right also needs a Lease. The
    ``check`` of the ``HostFactory`` raises SystemExit if this process has lost the right. Raises StateError if another
    process has the right.
    """
    lock, store = LockFile(os.path.join(directories.state, "demand.lock")), find_store(os.environ)
    # A script that outlives a killed process holds the lock, too, so no step begins before its request is recorded.
    if not lock.acquire(CALL_SECONDS):
        raise LockTimeout(describe_holder(lock.path, CALL_SECONDS))
    lease = KubeTurn(store.api(), f"{directories.name}-demand") if store else None

    def check() -> None:
        if not lock.is_in_place() or (lease is not None and not lease.keep()):
            raise SystemExit("Another process may make the steps of `provisioner demand` now, so this process ends.")

    try:
        lock.sign(identity() | {"since": format_utc(time.time())})
        if lease is not None and not lease.acquire(CALL_SECONDS):
            raise LockTimeout(f"{store}: another process serves this instance")
        yield HostFactory(os.environ, (lock.fileno(),), check)
    finally:
        if lease is not None:
            lease.release()
        lock.release()


def _publish(options: argparse.Namespace, state: State, report: Report) -> None:
    # The next step is due an interval after the end of this step.
    report.next_at = None if options.once or report.next_at is None else report.next_at + time.time() - report.at
    if options.once or options.dry_run:
        print(json.dumps(asdict(report)), flush=True)
    if not options.dry_run:
        with report.noted_problems():
            state.write_demand(asdict(report))


def _serve(listen: str, metrics: DemandMetrics, interval: float, around: Settings) -> None:
    """Answer requests for metrics, health and the last report, in threads that end with the process."""

    def health() -> Health:
        report = metrics.latest
        is_alive = time.time() - max(report.at, metrics.started) < LATE_STEPS * interval + LONGEST_STEP
        return Health(is_alive, bool(report.at) and not report.problem, report.problem or "The steps are made in time.")

    Server(listen, metrics.registry, health, lambda: asdict(metrics.latest), files=around.server).start()
