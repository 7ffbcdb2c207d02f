"""Answers to HF for requests, return requests and losses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.hostfactory import Loss
from provisioner.model import (
    DeleteReason,
    ErrorClass,
    Failure,
    HfActivity,
    Limits,
    LossCause,
    Memory,
    Notice,
    RequestRecord,
    RequestStatus,
    ReturnResult,
    Slot,
    Verdict,
)
from provisioner.planning.report.answers import (
    HINDERED,
    NOT_OURS,
    RETURNED_EARLY,
    STUCK,
    STUCK_UNKNOWN_MACHINE,
    count_available,
    find_losses,
    render_answers,
    request_answer,
    return_answer,
)
from tests.support.hostfactory.schemas import check_output
from tests.support.parts import make_slot
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    OTHER,
    PREFIX,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    UNREADY,
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
    unsent,
)

DONE, WITH_ERROR = RequestStatus.COMPLETE, RequestStatus.COMPLETE_WITH_ERROR
RETURN = "ret-aaaaaaaaaa"


def reported(recorded: RequestRecord) -> Any:
    """Return the entry of getRequestStatus, valid by HF's schema."""
    answer = request_answer(recorded)
    entry = json.loads(answer.text)
    check_output("getRequestStatus", {"requests": [entry]})
    assert answer.ended == (entry["status"] != "running")
    return entry


def machine_entry(result: str, status: str, message: str = "", *, ran: bool = False) -> dict[str, object]:
    return {
        "machineId": name(0),
        "name": name(0),
        "result": result,
        "status": status,
        "privateIpAddress": "10.0.0.0" if ran else "",
        "publicIpAddress": "",
        "launchtime": 1_700_000_000 if ran else 0,
        "message": message,
    }


NONE_LEFT = "stockout: ZONE_RESOURCE_POOL_EXHAUSTED Error Code: InsufficientInstanceCapacity"
"""A message with the code that LSF reads."""
RUNS = machine_entry("succeed", "running", ran=True)


# --- a machine of a request -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "entry"),
    [
        pytest.param(slot(), machine_entry("executing", "pending"), id="open, submitted: executing"),
        pytest.param(unsent(), machine_entry("executing", "pending"), id="open, not sent: executing"),
        pytest.param(slot(failure=BROKEN), machine_entry("executing", "pending", "other: ImagePullBackOff"),
                     id="open, waiting for a reason: executing, with the reason"),
        pytest.param(slot(is_queued=True, queued_since=1_700_000_000, queue_reason="Priority"),
                     machine_entry("executing", "pending", "queued in a since 2023-11-14T22:13:20Z: Priority"),
                     id="open, in a queue: executing, with the wait and without a code"),
        pytest.param(slot(is_queued=True, queue_reason="Priority"),
                     machine_entry("executing", "pending", "queued in a: Priority"), id="since when is unknown"),
        pytest.param(slot(failure=UNREADY), machine_entry("executing", "pending"), id="open, booting: no reason"),
        pytest.param(running(), RUNS, id="open, running: succeed"),
        pytest.param(running(0, Verdict.SUCCEEDED), RUNS, id="succeeded: succeed"),
        pytest.param(running(0, Verdict.LOST, delete=DeleteReason.LOST, failure=BROKEN), RUNS,
                     id="lost: succeed, as reported before"),
        pytest.param(running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED), RUNS,
                     id="returned: succeed, as reported before"),
        pytest.param(running(0, Verdict.RETURNED, delete=DeleteReason.CANCELLED),
                     machine_entry("fail", "terminated", RETURNED_EARLY, ran=True),
                     id="returned before the terminal answer was heard: fail"),
        pytest.param(slot(0, Verdict.CANCELLED, delete=DeleteReason.CANCELLED),
                     machine_entry("fail", "terminated", RETURNED_EARLY), id="cancelled: fail"),
        pytest.param(unsent(0, Verdict.FAILED, failure=STOCKOUT), machine_entry("fail", "terminated", NONE_LEFT),
                     id="given up: fail, with the reason"),
        pytest.param(unsent(0, Verdict.FAILED), machine_entry("fail", "terminated", "The machine failed."),
                     id="given up for no known reason: fail, with a message all the same"),
        pytest.param(slot(0, Verdict.FAILED, failure=STOCKOUT), None, id="failed and replaced: not reported"),
        pytest.param(slot(0, Verdict.WITHDRAWN), None, id="withdrawn: not reported"),
        pytest.param(unsent(0, Verdict.WITHDRAWN), None, id="withdrawn before it was sent: not reported"),
    ],
)  # fmt: skip
def test_what_is_reported_of_a_slot(one: Slot, entry: dict[str, object] | None) -> None:
    assert reported(record(one))["machines"] == ([entry] if entry else [])


