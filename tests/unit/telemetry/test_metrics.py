"""Metrics: their names are a promise; known series begin as zero; backends are timed from outside."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from provisioner import __version__
from provisioner.backends import Backend, BackendError, MayStart
from provisioner.model import (
    Create,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    LeverKind,
    Limits,
    Outcome,
    Phase,
    PoolLimits,
    Snapshot,
    TemplateLimits,
)
from provisioner.telemetry.measured_backend import MeasuredBackend
from provisioner.telemetry.metrics import OPERATIONS, EventMetrics, Metrics

EXPECTED = {
    # name: (type in the exposition format, labels)
    "hf_provisioner_build_info": ("gauge", {"version"}),
    "hf_provisioner_active": ("gauge", {"provisioner"}),
    "hf_provisioner_cycles_total": ("counter", {"result"}),
    "hf_provisioner_cycle_duration_seconds": ("histogram", set()),
    "hf_provisioner_last_success_timestamp_seconds": ("gauge", set()),
    "hf_provisioner_observation_timestamp_seconds": ("gauge", {"pool"}),
    "hf_provisioner_machines_desired": ("gauge", {"pool", "template"}),
    "hf_provisioner_machines": ("gauge", {"pool", "template", "phase"}),
    "hf_provisioner_machines_deferred": ("gauge", {"pool", "template", "reason"}),
    "hf_provisioner_machines_refused": ("gauge", {"pool", "template", "error"}),
    "hf_provisioner_refusals_total": ("counter", {"pool", "error"}),
    "hf_provisioner_lever": ("gauge", {"lever", "pool"}),
    "hf_provisioner_window": ("gauge", {"pool"}),
    "hf_provisioner_oldest_unmet_timestamp_seconds": ("gauge", {"template"}),
    "hf_provisioner_creates_total": ("counter", {"pool", "result"}),
    "hf_provisioner_deletes_total": ("counter", {"pool", "reason", "result"}),
    "hf_provisioner_brake_engaged": ("gauge", {"pool", "reason"}),
    "hf_provisioner_machine_startup_seconds": ("histogram", {"pool", "template"}),
    "hf_provisioner_machine_shutdown_seconds": ("histogram", {"pool"}),
    "hf_provisioner_machines_lost_total": ("counter", {"pool", "template", "cause"}),
    "hf_provisioner_slots_failed_total": ("counter", {"pool", "template", "error"}),
    "hf_provisioner_backend_call_seconds": ("histogram", {"pool", "operation"}),
    "hf_provisioner_backend_errors_total": ("counter", {"pool", "operation", "error"}),
    "hf_provisioner_config_ok": ("gauge", set()),
    "hf_provisioner_config_differs": ("gauge", {"file"}),
    "hf_provisioner_slots_set_aside": ("gauge", set()),
    "hf_provisioner_machines_unlisted": ("gauge", {"pool"}),
    "hf_provisioner_machines_stuck": ("gauge", {"pool"}),
    "hf_provisioner_requests": ("gauge", {"kind", "status"}),
    "hf_provisioner_store_lock_wait_seconds": ("histogram", set()),
    "hf_provisioner_store_bytes": ("gauge", {"file"}),
    "hf_provisioner_wakeups_total": ("counter", {"source"}),
    "hf_provisioner_machine_seconds_total": ("counter", {"pool"}),
    "hf_provisioner_cost_per_hour": ("gauge", set()),
    "hf_provisioner_cost_this_month": ("gauge", set()),
    "hf_provisioner_budget": ("gauge", {"per"}),
    "hf_provisioner_events_total": ("counter", {"worth"}),
    "hf_provisioner_event_stream_breaks_total": ("counter", set()),
}
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
SOURCE = Path(__file__).parents[3] / "provisioner" / "telemetry" / "metrics.py"
REQUEST = "abcdefghij"
LIMITS = Limits(
    prefix="hf",
    pools={"pool": PoolLimits("pool", initial_window=7), "spare": PoolLimits("spare", initial_window=3)},
    templates={"T": TemplateLimits("T", ("pool", "spare")), "U": TemplateLimits("U", ("pool",))},
)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def everything_once(metrics: Metrics) -> None:
    """Every metric has at least one series."""
    EventMetrics(metrics.registry)
    metrics.configure(LIMITS)
    metrics.machines.refused.replace({("pool", "T", ErrorClass.QUOTA): 1})
    metrics.loop.config_differs.replace({"templates": 1})
    metrics.machines.levers.replace({(LeverKind.PAUSE, "pool"): 1})
    metrics.slots.startup.labels("pool", "T").observe(1)
    metrics.slots.failed.labels("pool", "T", ErrorClass.QUOTA).inc()
    metrics.slots.shutdown.labels("pool").observe(1)
    metrics.backends.calls.labels("pool", "observe").observe(1)
    metrics.store.bytes.replace({"intent.json": 10})
    metrics.store.lock_wait.observe(0.1)
    metrics.usage.seconds.replace({"pool": 1})
    metrics.usage.per_hour.replace({(): 1})
    metrics.usage.month.replace({(): 1})
    metrics.usage.budget.replace({"hour": 1, "month": 1})


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_types_and_labels_are_the_promised_ones(metrics: Metrics) -> None:
    everything_once(metrics)
    families = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        if name.startswith("process_"):
            continue
        families[name] = (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})

    assert families == EXPECTED


def test_each_full_name_stands_in_the_code_once_and_in_one_piece() -> None:
    literals = re.findall(r'"(hf_provisioner_\w+)"', SOURCE.read_text())

    assert sorted(literals) == sorted(EXPECTED)


def test_every_metric_has_a_meaning(metrics: Metrics) -> None:
    families = list(metrics.registry.collect())

    assert all(len(family.documentation) >= len("One cycle.") for family in families)


def test_the_page_lists_every_metric_with_its_type_and_labels() -> None:
    rows = re.findall(r"^\| `(hf_\w+)` \| (\w+) \| ([\w, ]*?) ?\| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    listed = {name: (kind, set(labels.split(", ")) - {""}) for name, kind, labels, _ in rows}

    assert listed == EXPECTED
    assert len(rows) == len(listed), "each once"


def test_two_instances_do_not_share_series(metrics: Metrics) -> None:
    other = Metrics(CollectorRegistry())
    metrics.loop.wakeups.labels("timer").inc()

    assert value(other, "hf_provisioner_wakeups_total", source="timer") == 0


def test_no_series_beyond_500_with_ten_templates_and_four_pools(metrics: Metrics) -> None:
    pools = [f"pool-{number}" for number in range(4)]
    templates = {f"T{n}": TemplateLimits(f"T{n}", tuple(pools[n % 4 :] + pools[: n % 4])) for n in range(10)}
    metrics.configure(Limits(prefix="hf", pools={pool: PoolLimits(pool) for pool in pools}, templates=templates))
    for template in templates.values():
        metrics.slots.startup.labels(template.pools[0], template.id).observe(1)
    for pool in pools:
        metrics.slots.shutdown.labels(pool).observe(1)
        for operation in OPERATIONS:
            metrics.backends.calls.labels(pool, operation).observe(1)
    metrics.machines.observed.replace({(t.pools[0], t.id, phase): 1 for t in templates.values() for phase in Phase})
    metrics.usage.seconds.replace(dict.fromkeys(pools, 1))
    metrics.usage.per_hour.replace({(): 1})
    metrics.usage.month.replace({(): 1})
    metrics.usage.budget.replace({"hour": 1, "month": 1})
    metrics.store.bytes.replace(dict.fromkeys(("intent.json", "memory.json", "status.json", "journal.jsonl"), 1))

    assert sum(len(family.samples) for family in metrics.registry.collect()) < 500


ZERO = [
    ("hf_provisioner_cycles_total", {"result": "failed"}),
    ("hf_provisioner_machines_desired", {"pool": "spare", "template": "T"}),
    ("hf_provisioner_machines", {"pool": "spare", "template": "T", "phase": "running"}),
    ("hf_provisioner_machines_deferred", {"pool": "pool", "template": "U", "reason": "window"}),
    ("hf_provisioner_window", {"pool": "spare"}),
    ("hf_provisioner_creates_total", {"pool": "spare", "result": "failed"}),
    ("hf_provisioner_deletes_total", {"pool": "spare", "reason": "orphaned", "result": "ok"}),
    ("hf_provisioner_brake_engaged", {"pool": "", "reason": "memory_lost"}),
    ("hf_provisioner_machines_lost_total", {"pool": "pool", "template": "U", "cause": "node"}),
    ("hf_provisioner_refusals_total", {"pool": "spare", "error": "stockout"}),
    ("hf_provisioner_backend_errors_total", {"pool": "pool", "operation": "delete", "error": "denied"}),
    ("hf_provisioner_machines_unlisted", {"pool": "spare"}),
    ("hf_provisioner_requests", {"kind": "return", "status": "complete"}),
    ("hf_provisioner_wakeups_total", {"source": "pubsub"}),
]


@pytest.mark.parametrize(("name", "labels"), ZERO, ids=[name for name, _ in ZERO])
def test_known_series_are_there_as_zero(metrics: Metrics, name: str, labels: dict[str, str]) -> None:
    metrics.configure(LIMITS)
    metrics.use({("spare", "T")})

    assert value(metrics, name, **labels) == 0


PAIRED = (
    ("hf_provisioner_machines_desired", {}),
    ("hf_provisioner_machines", {"phase": "running"}),
    ("hf_provisioner_machines_deferred", {"reason": "window"}),
    ("hf_provisioner_machines_lost_total", {"cause": "node"}),
)


@pytest.mark.parametrize(("name", "labels"), PAIRED, ids=[name for name, _ in PAIRED])
def test_a_pool_that_a_template_names_second_has_its_series_once_it_is_used(
    metrics: Metrics, name: str, labels: dict[str, str]
) -> None:
    def second() -> float | None:
        return value(metrics, name, pool="spare", template="T", **labels)

    metrics.configure(LIMITS)
    named = second()
    metrics.use({("spare", "T"), ("left", "T")})
    used = second()
    metrics.configure(LIMITS)

    assert (named, used, second()) == (None, 0, 0)
    assert value(metrics, name, pool="left", template="T", **labels) is None, "not in the configuration"


def test_messages_are_counted_by_worth_from_zero_on_where_there_is_a_subscription(metrics: Metrics) -> None:
    assert value(metrics, "hf_provisioner_events_total", worth="notice") is None
    events = EventMetrics(metrics.registry)
    events.events.labels("notice").inc()
    events.breaks.inc()

    assert value(metrics, "hf_provisioner_events_total", worth="notice") == 1
    assert value(metrics, "hf_provisioner_events_total", worth="malformed") == 0
    assert value(metrics, "hf_provisioner_event_stream_breaks_total") == 1


def test_what_was_never_seen_counts_from_the_start_of_the_process(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    fresh = Metrics(CollectorRegistry())
    fresh.configure(LIMITS)

    assert value(fresh, "hf_provisioner_last_success_timestamp_seconds") == 1000
    assert value(fresh, "hf_provisioner_observation_timestamp_seconds", pool="pool") == 1000
    assert math.isnan(value(fresh, "hf_provisioner_oldest_unmet_timestamp_seconds", template="T") or 0)
    assert value(fresh, "hf_provisioner_build_info", version=__version__) == 1


def test_a_pool_that_left_the_configuration_is_not_blind_for_ever(metrics: Metrics) -> None:
    metrics.configure(LIMITS)
    metrics.backends.observation.update("spare", 5)
    metrics.backends.observation.update("pool", 6)
    metrics.configure(replace(LIMITS, pools={"pool": LIMITS.pools["pool"]}))

    assert value(metrics, "hf_provisioner_observation_timestamp_seconds", pool="spare") is None
    assert value(metrics, "hf_provisioner_observation_timestamp_seconds", pool="pool") == 6


def test_a_process_is_the_loop_of_its_provisioner_from_its_first_cycle_on() -> None:
    metrics = Metrics(CollectorRegistry(), "grid-a")
    standing_by = value(metrics, "hf_provisioner_active", provisioner="grid-a")
    metrics.loop.cycle("failed", 0.1, 50)

    assert (standing_by, value(metrics, "hf_provisioner_active", provisioner="grid-a")) == (0, 1)


def test_only_an_ok_cycle_moves_the_last_success(metrics: Metrics) -> None:
    metrics.loop.cycle("ok", 0.1, 50)
    metrics.loop.cycle("partial", 0.1, 60)
    metrics.loop.cycle("failed", 0.1, 70)

    assert value(metrics, "hf_provisioner_last_success_timestamp_seconds") == 50
    assert value(metrics, "hf_provisioner_cycles_total", result="partial") == 1
    assert value(metrics, "hf_provisioner_cycle_duration_seconds_count") == 3


def test_a_refused_configuration_shows_until_a_good_one(metrics: Metrics) -> None:
    metrics.loop.config_ok.set(False)
    refused = value(metrics, "hf_provisioner_config_ok")
    metrics.loop.config_ok.set(True)

    assert (refused, value(metrics, "hf_provisioner_config_ok")) == (0, 1)


# --- the measured backend ---------------------------------------------------------------------------------------------


class Place:
    """A backend that fails as it is told."""

    pool, lag, pace = "pool", 3.0, 7.0

    def __init__(self, error: Exception | None = None, failure: Failure | None = None) -> None:
        self.error, self.failure = error, failure
        self.told: list[object] = []

    def start(self, wake: Callable[[], None]) -> None:
        self.told.append(wake)

    def observe(self, now: float, strangers: Collection[str]) -> Snapshot:
        self.told.append((now, strangers))
        if self.error:
            raise self.error
        return Snapshot("pool", now, {})

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        return [Outcome(create, self.failure) for create in creates if may_start()]

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        return [Outcome(delete, self.failure) for delete in deletes if may_start()]

    def close(self) -> None:
        self.told.append("closed")


def test_a_measured_backend_is_a_backend_that_passes_everything_on(metrics: Metrics) -> None:
    place = Place()
    measured: Backend = MeasuredBackend(place, metrics.backends)
    wake = print

    measured.start(wake)
    look = measured.observe(5.0, {"x"})
    created = measured.create([Create("a", "pool", "T", REQUEST)], lambda: True)
    measured.close()

    assert place.told == [wake, (5.0, {"x"}), "closed"]
    assert (measured.pool, measured.lag, measured.pace) == ("pool", 3.0, 7.0)
    assert (look.began, created) == (5.0, [Outcome(Create("a", "pool", "T", REQUEST))])


def test_a_measured_backend_asks_for_a_list_where_there_is_something_to_list_anew(metrics: Metrics) -> None:
    class Watched(Place):
        def list_after(self, when: float) -> None:
            self.told.append(when)

    place = Watched()
    MeasuredBackend(place, metrics.backends).list_after(7.0)
    assert place.told == [7.0]
    MeasuredBackend(Place(), metrics.backends).list_after(7.0)


@pytest.mark.parametrize(
    ("error", "label"),
    [(BackendError(ErrorClass.THROTTLED, "slow down"), "throttled"), (ValueError("surprise"), "other")],
    ids=["its class", "other for a surprise"],
)
def test_a_failed_look_is_timed_and_counts_as(metrics: Metrics, error: Exception, label: str) -> None:
    measured = MeasuredBackend(Place(error=error), metrics.backends)

    with pytest.raises(type(error)):
        measured.observe(5.0, ())

    assert value(metrics, "hf_provisioner_backend_errors_total", pool="pool", operation="observe", error=label) == 1
    assert value(metrics, "hf_provisioner_backend_call_seconds_count", pool="pool", operation="observe") == 1


def test_each_failed_action_counts_and_each_batch_is_timed_once(metrics: Metrics) -> None:
    measured = MeasuredBackend(Place(failure=Failure(ErrorClass.DENIED, "no")), metrics.backends)

    measured.create([Create(name, "pool", "T", REQUEST) for name in "abc"], lambda: True)
    measured.delete([Delete(name, "pool", DeleteReason.LOST) for name in "ab"], lambda: True)

    def errors(operation: str) -> float | None:
        return value(metrics, "hf_provisioner_backend_errors_total", pool="pool", operation=operation, error="denied")

    def calls(operation: str) -> float | None:
        return value(metrics, "hf_provisioner_backend_call_seconds_count", pool="pool", operation=operation)

    assert (errors("create"), errors("delete"), calls("create"), calls("delete")) == (3, 2, 1, 1)
