"""Decisions of one cycle: deadlines, terminal answers, deletes, pools without observation, and an unchanged loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from provisioner.model import (
    DESIRED,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    Fingerprint,
    HfActivity,
    Limits,
    LossCause,
    Machine,
    Memory,
    Observation,
    PendingReason,
    Phase,
    Plan,
    Queued,
    Request,
    RequestRecord,
    RequestStatus,
    ReturnRequest,
    Slot,
    Snapshot,
    Verdict,
    Window,
)
from provisioner.planning.core import window_and_backoff
from provisioner.planning.core.draft import DELETE_AGAIN, TRANSITIONS
from provisioner.planning.plan import PlanInputs, make_plan
from tests.bench import bench_plan
from tests.support.parts import alter
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    OTHER,
    REQUEST,
    SEEN,
    STOCKOUT,
    TEMPLATE,
    closes_of,
    draft_of,
    failed_observation,
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

LATE = Failure(ErrorClass.TIMEOUT, "The machine did not run within its boot deadline.")
ONE = limits(pool("a", boot_deadline_seconds=600.0))
EMPTY = (snapshot(), snapshot(pool="b"))
DONE, WITH_ERROR = RequestStatus.COMPLETE, RequestStatus.COMPLETE_WITH_ERROR


def after(made: Plan) -> RequestRecord:
    return made.memory.requests[REQUEST]


# --- intent -----------------------------------------------------------------------------------------------------------


def test_a_new_request_is_read_with_its_deadline_and_asked_for_at_once() -> None:
    wanted = Request(REQUEST, TEMPLATE, 2, 0.0, "acct")
    made = plan(memory(), snapshot(), limits=ONE, intent=intent_of(memory(), generation=2, requests={REQUEST: wanted}))
    recorded = after(made)
    assert (recorded.count, recorded.read_at, recorded.deadline_at, recorded.rc_account) == (2, NOW, NOW + 3600, "acct")
    assert (len(made.creates), made.memory.generation) == (2, 2)


def test_a_new_return_request_is_read_with_its_deadline() -> None:
    wanted = ReturnRequest("ret-x", (name(0),), 0.0)
    made = plan(memory(), snapshot(), limits=ONE, intent=intent_of(memory(), generation=2, returns={"ret-x": wanted}))
    assert (made.memory.returns["ret-x"].names, made.memory.returns["ret-x"].deadline_at) == ((name(0),), NOW + 3600)


def test_an_intent_older_than_one_seen_asks_for_nothing() -> None:
    old = intent_of(memory(), generation=0, requests={REQUEST: Request(REQUEST, TEMPLATE, 2, 0.0)})
    made = plan(memory(), snapshot(), limits=ONE, intent=old)
    assert (made.creates, made.memory.requests, made.memory.generation) == ((), {}, 1)


# --- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "observations", "timed_out"),
    [
        pytest.param(slot(submitted_at=NOW - 599), EMPTY, False, id="before its boot deadline: it may come"),
        pytest.param(slot(submitted_at=NOW - 600), EMPTY, True, id="at its boot deadline: it failed"),
        pytest.param(slot(submitted_at=NOW - 600, is_accepted=False), EMPTY, True, id="of unknown outcome: it failed"),
        pytest.param(running(0, submitted_at=NOW - 600), (snapshot(machine()),), False, id="it runs: nothing"),
        pytest.param(
            slot(submitted_at=NOW - 600), (failed_observation(),), False, id="its pool is blind: only the request's own"
        ),
        pytest.param(unsent(opened_at=NOW - 600), EMPTY, False, id="not sent: it counts from the create"),
        pytest.param(slot(submitted_at=NOW - 600, is_set_aside=True), EMPTY, False, id="set aside: it gets no action"),
    ],
)
def test_a_boot_deadline(one: Slot, observations: tuple[Observation, ...], timed_out: bool) -> None:
    made = plan(memory(record(one)), *observations, limits=ONE)
    ended = after(made).slots[0]
    assert (ended.verdict is Verdict.FAILED) is timed_out
    if timed_out:
        text = "The machine did not run within its boot deadline."
        assert (ended.deletion.reason, ended.failure) == (DeleteReason.TIMED_OUT, Failure(ErrorClass.TIMEOUT, text))
        assert [create.name for create in made.creates] == [name(1)], "it is replaced"


@pytest.mark.parametrize("cap", ["max_machines", "max_pending"])
def test_a_machine_that_timed_out_keeps_its_place_under_a_pools_cap_until_it_is_gone(cap: str) -> None:
    remembered = memory(record(slot(submitted_at=NOW - 600)))
    made = plan(remembered, snapshot(machine(0, Phase.PENDING)), limits=limits(pool("a", **{cap: 1})))
    assert (len(made.deletes), made.creates) == (1, ())


@pytest.mark.parametrize(
    ("uid", "sent_again"),
    [
        pytest.param("uid-0", False, id="the same machine: its delete is under way"),
        pytest.param("", False, id="a machine without a uid: it may be the same"),
        pytest.param("another", True, id="another machine of the same name: deleted at once"),
    ],
)
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_machine_that_appears_under_the_name_of_a_closed_slot_gets_a_delete_of_its_own(
    uid: str, sent_again: bool, is_gone: bool
) -> None:
    one = running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED, delete_sent=NOW - 1, is_gone=is_gone)
    remembered = memory(record(one, ended=RequestStatus.COMPLETE, reported_at=BEFORE))
    made = plan(remembered, snapshot(machine(fingerprint=Fingerprint(uid))), limits=ONE)
    assert [delete.uid for delete in made.deletes] == [uid] * sent_again
    assert after(made).slots[0].deletion.reason is DeleteReason.RETURNED


HELD_BACK = machine(0, Phase.PENDING, queued=Queued(1_700_000_000, "Priority", 1_700_009_000))
FREED = machine(0, Phase.PENDING)
QUEUE = limits(pool("a", boot_deadline_seconds=600.0, spill_after_seconds=1e9))
WAIT = {"is_queued": True, "queued_since": 1_700_000_000, "queue_reason": "Priority"}


@pytest.mark.parametrize(
    ("one", "seen", "timed_out", "due"),
    [
        pytest.param(
            slot(submitted_at=NOW - 1500), HELD_BACK, False, BEFORE + 3600, id="queued beyond its boot deadline: it may"
        ),
        pytest.param(slot(submitted_at=NOW - 999, **WAIT), FREED, False, NOW + 600, id="just freed: it boots now"),
        pytest.param(
            slot(submitted_at=NOW - 1500, released_at=NOW - 599), FREED, False, NOW + 1, id="freed, and still boots"
        ),
        pytest.param(
            slot(submitted_at=NOW - 1500, released_at=NOW - 600), FREED, True, None, id="freed, and did not run"
        ),
        pytest.param(
            slot(submitted_at=NOW - 1500, released_at=NOW - 700), HELD_BACK, False, BEFORE + 3600, id="queued again"
        ),
        pytest.param(slot(submitted_at=NOW - 600), FREED, True, None, id="never queued: counts from its create"),
    ],
)
def test_the_boot_deadline_begins_when_the_queue_releases_a_machine(
    one: Slot, seen: Machine, timed_out: bool, due: float | None
) -> None:
    made = plan(memory(record(alter(one, was_seen=True))), snapshot(seen), limits=QUEUE)
    ended = after(made).slots[0]
    assert (ended.verdict is Verdict.FAILED) is timed_out
    if timed_out:
        assert (ended.deletion.reason, ended.failure) == (DeleteReason.TIMED_OUT, LATE)
    else:
        assert (made.due_at, made.deletes) == (due, ())


def test_a_machine_that_stays_in_a_queue_fails_with_its_request_and_without_a_capacity_code() -> None:
    waiting = slot(submitted_at=BEFORE, was_seen=True, **WAIT)
    remembered = memory(record(waiting, deadline_at=NOW), windows={("a", TEMPLATE): Window(2, failure=STOCKOUT)})
    made = plan(remembered, snapshot(HELD_BACK), limits=QUEUE)
    failure = after(made).slots[0].failure
    assert failure is not None
    assert (failure.error, failure.error.lsf_code) == (ErrorClass.TIMEOUT, "")
    assert failure.text.endswith("deadline. It was queued in a since 2023-11-14T22:13:20Z: Priority")
    assert [delete.reason for delete in made.deletes] == [DeleteReason.TIMED_OUT]
    assert not made.windows, "the wait says nothing about the pool"


@pytest.mark.parametrize(
    ("seconds", "spills"),
    [(None, False), (100.0, True), (1e6, False)],
    ids=["it keeps its position", "unless another pool shall take it", "after so long"],
)
def test_a_queue_is_left_only_if_that_is_configured(seconds: float | None, spills: bool) -> None:
    waiting = slot(submitted_at=NOW - 500, was_seen=True, **WAIT)
    two = limits(pool("a", spill_after_seconds=100.0, queue_spill_seconds=seconds), pool("b"))
    made = plan(memory(record(waiting)), snapshot(HELD_BACK), snapshot(pool="b"), limits=two)
    assert [create.pool for create in made.creates] == ["b"] * spills
    assert [delete.reason for delete in made.deletes] == [DeleteReason.WITHDRAWN] * spills
    assert not made.windows, "a wait is neither success nor failure of the pool"


def test_a_queue_is_filled_up_to_the_window() -> None:
    waiting = [slot(number, submitted_at=NOW - 5000, was_seen=True, **WAIT) for number in range(2)]
    held = [replace(HELD_BACK, name=name(number)) for number in range(2)]
    remembered = memory(record(*waiting, count=9), windows={("a", TEMPLATE): Window(5)})
    made = plan(remembered, snapshot(*held), limits=limits(pool("a")))
    assert len(made.creates) == 3
    assert (made.memory.windows["a", TEMPLATE].level, made.deletes) == (0, ())


def test_a_new_estimate_of_the_start_is_no_news_for_memory() -> None:
    remembered = plan(memory(record(slot(submitted_at=BEFORE))), snapshot(HELD_BACK), limits=QUEUE).memory
    assert after(plan(remembered, snapshot(HELD_BACK), limits=QUEUE)).slots[0].observed.queue_reason == "Priority"
    later = replace(HELD_BACK, queued=Queued(1_700_000_000, "Priority", 1_700_099_000))
    assert plan(remembered, snapshot(later), limits=QUEUE).memory is remembered
    other = replace(HELD_BACK, queued=Queued(1_700_000_000, "Resources"))
    assert plan(remembered, snapshot(other), limits=QUEUE).memory is not remembered


NO_IMAGE = Failure(ErrorClass.INVALID, "main: ImagePullBackOff")


@pytest.mark.parametrize(
    ("submitted", "phase"),
    [
        pytest.param(NOW - 10, Phase.GONE, id="it ended"),
        pytest.param(NOW - 180, Phase.PENDING, id="another pool takes it"),
        pytest.param(NOW - 600, Phase.PENDING, id="its boot deadline is over"),
    ],
)
def test_where_machines_do_not_run_a_create_that_is_taken_proves_nothing(submitted: float, phase: Phase) -> None:
    one, seen = slot(submitted_at=submitted, was_seen=True, failure=NO_IMAGE), machine(0, phase, failure=NO_IMAGE)
    made = plan(memory(record(one)), snapshot(seen), snapshot(pool="b"), limits=limits())
    known_window = made.memory.windows["a", TEMPLATE]
    assert (known_window.level, known_window.failure) == (1, NO_IMAGE)
    assert window_and_backoff.after_create(known_window, NOW) is known_window


def test_a_boot_that_timed_out_says_the_places_reason_and_blocks_its_pool() -> None:
    late = slot(submitted_at=NOW - 600, was_seen=True, failure=STOCKOUT)
    observations = (snapshot(machine(0, Phase.PENDING, failure=STOCKOUT)), snapshot(pool="b"))
    made = plan(memory(record(late)), *observations, limits=ONE)
    assert after(made).slots[0].failure == STOCKOUT
    assert made.deletes == (Delete(name(0), "a", DeleteReason.TIMED_OUT, "uid-0"),)
    assert window_and_backoff.is_blocked(made.memory.windows["a", TEMPLATE], NOW)
    assert made.creates == ()


@pytest.mark.parametrize(
    ("one", "observation", "known_window", "failure"),
    [
        pytest.param(slot(failure=BROKEN, was_seen=True), snapshot(machine(0, Phase.PENDING, failure=BROKEN)), None,
                     BROKEN,
                     id="the machine's own reason"),
        pytest.param(slot(failure=BROKEN), failed_observation(), None, BROKEN,
                     id="its last known reason, also when blind"),
        pytest.param(slot(), failed_observation(), None,
                     Failure(ErrorClass.UNAVAILABLE, "unobservable: pool a could not be seen."), id="a blind pool"),
        pytest.param(slot(), snapshot(), Window(window=1, level=1, retry_at=NOW + 9, failure=STOCKOUT), STOCKOUT,
                     id="its pool's reason"),
        pytest.param(slot(), snapshot(), None,
                     Failure(ErrorClass.TIMEOUT, "The machine did not run before the request's deadline."),
                     id="none known: time ran out"),
    ],
)  # fmt: skip
def test_at_the_requests_deadline_what_is_missing_fails_and_the_request_ends(
    one: Slot, observation: Observation, known_window: Window | None, failure: Failure
) -> None:
    known = record(one, running(1), count=3, deadline_at=NOW)
    seen = (
        replace(observation, machines=observation.machines | {name(1): machine(1)})
        if isinstance(observation, Snapshot)
        else observation
    )
    made = plan(memory(known, windows={("a", TEMPLATE): known_window} if known_window else {}), seen, limits=ONE)
    ended = after(made)
    assert (ended.ended, ended.ended_at, made.creates) == (WITH_ERROR, NOW, ())
    assert (ended.slots[0].verdict, ended.slots[0].failure) == (Verdict.FAILED, failure)
    assert ended.slots[1].verdict is Verdict.SUCCEEDED
    reported = [each for each in ended.slots.values() if each.verdict is Verdict.FAILED and each.submitted_at is None]
    assert len(reported) == 2, "HF hears of each missing machine"


def test_a_request_whose_template_left_the_configuration_ends_at_once() -> None:
    made = plan(memory(record(count=2)), snapshot(), limits=replace(ONE, templates={}))
    assert (after(made).ended, made.creates) == (WITH_ERROR, ())


@pytest.mark.parametrize(
    ("remembered", "due"),
    [
        pytest.param(memory(record(slot(), deadline_at=NOW + 90)), NOW + 90, id="a request's deadline"),
        pytest.param(memory(record(slot(submitted_at=NOW - 500))), NOW + 100, id="a slot's boot deadline"),
        pytest.param(
            memory(giving_back("other-host", deadline_at=NOW + 70)), NOW + 70, id="a return request's deadline"
        ),
        pytest.param(memory(), float("inf"), id="nothing at all: never"),
    ],
)
def test_the_next_plan_is_due_at_the_next_deadline(remembered: Memory, due: float) -> None:
    assert (
        plan(remembered, *EMPTY, limits=replace(ONE, pools={"a": pool("a", spill_after_seconds=10_000)})).due_at == due
    )


# --- terminal answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "count", "ended"),
    [
        pytest.param([running(0), running(1)], 2, DONE, id="all run: complete"),
        pytest.param([running(0), slot(1)], 2, None, id="one is on its way: running"),
        pytest.param([running(0), unsent(1, Verdict.FAILED)], 2, WITH_ERROR, id="one was given up: with error"),
        pytest.param([running(0), slot(1, Verdict.CANCELLED, is_gone=True)], 2, WITH_ERROR,
                     id="HF gave one back before the end: with error"),
        pytest.param([running(0), slot(1, Verdict.FAILED, is_gone=True)], 2, None, id="one failed: replaced, running"),
        pytest.param([running(0), slot(1, Verdict.FAILED, is_gone=True), running(2)], 2, DONE,
                     id="one failed, its replacement runs: complete"),
        pytest.param([running(0), slot(1, is_set_aside=True)], 2, WITH_ERROR,
                     id="one is set aside: it holds nothing up"),
    ],
)  # fmt: skip
def test_when_a_request_ends(slots: list[Slot], count: int, ended: RequestStatus | None) -> None:
    there = snapshot(*(machine(one.number) for one in slots if one.ran_at is not None))
    made = plan(memory(record(*slots, count=count)), there, limits=ONE)
    assert after(made).ended is ended
    succeeded = [one for one in after(made).slots.values() if one.verdict is Verdict.SUCCEEDED]
    assert len(succeeded) == (sum(one.ran_at is not None for one in slots) if ended else 0)


@pytest.mark.parametrize(
    "observations",
    [
        pytest.param([snapshot(machine(phase=Phase.GONE))], id="its machine died"),
        pytest.param([snapshot(began=SEEN - 5), snapshot()], id="its machine vanished"),
        pytest.param([snapshot(machine(fingerprint=Fingerprint("other")))], id="its machine was replaced"),
        pytest.param([snapshot(machine(phase=Phase.STOPPING)), snapshot(machine(), began=SEEN + 0.5)], id="it wavered"),
        pytest.param([failed_observation()], id="its pool is blind"),
    ],
)
def test_a_terminal_answer_stays_and_nothing_is_created_for_it(observations: list[Observation]) -> None:
    for ended in (DONE, WITH_ERROR):
        remembered = memory(record(running(0, Verdict.SUCCEEDED), ended=ended, reported_at=BEFORE))
        for observation in observations:
            made = plan(remembered, observation, limits=ONE)
            assert made.creates == ()
            remembered = made.memory
        kept = remembered.requests[REQUEST]
        assert (kept.ended, kept.ended_at) == (ended, BEFORE)
        assert kept.slots[0].verdict in (Verdict.SUCCEEDED, Verdict.LOST)


# --- deletes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "observations", "busy", "deleted"),
    [
        pytest.param({}, (snapshot(machine()),), (), True, id="never sent: sent"),
        pytest.param({"delete_sent": NOW - DELETE_AGAIN + 1}, (snapshot(machine()),), (), False,
                     id="sent a moment ago: waits"),
        pytest.param({"delete_sent": NOW - DELETE_AGAIN}, (snapshot(machine()),), (), True,
                     id="still there after a while: sent again"),
        pytest.param({}, (snapshot(),), (), False, id="not there: nothing to delete"),
        pytest.param({}, (failed_observation(),), (), False, id="its pool is blind: nothing"),
        pytest.param({}, (snapshot(machine(), began=NOW - 61),), (), False, id="its pool was seen too long ago"),
        pytest.param({}, (snapshot(machine()),), ("a",), False, id="its pool is busy: nothing"),
        pytest.param({"is_set_aside": True}, (snapshot(machine()),), (), False, id="it is set aside: nothing"),
    ],
)  # fmt: skip
def test_when_a_closed_slots_machine_is_deleted(
    changes: dict[str, Any], observations: tuple[Observation, ...], busy: tuple[str, ...], deleted: bool
) -> None:
    closed = running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED, **changes)
    made = plan(memory(record(closed, ended=DONE, reported_at=BEFORE)), *observations, limits=ONE, busy=busy)
    assert made.deletes == ((Delete(name(0), "a", DeleteReason.RETURNED, "uid-0"),) if deleted else ())
    assert after(made).slots[0].deletion.sent_at == (NOW if deleted else closed.deletion.sent_at)


def test_a_delete_not_yet_due_again_is_looked_at_when_it_is() -> None:
    closed = running(0, Verdict.RETURNED, delete_sent=NOW - 10)
    made = plan(memory(record(closed, ended=DONE, reported_at=BEFORE)), snapshot(machine()), limits=ONE)
    assert made.due_at == NOW - 10 + DELETE_AGAIN


def test_a_machine_that_is_returned_or_lost_is_closed_and_deleted_in_one_plan_and_no_other_one() -> None:
    remembered = memory(
        record(*(running(number, Verdict.SUCCEEDED) for number in range(3)), ended=DONE, reported_at=BEFORE),
        giving_back(name(0)),
    )
    there = [machine(0), machine(1, Phase.GONE, cause=LossCause.EVICTED), machine(2)]
    made = plan(remembered, snapshot(*there), limits=ONE)
    fates = [(name(0), Verdict.RETURNED, None), (name(1), Verdict.LOST, LossCause.EVICTED)]
    assert sorted((close.slot.name, close.slot.verdict, close.slot.observed.cause) for close in made.closes) == fates
    assert set(made.deletes) == {
        Delete(name(0), "a", DeleteReason.RETURNED, "uid-0"), Delete(name(1), "a", DeleteReason.LOST, "uid-1")
    }  # fmt: skip


# --- a pool that cannot be seen ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", sorted(Verdict))
@pytest.mark.parametrize("wanted", sorted(Verdict))
def test_a_verdict_that_the_table_forbids_sets_the_slot_aside(before: Verdict, wanted: Verdict) -> None:
    known = record(running(0, before), running(1))
    draft = draft_of(memory(known), limits=ONE)
    changed = draft.close(known.slots[0], wanted, reason=DeleteReason.FAILED)
    allowed = wanted in TRANSITIONS[before]
    assert changed.is_set_aside is not allowed
    assert changed.verdict is (wanted if allowed else before)
    assert len(closes_of(draft)) == (allowed and wanted not in DESIRED)
    assert draft.requests[REQUEST].slots == {0: changed, 1: known.slots[1]}


# --- a loop in which nothing else happens -----------------------------------------------------------------------------


def quiet(remembered: Memory, seconds: float, limits: Limits = ONE) -> Memory:
    """Return the memory after ``seconds`` in which the pool stays empty. As in the loop, a plan is made only when it is
    due."""
    due = now = NOW
    while now <= NOW + seconds:
        if now >= due:
            made = plan(remembered, snapshot(began=now - 1), limits=limits, now=now)
            remembered, due = made.memory, made.due_at
        now += 5.0
    return remembered


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(running(0, Verdict.SUCCEEDED), id="a machine that vanished unnoticed"),
        pytest.param(
            running(0, Verdict.SUCCEEDED, absent_since=SEEN - 5), id="a machine that one observation lacked before"
        ),
        pytest.param(
            running(0, Verdict.RETURNED, closed_at=NOW), id="a machine closed after the newest observation began"
        ),
    ],
)
@pytest.mark.parametrize("lag", [0.0, 30.0])
def test_what_hf_gave_back_and_is_not_there_is_settled_although_nothing_else_happens(one: Slot, lag: float) -> None:
    remembered = memory(record(one, ended=DONE, reported_at=BEFORE), giving_back(name(0)))
    after_ = quiet(remembered, 120.0, limits(pool("a", lag_seconds=lag)))
    assert after_.requests[REQUEST].slots[0].deletion.is_gone
    assert after_.returns["ret-aaaaaaaaaa"].ended is DONE


@pytest.mark.parametrize("accepted", [True, False], ids=["accepted", "of unknown outcome"])
def test_a_create_that_never_showed_up_frees_its_place_although_nothing_else_happens(accepted: bool) -> None:
    remembered = memory(record(slot(is_accepted=accepted), deadline_at=NOW))
    assert quiet(remembered, 300.0).requests[REQUEST].slots[0].deletion.is_gone


def test_a_create_without_an_answer_is_sent_again_although_nothing_else_happens() -> None:
    remembered = memory(record(slot(submitted_at=NOW - 0.5, is_accepted=False)))  # since the newest observation began
    again = quiet(remembered, 30.0).requests[REQUEST].slots[0]
    assert again.submitted_at is not None
    assert again.submitted_at > NOW


def test_a_machine_held_back_by_the_window_goes_to_the_next_pool_although_nothing_else_happens() -> None:
    waiting = limits(pool("a", initial_window=1, spill_after_seconds=180.0), pool("b"))
    known = record(slot(0, submitted_at=NOW - 1, was_seen=True), count=2)
    made = plan(memory(known), snapshot(machine(0, Phase.PENDING)), snapshot(pool="b"), limits=waiting)
    assert made.deferred == {("a", TEMPLATE, PendingReason.WINDOW): 1}
    assert made.due_at <= NOW + 180.0


def test_room_that_a_later_request_frees_is_used_although_nothing_else_happens() -> None:
    full = limits(pool("a", max_machines=1))
    remembered = memory(record(count=1), record(unsent(), id_=OTHER, deadline_at=NOW))
    made = plan(remembered, snapshot(), limits=full)
    assert made.creates or made.due_at <= NOW + 5.0


@pytest.mark.parametrize("there", [[], [running(0)]], ids=["nothing runs yet", "a part runs"])
def test_a_request_goes_on_while_what_is_missing_is_held_back(there: list[Slot]) -> None:
    observations = snapshot(*(machine(one.number) for one in there))
    made = plan(memory(record(*there, count=3)), observations, limits=limits(pool("a", is_paused=True)))
    assert after(made).ended is None
    assert sum(made.deferred.values()) == 3 - len(there)
    assert made.due_at == BEFORE + 3600.0, "that alone is no reason to plan again at once"


# --- growth: ten times the slots are ten times the work, counted in instructions, as times depend on the machine ------

LINEAR = 10.5
"""Factor of the steps for ten times the slots: ten, and a little for rounding."""


def steps(act: Callable[[], object]) -> int:
    """Return the number of Python instructions that a call takes."""
    counted = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return counted


def plans(slots: int, per_request: int) -> dict[str, Callable[[], Plan]]:
    """Return a function for each kind of plan, each for a state with ``slots`` slots."""
    intent, limits, empty = bench_plan.scene(slots, per_request)
    opened = make_plan(PlanInputs(intent, {"pool": empty}), Memory("demo"), limits, 1000.0)
    full = bench_plan.running(opened)
    settled = make_plan(PlanInputs(intent, {"pool": full}), opened.memory, limits, 1002.0).memory
    reported = HfActivity(read_ids=frozenset(intent.requests))
    returning = replace(intent, generation=2, returns={"ret-1": ReturnRequest("ret-1", tuple(full.machines), 0.0)})
    strange = replace(full, machines={f"x{name}": machine for name, machine in full.machines.items()})

    def plan(world: PlanInputs, memory: Memory, now: float, caps: Limits = limits) -> Callable[[], Plan]:
        return lambda: make_plan(world, memory, caps, now)

    return {
        "open all": plan(PlanInputs(intent, {"pool": empty}), Memory("demo"), 1000.0),
        "all begin to run": plan(PlanInputs(intent, {"pool": full}), opened.memory, 1002.0),
        "steady": plan(PlanInputs(intent, {"pool": full}), settled, 1003.0),
        "all vanish": plan(PlanInputs(intent, {"pool": replace(empty, began_at=1003.0)}), settled, 1004.0),
        "all are returned": plan(PlanInputs(returning, {"pool": full}, reported), settled, 1004.0),
        "all are strange": plan(PlanInputs(intent, {"pool": strange}), settled, 1004.0),
        "all are overdue": plan(PlanInputs(intent, {"pool": replace(empty, began_at=9999.0)}), opened.memory, 10_000.0),
        "all are listed": plan(
            PlanInputs(intent, {"pool": full}, HfActivity(inventory=frozenset(full.machines))), settled, 1004.0
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize("requests", ["one request", "many requests"])
@pytest.mark.parametrize("kind", plans(1, 1))
def test_ten_times_the_slots_take_ten_times_the_steps(kind: str, requests: str) -> None:
    few, many = (plans(slots, slots if requests == "one request" else 10)[kind] for slots in (200, 2000))
    few(), many()  # what is made at the first use is not counted
    assert steps(many) <= LINEAR * steps(few)
