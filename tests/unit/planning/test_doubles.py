"""Objects of one name in a place that does not keep names unique: which one stays, and when the others are deleted."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.model import (
    Delete,
    DeleteReason,
    Fingerprint,
    Holds,
    Machine,
    Memory,
    Outcome,
    Phase,
    RequestStatus,
    Slot,
    Verdict,
)
from provisioner.planning.core.draft import DELETE_AGAIN
from provisioner.planning.observe.call_outcomes import RETRY_DELETE, apply_outcomes
from tests.support.holds import STOP
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    REQUEST,
    limits,
    machine,
    memory,
    name,
    plan,
    pool,
    record,
    running,
    slot,
    snapshot,
)

ONE = limits(pool("a"))
ALSO = Delete(name(), "a", DeleteReason.DOUBLED, "also")


def other(uid: str = "also", phase: Phase = Phase.RUNNING) -> Machine:
    return machine(phase=phase, fingerprint=Fingerprint(uid))


def doubled(one: Slot, *others: Machine, seen: Machine | None = None, known: Memory | None = None, **more: Any) -> Any:
    """Return the plan for a slot whose machine the place shows beside others of its name."""
    status = RequestStatus.COMPLETE if one.verdict is Verdict.SUCCEEDED else None
    remembered = known or memory(record(one, ended=status, reported_at=BEFORE if status else None))
    began = more.get("now", NOW) - 1
    return plan(remembered, snapshot(seen or machine(), began=began, doubles={name(): others}), limits=ONE, **more)


@pytest.mark.parametrize(
    ("one", "seen", "others", "kept"),
    [
        pytest.param(slot(), machine(), [other(phase=Phase.PENDING)], "uid-0", id="the machine of the snapshot stays"),
        pytest.param(running(0, Verdict.SUCCEEDED), machine(), [other()], "uid-0", id="HF has it: it stays"),
        pytest.param(running(0, Verdict.SUCCEEDED), other(), [machine()], "uid-0", id="HF has the other: that stays"),
        pytest.param(running(), other(), [other("third"), machine()], "uid-0", id="reported as running: it stays"),
    ],
)
def test_one_object_of_a_name_stays_and_the_others_are_deleted_at_once(
    one: Slot, seen: Machine, others: list[Machine], kept: str
) -> None:
    made = doubled(one, *others, seen=seen)
    gone = {object_.fingerprint.uid for object_ in (seen, *others)} - {kept}
    assert {(delete.uid, delete.reason) for delete in made.deletes} == {(uid, DeleteReason.DOUBLED) for uid in gone}
    left = made.memory.requests[REQUEST].slots[0]
    assert (left.observed.fingerprint.uid, left.verdict in (Verdict.OPEN, Verdict.SUCCEEDED)) == (kept, True)
    assert made.memory.doubles.keys() == gone


def test_a_double_is_deleted_again_while_it_is_shown() -> None:
    known = doubled(running(), other()).memory
    quiet = doubled(running(), other(), known=known, now=NOW + DELETE_AGAIN - 1)
    assert (quiet.deletes, quiet.due_at) == ((), NOW + DELETE_AGAIN)
    assert doubled(running(), other(), known=known, now=NOW + DELETE_AGAIN).deletes == (ALSO,)
    assert not doubled(running(), known=known, now=NOW + DELETE_AGAIN).memory.doubles


@pytest.mark.parametrize(("busy", "holds"), [(["a"], Holds()), ([], Holds((STOP,)))], ids=["busy", "stopped"])
def test_no_double_is_deleted_while_its_pool_gets_no_actions(busy: list[str], holds: Holds) -> None:
    made = doubled(running(), other(), busy=busy, holds=holds)
    assert (made.deletes, dict(made.memory.doubles)) == ((), {})


def test_objects_without_a_request_and_slots_that_are_set_aside_are_left_alone() -> None:
    assert not doubled(running(), other(), known=memory()).deletes, "orphans go slowly"
    assert not doubled(running(is_set_aside=True), other()).deletes


@pytest.mark.parametrize(
    ("outcomes", "unsent", "again"),
    [
        pytest.param([Outcome(ALSO)], [], NOW + DELETE_AGAIN, id="it succeeded"),
        pytest.param([Outcome(ALSO, BROKEN)], [], NOW + RETRY_DELETE, id="it failed: soon again"),
        pytest.param([], [ALSO], NOW + 1, id="it was not sent: at once"),
    ],
)
def test_the_outcome_of_a_doubles_delete_does_not_concern_the_slot(
    outcomes: list[Outcome], unsent: list[Delete], again: float
) -> None:
    known = doubled(running(), other()).memory
    done = apply_outcomes(known, outcomes, unsent, ONE, NOW).memory
    assert done.requests[REQUEST] is known.requests[REQUEST]
    assert not doubled(running(), other(), known=done, now=again - 1).deletes or again == NOW + 1
    assert doubled(running(), other(), known=done, now=again).deletes == (ALSO,)
