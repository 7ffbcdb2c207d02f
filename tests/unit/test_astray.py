"""A pool for which another place answers: by its identity, or as it shows new machines of ours and none of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.backends.fake import Mark
from provisioner.loop.look_filters import DoubtedPools
from provisioner.model import (
    NEVER,
    Brake,
    BrakeReason,
    ErrorClass,
    LossCause,
    Memory,
    Plan,
    RequestStatus,
    Snapshot,
    Unobserved,
    Verdict,
)
from provisioner.planning.release import without_brake
from tests.support.cycle_bench import Bench
from tests.unit.core import NOW, REQUEST, SEEN, limits, machine, memory, name, plan, pool, record, running, snapshot

ELSEWHERE = "zzzzzzzzzz"
LIMITS = limits(pool("a", early_loss=0.0), pool("b"))
HOUR = 3600.0


def grid(count: int = 10, **changes: object) -> Memory:
    slots = [running(number, Verdict.SUCCEEDED) for number in range(count)]
    return memory(record(*slots, ended=RequestStatus.COMPLETE, told_at=NOW), **changes)


def look(ours: Collection[int] = (), others: Collection[int] = (), began: float = SEEN, **changes: object) -> Snapshot:
    machines = [machine(number) for number in ours] + [machine(number, request=ELSEWHERE) for number in others]
    return snapshot(*machines, began=began, **changes)


def planned(known: Memory, *looks: Snapshot) -> Plan:
    for one in looks:
        last = plan(known, one, snapshot(pool="b", began=one.began), limits=LIMITS, now=one.began + 1)
        known = last.memory
    return last


def lost(last: Plan) -> int:
    return sum(one.verdict is Verdict.LOST for one in last.memory.requests[REQUEST].slots.values())


def test_another_world_is_never_believed_however_often_it_shows() -> None:
    last = planned(grid(), *(look(others=range(3), began=SEEN + 100 * times) for times in range(20)))
    assert (lost(last), last.creates, last.deletes) == (0, (), ())
    doubt = last.doubts["a"]
    assert (doubt.machines, doubt.expected, doubt.since, doubt.settled_by) == (10, 10, SEEN + 1, NEVER)
    assert last.memory.brake is not None
    assert (last.memory.brake.reason, last.memory.brake.pool) == (BrakeReason.POOL_ASTRAY, "a")
    assert last.memory.brake.detail == (
        "It shows none of its 10 machines but 3 that nobody asked for. "
        "To release the brake is to say that they are lost."
    )


def test_nor_what_it_says_of_machines_that_have_gone() -> None:
    """Neither a cause, nor that a machine that was given back is not there."""
    causes = {name(number): LossCause.DELETED for number in range(10)}
    known = replace(grid(), astray={"a": SEEN - HOUR})
    assert lost(planned(known, look((), [1], causes=causes), look((), [1], SEEN + 5, causes=causes))) == 0


@pytest.mark.parametrize(
    ("known", "seen"),
    [
        pytest.param(grid(), look(), id="nothing at all"),
        pytest.param(grid(), look([9], range(3)), id="one of its own"),
        pytest.param(grid(5), look(others=range(3)), id="only a few were there"),
        pytest.param(grid(orphans={name(0, ELSEWHERE): SEEN - 60}), look(others=[0]),
                     id="an orphan that was known"),
    ],
)  # fmt: skip
def test_what_is_no_other_world(known: Memory, seen: Snapshot) -> None:
    last = planned(known, seen)
    assert not last.memory.astray
    assert last.memory.brake is None
    later = replace(seen, began=SEEN + HOUR)
    assert lost(planned(last.memory, later, replace(later, began=SEEN + 2 * HOUR))) == len(
        known.requests[REQUEST].slots
    ) - len([one for one in seen.machines if one.startswith(f"hf-{REQUEST}")])


def test_one_of_its_own_machines_brings_it_back() -> None:
    last = planned(grid(), look(others=range(3)), look(range(10), began=SEEN + HOUR))
    assert not last.doubts
    assert not last.memory.astray
    assert last.memory.brake is not None, "a person looks at it all the same"
    assert not last.memory.orphans


def test_a_look_that_fails_changes_nothing() -> None:
    first = planned(grid(), look(others=range(3)))
    blind = plan(first.memory, snapshot(pool="b"), limits=LIMITS)
    assert blind.memory.astray == first.memory.astray


# --- by the place's own identity --------------------------------------------------------------------------------------


def test_the_identity_of_the_place_is_remembered() -> None:
    assert planned(grid(), look(range(10), answered_by="one")).memory.answered_by == {"a": "one"}


@pytest.mark.parametrize("others", [(), range(3)], ids=["an empty cluster", "machines of ours"])
@pytest.mark.parametrize("count", [1, 10])
def test_another_place_of_the_same_name_is_never_believed(count: int, others: Collection[int]) -> None:
    known = grid(count, answered_by={"a": "one"})
    last = planned(known, *(look((), others, SEEN + 100 * times, answered_by="two") for times in range(5)))
    assert (lost(last), last.creates, last.deletes) == (0, (), ())
    assert last.memory.answered_by == {"a": "one"}
    assert last.memory.brake is not None
    assert last.memory.brake.detail.startswith("It is two now, but its machines were made in one. ")
    back = planned(last.memory, look(range(count), began=SEEN + HOUR, answered_by="one"))
    assert not back.doubts
    assert not back.memory.astray


def test_a_pool_without_machines_may_move() -> None:
    last = planned(memory(answered_by={"a": "one"}), look(others=range(3), answered_by="two"))
    assert last.memory.answered_by == {"a": "two"}
    assert not last.doubts


def test_in_the_same_place_strange_machines_prove_no_other_one() -> None:
    """It is a mass loss, and what is left is orphans."""
    known = grid(answered_by={"a": "one"})
    looks = [look((), range(3), SEEN + later, answered_by="one") for later in (0, 60, 65)]
    last = planned(known, *looks)
    assert lost(last) == 10
    assert not last.memory.astray


def test_a_look_that_does_not_say_its_place_is_judged_by_what_it_shows() -> None:
    known = grid(answered_by={"a": "one"})
    assert not planned(known, look(range(10))).doubts
    assert planned(known, look(others=range(3))).memory.astray


# --- people -----------------------------------------------------------------------------------------------------------


def test_people_are_told_what_to_check() -> None:
    seen = look(others=range(3))
    told = DoubtedPools().told({"a": seen}, planned(grid(), seen).doubts, SEEN + 1, wall=1_700_000_000.0)["a"]
    assert isinstance(told, Unobserved)
    assert told.failure.error is ErrorClass.INVALID
    assert told.failure.text == (
        "pools.a shows none of its 10 machines but 3 that nobody asked for (since 2023-11-14T22:13:20Z): does another "
        "cluster or project answer in its place? Put back what it is reached by and start again; or, if its machines "
        "are gone, run `provisioner recover --release-brake`. Until then none of them counts as lost."
    )


def test_a_person_may_say_that_the_machines_are_gone(tmp_path: Path) -> None:
    """Across a restart, too: then they are told as lost, and those of the other world are orphans as any."""
    bench = Bench(tmp_path)
    bench.succeed(12)
    bench.place.place._entries = {}
    for number in range(2):
        mark = name(number, ELSEWHERE)
        bench.place.place.create(mark, Mark("demo", "pool", mark))
    bench.restarted()
    bench.cycle(60)
    assert isinstance(bench.cycle().looks["pool"], Unobserved)
    assert not bench.state.status.read_lost()
    bench.state.ask_recovery()
    bench.cycle(3)
    assert len(bench.state.status.read_lost()) == 12
    known = bench.state.memory.read()
    assert (known.brake, known.astray) == (None, {})
    assert len(known.orphans) == 2


def test_a_release_for_another_reason_says_nothing_of_machines() -> None:
    """Nor does that of one pool say anything of another's: each has its own word."""
    held = grid(brake=Brake(BrakeReason.TOO_MANY_ORPHANS, SEEN - 10, "before"), answered_by={"a": "one", "b": "three"})
    first = planned(held, look(answered_by="two"))
    assert first.memory.brake is held.brake
    again = planned(without_brake(first.memory), look(answered_by="two", began=SEEN + 100))
    assert lost(again) == 0
    assert again.memory.brake is not None
    assert (again.memory.brake.reason, again.memory.brake.pool) == (BrakeReason.POOL_ASTRAY, "a")
    free = without_brake(again.memory)
    assert (free.brake, free.astray, free.answered_by) == (None, {}, {"b": "three"})
    assert (
        lost(planned(free, look(answered_by="two", began=SEEN + 200), look(answered_by="two", began=SEEN + 205))) == 10
    )
