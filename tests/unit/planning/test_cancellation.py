"""Cancels of requests that HF has forgotten, which are announced first; and the record of answers that HF has read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import (
    Brake,
    BrakeReason,
    DeleteReason,
    HfActivity,
    Hold,
    HoldKind,
    Holds,
    Phase,
    RequestStatus,
    Slot,
    Verdict,
)
from provisioner.names import OPERATOR_ACCOUNT
from provisioner.planning.core.slots import CANCELLED_MESSAGE
from provisioner.planning.finish.cancellation import cancel_unpolled, note_reported
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    OTHER,
    REQUEST,
    closes_of,
    draft_of,
    giving_back,
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

LIMITS = limits(cancel_after_seconds=1800.0)
ORPHAN = name(0, OTHER)
DONE = RequestStatus.COMPLETE
LATCHED = Brake(BrakeReason.INTENT_LOST, BEFORE, "before")


@pytest.mark.parametrize(
    ("changes", "activity", "cancelling"),
    [
        pytest.param({}, HfActivity(last_call_at=NOW), True, id="never polled while HF makes other calls: announced"),
        pytest.param({}, HfActivity(last_call_at=NOW - 7200), False, id="HF is silent altogether: nothing"),
        pytest.param({}, HfActivity({REQUEST: NOW - 1799}, last_call_at=NOW), False,
                     id="polled within 30 minutes: nothing"),
        pytest.param({}, HfActivity({REQUEST: NOW - 1800}, last_call_at=NOW), True,
                     id="polled 30 minutes ago: announced"),
        pytest.param({}, HfActivity(since=NOW - 1799, last_call_at=NOW), False,
                     id="not noticed for so long: no cancel"),
        pytest.param({"read_at": NOW - 1799}, HfActivity(last_call_at=NOW), False, id="a young request: nothing"),
        pytest.param({"ended": DONE}, HfActivity(last_call_at=NOW), True, id="ended, and HF has not heard: announced"),
        pytest.param({"ended": DONE, "reported_at": BEFORE}, HfActivity(last_call_at=NOW), False,
                     id="HF has heard: never"),
        pytest.param({"ended": DONE, "message": CANCELLED_MESSAGE}, HfActivity(last_call_at=NOW), False,
                     id="cancelled, and HF has not heard: its end is never taken back"),
        pytest.param({"rc_account": OPERATOR_ACCOUNT}, HfActivity(last_call_at=NOW), False,
                     id="an operator's request, which is not polled: never"),
        pytest.param({"rc_account": OPERATOR_ACCOUNT, "ended": DONE}, HfActivity(last_call_at=NOW), False,
                     id="an operator's request that has ended: never"),
        pytest.param({"is_cancelling": True}, HfActivity({REQUEST: NOW}, last_call_at=NOW), False,
                     id="polled since: revoked"),
        pytest.param({"is_cancelling": True, "ended": DONE, "reported_at": BEFORE}, HfActivity(last_call_at=NOW), False,
                     id="heard since: taken back"),
    ],
)  # fmt: skip
def test_a_cancel_is_announced_first(changes: dict[str, object], activity: HfActivity, cancelling: bool) -> None:
    old = record(running(0), slot(1), **({"read_at": NOW - 7200} | changes))
    braked = replace(
        old, is_cancelling=not old.message
    )  # under the brake none is announced, and one that was is taken back
    for one, brake in ((old, None), (old, LATCHED), (braked, LATCHED)):
        draft = draft_of(memory(one, brake=brake), limits=LIMITS)
        cancel_unpolled(draft, activity)
        announced = cancelling and brake is None
        assert (draft.requests[REQUEST].is_cancelling, closes_of(draft)) == (announced, [])
        assert not announced or draft.due_at < NOW + 1, "the second observation comes by itself"


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        pytest.param(slot(), Verdict.CANCELLED, id="open"),
        pytest.param(running(), Verdict.CANCELLED, id="running"),
        pytest.param(running(0, Verdict.SUCCEEDED), Verdict.RETURNED, id="succeeded"),
        pytest.param(slot(0, Verdict.FAILED), Verdict.FAILED, id="failed"),
        pytest.param(running(0, Verdict.LOST), Verdict.LOST, id="lost"),
    ],
)
def test_an_announced_cancel_closes_what_is_open_or_succeeded(one: Slot, verdict: Verdict) -> None:
    draft = draft_of(memory(record(one, read_at=NOW - 7200, is_cancelling=True)), limits=LIMITS)
    cancel_unpolled(draft, HfActivity(last_call_at=NOW))
    after = draft.requests[REQUEST]
    assert (after.ended, after.message, after.is_cancelling) == (
        RequestStatus.COMPLETE_WITH_ERROR, CANCELLED_MESSAGE, False
    )  # fmt: skip
    assert after.slots[0].verdict is verdict
    if verdict is not Verdict.FAILED:
        assert after.slots[0].deletion.reason is DeleteReason.CANCELLED, "it is reported as failed"


@pytest.mark.parametrize(
    ("ended", "activity", "reported"),
    [
        pytest.param(DONE, HfActivity(read_ids=frozenset({REQUEST})), True, id="a script printed the terminal answer"),
        pytest.param(DONE, HfActivity(inventory=frozenset({name(0)})), True, id="HF lists a machine of it"),
        pytest.param(DONE, HfActivity(inventory=frozenset({ORPHAN})), False, id="HF lists another machine"),
        pytest.param(None, HfActivity(read_ids=frozenset({REQUEST})), False, id="there is no terminal answer"),
    ],
)
def test_whether_hf_knows_the_terminal_answer(
    ended: RequestStatus | None, activity: HfActivity, reported: bool
) -> None:
    return_record = giving_back(name(0), ended=ended, id_="ret-1")
    draft = draft_of(memory(record(running(0), ended=ended), return_record), limits=LIMITS)
    note_reported(draft, activity)
    assert draft.requests[REQUEST].reported_at == (NOW if reported else None)
    assert draft.returns["ret-1"].reported_at is None
    note_reported(draft, HfActivity(read_ids=frozenset({"ret-1"})))
    assert draft.returns["ret-1"].reported_at == (NOW if ended else None), "a script printed the end of the return"


def test_an_operator_knows_each_terminal_answer() -> None:
    own = record(running(0), ended=DONE, rc_account=OPERATOR_ACCOUNT)
    draft = draft_of(memory(own, record(running(1), id_=OTHER, ended=DONE)), limits=LIMITS)
    note_reported(draft, HfActivity())
    assert [one.reported_at for one in draft.requests.values()] == [NOW, None]


@pytest.mark.parametrize(
    ("changes", "activity", "forgotten"),
    [
        pytest.param({}, HfActivity(last_call_at=NOW), True, id="never polled while HF makes other calls"),
        pytest.param({}, HfActivity(last_call_at=NOW - 1801), False, id="HF is silent altogether"),
        pytest.param({"ended_at": NOW - 1799}, HfActivity(last_call_at=NOW), False, id="it ended within 30 minutes"),
        pytest.param({}, HfActivity({"ret-1": NOW - 1799}, last_call_at=NOW), False, id="polled within 30 minutes"),
        pytest.param({}, HfActivity(since=NOW - 1799, last_call_at=NOW), False, id="not noticed for so long ourselves"),
        pytest.param({"ended": None, "ended_at": None}, HfActivity(last_call_at=NOW), False, id="it has not ended"),
    ],
)
def test_a_return_that_hf_never_asks_for_has_been_forgotten(
    changes: dict[str, object], activity: HfActivity, forgotten: bool
) -> None:
    old: dict[str, object] = {"id_": "ret-1", "read_at": NOW - 7200, "ended": DONE, "ended_at": NOW - 3600}
    return_record = giving_back(name(0), **(old | changes))
    for brake in (None, LATCHED):
        draft = draft_of(memory(return_record, brake=brake), limits=LIMITS)
        note_reported(draft, activity)
        assert draft.returns["ret-1"].reported_at == (NOW if forgotten and brake is None else None)


def test_a_cancelled_request_does_not_wait_for_a_machine_that_is_down() -> None:
    recorded = record(running(0, down_since=NOW - 60, failure=BROKEN), running(1), count=2, deadline_at=NOW + 3000)
    by = Holds((Hold(HoldKind.CANCEL, REQUEST, "eve", 1.0, "x"),))
    looked = snapshot(machine(0, phase=Phase.PENDING, failure=BROKEN), machine(1))
    made = plan(memory(recorded), looked, limits=limits(pool("a", down_seconds=0.0)), holds=by)
    after = made.memory.requests[REQUEST]
    assert after.ended is RequestStatus.COMPLETE_WITH_ERROR
    assert [one.verdict for one in after.slots.values()] == [Verdict.CANCELLED, Verdict.SUCCEEDED]
