"""Machines with our names that keep appearing without a request: another provisioner has our identity."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.lab.fake_backend import Mark
from provisioner.model import Brake, BrakeReason, HfActivity, Limits, Memory, Moment, Orphans, Plan
from provisioner.planning.cleanup.orphans import MADE_BY_ANOTHER
from provisioner.planning.observe.trust import APPEARED_SECONDS, FIRST_SECONDS, SNAPSHOTS
from tests.support.cycle_bench import Bench
from tests.unit.core import NOW, limits, machine, memory, name, plan, pool, snapshot

UNKNOWN_NAME = "zzzzzzzzzz"
LIMITS = limits(pool("a"))
FIRST, SECOND = name(0, UNKNOWN_NAME), name(1, UNKNOWN_NAME)


WALL = 1_700_000_000.0
"""The clock of a place at loop time NOW."""


def planned(
    known: Memory,
    there: Collection[int],
    now: float = NOW,
    started: float = 0.0,
    age: float | None = None,
    allowed: Limits = LIMITS,
    **activity: object,
) -> Plan:
    """Return the plan for a pool that shows these machines of an unknown request. ``age``: their age in seconds; None
    if it is unknown."""
    launched = 0 if age is None else int(WALL - age)
    machines = (machine(number, request=UNKNOWN_NAME, launched=launched) for number in there)
    seen = snapshot(*machines, began=now - 1, wall=WALL - 1)
    read = HfActivity(since=now, last_call_at=now, started_at=started, **activity)  # type: ignore[arg-type]
    return plan(known, seen, limits=allowed, activity=read, now=now)


def reason(last: Plan) -> BrakeReason | None:
    return last.memory.brake.reason if last.memory.brake else None


def test_new_machines_without_a_request_in_two_observations_latch_the_brake() -> None:
    first = planned(memory(), [0])
    assert reason(first) is None
    assert first.memory.orphans.appeared == {FIRST: NOW}
    last = planned(first.memory, [0, 1], NOW + 300)
    assert reason(last) is BrakeReason.IDENTITY_CONFLICT
    assert last.memory.brake is not None
    assert last.memory.brake.pool == "a"
    assert last.memory.brake.detail == (
        f"2 machines with our names but without a request have appeared in {SNAPSHOTS} snapshots, "
        f"the last is {SECOND}: "
        "another provisioner may have the same id and name prefix here."
    )


def test_a_conflict_that_begins_with_many_machines_is_named_once_more_appear() -> None:
    first = planned(memory(), range(8))
    assert reason(first) is BrakeReason.TOO_MANY_ORPHANS
    last = planned(first.memory, range(9), NOW + 300)
    assert reason(last) is BrakeReason.IDENTITY_CONFLICT
    assert last.memory.brake is not None
    assert last.memory.brake.since == NOW, "the brake is latched since then"
    assert "another provisioner may have the same id" in last.memory.brake.detail


LAG = 30.0
"""Seconds of lag of a pool."""


@pytest.mark.parametrize(
    ("machines", "age", "ran", "lag", "expected"),
    [
        pytest.param(8, 5.0, 20.0, 0.0, BrakeReason.IDENTITY_CONFLICT, id="many that are younger than the loop"),
        pytest.param(8, 5.0, 900.0, LAG, BrakeReason.IDENTITY_CONFLICT, id="many, in a pool with lag"),
        pytest.param(5, 5.0, 20.0, 0.0, None, id="a few: perhaps the late effect of one call"),
        pytest.param(8, 21.0, 20.0, 0.0, BrakeReason.TOO_MANY_ORPHANS, id="many that are older"),
        pytest.param(8, 19.0, 20.0, 0.0, BrakeReason.TOO_MANY_ORPHANS, id="made as the loop before ended"),
        pytest.param(8, 5.0, 20.0, LAG, BrakeReason.TOO_MANY_ORPHANS, id="the loop before asked for them"),
        pytest.param(8, None, 900.0, 0.0, BrakeReason.TOO_MANY_ORPHANS, id="many of unknown age"),
    ],
)
def test_many_machines_younger_than_the_loop_are_a_conflict_at_once(
    machines: int, age: float | None, ran: float, lag: float, expected: BrakeReason | None
) -> None:
    changed = replace(LIMITS, pools={"a": pool("a", lag_seconds=lag)})
    last = planned(memory(), range(machines), started=NOW - ran, age=age, allowed=changed)
    assert reason(last) is expected
    if expected is BrakeReason.IDENTITY_CONFLICT:
        assert last.memory.brake is not None
        assert last.memory.brake.detail == f"8 of 8 machines {MADE_BY_ANOTHER}."


@pytest.mark.parametrize(
    ("age", "orphans", "expected"),
    [
        pytest.param(50.0, Orphans(), BrakeReason.MEMORY_OLDER, id="made while no loop ran"),
        pytest.param(150.0, Orphans(), None, id="made before the last write"),
        pytest.param(102.0, Orphans(), None, id="made as memory was written"),
        pytest.param(5.0, Orphans(), None, id="younger than the loop"),
        pytest.param(None, Orphans(), None, id="of unknown age"),
        pytest.param(50.0, Orphans({FIRST: NOW - 60}), None, id="known as an orphan before"),
        pytest.param(50.0, Orphans(accepted=(FIRST,)), None, id="accepted by an operator"),
    ],
)
def test_a_machine_that_is_younger_than_memory_shows_that_memory_is_an_old_copy(
    age: float | None, orphans: Orphans, expected: BrakeReason | None
) -> None:
    """If memory lacks the slot of a machine that is younger than memory, memory must count as an old copy, because the
    loop records a slot before it makes the machine."""
    known = replace(memory(), written=Moment(NOW - 100, WALL - 100), orphans=orphans)
    last = planned(known, [0], started=NOW - 20, age=age)
    assert reason(last) is expected
    if last.memory.brake:
        assert last.memory.brake.detail == f"memory.json is older than machine {FIRST}."


def test_a_conflict_takes_over_from_leftovers_of_lost_files() -> None:
    first = planned(memory(), range(8), started=NOW - 20, age=900.0)
    assert reason(first) is BrakeReason.TOO_MANY_ORPHANS
    both = planned(first.memory, range(20), NOW + 30, started=NOW - 20, age=5.0)
    assert reason(both) is BrakeReason.IDENTITY_CONFLICT


def test_machines_that_the_loop_before_asked_for_and_the_place_makes_late_are_no_conflict() -> None:
    first = planned(memory(), range(8), started=NOW - 20)
    late = planned(first.memory, range(8), NOW + 60, started=NOW - 20, age=5.0)
    assert reason(late) is BrakeReason.TOO_MANY_ORPHANS


def test_machines_that_were_made_before_the_loop_began_do_not_keep_appearing() -> None:
    first = planned(memory(), [0], started=NOW - 300, age=900.0)
    assert first.memory.orphans.appeared == {}
    assert reason(planned(first.memory, [0, 1], NOW + 300, started=NOW - 300, age=900.0)) is None


@pytest.mark.parametrize("other", [BrakeReason.INTENT_LOST, BrakeReason.WRONG_ENDPOINT, BrakeReason.MEMORY_LOST])
def test_a_conflict_does_not_replace_a_reason_that_it_does_not_explain(other: BrakeReason) -> None:
    first = planned(memory(brake=Brake(other, NOW - 5, "before", "a")), [0])
    assert reason(planned(first.memory, [0, 1], NOW + 300)) is other


@pytest.mark.parametrize(
    ("age", "new"), [(FIRST_SECONDS, False), (FIRST_SECONDS + 1, True)], ids=["begins", "has begun"]
)
def test_what_came_while_no_loop_ran_is_not_new(age: float, new: bool) -> None:
    last = planned(memory(), [0], started=NOW - age)
    assert bool(last.memory.orphans.appeared) is new


@pytest.mark.parametrize(
    ("known", "first", "last", "latched"),
    [
        pytest.param(memory(), [[0]], {}, True, id="another one, five minutes later"),
        pytest.param(memory(), [[0], []], {}, True, id="also when the first is gone again"),
        pytest.param(memory(), [[0, 1]], {}, False, id="the same ones that stay"),
        pytest.param(memory(), [[0]], {"now": NOW + APPEARED_SECONDS}, False, id="an hour later it is another matter"),
        pytest.param(memory(), [[0]], {"listed_at": {SECOND: NOW}}, False, id="HF lists the other one"),
        pytest.param(memory(orphans={SECOND: NOW - 900}), [[0, 1]], {}, False, id="the other one was noted before"),
        pytest.param(memory(accepted=(SECOND,)), [[0, 1]], {}, False, id="an operator has seen the other one"),
    ],
)
def test_only_new_machines_in_a_second_observation_latch_the_brake(
    known: Memory, first: list[list[int]], last: dict[str, Any], latched: bool
) -> None:
    expected = {name(number, UNKNOWN_NAME) for number in first[0]} - {
        *known.orphans.since,
        *known.orphans.accepted,
    }
    for number, there in enumerate(first):
        known = planned(known, there, NOW + 60 * number).memory
    assert known.orphans.appeared == dict.fromkeys(expected, NOW)
    assert reason(planned(known, [0, 1], **({"now": NOW + 300} | last))) is (
        BrakeReason.IDENTITY_CONFLICT if latched else None
    )


def test_an_operator_releases_the_brake_and_two_more_observations_latch_it_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.succeed(1)
    bench.cycle(20)

    def other_provisioner_makes(number: int) -> BrakeReason | None:
        mark = name(number, UNKNOWN_NAME)
        bench.place.place.create(mark, Mark("demo", "pool", mark))
        bench.cycle(3)
        brake = bench.state.memory.read().brake
        return brake.reason if brake else None

    assert [other_provisioner_makes(number) for number in range(2)] == [None, BrakeReason.IDENTITY_CONFLICT]
    bench.cycle(300)
    assert not bench.place.deleted, "two provisioners do not fight"
    bench.state.ask_release()
    bench.cycle(2)
    assert bench.state.memory.read().brake is None
    assert [other_provisioner_makes(number) for number in range(2, 4)] == [None, BrakeReason.IDENTITY_CONFLICT]
