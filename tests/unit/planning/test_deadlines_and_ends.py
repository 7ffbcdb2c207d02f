"""Deadlines of machines that do not run, and the reasons of their failures.

Most tests are about a request's last machine.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from provisioner.model import (
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    Limits,
    Machine,
    Memory,
    Observation,
    PendingReason,
    Phase,
    RequestRecord,
    RequestStatus,
    Slot,
    Verdict,
    Window,
)
from provisioner.planning.finish.deadlines_and_ends import NOT_BOOTED, SHORT_OUTAGE
from provisioner.planning.report.answers import request_answer
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    failed_observation,
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
    unsent,
)

AFTER = 60.0
LATE = NOW - AFTER
"""If a request's last change was at this time or earlier, a machine that does not run is a straggler at ``NOW``."""
TEN = 10
TOO_LATE = Failure(
    ErrorClass.TIMEOUT, "The machine did not run within straggler_seconds (60) of the last change of its request."
)
NO_ROOM = Failure(
    ErrorClass.TIMEOUT,
    "No pool had room for the machine within straggler_seconds (60) of the last change of its request.",
)
GIVEN_UP = RequestStatus.COMPLETE_WITH_ERROR


def impatient(after: float = AFTER, share: float = 0.9, **changes: Any) -> Limits:
    """Return limits in which only the rule for stragglers acts soon. The pool's own deadlines are far away."""
    known = limits(pool("a", boot_deadline_seconds=1e6, spill_after_seconds=1e6, **changes))
    one = replace(known.templates[TEMPLATE], straggler_after_seconds=after, straggler_share=share)
    return replace(known, templates={TEMPLATE: one})


def nine_run(last: Slot | None, *, ran: float = LATE, count: int = TEN, **changes: Any) -> Memory:
    """Return a memory with a request of ten machines. Nine run since ``ran``, and ``last`` is the tenth slot."""
    others = [running(number, opened_at=LATE, submitted_at=LATE, ran_at=ran) for number in range(9)]
    return memory(record(*others, *([last] if last else []), count=count, read_at=BEFORE, **changes))


def late(number: int = 9, **changes: Any) -> Slot:
    return slot(number, **({"opened_at": LATE, "submitted_at": LATE} | changes))


THERE = snapshot(*(machine(number) for number in range(9)))


def ended(known: Memory, *observations: Observation, limits: Limits) -> RequestRecord:
    return plan(known, *(observations or (THERE,)), limits=limits).memory.requests[REQUEST]


@pytest.mark.parametrize(
    ("last", "given_up"),
    [
        pytest.param(late(), True, id="nothing changed for so long: it is given up"),
        pytest.param(late(opened_at=LATE + 1), False, id="it was opened a moment later"),
        pytest.param(late(submitted_at=LATE + 1), True, id="a create that is repeated is no change"),
        pytest.param(late(released_at=LATE + 1), False, id="it was held back until a moment later"),
        pytest.param(late(is_queued=True, was_seen=True), True, id="it is still in a queue, but the request ends"),
        pytest.param(unsent(9, opened_at=LATE), True, id="its create was not sent"),
        pytest.param(late(is_set_aside=True), False, id="it is set aside: it holds no request up and gets no action"),
    ],
)
def test_the_last_machine_is_given_up_once_nothing_has_changed_for_so_long(last: Slot, given_up: bool) -> None:
    end = ended(nine_run(last, deadline_at=NOW + 1000), limits=impatient())
    assert (end.slots[9].verdict is Verdict.FAILED) is given_up
    if given_up:
        failure = end.slots[9].failure or TOO_LATE
        text = failure.text.removesuffix(" It was queued in a: ")
        assert (end.ended, end.ended_at, replace(failure, text=text)) == (GIVEN_UP, NOW, TOO_LATE)
        assert sum(one.verdict is Verdict.SUCCEEDED for one in end.slots.values()) == 9


@pytest.mark.parametrize(
    ("ran", "other"),
    [
        pytest.param(LATE + 1, [], id="one began to run a moment later"),
        pytest.param(LATE, [late(10, verdict=Verdict.FAILED, is_gone=True, closed_at=LATE + 1)], id="one failed"),
        pytest.param(
            LATE, [late(10, verdict=Verdict.WITHDRAWN, is_gone=True, closed_at=LATE + 1)], id="one was withdrawn"
        ),
    ],
)
def test_any_change_of_the_request_gives_the_last_ones_their_time_again(ran: float, other: list[Slot]) -> None:
    recorded = nine_run(late(), ran=ran).requests[REQUEST]
    known = replace(recorded, slots=recorded.slots | {one.number: one for one in other}, next_slot=11)
    made = plan(memory(known), THERE, limits=impatient())
    assert made.memory.requests[REQUEST].ended is None
    assert made.due_at == NOW + 1, "the loop checks again when their time is over"
    assert made.memory == memory(known), "nothing to record"


