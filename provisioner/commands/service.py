"""Putting the parts together: settings → backends, metrics, health page, loop."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from provisioner.backends import Backend, BackendError, Checkable, Finding, MachineSize, Severity, Sized
from provisioner.backends.gke.namespace import Namespaces
from provisioner.commands.inspection import clock_of, look, plan_document
from provisioner.hostfactory.templates import Template
from provisioner.loop.actors import InlineActors
from provisioner.loop.cycle import Reconciler
from provisioner.loop.loop import Hints, Loop, LoopClock, Pace, Wake, calm_collector
from provisioner.model import ErrorClass, Limits, Look, LossCause, Plan, Unobserved
from provisioner.settings.advice import size_advice
from provisioner.settings.reload import Configuration
from provisioner.settings.tree import MigPool, Settings
from provisioner.state.directory import StateDir
from provisioner.telemetry.metrics import EventMetrics, MeasuredBackend, Metrics
from provisioner.telemetry.reporter import Reporter
from provisioner.telemetry.server import Server

if TYPE_CHECKING:
    from provisioner.backends.mig.events import Judged

log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0
"""How long the places are asked about their settings. A start waits no longer: what is wrong shows itself later."""


def make_backends(settings: Settings) -> dict[str, Backend]:
    """One backend per pool. Raises BackendError, a line a pool, for those whose configuration leads to no place."""
    # The clients cost a second and 150 MB: only what the configuration needs is loaded.
    made: dict[str, Backend] = {}
    namespaces = Namespaces()
    if any(isinstance(pool, MigPool) for pool in settings.pools.values()):
        from provisioner.backends.mig.backend import MigBackend
        from provisioner.backends.mig.project import Projects

        projects = Projects(prefix=settings.name_prefix, settings=settings.compute)
    unusable: list[str] = []
    for name, pool in settings.pools.items():
        if isinstance(pool, MigPool):
            made[name] = MigBackend(
                pool, prefix=settings.name_prefix, adopt_prefixes=settings.adopt_prefixes, projects=projects
            )
            continue
        from provisioner.backends.gke.backend import GkeBackend

        try:
            made[name] = GkeBackend(pool, provisioner=settings.id, namespaces=namespaces)
        except BackendError as error:
            unusable.append(error.failure.text)
    if unusable:
        _close(made)
        raise BackendError(ErrorClass.INVALID, "\n".join(unusable))
    return made


def _close(backends: Mapping[str, Backend]) -> None:
    for backend in backends.values():
        backend.close()


def live_findings(backends: Mapping[str, Backend], seconds: float) -> list[Finding]:
    """What of the pools' places will go wrong, asked of all at once. One that does not answer is a finding, too."""

    def of(backend: Checkable) -> list[Finding]:
        try:
            return backend.check(seconds)
        except BackendError as error:
            return [Finding(backend.pool, Severity.ERROR, f"cannot be checked: {error.failure.text}")]

    checkable = [backend for backend in backends.values() if isinstance(backend, Checkable)]
    with ThreadPoolExecutor(max(1, len(checkable)), thread_name_prefix="check") as pool:
        return [finding for findings in pool.map(of, checkable) for finding in findings]


def size_findings(
    backends: Mapping[str, Backend], settings: Settings, templates: Sequence[Template], seconds: float
) -> list[Finding]:
    """Templates that promise more than the machines have that these places make."""
    sizes: dict[str, MachineSize] = {}
    unknown = []
    for name, backend in backends.items():
        try:
            if isinstance(backend, Sized) and (size := backend.size(seconds)):
                sizes[name] = size
        except BackendError as error:
            text = f"how big its machines are cannot be read, so it was not checked: {error.failure.text}"
            unknown.append(Finding(name, Severity.WARNING, text))
    return unknown + size_advice(settings, templates, sizes)


def check_live(settings: Settings, templates: Sequence[Template]) -> list[Finding]:
    """Whether machines can be made in each pool's place as it is now, as big as promised; touches nothing.

    Raises BackendError.
    """
    backends = make_backends(settings)
    try:
        findings = live_findings(backends, CHECK_SECONDS)
        wrong = {finding.pool for finding in findings if finding.severity is not Severity.WARNING}
        right = {name: backend for name, backend in backends.items() if name not in wrong}
        findings += size_findings(right, settings, templates, CHECK_SECONDS)
        looked_at = {name: backend for name, backend in backends.items() if not isinstance(backend, Checkable)}
        looks = look(looked_at, 0.0, seconds=0.0)
    finally:
        _close(backends)
    unseen = [one for one in looks.values() if isinstance(one, Unobserved)]
    return findings + [Finding(one.pool, Severity.ERROR, one.failure.text) for one in unseen]


def preview(settings: Settings, state: StateDir) -> tuple[Mapping[str, Look], Plan | None]:
    """What the pools hold and what the next cycle would do; touches nothing. Raises StateError, BackendError."""
    backends = make_backends(settings)
    clock = clock_of(state)
    try:
        looks = look(backends, clock.now())
        reconciler = Reconciler(
            clock=clock,
            state=state,
            actors=InlineActors({}),
            limits=settings.limits(),
            provisioner=settings.instance,
        )
        return looks, reconciler.preview(looks)
    finally:
        _close(backends)


