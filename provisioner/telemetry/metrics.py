"""Every metric of the provisioner, each name one literal; it takes plain facts, and decides nothing.

Timestamps are epoch seconds, durations seconds.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Generic, Literal, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from provisioner import __version__
from provisioner.loop.cycle import CycleResult
from provisioner.loop.wakeups import Wake
from provisioner.model import (
    BrakeReason,
    Create,
    DeleteReason,
    ErrorClass,
    LeverKind,
    Limits,
    LossCause,
    Outcome,
    PendingReason,
    Phase,
    RequestStatus,
)

# Else every counter and histogram has a second series, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

Key = TypeVar("Key", bound=str | tuple[str, ...])
"""The label value of a series, or the values where it has several labels."""

Operation = Literal["observe", "create", "delete"]
OPERATIONS: tuple[Operation, ...] = ("observe", "create", "delete")
RESULTS = ("ok", "failed")
"""Results of one create or delete."""
WORTHS = ("notice", "wake_up", "repeated", "foreign", "malformed")
"""What a Pub/Sub message was good for (``events.Worth``, whose module loads Pub/Sub's client)."""
KINDS = ("request", "return")
LOGIN_REJECTIONS = ("token", "rate")
"""Reasons of the HTTP server to refuse a login: a wrong token, and one of a client that sent many before."""
CYCLE_BUCKETS = (0.01, 0.05, 0.25, 1, 3, 10)
CALL_BUCKETS = (0.1, 1, 10)
START_BUCKETS = (5, 30, 60, 180, 600)
STOP_BUCKETS = (10, 60, 300, 3600)
LOCK_BUCKETS = (0.001, 0.01, 0.1, 1, 10)
"""Upper bounds in seconds. Few, as each costs one series per label set."""

PAIR = ("pool", "template")
Pair = tuple[str, str]
"""A pool and a template whose machines it makes."""

EXPECTED_DEFERRALS = (PendingReason.WINDOW, PendingReason.CAP, PendingReason.BACKOFF, PendingReason.PAUSED)
"""The reasons of deferred machines that are exported also as zero. Few sites have a budget, which is the other one."""


class Table(Collector, Generic[Key]):
    """A gauge whose series are replaced all at once: a scrape sees the old or the new ones, and no stale one stays."""

    family: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily

    def __init__(self, registry: CollectorRegistry, name: str, meaning: str, labels: Sequence[str]) -> None:
        self._name, self._meaning, self._labels = name, meaning, labels
        self._expected: Mapping[Key, float] = {}
        self._values: Mapping[Key, float] = {}
        registry.register(self)

    def expect(self, keys: Iterable[Key], empty: float = 0.0) -> None:
        """The series that are exported as ``empty`` when no value is given for them."""
        self._expected = dict.fromkeys(keys, empty)

    def forget_unexpected(self) -> None:
        """Drop the values of series that are no longer expected."""
        self._values = {key: value for key, value in self._values.items() if key in self._expected}

    def replace(self, values: Mapping[Key, float]) -> None:
        """The values from now on, by label values."""
        self._values = dict(values)

    def update(self, key: Key, value: float) -> None:
        """One more value, or another one."""
        self._values = {**self._values, key: value}

    def describe(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Name and type, without the values."""
        yield self.family(self._name, self._meaning, labels=self._labels)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """All series as they are now."""
        family = self.family(self._name, self._meaning, labels=self._labels)
        for key, value in {**self._expected, **self._values}.items():
            family.add_metric([str(part) for part in ((key,) if isinstance(key, str) else key)], value)
        yield family


class CountedTable(Table[Key]):
    """The same for a counter whose values are counted elsewhere, across restarts."""

    family = CounterMetricFamily


class LoopMetrics:
    """Cycles, what woke them, and the configuration that they obey."""

    def __init__(self, registry: CollectorRegistry, provisioner: str) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        build = gauge("hf_provisioner_build_info", "The version that runs; always 1.", ["version"])
        build.labels(__version__).set(1)
        self._active = gauge(
            "hf_provisioner_active",
            "1 once this process has run a cycle of its provisioner's loop; 0 while it stands by for another one.",
            ["provisioner"],
        ).labels(provisioner)
        self._cycles = counter(
            "hf_provisioner_cycles_total", "Cycles; partial: some action or pool failed.", ["result"]
        )
        for result in get_args(CycleResult):
            self._cycles.labels(result)
        self._cycle_duration = histogram("hf_provisioner_cycle_duration_seconds", "One cycle.", buckets=CYCLE_BUCKETS)
        self._last_success = gauge(
            "hf_provisioner_last_success_timestamp_seconds",
            "End of the last ok cycle; begins with the start of the process.",
        )
        self._last_success.set(time.time())
        self.config_ok = gauge("hf_provisioner_config_ok", "0 while a bad new configuration is refused.")
        self.config_ok.set(1)
        self.config_differs: Table[str] = Table(
            registry,
            "hf_provisioner_config_differs",
            "1 for a file of HostFactory's of which its scripts have read another content than the loop.",
            ["file"],
        )
        self.wakeups = counter("hf_provisioner_wakeups_total", "What ended the wait for a cycle.", ["source"])
        for source in Wake:
            self.wakeups.labels(source)

    def cycle(self, result: CycleResult, seconds: float, ended: float) -> None:
        """A cycle ended with ``result`` after ``seconds``, at epoch time ``ended``: so this process is the loop."""
        self._active.set(1)
        self._cycles.labels(result).inc()
        self._cycle_duration.observe(seconds)
        if result == "ok":
            self._last_success.set(ended)


class MachineMetrics:
    """What is wanted and what is there, counted anew each time; all are tables."""

    def __init__(self, registry: CollectorRegistry) -> None:
        table = partial(Table, registry)
        self.desired: Table[tuple[str, str]] = table(
            "hf_provisioner_machines_desired", "Slots that should have a machine.", PAIR
        )
        self.observed: Table[tuple[str, str, Phase]] = table(
            "hf_provisioner_machines", "Machines observed.", [*PAIR, "phase"]
        )
        self.deferred: Table[tuple[str, str, PendingReason]] = table(
            "hf_provisioner_machines_deferred", "Machines wanted, missing and held back.", [*PAIR, "reason"]
        )
        self.refused: Table[tuple[str, str, ErrorClass]] = table(
            "hf_provisioner_machines_refused",
            "Machines that are wanted and wait because their place refuses them.",
            [*PAIR, "error"],
        )
        self.window: Table[str] = table(
            "hf_provisioner_window", "Machines that may be pending now, all templates together.", ["pool"]
        )
        self.oldest_unmet: Table[str] = table(
            "hf_provisioner_oldest_unmet_timestamp_seconds",
            "When the oldest open slot was requested; NaN if there is none.",
            ["template"],
        )
        self.brake: Table[tuple[str, BrakeReason]] = table(
            "hf_provisioner_brake_engaged",
            "1 while orphan deletion is held; an empty pool means all of them.",
            ["pool", "reason"],
        )
        self.levers: Table[tuple[LeverKind, str]] = table(
            "hf_provisioner_lever",
            "Levers that people hold; an empty pool means all of them, or a cancel that is not done yet.",
            ["lever", "pool"],
        )
        self.unlisted: Table[str] = table(
            "hf_provisioner_machines_unlisted",
            "Machines of ours that run and were in no list of HostFactory for 24 h.",
            ["pool"],
        )
        self.stuck: Table[str] = table(
            "hf_provisioner_machines_stuck",
            "Machines of ours that were to go and are still there, a minute after the end of their grace period.",
            ["pool"],
        )

        self.down: Table[str] = table(
            "hf_provisioner_machines_down", "Machines that HostFactory was told of and that do not run now.", ["pool"]
        )

    def expect(self, limits: Limits, pairs: Collection[Pair]) -> None:
        """Export the series of these pools, templates and pairs as zero."""
        self.desired.expect(pairs)
        self.observed.expect((*pair, phase) for pair in pairs for phase in (Phase.PENDING, Phase.RUNNING))
        self.deferred.expect((*pair, reason) for pair in pairs for reason in EXPECTED_DEFERRALS)
        self.oldest_unmet.expect(limits.templates, empty=float("nan"))
        for table in (self.window, self.unlisted, self.stuck, self.down):
            table.expect(limits.pools)
        self.brake.expect(("", reason) for reason in BrakeReason)


class SlotMetrics:
    """How slots went."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.set_aside = gauge("hf_provisioner_slots_set_aside", "Slots of which a forbidden transition was asked.")
        self.startup = histogram(
            "hf_provisioner_machine_startup_seconds", "From requested to running.", PAIR, buckets=START_BUCKETS
        )
        self.shutdown = histogram(
            "hf_provisioner_machine_shutdown_seconds", "From returned to gone.", ["pool"], buckets=STOP_BUCKETS
        )
        self.lost = counter(
            "hf_provisioner_machines_lost_total",
            "Machines that succeeded and then vanished, or that HostFactory gave back as their end was announced.",
            [*PAIR, "cause"],
        )
        self.failed = counter("hf_provisioner_slots_failed_total", "Slots that ended failed.", [*PAIR, "error"])
        self.refused = counter(
            "hf_provisioner_refusals_total",
            "Machines that their place refused, whatever became of their slots.",
            ["pool", "error"],
        )

    def expect(self, limits: Limits, pairs: Collection[Pair]) -> None:
        """Export the series of these pools, templates and pairs as zero."""
        for pair in pairs:
            for cause in set(LossCause) - {LossCause.EXPIRES}:  # known beforehand: no alert waits for it
                self.lost.labels(*pair, cause)
        for pool in limits.pools:
            for error in [error for error in ErrorClass if error.is_refusal]:
                self.refused.labels(pool, error)


class BackendMetrics:
    """Looks at pools and actions in them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.observation: Table[str] = Table(
            registry,
            "hf_provisioner_observation_timestamp_seconds",
            "Time of the last complete observation; begins with the start of the process.",
            ["pool"],
        )
        self._creates = counter("hf_provisioner_creates_total", "Create actions, in machines.", ["pool", "result"])
        self._deletes = counter(
            "hf_provisioner_deletes_total", "Delete actions, in machines.", ["pool", "reason", "result"]
        )
        self.calls = histogram(
            "hf_provisioner_backend_call_seconds",
            "One look at a pool, or one batch of creates or deletes.",
            ["pool", "operation"],
            buckets=CALL_BUCKETS,
        )
        self.errors = counter(
            "hf_provisioner_backend_errors_total",
            "Looks, creates and deletes that failed.",
            ["pool", "operation", "error"],
        )

    def expect(self, limits: Limits) -> None:
        """Export the series of these pools as zero; a pool that was never seen, as seen now."""
        self.observation.expect(limits.pools, empty=time.time())
        self.observation.forget_unexpected()
        for pool in limits.pools:
            for result in RESULTS:
                self._creates.labels(pool, result)
            for reason in DeleteReason:
                self._deletes.labels(pool, reason, RESULTS[0])
            for operation in OPERATIONS:
                self.errors.labels(pool, operation, ErrorClass.DENIED)

    def outcome(self, outcome: Outcome) -> None:
        """An action was tried."""
        result = RESULTS[0] if outcome.failure is None else RESULTS[1]
        action = outcome.action
        if isinstance(action, Create):
            self._creates.labels(action.pool, result).inc()
        else:
            self._deletes.labels(action.pool, action.reason, result).inc()


class StoreMetrics:
    """The state files."""

    def __init__(self, registry: CollectorRegistry) -> None:
        table = partial(Table, registry)
        histogram = partial(Histogram, registry=registry)
        self.requests: Table[tuple[str, RequestStatus]] = table(
            "hf_provisioner_requests", "Requests and returns in the state files.", ["kind", "status"]
        )
        self.requests.expect((kind, status) for kind in KINDS for status in RequestStatus)
        self.lock_wait = histogram(
            "hf_provisioner_store_lock_wait_seconds", "Wait for the lock of intent.json.", buckets=LOCK_BUCKETS
        )
        self.bytes: Table[str] = table("hf_provisioner_store_bytes", "Size of a state file.", ["file"])


class ServerMetrics:
    """The HTTP server. Most loops never need the series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rejections = Counter(
            "hf_provisioner_server_rejections_total",
            "Logins, requests and connections that the HTTP server turned away.",
            ["reason"],
            registry=registry,
        )

    def expect_logins(self) -> None:
        """Export the series of failed logins as zero."""
        for reason in LOGIN_REJECTIONS:
            self.rejections.labels(reason)


class UsageMetrics:
    """For how long machines were there, and what they cost; costs only where something has a price."""

    def __init__(self, registry: CollectorRegistry) -> None:
        table = partial(Table, registry)
        self.seconds: CountedTable[str] = CountedTable(
            registry,
            "hf_provisioner_machine_seconds_total",
            "Seconds for which machines were there, all together, since usage is counted.",
            ["pool"],
        )
        self.per_hour: Table[tuple[()]] = table(
            "hf_provisioner_cost_per_hour", "What the machines that are there cost in an hour.", []
        )
        self.month: Table[tuple[()]] = table(
            "hf_provisioner_cost_this_month", "What machines have cost in this calendar month (UTC).", []
        )
        self.budget: Table[str] = table(
            "hf_provisioner_budget", "What machines may cost in an hour or in a month.", ["per"]
        )


class EventMetrics:
    """What became of Pub/Sub messages. Only where a subscription is configured: nobody else needs the series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.events = counter("hf_provisioner_events_total", "Pub/Sub messages, by what they were good for.", ["worth"])
        for worth in WORTHS:
            self.events.labels(worth)
        self.breaks = counter(
            "hf_provisioner_event_stream_breaks_total",
            "How often the Pub/Sub stream ended by itself and was opened again.",
        )


class Metrics:
    """All metrics but those of messages, by groups, on one registry; and those of the process."""

    def __init__(self, registry: CollectorRegistry, provisioner: str = "") -> None:
        """``provisioner``: the id, by which alerts tell several in one Prometheus apart."""
        self.registry = registry
        ProcessCollector(registry=registry)
        self.loop = LoopMetrics(registry, provisioner)
        self.machines = MachineMetrics(registry)
        self.slots = SlotMetrics(registry)
        self.backends = BackendMetrics(registry)
        self.store = StoreMetrics(registry)
        self.usage = UsageMetrics(registry)
        self.server = ServerMetrics(registry)
        self._limits = Limits("", {}, {})
        self._used: frozenset[Pair] = frozenset()

    def configure(self, limits: Limits) -> None:
        """Export the series of these pools and templates as zero until something happens to them."""
        self._limits = limits
        self._expect()
        self.backends.expect(limits)

    def use(self, pairs: Set[Pair]) -> None:
        """These pairs have or had machines: from now on their series begin as zero, too."""
        if not pairs <= self._used:
            self._used |= pairs
            self._expect()

    def _expect(self) -> None:
        """A template that names many pools fills the first before the others, most of which are never needed."""
        templates = self._limits.templates.values()
        pairs = [
            (pool, template.id)
            for template in templates
            for pool in template.pools
            if pool == template.pools[0] or (pool, template.id) in self._used
        ]
        self.machines.expect(self._limits, pairs)
        self.slots.expect(self._limits, pairs)