def test_a_machine_of_a_cancelled_request_says_why_it_was_cancelled() -> None:
    cancelled = slot(0, Verdict.CANCELLED, delete=DeleteReason.CANCELLED)
    entry = reported(record(cancelled, message="Cancelled: text", ended=RequestStatus.COMPLETE_WITH_ERROR))
    assert entry["machines"] == [machine_entry("fail", "terminated", "Cancelled: text")]


def test_machines_are_listed_in_the_order_of_their_slots_each_with_the_account_of_its_request() -> None:
    entry = reported(record(running(2), running(0), slot(1), rc_account="acct"))
    assert [(one["name"], one["rcAccount"]) for one in entry["machines"]] == [(name(n), "acct") for n in range(3)]


# --- the request itself -----------------------------------------------------------------------------------------------

FAILED = unsent(1, Verdict.FAILED, failure=STOCKOUT)


ANNOUNCED = "cancelling: HostFactory has not polled for a long time."
CANCELLED = slot(0, Verdict.CANCELLED, delete=DeleteReason.CANCELLED)
HAD = running(0, Verdict.SUCCEEDED)


@pytest.mark.parametrize(
    ("recorded", "status", "message"),
    [
        pytest.param(record(running(0), slot(1)), "running", "", id="it runs"),
        pytest.param(record(count=3), "running", "", id="nothing was asked for yet"),
        pytest.param(record(HAD, ended=DONE), "complete", "", id="complete"),
        pytest.param(record(HAD, FAILED, ended=WITH_ERROR), WITH_ERROR, NONE_LEFT, id="the first machine's error"),
        pytest.param(record(running(0), is_cancelling=True), "running", ANNOUNCED, id="a cancel is announced"),
        pytest.param(record(HAD, ended=DONE, is_cancelling=True), "running", ANNOUNCED, id="announced after it ended"),
        pytest.param(record(CANCELLED, ended=DONE, is_cancelling=True, message="Cancelled by an operator: x"),
                     "running",
                     ANNOUNCED, id="announced of what an operator cancelled"),
        pytest.param(record(CANCELLED, message="Cancelled: text", ended=WITH_ERROR), WITH_ERROR, "Cancelled: text",
                     id="cancelled"),
        pytest.param(record(running(0, Verdict.LOST), ended=DONE), "complete", "", id="complete, whatever is lost"),
    ],
)  # fmt: skip
def test_the_status_of_a_request(recorded: RequestRecord, status: str, message: str) -> None:
    entry = reported(recorded)
    assert (entry["requestId"], entry["status"], entry["message"]) == (REQUEST, status, message)


def test_the_whole_entry() -> None:
    assert request_answer(record(running(0, Verdict.SUCCEEDED), ended=DONE)).text == (
        '{"requestId":"aaaaaaaaaa","status":"complete","message":"","machines":['
        '{"machineId":"hf-aaaaaaaaaa-000000","name":"hf-aaaaaaaaaa-000000","result":"succeed","status":"running",'
        '"privateIpAddress":"10.0.0.0","publicIpAddress":"","launchtime":1700000000,"message":""}]}'
    )


@settings(max_examples=30)
@given(
    verdict=st.sampled_from(Verdict),
    ran_at=st.sampled_from([None, BEFORE]),
    submitted_at=st.sampled_from([None, BEFORE]),
    delete=st.sampled_from([None, *DeleteReason]),
    failure=st.none() | st.builds(Failure, st.sampled_from(ErrorClass), st.text(max_size=20)),
    is_gone=st.booleans(),
    changes=st.fixed_dictionaries({
        "ended": st.sampled_from([None, DONE, WITH_ERROR]),
        "message": st.sampled_from(["", "Cancelled: text"]),
        "is_cancelling": st.booleans(),
    }),
)  # fmt: skip
def test_only_the_words_of_the_interface_appear(changes: dict[str, Any], **facts: Any) -> None:
    """Answers must use only the three words of ``status`` and the three of ``result`` that HF's schema allows."""
    reported(record(make_slot(name(0), "a", opened_at=BEFORE, **facts), **changes))


# --- a return request -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "entry"),
    [
        pytest.param(None, machine_entry("executing", "shutting-down"), id="on its way"),
        pytest.param(ReturnResult.GONE, machine_entry("succeed", "terminated"), id="gone"),
        pytest.param(ReturnResult.NOT_OURS, machine_entry("fail", "running", NOT_OURS), id="not ours"),
    ],
)
@pytest.mark.parametrize("remembered", [True, False], ids=["of a slot we know", "of an unknown machine"])
def test_what_is_reported_of_a_returned_machine(
    result: ReturnResult | None, entry: dict[str, object], remembered: bool
) -> None:
    return_record = giving_back(name(0), results={name(0): result} if result else {})
    slots = [running(0, Verdict.RETURNED)] if remembered else []
    answer = return_answer(return_record, memory(record(*slots)), PREFIX)
    document = json.loads(answer.text)
    check_output("getRequestStatus", {"requests": [document]})
    ran = {"privateIpAddress": "10.0.0.0", "launchtime": 1_700_000_000} if remembered else {}
    assert document == {"requestId": RETURN, "status": "running", "message": "", "machines": [entry | ran]}
    assert not answer.ended