def trim(settings: Settings, state: StateDir, *, dry_run: bool) -> tuple[str, ...] | None:
    """The ids that leave the files, or would; None when a loop runs, which does it itself. Raises StateError."""
    lock = state.loop_lock
    if not dry_run and not lock.acquire(0):
        return None
    try:
        memory = state.memory.read()
        epoch = memory.epoch if dry_run else lock.raise_epoch(memory.epoch + 1)
        reconciler = Reconciler(
            clock=clock_of(state),
            state=state,
            actors=InlineActors({}),
            limits=settings.limits(),
            provisioner=settings.instance,
            epoch=epoch,
        )
        left = reconciler.trim(dry_run=dry_run)
        if not dry_run:
            lock.sign_off()
        return left
    finally:
        lock.release()


def look_once(settings: Settings) -> Mapping[str, Look]:
    """What the pools hold. Raises BackendError when a pool's place cannot be reached by its configuration."""
    backends = make_backends(settings)
    try:
        return look(backends, LoopClock().now())
    finally:
        _close(backends)


def dry_run(settings: Settings, state: StateDir, *, once: bool) -> None:
    """Print each cycle's plan beside a running system until interrupted. Raises StateError, BackendError."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    while True:
        looks, plan = preview(settings, state)
        print(json.dumps({"time": round(time.time(), 3), **plan_document(plan, looks)}), flush=True)
        if once or ending.wait(settings.loop.interval_seconds):
            return


class Service:
    """One provisioner: loop, metrics and health page."""

    def __init__(self, configuration: Configuration, state: StateDir, *, listen: str | None = None) -> None:
        """Raises BackendError when a pool's place cannot be reached by its configuration."""
        settings = configuration.settings
        self.registry = CollectorRegistry()
        self.interrupted = False
        """Ctrl-C ended it."""
        self._settings = settings
        self._state = state
        metrics = Metrics(self.registry)
        limits = settings.limits()
        metrics.configure(limits)
        pace = settings.loop
        self._backends = make_backends(settings)
        backends: Mapping[str, Backend] = {
            name: MeasuredBackend(backend, metrics) for name, backend in self._backends.items()
        }
        reporter = Reporter(
            metrics,
            self._state,
            limits=limits,
            interval=pace.interval_seconds,
            refused=lambda: configuration.refused,
        )

        def applied(new: Limits) -> None:
            metrics.configure(new)
            reporter.limits = new

        configuration.applied, configuration.judged = applied, metrics.config_ok
        self._loop = Loop(
            state=self._state,
            backends=backends,
            limits=limits,
            provisioner=settings.instance,
            pace=Pace(pace.interval_seconds, pace.floor_seconds, pace.act_seconds, pace.intent_poll_seconds),
            report=reporter,
            refresh=configuration.refresh,
            count_wake=lambda source: metrics.wakeup(str(source)),
            hints=self._events(),
        )
        self.server = Server(listen or settings.listen, self.registry, reporter.health, reporter.status)

    def heed_signals(self) -> None:
        """SIGTERM and SIGINT end it, SIGHUP lets it look at once. Only in the main thread."""

        def interrupted(*_: object) -> None:
            self.interrupted = True
            self.stop()

        signal.signal(signal.SIGINT, interrupted)
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        signal.signal(signal.SIGHUP, lambda *_: self._loop.wakeups.wake(Wake.SIGNAL))

    def stop(self) -> None:
        """End after the action in hand; safe in a signal handler and from any thread."""
        self._loop.stop()

    def unseen(self) -> list[str]:
        """The pools that the last cycle had no look at."""
        return self._loop.unseen()

    def run(self, *, once: bool = False) -> None:
        """Until ``stop``. Raises ListenError, StateError, SupersededError; BackendError for a refused pool."""
        calm_collector()
        self._check_places()
        self.server.start()
        about = {"id": self._settings.id, "pid": os.getpid(), "metrics": f"{self.server.url}/metrics"}
        log.info("Provisioner started", extra=about)
        try:
            self._loop.run(once=once)
        finally:
            self.server.stop()
        log.info("Provisioner ended", extra={"id": self._settings.id})

    def _check_places(self) -> None:
        """Say what will go wrong; refuse to begin where the loop could touch what is not its own."""
        findings = live_findings(self._backends, CHECK_SECONDS)
        for finding in findings:
            severe = finding.severity is not Severity.WARNING
            level = logging.ERROR if severe else logging.WARNING
            log.log(level, "Pool's place has a problem", extra={"pool": finding.pool, "problem": finding.text})
        if refused := [finding for finding in findings if finding.severity is Severity.REFUSED]:
            words = "; ".join(f"pool {finding.pool}: {finding.text}" for finding in refused)
            raise BackendError(ErrorClass.INVALID, words)

    def _events(self) -> Hints | None:
        """The stream of Pub/Sub hints, if one is configured."""
        if self._settings.events is None:
            return None
        from provisioner.backends.mig.events import EventStream

        counters = EventMetrics(self.registry)

        def taken(message: Judged) -> None:
            counters.taken(str(message.worth))
            hint = message.news
            if hint is not None and hint.grace is not None:
                self._loop.announce(hint.instance, LossCause.PREEMPTED, hint.grace)
            if hint is not None:
                self._loop.look_now(Wake.PUBSUB)

        return EventStream(
            self._settings.events.project,
            self._settings.events.subscription,
            prefix=self._settings.name_prefix,
            taken=taken,
            broke=lambda _: counters.broke(),
        )