@pytest.mark.parametrize(
    ("there", "count", "share", "given_up"),
    [
        pytest.param(9, 10, 0.9, True, id="nine of ten: the share"),
        pytest.param(9, 11, 0.9, False, id="nine of eleven: fewer"),
        pytest.param(9, 11, 0.8, True, id="nine of eleven, where four of five suffice"),
        pytest.param(9, 10, 1.0, False, id="all have to run: nothing is given up before the deadline"),
        pytest.param(7, 100, 0.07, True, id="as it is written, although 0.07 * 100 is more than 7 to a processor"),
    ],
)
def test_at_least_a_share_has_to_run(there: int, count: int, share: float, given_up: bool) -> None:
    run = [running(number, opened_at=LATE, submitted_at=LATE, ran_at=LATE) for number in range(there)]
    known = record(*run, *(late(number) for number in range(there, count)), read_at=BEFORE)
    made = plan(memory(known), snapshot(*map(machine, range(there))), limits=impatient(share=share))
    assert (made.memory.requests[REQUEST].ended is GIVEN_UP) is given_up
    assert (made.due_at == known.deadline_at) is not given_up


def test_zero_waits_for_the_deadline() -> None:
    made = plan(nine_run(late(opened_at=1.0, submitted_at=1.0), ran=1.0), THERE, limits=impatient(0.0))
    assert made.memory.requests[REQUEST].ended is None
    assert made.due_at == BEFORE + 3600


def test_a_pool_that_is_not_seen_may_hold_a_machine_that_runs() -> None:
    known = nine_run(late(pool="b"))
    both = impatient()
    both = replace(both, pools=both.pools | {"b": replace(both.pools["a"], name="b")})
    assert ended(known, THERE, failed_observation("b"), limits=both).ended is None
    assert ended(known, THERE, snapshot(pool="b"), limits=both).ended is GIVEN_UP


@pytest.mark.parametrize(
    ("last", "known_window", "failure"),
    [
        pytest.param(
            late(was_seen=True, failure=BROKEN), STOCKOUT, BROKEN, id="the machine's own, in the cloud's words"
        ),
        pytest.param(late(), STOCKOUT, STOCKOUT, id="else its pool's"),
        pytest.param(late(), None, TOO_LATE, id="else that it came too late"),
        pytest.param(None, STOCKOUT, STOCKOUT, id="held back: its pool's"),
        pytest.param(None, None, NO_ROOM, id="held back for an unknown reason"),
    ],
)
def test_hf_hears_why(last: Slot | None, known_window: Failure | None, failure: Failure) -> None:
    block = {("a", TEMPLATE): Window(window=1, level=1, retry_at=NOW + 9, failure=known_window)} if known_window else {}
    known = replace(nine_run(last, count=TEN), windows=block)
    seen = machine(9, Phase.PENDING, failure=last.failure) if last and last.observed.was_seen else None
    observation = snapshot(*THERE.machines.values(), *([seen] if seen else []))
    end = ended(known, observation, limits=impatient(max_machines=10 if last else 9))
    assert end.ended is GIVEN_UP
    answer = request_answer(end).text
    assert answer.count('"result":"fail"') == 1
    assert f"{failure.error}: {failure.text}" in answer


def test_what_is_merely_held_back_counts_as_a_straggler_too() -> None:
    known, full = nine_run(None, count=TEN), impatient(max_machines=9)
    early = plan(known, THERE, limits=full, now=NOW - 1)
    assert early.deferred == {("a", TEMPLATE, PendingReason.CAP): 1}
    assert (early.memory.requests[REQUEST].ended, early.due_at) == (None, NOW)
    late_ = plan(early.memory, THERE, limits=full)
    assert (late_.memory.requests[REQUEST].ended, late_.deferred, late_.creates) == (GIVEN_UP, {}, ())


def test_a_machine_that_comes_late_is_deleted() -> None:
    known, patient = nine_run(late()), impatient()
    known = plan(known, THERE, limits=patient).memory
    observation = snapshot(*THERE.machines.values(), machine(9), began=NOW + 4)
    made = plan(known, observation, limits=patient, now=NOW + 5)
    assert made.deletes == (Delete(name(9), "a", DeleteReason.TIMED_OUT, "uid-9"),)
    assert made.memory.requests[REQUEST].slots[9].verdict is Verdict.FAILED


def test_a_machine_that_runs_in_the_same_observation_is_no_straggler() -> None:
    observation = snapshot(*THERE.machines.values(), machine(9))
    end = ended(nine_run(late()), observation, limits=impatient())
    assert end.ended is RequestStatus.COMPLETE


BOOT = limits(pool("a", boot_deadline_seconds=600.0))


def booted(seen: Machine, **changes: Any) -> Slot:
    """Return the first slot of a request after a plan that sees the slot's machine."""
    known = memory(record(slot(0, **changes), deadline_at=NOW + 9000))
    return plan(known, snapshot(seen), limits=BOOT).memory.requests[REQUEST].slots[0]