@pytest.mark.parametrize("remembered", [True, False], ids=["of a slot we know", "of an unknown machine"])
def test_what_is_stuck_is_tried_further_only_where_that_is_so(remembered: bool) -> None:
    request = REQUEST if remembered else OTHER
    results = {name(0, request): ReturnResult.STUCK}
    return_record = giving_back(*results, results=results, ended=RequestStatus.COMPLETE_WITH_ERROR)
    after = memory(record(running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED), ended=DONE), return_record)
    [reported] = json.loads(return_answer(return_record, after, PREFIX).text)["machines"]
    assert (reported["result"], reported["status"]) == ("fail", "stopping")
    assert reported["message"] == (STUCK if remembered else STUCK_UNKNOWN_MACHINE)
    further = plan(after, snapshot(machine(0, request=request)), snapshot(pool="b"), limits=limits())
    assert bool(further.deletes) is remembered


@pytest.mark.parametrize("ended", [RequestStatus.COMPLETE, RequestStatus.COMPLETE_WITH_ERROR])
def test_an_ended_return_request_says_so(ended: RequestStatus) -> None:
    return_record = giving_back("alien", results={"alien": ReturnResult.GONE}, ended=ended)
    answer = return_answer(return_record, memory(), PREFIX)
    assert (json.loads(answer.text)["status"], answer.ended) == (ended, True)


# --- what changed -----------------------------------------------------------------------------------------------------


def test_an_unchanged_record_is_not_rendered_again() -> None:
    remembered = memory(record(running(0)), record(slot(request=OTHER), id_=OTHER), giving_back(name(0)))
    first = render_answers(remembered, {}, PREFIX)
    changed = replace(remembered, requests=remembered.requests | {OTHER: record(running(request=OTHER), id_=OTHER)})
    second = render_answers(changed, first, PREFIX)
    assert second[REQUEST] is first[REQUEST]
    assert second[RETURN] is first[RETURN]
    assert second[OTHER] != first[OTHER]
    assert set(second) == {REQUEST, OTHER, RETURN}
    assert render_answers(memory(), second, PREFIX) == {}, "a forgotten request has no answer"


# --- losses -----------------------------------------------------------------------------------------------------------

NOTICE = Notice(LossCause.PREEMPTED, NOW + 25.5)


@pytest.mark.parametrize(
    ("one", "listed", "loss"),
    [
        pytest.param(running(0, Verdict.LOST), False, Loss(0, "unknown"), id="lost: gone"),
        pytest.param(running(0, Verdict.LOST, cause=LossCause.EXITED), False, Loss(0, "exited"), id="lost, and why"),
        pytest.param(running(0, Verdict.SUCCEEDED, notice=NOTICE), False, Loss(25, "preempted"),
                     id="noticed: the seconds left"),
        pytest.param(running(0, Verdict.SUCCEEDED, notice=Notice(LossCause.NODE, NOW - 9)), False, Loss(0, "node"),
                     id="noticed, and overdue: no seconds left"),
        pytest.param(running(0, Verdict.SUCCEEDED), True, None, id="it runs: nothing"),
        pytest.param(running(0, notice=NOTICE), False, None, id="not yet reported as succeeded: no loss"),
        pytest.param(running(0, Verdict.FAILED), False, None, id="failed, and HF never knew: nothing"),
        pytest.param(running(0, Verdict.FAILED), True, Loss(0), id="failed, and HF lists it: gone"),
        pytest.param(running(0, Verdict.RETURNED), False, None, id="returned: nothing"),
    ],
)  # fmt: skip
def test_what_hf_has_to_give_back(one: Slot, listed: bool, loss: Loss | None) -> None:
    activity = HfActivity(inventory=frozenset({name(0)} if listed else ()))
    assert find_losses(memory(record(one)), activity, NOW) == ({name(0): loss} if loss else {})


def test_what_hf_gave_back_is_no_longer_reported_and_unknown_hosts_are() -> None:
    remembered = memory(record(running(0, Verdict.LOST), running(1, Verdict.LOST)), giving_back(name(0)),
                        lost=(name(0, OTHER),))  # fmt: skip
    assert find_losses(remembered, HfActivity(), NOW) == {name(1): Loss(0), name(0, OTHER): Loss(0)}


# --- what is available ------------------------------------------------------------------------------------------------


RETURNED = memory(record(running(0, Verdict.RETURNED)))
OF_ANOTHER = memory(record(running(0), running(1), template="U"))


