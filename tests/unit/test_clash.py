"""Machines under our names that keep appearing without a request: somebody else has our identity."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from provisioner.backends.fake import Mark
from provisioner.model import BrakeReason, Contact, Memory, Plan
from provisioner.planning.clash import LOOKS, REMEMBERED, SETTLED
from tests.support.cycle_bench import Bench
from tests.unit.core import NOW, limits, machine, memory, name, plan, pool, snapshot

STRANGER = "zzzzzzzzzz"
LIMITS = limits(pool("a"))
FIRST, SECOND = name(0, STRANGER), name(1, STRANGER)


def planned(known: Memory, there: Collection[int], now: float = NOW, started: float = 0.0, **contact: object) -> Plan:
    """The plan for a pool that shows these machines of a request that nobody knows."""
    seen = snapshot(*(machine(number, request=STRANGER) for number in there), began=now - 1)
    heard = Contact(since=now, active=now, started=started, **contact)  # type: ignore[arg-type]
    return plan(known, seen, limits=LIMITS, contact=heard, now=now)


def reason(last: Plan) -> BrakeReason | None:
    return last.memory.brake.reason if last.memory.brake else None


def test_new_machines_without_a_request_in_two_looks_latch_the_brake() -> None:
    first = planned(memory(), [0])
    assert reason(first) is None
    assert first.memory.appeared == {FIRST: NOW}
    last = planned(first.memory, [0, 1], NOW + 300)
    assert reason(last) is BrakeReason.IDENTITY_CLASH
    assert last.memory.brake is not None
    assert last.memory.brake.pool == "a"
    assert last.memory.brake.detail == (
        f"2 machines with our names that nobody asked us for have appeared in {LOOKS} looks, the last is {SECOND}: "
        "another provisioner may have the same id and name prefix here."
    )


def test_also_when_the_first_is_gone_again() -> None:
    first = planned(memory(), [0])
    gone = planned(first.memory, [], NOW + 60)
    assert reason(planned(gone.memory, [1], NOW + 300)) is BrakeReason.IDENTITY_CLASH


def test_machines_that_stay_are_no_news() -> None:
    first = planned(memory(), [0, 1, 2])
    assert reason(planned(first.memory, [0, 1, 2], NOW + 300)) is None


def test_an_hour_later_it_is_another_matter() -> None:
    first = planned(memory(), [0])
    last = planned(first.memory, [0, 1], NOW + REMEMBERED)
    assert reason(last) is None
    assert last.memory.appeared == {SECOND: NOW + REMEMBERED}


@pytest.mark.parametrize(("age", "new"), [(SETTLED, False), (SETTLED + 1, True)], ids=["begins", "has begun"])
def test_what_came_while_no_loop_ran_is_not_new(age: float, new: bool) -> None:
    last = planned(memory(), [0], started=NOW - age)
    assert bool(last.memory.appeared) is new


@pytest.mark.parametrize(
    "known", [memory(orphans={SECOND: NOW - 900}), memory(accepted=(SECOND,))], ids=["noted", "seen by a person"]
)
def test_orphans_that_were_known_before_are_not_new(known: Memory) -> None:
    first = planned(known, [0, 1])
    assert first.memory.appeared == {FIRST: NOW}
    assert reason(planned(first.memory, [0, 1], NOW + 300)) is None


def test_a_machine_that_hf_lists_is_its_own_business() -> None:
    first = planned(memory(), [0])
    assert reason(planned(first.memory, [0, 1], NOW + 300, listed={SECOND: NOW})) is None


def test_a_person_releases_the_brake_and_two_more_looks_latch_it_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.succeed(1)
    bench.cycle(20)

    def somebody_makes(number: int) -> BrakeReason | None:
        mark = name(number, STRANGER)
        bench.place.place.create(mark, Mark("demo", "pool", mark))
        bench.cycle(3)
        brake = bench.state.memory.read().brake
        return brake.reason if brake else None

    assert [somebody_makes(number) for number in range(2)] == [None, BrakeReason.IDENTITY_CLASH]
    bench.cycle(300)
    assert not bench.place.deleted, "two provisioners do not fight"
    bench.state.ask_recovery()
    bench.cycle(2)
    assert bench.state.memory.read().brake is None
    assert [somebody_makes(number) for number in range(2, 4)] == [None, BrakeReason.IDENTITY_CLASH]
