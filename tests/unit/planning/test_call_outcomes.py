"""Effects of the outcomes of our calls on slots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import (
    Create,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    Memory,
    Outcome,
    Plan,
    RequestStatus,
    Slot,
    Verdict,
    Window,
)
from provisioner.planning.core import window_and_backoff
from provisioner.planning.core.draft import DELETE_AGAIN
from provisioner.planning.observe.call_outcomes import RETRY_DELETE, apply_outcomes
from tests.support.parts import alter
from tests.unit.core import (
    BEFORE,
    NOW,
    OTHER,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    giving_back,
    limits,
    memory,
    name,
    record,
    running,
    slot,
)

LIMITS = limits()
CREATE = Create(name(0), "a", TEMPLATE, REQUEST)
DELETE = Delete(name(0), "a", DeleteReason.FAILED)
ASKED = slot(is_accepted=False)


def after(one: Slot, *outcomes: Outcome, unsent: tuple[Create | Delete, ...] = (), **changes: object) -> Memory:
    return apply_outcomes(memory(record(one), **changes), outcomes, unsent, LIMITS, NOW).memory


def kept(remembered: Memory) -> Slot:
    return remembered.requests[REQUEST].slots[0]


FATES = {
    ErrorClass.THROTTLED: (Verdict.OPEN, None),  # it was not sent
    ErrorClass.TIMEOUT: (Verdict.OPEN, BEFORE),  # it may have been applied
    ErrorClass.UNAVAILABLE: (Verdict.OPEN, BEFORE),
}


@pytest.mark.parametrize("error", ErrorClass)
def test_a_create_that_failed(error: ErrorClass) -> None:
    verdict, submitted = FATES.get(error, (Verdict.FAILED, BEFORE))
    failure = Failure(error, "in the place's words")
    made = apply_outcomes(memory(record(ASKED)), [Outcome(CREATE, failure)], (), LIMITS, NOW)
    remembered, changed = made.memory, made.transitions
    closes = [one.slot for one in changed if one.is_closed]
    one = kept(remembered)
    assert (one.verdict, one.submitted_at, one.deletion.is_gone, one.observed.is_accepted) == (
        verdict,
        submitted,
        False,
        False,
    )
    if verdict is Verdict.FAILED:
        assert (one.deletion.reason, one.failure, one.deletion.closed_at) == (DeleteReason.FAILED, failure, NOW)
        assert [(close.name, close.verdict, close.failure) for close in closes] == [(name(0), verdict, failure)]
    else:
        assert closes == []
    known_window = remembered.windows["a", TEMPLATE]
    assert window_and_backoff.is_blocked(known_window, NOW) is (error is not ErrorClass.OTHER)
    assert known_window.failed == (verdict is Verdict.FAILED and not error.has_no_room)
    assert known_window.failure == failure


@pytest.mark.parametrize(
    ("error", "failed"),
    [(ErrorClass.STOCKOUT, 9), (ErrorClass.DENIED, 9), (ErrorClass.THROTTLED, 0), (ErrorClass.UNAVAILABLE, 0)],
)
def test_a_whole_batch_that_was_refused_backs_off_once(error: ErrorClass, failed: int) -> None:
    refusal = Failure(error, "text")
    remembered = memory(record(*(slot(number, is_accepted=False) for number in range(9))))
    creates = [Create(name(number), "a", TEMPLATE, REQUEST) for number in range(9)]
    made = apply_outcomes(remembered, [Outcome(create, refusal) for create in creates], (), LIMITS, NOW)
    after_, changed = made.memory, made.transitions
    closes = [one for one in changed if one.is_closed]
    assert after_.windows["a", TEMPLATE].level == 1
    assert len(closes) == failed


def test_one_failed_create_leaves_the_others_accepted() -> None:
    remembered = memory(record(slot(0, is_accepted=False), slot(1, is_accepted=False), slot(2, is_accepted=False)))
    creates = [Create(name(number), "a", TEMPLATE, REQUEST) for number in range(3)]
    outcomes = [Outcome(creates[0]), Outcome(creates[1], STOCKOUT), Outcome(creates[2])]
    slots = apply_outcomes(remembered, outcomes, (), LIMITS, NOW).memory.requests[REQUEST].slots
    assert [one.verdict for one in slots.values()] == [Verdict.OPEN, Verdict.FAILED, Verdict.OPEN]
    assert [one.observed.is_accepted for one in slots.values()] == [True, False, True]


@pytest.mark.parametrize("error", sorted(ErrorClass))
def test_a_slot_closed_meanwhile_stays_as_it_was_closed(error: ErrorClass) -> None:
    closed = slot(0, Verdict.CANCELLED, is_accepted=False, delete=DeleteReason.CANCELLED)
    one = kept(after(closed, Outcome(CREATE, Failure(error, "text"))))
    assert (one.verdict, one.deletion.reason, one.is_set_aside) == (Verdict.CANCELLED, DeleteReason.CANCELLED, False)
    assert one.deletion.is_gone is (error is ErrorClass.THROTTLED)
    assert (error.is_ambiguous) <= (one == closed)


@pytest.mark.parametrize(
    ("before", "submitted", "ended"),
    [
        pytest.param(ErrorClass.DENIED, BEFORE, True, id="it was denied: over"),
        pytest.param(ErrorClass.STOCKOUT, BEFORE, True, id="it had no room: over"),
        pytest.param(ErrorClass.OTHER, BEFORE, False, id="no known reason: only a machine that runs ends it"),
        pytest.param(ErrorClass.DENIED, BEFORE - 2, False, id="the create is from before it"),
    ],
)
def test_an_accepted_create_and_the_back_off(before: ErrorClass, submitted: float, ended: bool) -> None:
    backing = Window(
        window=4, level=1, is_probing=True, blocked_at=BEFORE - 1, retry_at=NOW - 1, failure=Failure(before, "text")
    )
    asked = alter(ASKED, submitted_at=submitted)
    remembered = after(asked, Outcome(CREATE), windows={("a", TEMPLATE): backing})
    assert (remembered.windows["a", TEMPLATE].level == 0) is ended
    assert kept(remembered) == alter(asked, is_accepted=True), "its slot stays open"


def test_a_throttled_create_waits_as_long_as_the_place_said_and_the_window_stays() -> None:
    busy = Outcome(CREATE, Failure(ErrorClass.THROTTLED, "text"), retry_after=1.0)
    remembered = after(ASKED, busy, windows={("a", TEMPLATE): Window(window=64)})
    assert (kept(remembered).verdict, kept(remembered).submitted_at) == (Verdict.OPEN, None)
    known_window = remembered.windows["a", TEMPLATE]
    assert (known_window.window, known_window.retry_at, known_window.is_probing) == (64, NOW + 1.0, False)


@pytest.mark.parametrize(
    ("one", "create", "expected"),
    [
        pytest.param(ASKED, CREATE, alter(ASKED, submitted_at=None), id="its only create: it was never sent"),
        pytest.param(ASKED, replace(CREATE, is_repeated=True), ASKED, id="repeated: the first may have been applied"),
        pytest.param(alter(ASKED, was_seen=True), CREATE, alter(ASKED, was_seen=True), id="it is there: nothing"),
        pytest.param(slot(), CREATE, slot(), id="it was accepted: nothing"),
        pytest.param(slot(0, Verdict.CANCELLED, is_accepted=False), CREATE,
                     slot(0, Verdict.CANCELLED, is_accepted=False, is_gone=True), id="closed meanwhile: gone"),
        pytest.param(slot(0, Verdict.FAILED, is_accepted=False), CREATE,
                     slot(0, Verdict.FAILED, is_accepted=False, is_gone=True),
                     id="failed meanwhile: gone, and still to be replaced"),
    ],
)  # fmt: skip
def test_a_create_that_was_not_started(one: Slot, create: Create, expected: Slot) -> None:
    assert kept(after(one, unsent=(create,))) == expected


def test_a_delete_that_was_not_started_is_sent_at_once() -> None:
    closed = running(0, Verdict.FAILED, delete_sent=NOW)
    assert kept(after(closed, unsent=(DELETE,))).deletion.sent_at is None


@pytest.mark.parametrize(
    ("first_sent", "remembered"), [(NOW, None), (BEFORE, BEFORE)], ids=["the first", "another one"]
)
def test_a_delete_that_was_not_started_is_not_the_first(first_sent: float, remembered: float | None) -> None:
    closed = running(0, Verdict.FAILED, delete_sent=NOW, delete_begun=first_sent)
    assert kept(after(closed, unsent=(DELETE,))).deletion.first_sent_at == remembered


REFUSED = Failure(ErrorClass.DENIED, "in the place's words")


def test_why_a_delete_failed_is_kept_until_another_one_is_tried() -> None:
    closed = running(0, Verdict.FAILED, delete_sent=NOW, hindrance=Failure(ErrorClass.OTHER, "before"))
    assert kept(after(closed, Outcome(DELETE, REFUSED))).deletion.hindrance == REFUSED
    assert kept(after(closed, Outcome(DELETE))).deletion.hindrance is None, "its place has taken it"


def test_why_the_delete_of_a_machine_without_slot_failed_is_kept_with_the_open_returns_that_name_it() -> None:
    named = Delete("stray-1", "a", DeleteReason.RETURNED)
    return_records = [
        giving_back("stray-1", "stray-2", id_="ret-aaaaaaaaaa"),
        giving_back("stray-2", id_="ret-bbbbbbbbbb"),
        giving_back("stray-1", id_="ret-cccccccccc", ended=RequestStatus.COMPLETE),
    ]
    returns = apply_outcomes(memory(*return_records), [Outcome(named, REFUSED)], (), LIMITS, NOW).memory.returns
    assert [dict(return_record.hindered) for return_record in returns.values()] == [{"stray-1": REFUSED}, {}, {}]
    taken = apply_outcomes(memory(*returns.values()), [Outcome(named)], (), LIMITS, NOW).memory.returns
    assert [dict(return_record.hindered) for return_record in taken.values()] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("error", "retry_after", "soon"),
    [(ErrorClass.UNAVAILABLE, None, RETRY_DELETE), (ErrorClass.THROTTLED, 2.0, 2.0)],
    ids=["soon", "when the place said"],
)
def test_a_delete_that_failed_is_sent_again(error: ErrorClass, retry_after: float | None, soon: float) -> None:
    closed = running(0, Verdict.FAILED, delete_sent=NOW)
    one = kept(after(closed, Outcome(DELETE, Failure(error, "text"), retry_after=retry_after)))
    assert one.deletion.sent_at is not None
    assert one.deletion.sent_at + DELETE_AGAIN == NOW + soon
    assert (one.verdict, one.deletion.is_gone) == (Verdict.FAILED, False)


def test_a_delete_that_was_accepted_changes_nothing_the_observation_says_when_it_is_gone() -> None:
    remembered = memory(record(running(0, Verdict.FAILED, delete_sent=NOW)))
    assert apply_outcomes(remembered, [Outcome(DELETE)], (), LIMITS, NOW) == Plan(remembered)


def test_the_outcome_of_an_unknown_name_changes_nothing() -> None:
    remembered = memory(record(ASKED))
    orphan = Delete(name(0, OTHER), "a", DeleteReason.ORPHANED)
    outcomes = [Outcome(orphan, Failure(ErrorClass.OTHER, "text")), Outcome(replace(orphan, name="alien"))]
    assert apply_outcomes(remembered, outcomes, (orphan,), LIMITS, NOW).memory is remembered
