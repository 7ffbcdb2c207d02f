"""Pools that the configuration has moved. The loop does not observe such a pool while its old place has machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import (
    NEVER,
    Distrusted,
    DistrustReason,
    Intent,
    Limits,
    Memory,
    PoolLimits,
    RequestRecord,
    Slot,
    Verdict,
)
from provisioner.planning.core.draft import Draft
from provisioner.planning.observe.trust import configured_places, find_distrusted, format_distrust
from provisioner.planning.plan import PlanInputs, make_plan
from tests.support.parts import alter

HERE, THERE = "group a in z of project p", "group b in z of project p"
RUNNING = Slot("hf-aaaaaaaaaa-000000", "m", Verdict.SUCCEEDED, 0.0, submitted_at=0.0)


def limits(where: str) -> Limits:
    return Limits(prefix="hf", pools={"m": PoolLimits("m", where=where)}, templates={})


def moved(known: Memory, limits: Limits) -> dict[str, Distrusted]:
    return find_distrusted(Draft(known, {}, limits, 1.0), configured_places(known, limits))


def memory(where: str, *slots: Slot) -> Memory:
    record = RequestRecord("aaaaaaaaaa", "T", 1, 0.0, 60.0, slots=dict(enumerate(slots)))
    return alter(Memory("demo"), requests={record.id: record}, configured={"m": where} if where else {})


@pytest.mark.parametrize(
    ("slot", "has_machines"),
    [
        pytest.param(RUNNING, True, id="a machine"),
        pytest.param(RUNNING._replace(verdict=Verdict.RETURNED), True, id="one that is being deleted"),
        pytest.param(alter(RUNNING, verdict=Verdict.LOST, is_gone=True), False, id="one that is gone"),
        pytest.param(RUNNING._replace(verdict=Verdict.OPEN, submitted_at=None), False, id="one that was not asked for"),
        pytest.param(RUNNING._replace(pool="other"), False, id="one of another pool"),
    ],
)
def test_a_pool_stays_where_its_machines_are(slot: Slot, has_machines: bool) -> None:
    remembered = memory(HERE, slot)
    assert configured_places(remembered, limits(THERE)) == {"m": HERE if has_machines else THERE}
    assert moved(remembered, limits(THERE)).keys() == ({"m"} if has_machines else set())
    assert moved(remembered, limits(HERE)) == {}


def test_what_is_said_names_the_setting_and_both_places() -> None:
    distrusted = moved(memory(HERE, RUNNING), limits(THERE))["m"]
    assert (distrusted.reason, distrusted.until) == (DistrustReason.POOL_MOVED, NEVER)
    assert format_distrust("m", distrusted, 0.0).startswith(
        f"pools.m is now {THERE}, but has machines in {HERE}: restore the setting"
    )


def test_a_place_that_memory_does_not_know_yet_is_the_one_configured() -> None:
    remembered = memory("", RUNNING)
    assert configured_places(remembered, limits(HERE)) == {"m": HERE}
    assert moved(remembered, limits(HERE)) == {}


def test_a_plan_remembers_where_pools_are_configured() -> None:
    made = make_plan(PlanInputs(Intent("demo", 0, {}, {}), {}), memory(HERE), limits(THERE), 1.0)
    assert made.memory.places.configured == {"m": THERE}


def test_a_pool_that_is_not_configured_keeps_its_place_in_mind() -> None:
    none = replace(limits(HERE), pools={})
    assert configured_places(memory(HERE, RUNNING), none) == {"m": HERE}
    assert moved(memory(HERE, RUNNING), none) == {}
