"""Returns: each name is followed until its machine has no leftovers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from provisioner.model import (
    Delete,
    DeleteReason,
    Fingerprint,
    Limits,
    LossCause,
    Notice,
    RequestStatus,
    ReturnRecord,
    ReturnResult,
    Slot,
    Snapshot,
    Verdict,
)
from provisioner.planning.core.draft import DELETE_AGAIN, Draft
from provisioner.planning.finish.returns import find_names_to_query, settle_returns
from tests.unit.core import (
    BEFORE,
    NOW,
    OTHER,
    REQUEST,
    SEEN,
    STOCKOUT,
    closes_of,
    draft_of,
    giving_back,
    limits,
    machine,
    memory,
    name,
    pool,
    record,
    running,
    slot,
    snapshot,
)

LIMITS = limits()
RETURN = "ret-aaaaaaaaaa"
UNKNOWN_NAME = name(0, OTHER)
"""A name of our shape that no slot has."""


def settled(
    return_record: ReturnRecord,
    *observations: Snapshot,
    slots: Iterable[Slot] = (),
    reported: bool = True,
    limits: Limits = LIMITS,
    busy: Iterable[str] = (),
    now: float = NOW,
) -> Draft:
    ended = RequestStatus.COMPLETE
    recorded = record(*slots, ended=ended, reported_at=BEFORE if reported else None)
    draft = draft_of(memory(recorded, return_record), *observations, limits=limits, now=now)
    draft.busy |= frozenset(busy)
    settle_returns(draft)
    return draft


def result(draft: Draft, name: str) -> ReturnResult | None:
    return draft.returns[RETURN].results.get(name)


def empty(began: float = SEEN, asked: Iterable[str] = (UNKNOWN_NAME, "alien"), **changes: object) -> list[Snapshot]:
    return [snapshot(pool=one, began=began, asked=frozenset(asked), **changes) for one in "ab"]


@pytest.mark.parametrize(
    ("one", "reported", "verdict", "reason", "done"),
    [
        pytest.param(running(0, Verdict.SUCCEEDED), True, Verdict.RETURNED, DeleteReason.RETURNED, None,
                     id="succeeded and HF knows: returned"),
        pytest.param(running(0, Verdict.SUCCEEDED), False, Verdict.RETURNED, DeleteReason.CANCELLED, None,
                     id="succeeded and HF has not heard: it must not take it"),
        pytest.param(running(), True, Verdict.CANCELLED, DeleteReason.CANCELLED, None, id="running, open: cancelled"),
        pytest.param(slot(), True, Verdict.CANCELLED, DeleteReason.CANCELLED, None, id="not yet running: cancelled"),
        pytest.param(slot(0, submitted_at=None, is_accepted=False), True, Verdict.CANCELLED, DeleteReason.CANCELLED,
                     ReturnResult.GONE, id="never sent: gone at once"),
        pytest.param(running(0, Verdict.LOST, delete=DeleteReason.LOST), True, Verdict.LOST, DeleteReason.LOST, None,
                     id="lost: stays lost, and is waited for"),
        pytest.param(running(0, Verdict.LOST, delete=DeleteReason.LOST), False, Verdict.LOST, DeleteReason.CANCELLED,
                     None, id="lost and HF has not heard: it must not take it"),
        pytest.param(running(0, Verdict.LOST, is_gone=True), True, Verdict.LOST, DeleteReason.FAILED, ReturnResult.GONE,
                     id="lost and gone: done"),
        pytest.param(running(0, Verdict.RETURNED, is_gone=True), True, Verdict.RETURNED, DeleteReason.FAILED,
                     ReturnResult.GONE, id="returned before and gone: done"),
        pytest.param(slot(0, Verdict.FAILED), True, Verdict.FAILED, DeleteReason.FAILED, None,
                     id="failed: is waited for"),
    ],
)  # fmt: skip
def test_a_name_of_ours(
    one: Slot, reported: bool, verdict: Verdict, reason: DeleteReason, done: ReturnResult | None
) -> None:
    draft = settled(giving_back(name(0)), *empty(), slots=[one], reported=reported)
    after = draft.requests[REQUEST].slots[0]
    assert after is not None
    assert (after.verdict, after.deletion.reason) == (verdict, reason)
    assert not after.is_set_aside
    assert result(draft, name(0)) is done


@pytest.mark.parametrize("notice", [None, Notice(LossCause.PREEMPTED, SEEN + 20)], ids=["by itself", "announced"])
def test_a_return_of_a_machine_whose_end_was_announced_has_the_cause(notice: Notice | None) -> None:
    draft = settled(giving_back(name(0)), *empty(), slots=[running(0, Verdict.SUCCEEDED, notice=notice)], reported=True)
    [close] = closes_of(draft)
    assert (close.slot.verdict, close.slot.observed.cause) == (Verdict.RETURNED, notice.cause if notice else None)


def test_a_return_before_the_terminal_answer_was_read_ends_the_request_with_an_error() -> None:
    for reported in (False, True):
        slots = [running(number, Verdict.SUCCEEDED) for number in range(3)]
        draft = settled(giving_back(name(1)), slots=slots, reported=reported)
        ended = RequestStatus.COMPLETE if reported else RequestStatus.COMPLETE_WITH_ERROR
        assert draft.requests[REQUEST].ended is ended
        assert [close.slot.name for close in closes_of(draft)] == [name(1)], "only the named machine is closed"


def test_a_return_before_the_terminal_answer_was_read_is_written_once() -> None:
    before = settled(giving_back(name(0)), slots=[running(0, Verdict.LOST, delete=DeleteReason.LOST)], reported=False)
    remembered = before.memory()
    again = draft_of(remembered, limits=LIMITS)
    settle_returns(again)
    assert remembered.requests[REQUEST].ended is RequestStatus.COMPLETE_WITH_ERROR
    assert again.memory() is remembered


@pytest.mark.parametrize(
    ("given", "there", "adopt", "deleted", "done"),
    [
        pytest.param(UNKNOWN_NAME, "ours", (), ("uid-0", False), None, id="ours by identity: deleted"),
        pytest.param(UNKNOWN_NAME, "ours", ("hf-",), ("uid-0", False), None, id="ours by identity is never adopted"),
        pytest.param("alien", "foreign", (), None, ReturnResult.NOT_OURS, id="someone else's: left alone"),
        pytest.param("alien", "foreign", ("ali",), ("", True), None, id="someone else's of an adopted prefix: deleted"),
        pytest.param("alien", "foreign", ("zzz",), None, ReturnResult.NOT_OURS, id="another prefix is adopted: left"),
        pytest.param(UNKNOWN_NAME, "", (), None, None, id="nowhere in one observation: not yet known to be gone"),
        pytest.param("alien", "", ("ali",), None, None, id="nowhere, with an adopted prefix: nothing to delete"),
    ],
)
def test_a_name_that_is_no_slot_of_ours(
    given: str, there: str, adopt: tuple[str, ...], deleted: tuple[str, bool] | None, done: ReturnResult | None
) -> None:
    names = frozenset({given})
    first = snapshot(*([machine(0, request=OTHER)] if there == "ours" else []), asked=names,
                     foreign=names if there == "foreign" else frozenset())  # fmt: skip
    draft = settled(giving_back(given), first, snapshot(pool="b", asked=names), limits=limits(adopt_prefixes=adopt))
    assert result(draft, given) is done
    expected = [] if deleted is None else [Delete(given, "a", DeleteReason.RETURNED, deleted[0], is_adopted=deleted[1])]
    assert draft.deletes == expected


@pytest.mark.parametrize(
    ("sent", "busy", "deletes"),
    [
        pytest.param({}, (), 1, id="never sent: sent"),
        pytest.param({UNKNOWN_NAME: NOW - DELETE_AGAIN + 1}, (), 0, id="sent a moment ago: waits"),
        pytest.param({UNKNOWN_NAME: NOW - DELETE_AGAIN}, (), 1, id="still there after a while: sent again"),
        pytest.param({}, ("a",), 0, id="the pool is busy: waits"),
    ],
)
def test_when_an_unknown_machines_delete_is_sent(sent: dict[str, float], busy: tuple[str, ...], deletes: int) -> None:
    observations = [snapshot(machine(0, request=OTHER)), snapshot(pool="b")]
    draft = settled(giving_back(UNKNOWN_NAME, sent=sent), *observations, busy=busy)
    assert len(draft.deletes) == deletes
    assert draft.returns[RETURN].sent == (({UNKNOWN_NAME: NOW}) if deletes else sent)


@pytest.mark.parametrize(
    ("first", "observations", "gone"),
    [
        pytest.param({}, empty(), False, id="the first set of observations proves nothing"),
        pytest.param({UNKNOWN_NAME: SEEN - 30}, empty(), True, id="a second set the longest lag later does"),
        pytest.param({UNKNOWN_NAME: SEEN - 29}, empty(), False, id="a second set within the lag does not"),
        pytest.param({UNKNOWN_NAME: SEEN - 30}, empty()[:1], False, id="a pool is blind: not proven"),
        pytest.param({UNKNOWN_NAME: SEEN - 30}, empty(asked=()), False, id="no observation asked for it: not proven"),
        pytest.param({UNKNOWN_NAME: SEEN - 30}, [empty()[0], empty(SEEN - 5)[1]], False,
                     id="the older of the observations counts"),
        pytest.param({UNKNOWN_NAME: SEEN - 30}, [snapshot(machine(0, request=OTHER)), snapshot(pool="b")], False,
                     id="it is there again: it was never absent"),
    ],
)  # fmt: skip
def test_when_an_unknown_machine_is_gone(first: dict[str, float], observations: list[Snapshot], gone: bool) -> None:
    lagging = limits(pool("a"), pool("b", lag_seconds=30.0))
    draft = settled(giving_back(UNKNOWN_NAME, absent=first), *observations, limits=lagging)
    assert (result(draft, UNKNOWN_NAME) is ReturnResult.GONE) is gone
    if observations[0].machines:
        assert (draft.returns[RETURN].absent, draft.due_at) == ({}, NOW + DELETE_AGAIN)
    same = settled(giving_back(UNKNOWN_NAME, absent=dict.fromkeys(first, SEEN)), *observations)
    assert result(same, UNKNOWN_NAME) is None, (
        "an observation of the same moment is no second observation even without lag"
    )


ASKED = {"pool": "b", "asked": frozenset({UNKNOWN_NAME})}


@pytest.mark.parametrize(
    ("now", "others", "expected", "deleted"),
    [
        pytest.param(NOW, [], None, [], id="its own pool is blind and may have it: it is not someone else's"),
        pytest.param(NOW, [snapshot(**ASKED)], None, [], id="no pool has it: it is not gone all the same"),
        pytest.param(BEFORE + 3600, [snapshot(**ASKED)], ReturnResult.STUCK, [], id="at the deadline it is there"),
        pytest.param(NOW, [snapshot(machine(0, request=OTHER), **ASKED)], None, ["b"], id="that pool deletes it"),
    ],
)
def test_what_is_there_and_not_this_pools_is_not_gone(
    now: float, others: list[Snapshot], expected: ReturnResult | None, deleted: list[str]
) -> None:
    recorded = snapshot(asked=frozenset({UNKNOWN_NAME}), name_collisions=frozenset({UNKNOWN_NAME}))
    draft = settled(giving_back(UNKNOWN_NAME, absent={UNKNOWN_NAME: SEEN - 30}), recorded, *others, now=now)
    assert result(draft, UNKNOWN_NAME) is expected
    assert draft.returns[RETURN].absent == {}
    assert [delete.pool for delete in draft.deletes] == deleted


GONE, LEFT = ReturnResult.GONE, ReturnResult.NOT_OURS


@pytest.mark.parametrize(
    ("names", "results", "now", "ended"),
    [
        pytest.param(("x", "y"), {"x": GONE}, NOW, None, id="a name is open: it runs"),
        pytest.param(("x", "y"), {"x": GONE, "y": GONE}, NOW, RequestStatus.COMPLETE, id="all are gone: complete"),
        pytest.param(("x", "y"), {"x": GONE, "y": LEFT}, NOW, RequestStatus.COMPLETE_WITH_ERROR,
                     id="one was not ours: with error"),
        pytest.param(("x", "x"), {"x": GONE}, NOW, RequestStatus.COMPLETE, id="a name given twice counts once"),
        pytest.param((), {}, NOW, RequestStatus.COMPLETE, id="no names: complete"),
        pytest.param(("x", "y"), {"x": GONE}, BEFORE + 3600, RequestStatus.COMPLETE_WITH_ERROR,
                     id="the deadline: what is there is stuck"),
    ],
)  # fmt: skip
def test_the_end_of_a_return_request(
    names: tuple[str, ...], results: dict[str, ReturnResult], now: float, ended: RequestStatus | None
) -> None:
    draft = settled(giving_back(*names, results=results), now=now)
    after = draft.returns[RETURN]
    assert (after.ended, after.ended_at) == (ended, now if ended else None)
    assert result(draft, "y") is (ReturnResult.STUCK if now > NOW else results.get("y"))


def test_a_machine_of_ours_that_does_not_go_is_stuck_at_the_deadline_and_stays_closed() -> None:
    return_record = giving_back(name(0), deadline_at=NOW)
    draft = settled(return_record, *empty(), slots=[running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED)])
    assert result(draft, name(0)) is ReturnResult.STUCK
    assert draft.requests[REQUEST].slots[0] == running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED)
    assert draft.returns[RETURN].hindered == {}


@pytest.mark.parametrize(("deadline", "kept"), [(NOW, True), (NOW + 1, False)], ids=["at its end", "before it"])
def test_why_a_machine_does_not_go_stays_as_it_was_at_the_end_of_its_return(deadline: float, kept: bool) -> None:
    closed = running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED, hindrance=STOCKOUT)
    return_record = settled(giving_back(name(0), deadline_at=deadline), *empty(), slots=[closed]).returns[RETURN]
    assert return_record.hindered == ({name(0): STOCKOUT} if kept else {})


def test_an_ended_return_request_never_changes() -> None:
    return_record = giving_back(
        UNKNOWN_NAME, results={UNKNOWN_NAME: GONE}, ended=RequestStatus.COMPLETE, ended_at=BEFORE
    )
    draft = settled(
        return_record, snapshot(machine(0, request=OTHER, fingerprint=Fingerprint("new"))), snapshot(pool="b")
    )
    assert draft.returns[RETURN] is return_record
    assert draft.deletes == []


def test_an_unsettled_return_is_checked_again_by_its_deadline() -> None:
    return_record = giving_back(name(0))
    draft = settled(return_record, slots=[running(0, Verdict.LOST)])
    assert draft.due_at == return_record.deadline_at


def test_a_pool_is_asked_for_its_own_machines_and_for_unknown_machines_alone() -> None:
    """Two pools may share one place. A pool must not be asked for the other's machines, because a strayed machine of
    one pool would then count as an orphan of the other."""
    slots = [
        running(0, Verdict.SUCCEEDED, absent_since=BEFORE),
        running(1, Verdict.SUCCEEDED, pool="b", is_strayed=True),
    ]
    done = giving_back(UNKNOWN_NAME, name(7, OTHER), results={name(7, OTHER): GONE})
    known = memory(record(*slots, running(2, Verdict.LOST, is_gone=True, absent_since=BEFORE)), done)
    assert find_names_to_query(known, limits(pool("a"), pool("b"))) == {
        "a": {UNKNOWN_NAME: "", name(0): "uid-0"},
        "b": {UNKNOWN_NAME: "", name(1): "uid-1"},
    }