@pytest.mark.parametrize("error", ErrorClass)
def test_a_machine_that_only_an_operator_can_help_is_not_waited_for(error: ErrorClass) -> None:
    refused = Failure(error, "in the place's words")
    one = booted(machine(phase=Phase.PENDING, failure=refused), submitted_at=NOW - 5)
    assert (one.verdict is Verdict.FAILED) is (error is ErrorClass.DENIED)
    assert one.failure == refused


@pytest.mark.parametrize(
    ("state", "failure", "text"),
    [
        pytest.param("STAGING", None, f"{NOT_BOOTED.text} It is STAGING.", id="what its place does with it"),
        pytest.param("", None, NOT_BOOTED.text, id="its place says nothing"),
        pytest.param("STAGING", STOCKOUT, STOCKOUT.text, id="a reason is better"),
    ],
)
def test_a_machine_that_did_not_run_in_time(state: str, failure: Failure | None, text: str) -> None:
    one = booted(machine(phase=Phase.PENDING, state=state, failure=failure), submitted_at=NOW - 600)
    assert (one.verdict, one.failure and one.failure.text) == (Verdict.FAILED, text)


# --- machines that ran and do not run any more ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "deadline", "ends", "machines"),
    [
        pytest.param(machine(0, phase=Phase.PENDING, failure=BROKEN), NOW + 60, None, 0, id="there is time"),
        pytest.param(machine(0, phase=Phase.PENDING, failure=BROKEN), NOW, GIVEN_UP, 1, id="its time is over"),
        pytest.param(machine(0), NOW + 60, RequestStatus.COMPLETE, 2, id="it runs again"),
    ],
)
def test_no_request_ends_with_a_machine_that_does_not_run(
    seen: Machine, deadline: float, ends: RequestStatus | None, machines: int
) -> None:
    recorded = record(running(0, down_since=NOW - 60), running(1), count=2, deadline_at=deadline)
    made = plan(memory(recorded), snapshot(seen, machine(1)), limits=limits(pool("a", down_seconds=1e6)))
    (after,) = made.memory.requests.values()
    assert after.ended is ends
    answer = json.loads(request_answer(after).text)
    if ends is not None:
        assert sum(one["result"] == "succeed" for one in answer["machines"]) == machines
    if ends is GIVEN_UP:
        assert BROKEN.text in answer["message"]
        assert after.slots[0].deletion.reason is DeleteReason.TIMED_OUT


@pytest.mark.parametrize("down_since", [None, NOW])
def test_a_machine_that_is_down_for_a_moment_is_no_straggler(down_since: float | None) -> None:
    """Nine machines of ten run, and the tenth never appeared, so the rule for stragglers may act. The rule must spare
    the machine of the nine that has just become unready."""
    recorded = nine_run(late(), deadline_at=NOW + 1000)
    blinking = machine(0, phase=Phase.PENDING) if down_since else machine(0)
    made = plan(
        recorded, snapshot(blinking, *(machine(number) for number in range(1, 9))), limits=impatient(down_seconds=900.0)
    )
    assert DeleteReason.TIMED_OUT not in [one.reason for one in made.deletes if one.name == name(0)]
    assert made.memory.requests[REQUEST].slots[0].verdict is not Verdict.FAILED


def test_many_machines_that_are_down_at_once_make_no_straggler_of_the_last() -> None:
    recorded = nine_run(late(), deadline_at=NOW + 1000)
    all_down = snapshot(*(machine(number, phase=Phase.PENDING) for number in range(9)))
    made = plan(recorded, all_down, limits=impatient(down_seconds=900.0))
    assert (made.deletes, made.memory.requests[REQUEST].ended) == ((), None)


@pytest.mark.parametrize(("since", "ended"), [(NOW - SHORT_OUTAGE + 1, None), (NOW - SHORT_OUTAGE, GIVEN_UP)])
def test_at_its_deadline_a_request_waits_a_moment_for_a_machine_that_is_down(
    since: float, ended: RequestStatus | None
) -> None:
    recorded = record(running(0, down_since=since), running(1), count=2, deadline_at=NOW)
    made = plan(
        memory(recorded),
        snapshot(machine(0, phase=Phase.PENDING), machine(1)),
        limits=limits(pool("a", down_seconds=1e6)),
    )
    assert made.memory.requests[REQUEST].ended is ended
    assert made.due_at <= NOW + SHORT_OUTAGE


def test_a_machine_that_was_down_and_that_no_observation_shows_now_is_not_given_up() -> None:
    both = replace(impatient(), pools={one: replace(impatient().pools["a"], name=one) for one in ("a", "b")})
    slots = [*(running(number, opened_at=LATE, submitted_at=LATE, ran_at=LATE) for number in range(9))]
    slots.append(running(9, opened_at=LATE, submitted_at=LATE, ran_at=LATE, pool="b", down_since=NOW - 5))
    recorded = memory(record(*slots, count=10, deadline_at=NOW + 1000, read_at=BEFORE))
    made = plan(recorded, snapshot(*(machine(number) for number in range(9))), failed_observation("b"), limits=both)
    assert made.memory.requests[REQUEST].slots[9].verdict is Verdict.OPEN
