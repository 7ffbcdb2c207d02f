"""Refusals: a machine's refusal is counted and shown in the place's words, whatever becomes of its slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from provisioner.model import (
    ErrorClass,
    Failure,
    Machine,
    Memory,
    PendingReason,
    Phase,
    Slot,
    Snapshot,
    Verdict,
    Window,
)
from provisioner.planning.report.refusals import (
    Refusal,
    find_deferred_refusals,
    find_new_refusals,
    find_waiting_refusals,
)
from tests.support.parts import alter
from tests.unit.core import NOW, STOCKOUT, TEMPLATE, memory, record, running, slot, transitions, unsent

QUOTA = Failure(ErrorClass.QUOTA, "Quota 'N2_CPUS' exceeded.")
FULL = Refusal("a", TEMPLATE, ErrorClass.STOCKOUT, STOCKOUT.text)
ASKED = slot(0)


def seen(*slots: Slot, no_room: bool = True) -> Mapping[str, Snapshot]:
    """Return snapshots in which the machines of these slots wait."""
    return {
        pool: Snapshot(pool, NOW, {one.name: Machine(one.name, Phase.PENDING, spills_at_once=no_room) for one in slots})
        for pool in ("a", "b")
    }


def after(now: Slot, before: Slot | None = ASKED, *, no_room: bool = True) -> list[Refusal]:
    """Return the new refusals if one slot was as ``before`` and is as ``now``."""
    former, memory_now = memory(record(before)) if before else memory(), memory(record(now))
    known, waiting_now = (find_waiting_refusals(one, seen(now, no_room=no_room)) for one in (former, memory_now))
    return list(find_new_refusals(transitions(former, memory_now), known, waiting_now))


FATES: dict[str, Callable[[Slot], Slot]] = {
    "still open": lambda one: alter(one, failure=STOCKOUT),
    "withdrawn for another pool": lambda one: alter(one, failure=STOCKOUT, verdict=Verdict.WITHDRAWN),
    "failed": lambda one: alter(one, failure=STOCKOUT, verdict=Verdict.FAILED),
    "cancelled": lambda one: alter(one, failure=STOCKOUT, verdict=Verdict.CANCELLED),
}


@pytest.mark.parametrize("fate", FATES.values(), ids=FATES)
def test_a_machine_that_was_refused_counts_once_whatever_becomes_of_its_slot(fate: Callable[[Slot], Slot]) -> None:
    assert after(fate(ASKED)) == [FULL]
    assert after(fate(ASKED), before=alter(ASKED, failure=STOCKOUT)) == []
    assert after(fate(ASKED), before=fate(ASKED)) == []


@pytest.mark.parametrize("error", ErrorClass)
def test_refusals_are_stock_out_quota_denied_and_what_an_operator_has_to_fix(error: ErrorClass) -> None:
    counted = bool(after(alter(ASKED, failure=Failure(error, "no"))))

    assert counted is (error.is_refusal)
    assert counted is (error in {"stockout", "quota", "denied", "invalid", "not_found"})


NO_REFUSALS = {
    "our own cap, for which nothing was asked": unsent(0, Verdict.FAILED, failure=QUOTA),
    "the end of a machine that ran": running(0, Verdict.LOST, failure=STOCKOUT),
    "nothing new": ASKED,
}


@pytest.mark.parametrize("now", NO_REFUSALS.values(), ids=NO_REFUSALS)
def test_no_refusal_is(now: Slot) -> None:
    assert after(now) == []


def test_that_no_node_takes_a_pod_is_a_refusal_once_there_is_none_to_add_or_its_time_is_over() -> None:
    unplaced = alter(ASKED, failure=STOCKOUT)
    waiting_now = find_waiting_refusals(memory(record(unplaced)), seen(unplaced))

    assert after(unplaced, no_room=False) == []
    assert list(find_new_refusals([], {}, waiting_now)) == [FULL], "its place has said so since"
    assert after(alter(unplaced, verdict=Verdict.WITHDRAWN), before=unplaced, no_room=False) == [FULL]


def test_another_reason_is_another_refusal_and_other_words_for_the_same_are_not() -> None:
    was = alter(ASKED, failure=STOCKOUT)

    assert after(alter(ASKED, failure=QUOTA), before=was) == [Refusal("a", TEMPLATE, QUOTA.error, QUOTA.text)]
    assert after(alter(ASKED, failure=replace(STOCKOUT, text="in other words")), before=was) == []


def backing_off(failure: Failure | None = STOCKOUT, level: int = 1) -> Memory:
    return memory(windows={("a", TEMPLATE): Window(1, level=level, failure=failure)})


def test_machines_wait_that_the_pool_is_not_asked_for_because_it_refused_another() -> None:
    deferred = {("a", TEMPLATE, PendingReason.BACKOFF): 7, ("a", TEMPLATE, PendingReason.WINDOW): 2}

    assert list(find_deferred_refusals(backing_off(), deferred)) == [
        FULL._replace(machines=7),
        FULL._replace(machines=2),
    ]


NOT_REFUSED: dict[str, tuple[Memory, PendingReason]] = {
    "a cap": (backing_off(), PendingReason.CAP),
    "an operator": (backing_off(), PendingReason.PAUSED),
    "a window that is small": (backing_off(level=0), PendingReason.WINDOW),
    "boots that fail": (backing_off(Failure(ErrorClass.TIMEOUT, "late")), PendingReason.BACKOFF),
    "a pool that cannot be seen": (memory(), PendingReason.BACKOFF),
}


@pytest.mark.parametrize(("waiting_now", "reason"), NOT_REFUSED.values(), ids=NOT_REFUSED)
def test_what_is_held_back_is_not_refused_when_it_is_for(waiting_now: Memory, reason: PendingReason) -> None:
    assert list(find_deferred_refusals(waiting_now, {("a", TEMPLATE, reason): 7})) == []


def test_what_ended_waits_for_nothing() -> None:
    closed = [slot(number, verdict, failure=STOCKOUT) for number, verdict in enumerate(Verdict) if verdict != "open"]

    assert find_waiting_refusals(memory(record(*closed)), seen(*closed)) == {}
