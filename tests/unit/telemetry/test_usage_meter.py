"""The metrics of usage after a cycle: machine-seconds that never fall, costs and budgets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from provisioner.loop.cycle_report import CycleReport
from provisioner.model import Budget, Limits, Memory
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.usage import count_usage
from provisioner.telemetry.cycle_metrics import UsageMeter
from provisioner.telemetry.metrics import Metrics
from tests.support.parts import alter
from tests.unit.core import NOW, REQUEST, limits, memory, pool, record, slot, snapshot

RAN = slot(1, submitted_at=NOW - 90, was_seen=True, ran_at=NOW - 70)


class Meter:
    """A usage meter and its metrics."""

    def __init__(self) -> None:
        self.limits = limits()
        self._metrics = Metrics(CollectorRegistry())
        self._meter = UsageMeter(self._metrics)

    def record_cycle(
        self, remembered: Memory | None, began: float | None = None, *, later: float = 0.0, problem: str = ""
    ) -> None:
        """Record a cycle; ``began``: the beginning of its snapshot of pool ``a``, None if the pool cannot be seen."""
        observations = {} if began is None else {"a": snapshot(began=began)}
        self._meter.record_cycle(
            CycleReport(1, NOW + later, 0.5, observations, remembered, None, {}, problem=problem),
            self.limits,
            NOW + later,
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self._metrics.registry.get_sample_value(f"hf_provisioner_{name}", labels)

    @property
    def seconds(self) -> float | None:
        return self.value("machine_seconds_total", pool="a")


def test_machine_seconds_count_gone_machines_and_machines_of_the_last_observation() -> None:
    meter = Meter()
    boots = slot(2, submitted_at=NOW - 90, was_seen=True)
    remembered = memory(record(RAN, boots), usage={"2026-11-01": {("T", "a", ""): 5000}, "": {("", "a", ""): 250}})
    meter.record_cycle(remembered)
    assert meter.seconds is None, "before its first observation a process cannot know as much as the process before it"
    meter.record_cycle(remembered, NOW - 10, later=60)
    assert meter.seconds == 5.25 + 80.0
    meter.record_cycle(remembered, NOW + 14, later=61)
    assert meter.seconds == 5.25 + 80.0, "not summed at every cycle"
    meter.record_cycle(remembered, NOW + 114, later=120, problem="it cannot plan")
    meter.record_cycle(None, NOW + 114, later=120)
    assert meter.seconds == 5.25 + 80.0


def test_a_machine_that_is_found_gone_lowers_no_sum() -> None:
    meter = Meter()
    ran = alter(RAN, submitted_at=NOW - 89.9999)
    lacked = alter(ran, absent_since=NOW - 8.99951)
    meter.record_cycle(memory(record(ran)), NOW - 10)
    assert meter.seconds == 80.0
    meter.record_cycle(memory(record(lacked)), NOW + 30, later=60)
    missed = meter.seconds
    meter.record_cycle(counted_without(memory(record(lacked)), meter.limits), NOW + 45, later=120)
    assert meter.seconds == missed == 81.0


def counted_without(remembered: Memory, allowed: Limits) -> Memory:
    """Return the memory after the plan has found the only machine gone and has counted the machine's usage."""
    draft = Draft(remembered, {}, allowed, NOW)
    (record_,) = remembered.requests.values()
    draft.put_slots(REQUEST, alter(record_.slots[1], is_gone=True))
    count_usage(draft)
    return draft.memory()


def test_costs_are_exported_if_a_pool_has_a_price() -> None:
    meter = Meter()
    remembered = memory(record(alter(RAN, submitted_at=NOW - 3600.0)))
    meter.record_cycle(remembered)
    assert meter.value("cost_per_hour") is None
    budget = Budget(per_hour=7.0, per_month=90.0)
    meter.limits = replace(limits(pool("a", price_per_hour=2.0), pool("b")), budget=budget)
    meter.record_cycle(remembered, later=60)
    assert meter.value("cost_per_hour") == 2.0
    assert meter.value("cost_this_month") == pytest.approx(2.0 * 3660 / 3600, abs=1e-3)
    assert (meter.value("budget", per="hour"), meter.value("budget", per="month")) == (7.0, 90.0)
