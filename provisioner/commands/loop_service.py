"""The process of ``provisioner run``: backends, metrics, health, status page and loop, made from the settings."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from provisioner.backends import BackendError, Severity
from provisioner.backends.proxies_and_authorities import ending_authorities
from provisioner.backends.registry import close, longest_call, make_backends, usable_backends
from provisioner.commands.observe_pools import live_findings
from provisioner.commands.shared_options import FINE
from provisioner.loop.loop import Hints, Loop, Pace, Setup, relax_collector
from provisioner.loop.wakeups import Wake
from provisioner.model import ErrorClass, LossCause
from provisioner.optional_packages import extra, require_packages
from provisioner.process_end import INTERRUPTED, end
from provisioner.settings.definitions import Settings
from provisioner.settings.reload import Configuration
from provisioner.state.protocols import State
from provisioner.telemetry.authentication import Access
from provisioner.telemetry.metric_collectors import KindMetrics
from provisioner.telemetry.metrics import EventMetrics, Metrics
from provisioner.telemetry.reporter import Reporter
from provisioner.telemetry.server import Server
from provisioner.telemetry.status_inputs import last_calls
from provisioner.telemetry.status_page import StatusPage
from provisioner.telemetry.timed_backend import TimedBackend

if TYPE_CHECKING:
    from provisioner.backends.pubsub_events import Judged

log = logging.getLogger(__name__)

END_SECONDS = 9
"""Maximum seconds from SIGTERM or Ctrl-C to the end of the process, even if a call still waits."""


def interrupted_work(frame: FrameType | None) -> dict[str, object]:
    """Return two values for a log line. ``at``: the function of this program that the main thread runs. ``threads``:
    the names of the other threads."""
    while frame is not None and not f"{frame.f_globals.get('__name__')}".startswith("provisioner."):
        frame = frame.f_back
    at = f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}" if frame else ""
    others = sorted(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
    return {"at": at, "threads": others}


class Service:
    """A running provisioner: its loop, metrics, health and status page."""

    def __init__(self, configuration: Configuration, state: State, *, listen: str | None = None) -> None:
        """Make loop, backends, metrics and server, and start none of them. Raises BackendError if the configuration of
        a pool is wrong or names no reachable place."""
        settings = configuration.settings
        self.registry = CollectorRegistry()
        self.interrupted = False
        """True if Ctrl-C has ended the loop."""
        self._is_started = False
        self._settings = settings
        metrics = Metrics(self.registry, settings.id)
        self._backends = make_backends(settings.pools, settings.site)
        backends = {name: TimedBackend(backend, metrics) for name, backend in self._backends.items()}
        KindMetrics({name: pool.kind for name, pool in settings.pools.items()}, self._backends, self.registry)
        configuration.judge = self._judge
        reporter = Reporter(metrics, state, configuration)
        self.loop = Loop(
            Setup(
                state=state,
                backends=backends,
                limits=configuration.limits,
                provisioner=settings.instance,
                note=configuration.note if os.path.isabs(state.path) else "",
                pace=settings.loop.as_limits(Pace, longest_call_seconds=longest_call(settings.pools.values())),
            ),
            reporter,
            refresh=configuration.refresh,
            count_wake=lambda source: metrics.wakeups.labels(source).inc(),
            hints=self._events(),
            stands_by=reporter.of_loop.stand_by,
        )
        page = StatusPage(state, lambda: reporter.memory, reporter.samples)
        metrics.operator_needed.follow(lambda: page.observe()[1].alarm_counts)
        metrics.refused_calls.follow(lambda: {one.script: one.total for one in state.refused_calls()})
        metrics.last_call.follow(lambda: last_calls(state))
        address, of_loop = listen or settings.listen, reporter.of_loop
        self.server = Server(address, self.registry, of_loop.health, of_loop.status, page.respond, settings.server)
        self.server.rejected = lambda reason: metrics.rejections.labels(reason).inc()
        if settings.server.token_file is not None:
            metrics.expect_logins()

    def follow_signals(self) -> None:
        """End the loop at SIGTERM and SIGINT, and observe all pools at once at SIGHUP. Call this method only in the
        main thread."""

        def end_on_signal(code: int) -> None:
            self.interrupted = self.interrupted or code == INTERRUPTED
            if not self._is_started:  # until now the loop has only asked the clouds, so the process can end at once
                end(code)
            if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:  # a second signal must not postpone the end
                signal.signal(signal.SIGALRM, lambda _, frame: abort(code, frame))
                signal.alarm(END_SECONDS)
            self.loop.stop()

        def abort(code: int, frame: FrameType | None) -> None:
            # Logging may hang if the reader of the log has stopped. Then a second alarm ends the process.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(1)
            with suppress(Exception):  # logging may fail if the signal interrupted the writing of another line
                log.warning("Ended with work under way, which the next start repeats", extra=interrupted_work(frame))
            end(code)

        signal.signal(signal.SIGINT, lambda *_: end_on_signal(INTERRUPTED))
        signal.signal(signal.SIGTERM, lambda *_: end_on_signal(FINE))
        signal.signal(signal.SIGHUP, lambda *_: self.loop.wakeups.wake(Wake.SIGNAL))

    def run(self, *, once: bool = False) -> None:
        """Run until the loop is stopped; with ``once``, run one cycle.

        Raises ListenError, StateError and SupersededError. Raises BackendError if a pool's place may contain machines
        of others, which the loop might touch.
        """
        relax_collector()
        self._check_places()
        self._is_started = True
        self.server.start()
        identity = {"id": self._settings.id, "pid": os.getpid(), "metrics": f"{self.server.url}/metrics"}
        log.info("Provisioner started", extra=identity)
        try:
            self.loop.run(once=once)
        finally:
            self.server.stop()
        log.info("Provisioner ended", extra={"id": self._settings.id})

    def _judge(self, settings: Settings) -> None:
        """Raise ValueError if the loop would not start with these settings. The check includes the files that the
        settings name."""
        try:
            ending_authorities(settings.ca_bundle, 0.0)
        except BackendError as error:
            raise ValueError(error.failure.text) from error
        Access(settings.server)
        backends, unusable = usable_backends(settings.pools, self._settings.site)
        close(backends)
        if unusable:
            raise ValueError("\n".join(f"pool {name}: {text}" for name, text in unusable.items()))

    def _check_places(self) -> None:
        """Log the findings about the places of the pools. Raises BackendError if the loop might touch machines of
        others."""
        findings = [one for one in live_findings(self._backends) if one.severity is not Severity.NOTE]
        for finding in findings:
            level = logging.WARNING if finding.severity is Severity.WARNING else logging.ERROR
            log.log(level, "Pool's place has a problem", extra={"pool": finding.pool, "problem": finding.text})
        if refused := [finding for finding in findings if finding.severity is Severity.REFUSED]:
            words = "; ".join(f"pool {finding.pool}: {finding.text}" for finding in refused)
            raise BackendError(ErrorClass.INVALID, words)

    def _events(self) -> Hints | None:
        """Return the stream of Pub/Sub hints; None if no subscription is configured."""
        if (events := self._settings.events) is None:
            return None
        with require_packages(extra("events")):
            from provisioner.backends.pubsub_events import EventStream, Worth

        counters = EventMetrics(self.registry, {("worth",): [(worth,) for worth in Worth]})

        def use_message(message: Judged) -> None:
            counters.events.labels(message.worth).inc()
            if (hint := message.news) is None:
                return
            if hint.grace is not None:
                self.loop.announce(hint.instance, LossCause.PREEMPTED, hint.grace)
            self.loop.observe_now(Wake.PUBSUB)

        return EventStream(
            events.project,
            events.subscription,
            prefix=self._settings.name_prefix,
            taken=use_message,
            broke=lambda _: counters.breaks.inc(),
        )
