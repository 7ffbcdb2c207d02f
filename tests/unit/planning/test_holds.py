"""Holds: the actions that they stop, the work that goes on, and the reports to HF before a delete."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from provisioner.hostfactory import Answer
from provisioner.model import (
    NO_HOLDS,
    Brake,
    BrakeReason,
    HfActivity,
    Hold,
    HoldKind,
    Holds,
    Limits,
    LossCause,
    Memory,
    Notice,
    PendingReason,
    Phase,
    Plan,
    RequestStatus,
    ReturnResult,
    Slot,
    Snapshot,
    Verdict,
)
from provisioner.planning.core.holds import DRAINED, GIVEN_UP, count_holds, is_done, limits_under_holds
from provisioner.planning.core.slots import CANCELLED_BY_OPERATOR
from provisioner.planning.recover.rebuild import RecoveryInputs, rebuild_memory
from provisioner.planning.report.answers import AGED, STUCK, count_available, find_losses, request_answer, return_answer
from tests.support.parts import alter
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    OTHER,
    PREFIX,
    REQUEST,
    TEMPLATE,
    giving_back,
    intent_of,
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

DONE = RequestStatus.COMPLETE
STOP = Hold(HoldKind.STOP_ALL, "", "ann", 1.0, "cloud is down")
PAUSE, DRAIN = (Hold(kind, "a", "bob", 2.0, "zone is sick") for kind in (HoldKind.PAUSE, HoldKind.DRAIN))
BOTH = (snapshot(pool="a"), snapshot(pool="b"))
TWO = limits()
ONE = limits(pool("a"))


def cancel(target: str) -> Hold:
    return Hold(HoldKind.CANCEL, target, "eve", 3.0, "wrong job")


def with_holds(limits: Limits, *holds: Hold) -> dict[str, Any]:
    """Return the holds as a plan gets them."""
    return {"limits": limits, "holds": Holds(holds)}


def hf_has(*slots: Slot, **changes: Any) -> Memory:
    return memory(record(*slots, **({"ended": DONE, "reported_at": BEFORE} | changes)))


def made(reported: Plan) -> dict[str, int]:
    return dict(Counter(create.pool for create in reported.creates))


SENT = slot(is_accepted=False, submitted_at=NOW - 100)
STRANGE = snapshot(machine(7, request="zzzzzzzzzz"))
LEFT = machine(phase=Phase.GONE)
RETURN_RECORDS = {"ret-x": giving_back(name(), id_="ret-x")}

OURS = running(0, Verdict.SUCCEEDED)
ACTS: dict[str, tuple[Memory, Snapshot, dict[str, Any]]] = {
    "a machine that is wanted": (memory(record(count=1)), snapshot(), {}),
    "a slot that was not sent": (memory(record(unsent())), snapshot(), {}),
    "a create without a response": (memory(record(SENT)), snapshot(), {}),
    "a machine that is returned": (replace(hf_has(OURS), returns=RETURN_RECORDS), snapshot(machine()), {}),
    "leftovers of a failed machine": (memory(record(slot(0, Verdict.FAILED), count=0)), snapshot(LEFT), {}),
    "an orphan": (memory(orphans={name(7, "zzzzzzzzzz"): NOW - 700}), STRANGE, {}),
    "a returned machine that no slot explains": (memory(giving_back(name(7, "zzzzzzzzzz"))), STRANGE, {}),
    "a machine that no list of HF names": (
        alter(hf_has(OURS), unlisted={name(): NOW - 9000}), snapshot(machine()), {"delete_unlisted_after": 3600.0},
    ),
}  # fmt: skip
LISTS = HfActivity(since=NOW - 9000, last_call_at=NOW, last_list_at=NOW, started_at=NOW - 9000)


@pytest.mark.parametrize("case", ACTS)
def test_nothing_is_made_or_deleted_while_all_is_stopped_and_it_is_when_that_is_over(case: str) -> None:
    known, observation, settings = ACTS[case]
    usual = alter(ONE, **settings)
    stopped = plan(known, observation, **with_holds(usual, STOP), activity=LISTS)
    assert (stopped.creates, stopped.deletes) == ((), ())
    assert {one.slot.verdict for one in stopped.closes} <= {Verdict.RETURNED}
    assert stopped.memory.orphans.deletes == (), "an orphan that is kept spends nothing of the cap"
    after = plan(stopped.memory, observation, limits=usual, activity=LISTS)
    assert after.creates or after.deletes, "the hold alone held it back"


def test_verdicts_and_answers_go_on_while_all_is_stopped() -> None:
    seen = plan(memory(record(slot(0))), snapshot(machine()), **with_holds(ONE, STOP))
    assert seen.memory.requests[REQUEST].ended is DONE
    lost = plan(hf_has(running(0, Verdict.SUCCEEDED, absent_since=BEFORE)), snapshot(), **with_holds(ONE, STOP))
    assert lost.memory.requests[REQUEST].slots[0].verdict is Verdict.LOST


def test_a_return_waits_and_says_why_until_it_goes_on() -> None:
    known, observation, _ = ACTS["a machine that is returned"]
    stopped = plan(known, observation, **with_holds(ONE, STOP)).memory
    (return_record,) = stopped.returns.values()
    entry = json.loads(return_answer(return_record, stopped, PREFIX).text)
    assert entry["status"] == "running"
    assert entry["message"] == "No machine is deleted now (stop-all by ann: cloud is down)."
    assert entry["machines"][0]["result"] == "executing"
    (on,) = plan(stopped, observation, limits=ONE).memory.returns.values()
    assert on.message == ""


def test_a_return_ends_by_its_deadline_with_the_hold_as_its_reason_and_its_machine_goes_later() -> None:
    known, observation, _ = ACTS["a machine that is returned"]
    (return_record,) = known.returns.values()
    late = replace(known, returns={return_record.id: replace(return_record, deadline_at=NOW - 1)})
    stopped = plan(late, observation, **with_holds(ONE, STOP)).memory
    (ended,) = stopped.returns.values()
    entry = json.loads(return_answer(ended, stopped, PREFIX).text)
    assert (entry["status"], ended.results) == ("complete_with_error", {name(): ReturnResult.STUCK})
    assert "stop-all by ann" in entry["message"]
    assert entry["machines"][0]["message"] == STUCK
    after = plan(stopped, observation, limits=ONE)
    assert [delete.name for delete in after.deletes] == [name()]
    assert after.memory.returns[ended.id] == ended, "a reported answer stays"


def test_a_return_of_what_is_gone_ends_cleanly_while_all_is_stopped() -> None:
    known = replace(hf_has(running(0, Verdict.RETURNED, is_gone=True)), returns=RETURN_RECORDS)
    (return_record,) = plan(known, snapshot(), **with_holds(ONE, STOP)).memory.returns.values()
    assert (return_record.ended, return_record.message) == (DONE, "")


@pytest.mark.parametrize("hold", [PAUSE, DRAIN])
def test_a_held_pool_gets_no_machine_and_the_next_one_gets_it(hold: Hold) -> None:
    reported = plan(memory(record(unsent(), count=3)), *BOTH, **with_holds(TWO, hold))
    assert (made(reported), dict(reported.deferred)) == ({"b": 3}, {})


@pytest.mark.parametrize(
    ("hold", "reason"),
    [(PAUSE, PendingReason.PAUSED), (DRAIN, PendingReason.PAUSED), (STOP, PendingReason.STOPPED)],
)
def test_without_another_pool_machines_wait_by_the_name_of_the_hold(hold: Hold, reason: PendingReason) -> None:
    known = memory(record(count=3))
    reported = plan(known, snapshot(), **with_holds(ONE, hold))
    assert (reported.creates, dict(reported.deferred)) == ((), {("a", TEMPLATE, reason): 3})
    (unmet,) = reported.unmet[REQUEST]
    assert (unmet.reason, unmet.machines) == (reason, 3)


@pytest.mark.parametrize(
    ("holds", "failures", "words"),
    [
        pytest.param((PAUSE,), (), "quota: No machine is made now (pause of a by bob: zone is sick).", id="paused"),
        pytest.param((STOP,), (), "quota: No machine is made now (stop-all by ann: cloud is down).", id="stopped"),
        pytest.param((PAUSE,), (BROKEN,), "pause of a by bob", id="whatever went wrong with another machine"),
        pytest.param((), (), "No pool had room", id="no hold"),
    ],
)
def test_a_request_that_is_held_until_its_deadline_says_so(
    holds: tuple[Hold, ...], failures: tuple[Any, ...], words: str
) -> None:
    failed = [slot(number, Verdict.FAILED, failure=one, is_gone=True) for number, one in enumerate(failures)]
    known = memory(record(*failed, count=1 + len(failed), deadline_at=NOW - 1))
    ended = plan(known, snapshot(), **with_holds(limits(pool("a", max_machines=0)), *holds)).memory.requests[REQUEST]
    entry = json.loads(request_answer(ended).text)
    assert entry["status"] == "complete_with_error"
    (message,) = [one["message"] for one in entry["machines"] if words in one["message"]]
    if holds:
        assert message.endswith("Error Code: InsufficientCapacity"), "LSF waits for capacity"


def test_a_hold_on_one_of_two_pools_is_no_reason() -> None:
    capped = with_holds(limits(pool("a"), pool("b", max_machines=0)), PAUSE)
    ended = plan(memory(record(count=1, deadline_at=NOW - 1)), *BOTH, **capped).memory.requests[REQUEST]
    assert "bob" not in request_answer(ended).text


def test_holds_change_no_cap() -> None:
    capped = limits(pool("a", max_machines=5))
    assert (
        count_available(memory(), with_holds(capped, STOP, PAUSE)["limits"])
        == count_available(memory(), capped)
        == {TEMPLATE: 5}
    )


SPOT = Notice(LossCause.PREEMPTED, NOW + 30)


@pytest.mark.parametrize(
    ("one", "holds", "reported"),
    [
        pytest.param(OURS, (DRAIN,), DRAINED, id="in a drained pool"),
        pytest.param(OURS, (cancel(name()),), GIVEN_UP, id="cancelled"),
        pytest.param(OURS, (PAUSE, STOP), None, id="a pause and a stop ask for nothing"),
        pytest.param(OURS, (cancel(name(1)),), None, id="another one is cancelled"),
        pytest.param(running(0, Verdict.SUCCEEDED, pool="b"), (DRAIN,), None, id="in another pool"),
        pytest.param(running(0), (DRAIN, cancel(name())), None, id="HF does not have it yet"),
        pytest.param(running(0, Verdict.SUCCEEDED, retiring_at=NOW), (DRAIN,), DRAINED, id="old, and drained"),
        pytest.param(running(0, Verdict.SUCCEEDED, retiring_at=NOW), (PAUSE,), AGED, id="old, and not drained"),
    ],
)
def test_whose_machines_hf_is_asked_for(one: Slot, holds: tuple[Hold, ...], reported: Any) -> None:
    assert find_losses(hf_has(one), HfActivity(), NOW, Holds(holds)).get(name()) == reported


def test_an_end_that_is_announced_is_reported_with_what_is_left_of_it_and_one_that_has_come_as_that() -> None:
    noticed = find_losses(hf_has(running(0, Verdict.SUCCEEDED, notice=SPOT)), HfActivity(), NOW, Holds((DRAIN,)))
    assert noticed[name()].grace == 30
    assert find_losses(hf_has(running(0, Verdict.LOST)), HfActivity(), NOW, Holds((DRAIN,)))[name()].grace == 0


def test_a_machine_that_is_asked_back_has_time_left_and_is_no_longer_named_once_it_is_given_back() -> None:
    assert min(DRAINED.grace, GIVEN_UP.grace) > 0, "0 says that it is gone"
    assert (
        find_losses(replace(hf_has(OURS), returns=RETURN_RECORDS), HfActivity(), NOW, Holds((DRAIN, cancel(name()))))
        == {}
    )


@pytest.mark.parametrize("hold", [DRAIN, cancel(name())])
def test_what_is_asked_back_is_deleted_only_when_hf_returns_it(hold: Hold) -> None:
    known = hf_has(OURS)
    reported = plan(known, snapshot(machine()), **with_holds(ONE, hold))
    assert (reported.deletes, reported.closes) == ((), ())
    assert reported.memory.requests[REQUEST].slots[0].verdict is Verdict.SUCCEEDED
    given = plan(replace(reported.memory, returns=RETURN_RECORDS), snapshot(machine()), **with_holds(ONE, hold))
    assert [delete.name for delete in given.deletes] == [name()]


def test_a_cancelled_request_ends_with_what_it_got_and_asks_for_nothing() -> None:
    known = memory(record(running(0), slot(1, was_seen=True), unsent(2), count=4))
    observation = snapshot(machine(0), machine(1, Phase.PENDING))
    reported = plan(known, observation, **with_holds(ONE, cancel(REQUEST)))
    ended = reported.memory.requests[REQUEST]
    assert (reported.creates, [delete.name for delete in reported.deletes]) == ((), [name(1)])
    assert (ended.ended, ended.slots[0].verdict) == (RequestStatus.COMPLETE_WITH_ERROR, Verdict.SUCCEEDED)
    entry = json.loads(request_answer(ended).text)
    assert entry["message"] == f"{CANCELLED_BY_OPERATOR}cancel of {REQUEST} by eve: wrong job"
    results = Counter(one["result"] for one in entry["machines"])
    assert results == {"succeed": 1, "fail": 3}
    messages = {one["message"].removeprefix("other: ") for one in entry["machines"] if one["result"] == "fail"}
    assert messages == {entry["message"]}


def test_only_the_cancelled_request_ends() -> None:
    known = memory(record(count=2), record(count=2, id_=OTHER))
    reported = plan(known, snapshot(), **with_holds(ONE, cancel(REQUEST)))
    assert {create.request for create in reported.creates} == {OTHER}
    assert reported.memory.requests[OTHER].ended is None


def test_a_cancel_changes_nothing_that_hf_was_reported() -> None:
    ended = hf_has(OURS, running(1, Verdict.LOST, is_gone=True))
    assert plan(ended, snapshot(machine()), **with_holds(ONE, cancel(REQUEST))).memory is ended
    whole = plan(memory(record(running(0))), snapshot(machine()), **with_holds(ONE, cancel(REQUEST)))
    assert (whole.memory.requests[REQUEST].ended, whole.memory.requests[REQUEST].message) == (DONE, "")


def test_a_cancel_holds_under_the_brake_and_beside_a_cancel_as_forgotten() -> None:
    """HF must get the end of a request that an operator cancelled, even while a brake is latched and the loop has
    announced that it will cancel the request as forgotten."""
    brake = Brake(BrakeReason.MEMORY_LOST, BEFORE, "")
    known = memory(record(running(0), slot(1), is_cancelling=True), brake=brake)
    reported = plan(known, snapshot(machine()), **with_holds(ONE, cancel(REQUEST)))
    assert json.loads(request_answer(reported.memory.requests[REQUEST]).text)["status"] == "complete_with_error"


def test_what_hf_was_reported_of_a_cancelled_request_outlives_its_memory() -> None:
    known = memory(record(running(0), slot(1, was_seen=True), count=3))
    observation = snapshot(machine(0), machine(1, Phase.PENDING))
    reported = request_answer(plan(known, observation, **with_holds(ONE, cancel(REQUEST))).memory.requests[REQUEST])
    recovery_inputs = RecoveryInputs(
        intent_of(known), {REQUEST: Answer(reported.text, True)}, {REQUEST: True}, {"a": observation}, 0.0
    )
    assert request_answer(rebuild_memory(recovery_inputs, ONE, NOW, 0.0).requests[REQUEST]) == reported


@pytest.mark.parametrize(
    ("hold", "known", "done"),
    [
        pytest.param(cancel(REQUEST), memory(record(slot(0))), False, id="the request is open"),
        pytest.param(cancel(REQUEST), hf_has(OURS), True, id="it has ended"),
        pytest.param(cancel(name()), hf_has(OURS), False, id="HF has the machine"),
        pytest.param(cancel(name()), memory(record(slot(0))), False, id="HF may get it"),
        pytest.param(cancel(name()), hf_has(running(0, Verdict.RETURNED)), True, id="HF has returned it"),
        pytest.param(cancel(name(9)), hf_has(OURS), True, id="it is no longer known"),
        pytest.param(DRAIN, memory(), False, id="only an operator releases other holds"),
    ],
)
def test_when_a_cancel_is_done(hold: Hold, known: Memory, done: bool) -> None:
    assert is_done(hold, known) is done
    assert count_holds(Holds((hold,)), known).total() == (not done)
    assert count_holds(Holds((hold,)), None).total() == 1


def test_holds_are_counted_by_pool_and_cancels_together() -> None:
    known = memory(record(slot(0)), record(slot(0, request=OTHER), id_=OTHER))
    held_now = Holds((STOP, DRAIN, cancel(REQUEST), cancel(OTHER)))
    assert count_holds(held_now, known) == {("stop-all", ""): 1, ("drain", "a"): 1, ("cancel", ""): 2}


def test_without_a_hold_limits_are_as_they_were() -> None:
    assert limits_under_holds(TWO, NO_HOLDS) == TWO