@pytest.mark.parametrize(
    ("remembered", "caps", "number"),
    [
        pytest.param(memory(), limits(), None, id="no cap: no number"),
        pytest.param(memory(), limits(maximum=10), 10, id="maxNumber alone"),
        pytest.param(memory(), limits(pool("a", max_machines=3), pool("b")), None, id="one pool has no cap: none"),
        pytest.param(memory(), limits(pool("a", max_machines=3), pool("b", max_machines=4)), 7, id="pools together"),
        pytest.param(memory(), limits(pool("a", max_machines=3), maximum=2), 2, id="the lower of both"),
        pytest.param(memory(record(running(0, Verdict.SUCCEEDED), slot(1), running(2, Verdict.LOST, is_gone=True))),
                     limits(maximum=10), 8, id="machines that are there or on their way take a place"),
        pytest.param(RETURNED, limits(pool("a", max_machines=3), maximum=10), 2,
                     id="a machine that still goes takes a place in its pool"),
        pytest.param(RETURNED, limits(maximum=10), 10, id="and none of the template's"),
        pytest.param(memory(record(running(0, Verdict.RETURNED, is_gone=True))), limits(pool("a", max_machines=3)), 3,
                     id="one that has gone takes none"),
        pytest.param(memory(record(running(0), running(1))),
                     limits(pool("a", max_machines=1), pool("b", max_machines=4)), 4,
                     id="what a pool has above its cap takes no place in another"),
        pytest.param(memory(record(slot(0), slot(1), slot(2))), limits(maximum=2), 0, id="never below nothing"),
        pytest.param(memory(), limits(pool("a", max_machines=3, is_paused=True)), 3, id="a pause does not count"),
        pytest.param(memory(), limits(pool("a", max_machines_total=3), pool("b", max_machines=4)), 7, id="of any kind"),
        pytest.param(memory(), limits(pool("a", max_machines_total=3), pool("b")), None, id="one has none at all"),
        pytest.param(OF_ANOTHER, limits(pool("a", max_machines_total=5)), 3,
                     id="another template's machines take a place under the cap over all"),
        pytest.param(OF_ANOTHER, limits(pool("a", max_machines=4, max_machines_total=9)), 4,
                     id="and none under a template's own"),
        pytest.param(memory(record(running(0), running(1))),
                     limits(pool("a", max_machines_total=1), pool("b", max_machines=4)), 4,
                     id="what a pool has above its cap over all takes no place in another"),
    ],
)  # fmt: skip
def test_what_the_caps_leave(remembered: Memory, caps: Limits, number: int | None) -> None:
    assert count_available(remembered, caps) == ({TEMPLATE: number} if number is not None else {})


@pytest.mark.parametrize("strayed", [False, True])
def test_the_return_of_a_machine_that_had_lost_our_mark_says_so(strayed: bool) -> None:
    """The return of a strayed machine must have a message, although it succeeded: the machine had lost our labels, so
    its end was seen only by name and uid."""
    known = memory(record(running(0, Verdict.RETURNED, is_gone=True, is_strayed=strayed)))
    return_record = giving_back(name(0), results={name(0): ReturnResult.GONE}, ended=DONE)
    [entry] = json.loads(return_answer(return_record, known, PREFIX).text)["machines"]
    assert (entry["result"], bool(entry["message"])) == ("succeed", strayed)


WORDS = Failure(ErrorClass.DENIED, "deletion is protected")


@pytest.mark.parametrize(
    ("result", "hindered", "message"),
    [
        pytest.param(None, {}, f"denied: {WORDS.text}", id="on its way: what is known now"),
        pytest.param(ReturnResult.STUCK, {}, STUCK, id="ended before anybody knew: no word more"),
        pytest.param(ReturnResult.STUCK, {name(0): WORDS}, f"{STUCK}{HINDERED}denied: {WORDS.text}",
                     id="ended: what was known then"),
        pytest.param(ReturnResult.GONE, {name(0): WORDS}, "", id="gone all the same: nothing"),
    ],
)  # fmt: skip
def test_a_return_says_why_a_machine_does_not_go(
    result: ReturnResult | None, hindered: Mapping[str, Failure], message: str
) -> None:
    known = memory(record(running(0, Verdict.RETURNED, hindrance=WORDS)))
    results = {} if result is None else {name(0): result}
    ended = {ReturnResult.STUCK: RequestStatus.COMPLETE_WITH_ERROR, ReturnResult.GONE: DONE}.get(result)
    return_record = giving_back(name(0), results=results, hindered=hindered, ended=ended)
    document = json.loads(return_answer(return_record, known, PREFIX).text)
    assert document["machines"][0]["message"] == message
    assert document["message"] == (message if result is ReturnResult.STUCK else "")
