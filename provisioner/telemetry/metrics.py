"""Every metric of the provisioner, each name one literal, and the decorator that times backends and counts errors.

Takes plain facts; decides nothing. Timestamps are epoch seconds, durations seconds. One instance per registry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from provisioner import __version__
from provisioner.backends import Backend, BackendError, MayStart
from provisioner.model import (
    BrakeReason,
    Create,
    DeferReason,
    Delete,
    DeleteReason,
    ErrorClass,
    Limits,
    LossCause,
    Outcome,
    Phase,
    RequestStatus,
    Snapshot,
)

# Else every counter and histogram has a second series, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

Key = TypeVar("Key", bound=tuple[str, ...])
"""The label values of a series."""

CycleResult = Literal["ok", "partial", "failed"]
Operation = Literal["observe", "create", "delete"]
OPERATIONS: tuple[Operation, ...] = ("observe", "create", "delete")
RESULTS = ("ok", "failed")
"""Of one create or delete."""
WAKEUPS = ("timer", "intent", "watch", "pubsub", "signal")
WORTHS = ("notice", "wake_up", "repeated", "foreign", "malformed")
"""What a Pub/Sub message was good for (``events.Worth``, whose module loads Pub/Sub's client)."""
KINDS = ("request", "return")
CAPACITY = (ErrorClass.STOCKOUT, ErrorClass.QUOTA)
"""Classes that an alert counts: they are there as zero, or their first increase would go unseen."""

CYCLE_BUCKETS = (0.01, 0.05, 0.25, 1, 3, 10)
CALL_BUCKETS = (0.1, 1, 10)
START_BUCKETS = (5, 30, 60, 180, 600, 3600)
STOP_BUCKETS = (10, 60, 300, 3600)
LOCK_BUCKETS = (0.001, 0.01, 0.1, 1, 10)
"""Upper bounds in seconds. Few, as each costs one series per label set."""


class Table(Collector, Generic[Key]):
    """A gauge whose series are replaced all at once: a scrape sees the old or the new ones, and no stale one stays."""

    def __init__(self, registry: CollectorRegistry, name: str, meaning: str, labels: Sequence[str]) -> None:
        self._name, self._meaning, self._labels = name, meaning, labels
        self._known: Mapping[Key, float] = {}
        self._values: Mapping[Key, float] = {}
        registry.register(self)

    def expect(self, keys: Iterable[Key], empty: float = 0.0) -> None:
        """The series that are exported as ``empty`` when no value is given for them."""
        self._known = dict.fromkeys(keys, empty)

    def forget_unexpected(self) -> None:
        """Drop the values of series that are no longer expected."""
        self._values = {key: value for key, value in self._values.items() if key in self._known}

    def replace(self, values: Mapping[Key, float]) -> None:
        """The values from now on, by label values."""
        self._values = dict(values)

    def update(self, key: Key, value: float) -> None:
        """One more value, or another one."""
        self._values = {**self._values, key: value}

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Name and type, without the values."""
        yield GaugeMetricFamily(self._name, self._meaning, labels=self._labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All series as they are now."""
        family = GaugeMetricFamily(self._name, self._meaning, labels=self._labels)
        for key, value in {**self._known, **self._values}.items():
            family.add_metric([str(part) for part in key], value)
        yield family


class EventMetrics:
    """What became of Pub/Sub messages. Only where a subscription is configured: nobody else needs the series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter(
            "hf_provisioner_events_total",
            "Pub/Sub messages, by what they were good for.",
            ["worth"],
            registry=registry,
        )
        for worth in WORTHS:
            self._events.labels(worth)
        self._breaks = Counter(
            "hf_provisioner_event_stream_breaks_total",
            "How often the Pub/Sub stream ended by itself and was opened again.",
            registry=registry,
        )

    def taken(self, worth: str) -> None:
        """A message came."""
        self._events.labels(worth).inc()

    def broke(self) -> None:
        """The stream ended by itself."""
        self._breaks.inc()


class Metrics:
    """All other metrics, on one registry, and those of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        ProcessCollector(registry=registry)
        self._loop_metrics(registry)
        self._machine_metrics(registry)
        self._slot_metrics(registry)
        self._backend_metrics(registry)
        self._store_metrics(registry)

    def _loop_metrics(self, registry: CollectorRegistry) -> None:
        build = Gauge("hf_provisioner_build_info", "The version that runs; always 1.", ["version"], registry=registry)
        build.labels(__version__).set(1)
        self._cycles = Counter(
            "hf_provisioner_cycles_total",
            "Cycles; partial: some action or pool failed.",
            ["result"],
            registry=registry,
        )
        for result in ("ok", "partial", "failed"):
            self._cycles.labels(result)
        self._cycle_duration = Histogram(
            "hf_provisioner_cycle_duration_seconds", "One cycle.", buckets=CYCLE_BUCKETS, registry=registry
        )
        self._last_success = Gauge(
            "hf_provisioner_last_success_timestamp_seconds",
            "End of the last ok cycle; begins with the start of the process.",
            registry=registry,
        )
        self._last_success.set(time.time())
        self._config_ok = Gauge(
            "hf_provisioner_config_ok", "0 while a bad new configuration is refused.", registry=registry
        )
        self._config_ok.set(1)
        self._wakeups = Counter(
            "hf_provisioner_wakeups_total", "What ended the wait for a cycle.", ["source"], registry=registry
        )
        for source in WAKEUPS:
            self._wakeups.labels(source)

    def _machine_metrics(self, registry: CollectorRegistry) -> None:
        pair = ["pool", "template"]
        self._desired: Table[tuple[str, str]] = Table(
            registry, "hf_provisioner_machines_desired", "Slots that should have a machine.", pair
        )
        self._machines: Table[tuple[str, str, Phase]] = Table(
            registry, "hf_provisioner_machines", "Machines observed.", [*pair, "phase"]
        )
        self._deferred: Table[tuple[str, str, DeferReason]] = Table(
            registry, "hf_provisioner_machines_deferred", "Machines wanted, missing and held back.", [*pair, "reason"]
        )
        self._window: Table[tuple[str]] = Table(
            registry, "hf_provisioner_window", "Machines that may be pending now, all templates together.", ["pool"]
        )
        self._oldest_unmet: Table[tuple[str]] = Table(
            registry,
            "hf_provisioner_oldest_unmet_timestamp_seconds",
            "When the oldest open slot was requested; NaN if there is none.",
            ["template"],
        )
        self._brake: Table[tuple[str, BrakeReason]] = Table(
            registry,
            "hf_provisioner_brake_engaged",
            "1 while orphan deletion is held; an empty pool means all of them.",
            ["pool", "reason"],
        )
        self._unlisted: Table[tuple[str]] = Table(
            registry,
            "hf_provisioner_machines_unlisted",
            "Machines of ours that run and were in no list of HostFactory for 24 h.",
            ["pool"],
        )
        self._stuck: Table[tuple[str]] = Table(
            registry,
            "hf_provisioner_machines_stuck",
            "Machines of ours that go on terminating long after the end of their grace period.",
            ["pool"],
        )

    def _slot_metrics(self, registry: CollectorRegistry) -> None:
        pair = ["pool", "template"]
        self._set_aside = Gauge(
            "hf_provisioner_slots_set_aside", "Slots of which a forbidden transition was asked.", registry=registry
        )
        self._startup = Histogram(
            "hf_provisioner_machine_startup_seconds",
            "From requested to running.",
            pair,
            buckets=START_BUCKETS,
            registry=registry,
        )
        self._shutdown = Histogram(
            "hf_provisioner_machine_shutdown_seconds",
            "From returned to gone.",
            ["pool"],
            buckets=STOP_BUCKETS,
            registry=registry,
        )
        self._lost = Counter(
            "hf_provisioner_machines_lost_total",
            "Machines that succeeded and then vanished.",
            [*pair, "cause"],
            registry=registry,
        )
        self._failed = Counter(
            "hf_provisioner_slots_failed_total", "Slots that ended failed.", [*pair, "error"], registry=registry
        )

    def _backend_metrics(self, registry: CollectorRegistry) -> None:
        self._observation: Table[tuple[str]] = Table(
            registry,
            "hf_provisioner_observation_timestamp_seconds",
            "Time of the last complete observation; begins with the start of the process.",
            ["pool"],
        )
        self._creates = Counter(
            "hf_provisioner_creates_total", "Create actions, in machines.", ["pool", "result"], registry=registry
        )
        self._deletes = Counter(
            "hf_provisioner_deletes_total",
            "Delete actions, in machines.",
            ["pool", "reason", "result"],
            registry=registry,
        )
        self._calls = Histogram(
            "hf_provisioner_backend_call_seconds",
            "One look at a pool, or one batch of creates or deletes.",
            ["pool", "operation"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self._errors = Counter(
            "hf_provisioner_backend_errors_total",
            "Looks, creates and deletes that failed.",
            ["pool", "operation", "error"],
            registry=registry,
        )

    def _store_metrics(self, registry: CollectorRegistry) -> None:
        self._requests: Table[tuple[str, RequestStatus]] = Table(
            registry, "hf_provisioner_requests", "Requests and returns in the state files.", ["kind", "status"]
        )
        self._requests.expect((kind, status) for kind in KINDS for status in RequestStatus)
        self._lock_wait = Histogram(
            "hf_provisioner_store_lock_wait_seconds",
            "Wait for the lock of intent.json.",
            buckets=LOCK_BUCKETS,
            registry=registry,
        )
        self._bytes: Table[tuple[str]] = Table(
            registry, "hf_provisioner_store_bytes", "Size of a state file.", ["file"]
        )

    def configure(self, limits: Limits) -> None:
        """Export the series of these pools and templates as zero until something happens to them."""
        pools = list(limits.pools)
        pairs = [(pool, template.id) for template in limits.templates.values() for pool in template.pools]
        self._desired.expect(pairs)
        self._machines.expect((*pair, phase) for pair in pairs for phase in (Phase.PENDING, Phase.RUNNING))
        self._deferred.expect((*pair, reason) for pair in pairs for reason in DeferReason)
        self._oldest_unmet.expect(((template,) for template in limits.templates), empty=float("nan"))
        for table in (self._window, self._unlisted, self._stuck):
            table.expect((pool,) for pool in pools)
        self._observation.expect(((pool,) for pool in pools), empty=time.time())
        self._observation.forget_unexpected()
        self._brake.expect(("", reason) for reason in BrakeReason)
        for pair in pairs:
            for cause in LossCause:
                self._lost.labels(*pair, cause)
            for error in CAPACITY:
                self._failed.labels(*pair, error)
        for pool in pools:
            self._zero_pool(pool)

    def _zero_pool(self, pool: str) -> None:
        for result in RESULTS:
            self._creates.labels(pool, result)
        for reason in DeleteReason:
            self._deletes.labels(pool, reason, RESULTS[0])
        for error in CAPACITY:
            self._errors.labels(pool, "create", error)

    # --- the loop ---

    def cycle(self, result: CycleResult, seconds: float, ended: float) -> None:
        """A cycle ended so, after so long, at that epoch time."""
        self._cycles.labels(result).inc()
        self._cycle_duration.observe(seconds)
        if result == "ok":
            self._last_success.set(ended)

    def wakeup(self, source: str) -> None:
        """What ended the wait: one of ``WAKEUPS``."""
        self._wakeups.labels(source).inc()

    def config_ok(self, ok: bool) -> None:
        """Whether the configuration in the files is the one in force."""
        self._config_ok.set(ok)

    # --- what is wanted and what is there: each call replaces the whole table ---

    def desired(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Slots that should have a machine, by (pool, template)."""
        self._desired.replace(counts)

    def machines(self, counts: Mapping[tuple[str, str, Phase], int]) -> None:
        """Machines observed, by (pool, template, phase)."""
        self._machines.replace(counts)

    def deferred(self, counts: Mapping[tuple[str, str, DeferReason], int]) -> None:
        """Machines held back, by (pool, template, reason)."""
        self._deferred.replace(counts)

    def windows(self, windows: Mapping[str, int]) -> None:
        """Pressure allowed now, by pool: the sum over its templates."""
        self._window.replace({(pool,): window for pool, window in windows.items()})

    def oldest_unmet(self, requested: Mapping[str, float]) -> None:
        """Epoch time when the oldest open slot was requested, by template; templates without one are left out."""
        self._oldest_unmet.replace({(template,): when for template, when in requested.items()})

    def brakes(self, engaged: Collection[tuple[str, BrakeReason]]) -> None:
        """The (pool, reason) for which orphan deletion is held."""
        self._brake.replace(dict.fromkeys(engaged, 1.0))

    def unlisted(self, counts: Mapping[str, int]) -> None:
        """Machines that run and that HF has not listed for 24 h, by pool."""
        self._unlisted.replace({(pool,): count for pool, count in counts.items()})

    def stuck(self, counts: Mapping[str, int]) -> None:
        """Machines that go on terminating long after the end of their grace period, by pool."""
        self._stuck.replace({(pool,): count for pool, count in counts.items()})

    def set_aside(self, count: int) -> None:
        """Slots that wait for a person."""
        self._set_aside.set(count)

    def requests(self, counts: Mapping[tuple[str, RequestStatus], int]) -> None:
        """Requests and returns in the state files, by (kind, status); kinds are ``KINDS``."""
        self._requests.replace(counts)

    def store_bytes(self, sizes: Mapping[str, int]) -> None:
        """Size of the state files, by file name."""
        self._bytes.replace({(file,): size for file, size in sizes.items()})

    # --- what happened ---

    def observed(self, pool: str, when: float) -> None:
        """A pool was seen completely; the look began at that epoch time."""
        self._observation.update((pool,), when)

    def outcome(self, outcome: Outcome) -> None:
        """An action was tried."""
        result = RESULTS[0] if outcome.failure is None else RESULTS[1]
        action = outcome.action
        if isinstance(action, Create):
            self._creates.labels(action.pool, result).inc()
        else:
            self._deletes.labels(action.pool, action.reason, result).inc()

    def started(self, pool: str, template: str, seconds: float) -> None:
        """A machine runs, so long after its request."""
        self._startup.labels(pool, template).observe(seconds)

    def stopped(self, pool: str, seconds: float) -> None:
        """A returned machine is gone, so long after its return."""
        self._shutdown.labels(pool).observe(seconds)

    def lost(self, pool: str, template: str, cause: LossCause) -> None:
        """A machine that succeeded has vanished."""
        self._lost.labels(pool, template, cause).inc()

    def failed(self, pool: str, template: str, error: ErrorClass) -> None:
        """A slot ended failed."""
        self._failed.labels(pool, template, error).inc()

    def call(self, pool: str, operation: Operation, seconds: float) -> None:
        """A backend was called."""
        self._calls.labels(pool, operation).observe(seconds)

    def error(self, pool: str, operation: Operation, error: ErrorClass) -> None:
        """A look, a create or a delete failed."""
        self._errors.labels(pool, operation, error).inc()

    def lock_wait(self, seconds: float) -> None:
        """The lock of intent.json was waited for."""
        self._lock_wait.observe(seconds)


class MeasuredBackend:
    """A backend that does what another does, and tells the metrics how long it took and what failed."""

    def __init__(self, backend: Backend, metrics: Metrics) -> None:
        self._backend, self._metrics = backend, metrics
        self.pool, self.lag, self.pace = backend.pool, backend.lag, backend.pace

    def start(self, wake: Callable[[], None]) -> None:
        """As the backend does."""
        self._backend.start(wake)

    def observe(self, now: float, strangers: Collection[str]) -> Snapshot:
        """As the backend does; a failed look counts with its class, a surprise as ``other``."""
        began = time.monotonic()
        try:
            return self._backend.observe(now, strangers)
        except Exception as error:
            known = error.failure.error if isinstance(error, BackendError) else ErrorClass.OTHER
            self._metrics.error(self.pool, "observe", known)
            raise
        finally:
            self._metrics.call(self.pool, "observe", time.monotonic() - began)

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """As the backend does."""
        return self._act("create", lambda: self._backend.create(creates, may_start))

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """As the backend does."""
        return self._act("delete", lambda: self._backend.delete(deletes, may_start))

    def close(self) -> None:
        """As the backend does."""
        self._backend.close()

    def _act(self, operation: Operation, act: Callable[[], list[Outcome]]) -> list[Outcome]:
        began = time.monotonic()
        try:
            outcomes = act()
        finally:
            self._metrics.call(self.pool, operation, time.monotonic() - began)
        for outcome in outcomes:
            if outcome.failure is not None:
                self._metrics.error(self.pool, operation, outcome.failure.error)
        return outcomes
