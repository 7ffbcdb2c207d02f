"""A rebuilt memory: no machine is created twice, no answer reverts, the brake holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from provisioner.hostfactory import Answer
from provisioner.model import (
    BrakeReason,
    DeleteReason,
    Distrusted,
    DistrustReason,
    ErrorClass,
    Failure,
    Intent,
    Machine,
    Memory,
    Phase,
    Request,
    RequestRecord,
    RequestStatus,
    ReturnRequest,
    ReturnResult,
    Slot,
    Snapshot,
    Verdict,
)
from provisioner.names import SLOT_BLOCK, SLOT_NUMBERS
from provisioner.planning.core.slots import CANCELLED_MESSAGE
from provisioner.planning.recover.rebuild import RecoveryInputs, find_distrusted, make_first_memory, rebuild_memory
from provisioner.planning.report.answers import NOT_OURS, STUCK_UNKNOWN_MACHINE, request_answer, return_answer
from tests.support.parts import alter
from tests.unit.core import (
    BROKEN,
    NOW,
    OTHER,
    PREFIX,
    REQUEST,
    TEMPLATE,
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

WALL = 1_800_000_000.0
LIMITS = limits(pool("a"), pool("b"), request_deadline_seconds=3600.0)
DONE, WITH_ERROR = RequestStatus.COMPLETE, RequestStatus.COMPLETE_WITH_ERROR
RETURN = "ret-aaaaaaaaaa"


def intent(*returned: str, created: float = WALL - 60, count: int = 2) -> Intent:
    return_requests = {RETURN: ReturnRequest(RETURN, returned, WALL)} if returned else {}
    return Intent("demo", 7, {REQUEST: Request(REQUEST, TEMPLATE, count, created, "acct")}, return_requests)


def rebuilt(
    wanted: Intent,
    *machines: Machine,
    reported: Mapping[str, Answer] | None = None,
    read: Mapping[str, bool] | None = None,
) -> Memory:
    observations = {"a": snapshot(*machines), "b": snapshot(pool="b")}
    return rebuild_memory(RecoveryInputs(wanted, reported or {}, read or {}, observations, WALL), LIMITS, NOW, WALL)


def reported_answers(*slots: object, **changes: object) -> dict[str, Answer]:
    return {REQUEST: request_answer(record(*slots, **changes))}  # type: ignore[arg-type]


# --- a state directory that never had a memory ------------------------------------------------------------------------


def test_a_first_memory_knows_nothing_and_that_no_pool_was_seen() -> None:
    remembered = make_first_memory(intent(), LIMITS, NOW, WALL)
    assert remembered == alter(Memory("demo"), time=NOW, time_wall=WALL, unseen=("a", "b"), usage_since_wall=WALL)


# --- when the observations are believed -------------------------------------------------------------------------------


def distrusted_pools(
    missing: int = 10, there: int = 0, *, listed: float = NOW, returned_names: tuple[str, ...] = (), wait: float = 60.0
) -> Mapping[str, Distrusted]:
    """Return the distrusted pools when memory is rebuilt at ``NOW``.

    HF has ``missing`` machines that no pool shows, and ``there`` machines that pool ``a`` shows.
    """
    reported = reported_answers(*(running(number, Verdict.SUCCEEDED) for number in range(missing + there)), ended=DONE)
    seen = [machine(number) for number in range(missing, missing + there)]
    observations = {"a": snapshot(*seen, began=NOW + 100, listed_at=listed), "b": snapshot(pool="b", began=NOW + 100)}
    recovery_inputs = RecoveryInputs(intent(*returned_names), reported, {}, observations, WALL)
    return find_distrusted(recovery_inputs, limits(pool("a", mass_loss_seconds=wait), pool("b")), NOW)


def test_observations_that_lack_many_machines_that_hf_has_prove_nothing_before_a_second_list() -> None:
    assert distrusted_pools() == {"a": Distrusted(DistrustReason.MASS_LOSS, NOW, NOW + 60, 10, 10)}, (
        "a list of the other was begun late enough"
    )
    assert not distrusted_pools(listed=NOW + 60)
    assert not distrusted_pools(missing=5)
    assert not distrusted_pools(missing=6, there=24)
    assert distrusted_pools(missing=7, there=24)
    assert not distrusted_pools(wait=0.0)
    assert not distrusted_pools(returned_names=tuple(name(number) for number in range(5))), (
        "what HF gave back is not missed"
    )


# --- without an answer to go by ---------------------------------------------------------------------------------------


def test_machines_that_run_are_their_requests_open_slots_again() -> None:
    remembered = rebuilt(
        intent(), machine(4), machine(5, Phase.PENDING), machine(0, request=OTHER), read={REQUEST: False}
    )
    again = remembered.requests[REQUEST]
    assert sorted(again.slots) == [4, 5]
    assert [one.verdict for one in again.slots.values()] == [Verdict.OPEN, Verdict.OPEN]
    assert [one.ran_at for one in again.slots.values()] == [NOW, None]
    assert (again.template, again.count, again.ended, again.rc_account) == (TEMPLATE, 2, None, "acct")


def test_no_slot_number_is_used_again() -> None:
    assert rebuilt(intent()).requests[REQUEST].next_slot == SLOT_BLOCK
    assert rebuilt(intent(), machine(4)).requests[REQUEST].next_slot == SLOT_BLOCK
    assert rebuilt(intent(), machine(SLOT_BLOCK + 4)).requests[REQUEST].next_slot == 2 * SLOT_BLOCK


@pytest.mark.parametrize(("life", "block"), [(1, 1), (2, 2), (9, 9), (10, 1)])
def test_a_memory_that_is_lost_again_leaves_the_numbers_of_the_one_before_alone(life: int, block: int) -> None:
    observations = {"a": snapshot(), "b": snapshot(pool="b")}
    remembered = rebuild_memory(RecoveryInputs(intent(), {}, {}, observations, WALL, life), LIMITS, NOW, WALL)
    assert remembered.requests[REQUEST].next_slot == block * SLOT_BLOCK


@pytest.mark.parametrize(
    ("life", "used", "number"),
    [
        pytest.param(10, [], SLOT_BLOCK, id="the blocks begin anew after nine lives"),
        pytest.param(2, [4], 5 * SLOT_BLOCK, id="after the highest block that is used"),
        pytest.param(10, [9], SLOT_NUMBERS, id="the last block is used: no number is left"),
    ],
)
def test_slot_numbers_go_on_after_the_last_block_and_never_have_more_digits(
    life: int, used: list[int], number: int
) -> None:
    there = [machine(one * SLOT_BLOCK + 4) for one in used]
    observations = {"a": snapshot(*there), "b": snapshot(pool="b")}
    remembered = rebuild_memory(RecoveryInputs(intent(), {}, {}, observations, WALL, life), LIMITS, NOW, WALL)
    assert remembered.requests[REQUEST].next_slot == number


@pytest.mark.parametrize(
    ("age", "left"),
    [
        pytest.param(60.0, 3540.0, id="a young request keeps what is left of its time"),
        pytest.param(3600.0, 0.0, id="an old one has none left"),
        pytest.param(99999.0, 0.0, id="nor a very old one"),
        pytest.param(-99999.0, 3600.0, id="one from the future has its time, not more"),
    ],
)
def test_a_requests_time_goes_by_intents_own_clock(age: float, left: float) -> None:
    assert rebuilt(intent(created=WALL - age)).requests[REQUEST].deadline_at == NOW + left


@pytest.mark.parametrize("reason", [BrakeReason.MEMORY_LOST, BrakeReason.MEMORY_OLDER])
def test_the_brake_is_latched(reason: BrakeReason) -> None:
    observations: dict[str, Snapshot] = {"a": snapshot(machine()), "b": snapshot(pool="b")}
    remembered = rebuild_memory(RecoveryInputs(intent(), {}, {}, observations, WALL), LIMITS, NOW, WALL, reason)
    assert remembered.brake is not None
    assert (remembered.brake.reason, remembered.brake.since) == (reason, NOW)
    assert remembered.places.unseen == ()


def test_nothing_is_created_for_a_request_whose_time_is_over() -> None:
    wanted = intent(created=WALL - 3600)
    made = plan(rebuilt(wanted), snapshot(), snapshot(pool="b"), limits=LIMITS, intent=wanted)
    assert made.creates == ()
    assert made.memory.requests[REQUEST].ended is WITH_ERROR


# --- reported answers are binding ------------------------------------------------------------------------------------


SERVED = [running(0, Verdict.SUCCEEDED), running(1, Verdict.LOST), unsent(2, Verdict.FAILED, failure=BROKEN)]
CANCELLED = slot(0, Verdict.CANCELLED, delete=DeleteReason.CANCELLED)


@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param(record(*SERVED, ended=DONE), id="complete"),
        pytest.param(record(*SERVED, ended=WITH_ERROR), id="with error"),
        pytest.param(record(CANCELLED, ended=WITH_ERROR, message=CANCELLED_MESSAGE), id="cancelled"),
        *(
            pytest.param(record(unsent(0, Verdict.FAILED, failure=Failure(error, "no room: at all")), ended=WITH_ERROR),
                         id=error)
            for error in ErrorClass
        ),
    ],
)  # fmt: skip
def test_a_terminal_answer_stays_byte_for_byte_however_often_memory_is_lost(recorded: RequestRecord) -> None:
    there = [machine(one.number) for one in recorded.slots.values() if one.verdict is Verdict.SUCCEEDED]
    reported = answer = {REQUEST: request_answer(replace(recorded, rc_account="acct"))}
    for _ in range(2):
        again = rebuilt(intent(), *there, reported=answer).requests[REQUEST]
        answer = {REQUEST: request_answer(again)}
        assert answer == reported
        assert (again.ended, again.reported_at, again.message) == (recorded.ended, NOW, recorded.message)


HAD = running(0, Verdict.SUCCEEDED)


@pytest.mark.parametrize(
    ("one", "ended", "returned_names", "there", "verdict", "delete"),
    [
        pytest.param(HAD, DONE, (), True, Verdict.SUCCEEDED, None, id="reported and there"),
        pytest.param(HAD, DONE, (), False, Verdict.LOST, DeleteReason.LOST, id="reported and absent"),
        pytest.param(running(0), None, (), True, Verdict.OPEN, None, id="reported as running, there"),
        pytest.param(running(0), None, (), False, Verdict.FAILED, DeleteReason.LOST, id="reported as running, absent"),
        pytest.param(slot(0), None, (), True, Verdict.OPEN, None, id="reported as pending, and there"),
        pytest.param(unsent(0, Verdict.FAILED, failure=BROKEN), None, (), False, Verdict.FAILED, DeleteReason.FAILED,
                     id="reported as failed"),
        pytest.param(CANCELLED, WITH_ERROR, (), True, Verdict.CANCELLED, DeleteReason.CANCELLED,
                     id="reported as cancelled, and still there: deleted"),
        pytest.param(HAD, DONE, (name(0),), True, Verdict.RETURNED, DeleteReason.RETURNED, id="returned, and there"),
        pytest.param(HAD, DONE, (name(0),), False, Verdict.RETURNED, DeleteReason.RETURNED, id="returned and gone"),
        pytest.param(running(0), None, (name(0),), True, Verdict.CANCELLED, DeleteReason.CANCELLED,
                     id="returned before its request ended"),
    ],
)  # fmt: skip
def test_a_slot_that_hf_was_reported_of(
    one: Slot,
    ended: RequestStatus | None,
    returned_names: tuple[str, ...],
    there: bool,
    verdict: Verdict,
    delete: DeleteReason,
) -> None:
    remembered = rebuilt(
        intent(*returned_names), *([machine()] if there else []), reported=reported_answers(one, ended=ended)
    )
    again = remembered.requests[REQUEST].slots[0]
    assert (again.verdict, again.deletion.reason) == (verdict, delete)
    assert again.deletion.is_gone is (not there and verdict is not Verdict.OPEN)


@pytest.mark.parametrize("ended", [None, DONE])
def test_a_machine_that_was_reported_as_running_stays_so_while_it_is_not_ready(ended: RequestStatus | None) -> None:
    reported = reported_answers(running(0, Verdict.SUCCEEDED if ended else Verdict.OPEN), ended=ended)
    again = rebuilt(intent(), machine(0, Phase.PENDING, ip=""), reported=reported).requests[REQUEST]
    assert again.slots[0].ran_at == NOW
    (entry,) = json.loads(request_answer(again).text)["machines"]
    assert (entry["result"], entry["privateIpAddress"]) == ("succeed", running(0).observed.ip)


def test_what_hf_was_reported_it_gave_back_is_not_lost_although_intent_has_forgotten_it() -> None:
    returned_names = return_answer(
        giving_back(name(0), results={name(0): ReturnResult.GONE}, ended=DONE), memory(), PREFIX
    )
    reported = reported_answers(running(0, Verdict.SUCCEEDED), running(1, Verdict.SUCCEEDED), ended=DONE) | {
        RETURN: returned_names
    }
    slots = rebuilt(intent(), machine(1), reported=reported).requests[REQUEST].slots
    assert [slots[0].verdict, slots[1].verdict] == [Verdict.RETURNED, Verdict.SUCCEEDED]


def test_what_an_ended_request_never_reported_is_for_the_orphan_rule() -> None:
    reported = reported_answers(running(0, Verdict.SUCCEEDED), ended=DONE)
    remembered = rebuilt(intent(), machine(0), machine(1), reported=reported)
    assert sorted(remembered.requests[REQUEST].slots) == [0]
    assert remembered.requests[REQUEST].next_slot == SLOT_BLOCK


# --- what HF has heard ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "reported_at"),
    [
        pytest.param({REQUEST: True}, NOW, id="it read the terminal answer"),
        pytest.param({REQUEST: False}, None, id="it polled and did not read it"),
        pytest.param({}, NOW, id="unknown: it counts as read, so that no machine of HF is cancelled"),
    ],
)
def test_whether_hf_read_the_terminal_answer(read: dict[str, bool], reported_at: float | None) -> None:
    reported = reported_answers(running(0, Verdict.SUCCEEDED), ended=DONE)
    assert rebuilt(intent(), machine(0), reported=reported, read=read).requests[REQUEST].reported_at == reported_at


def test_a_machine_given_back_before_hf_read_of_it_is_left_to_the_plan() -> None:
    reported = reported_answers(running(0, Verdict.SUCCEEDED), ended=DONE)
    again = rebuilt(intent(name(0)), machine(0), reported=reported, read={REQUEST: False}).requests[REQUEST]
    assert again.slots[0].verdict is Verdict.SUCCEEDED


def test_of_a_read_answer_that_is_lost_every_machine_that_runs_is_hfs_and_nothing_is_made_for_it() -> None:
    wanted = intent(count=3)
    machines = (machine(0), machine(1, Phase.PENDING), machine(2))
    remembered = rebuilt(wanted, *machines, read={REQUEST: True})
    again = remembered.requests[REQUEST]
    assert (again.ended, again.reported_at) == (WITH_ERROR, NOW)
    assert {one.number: one.verdict for one in again.slots.values()} == dict.fromkeys((0, 2), Verdict.SUCCEEDED)
    assert rebuilt(intent(count=1), machine(0), read={REQUEST: True}).requests[REQUEST].ended is DONE
    made = plan(remembered, snapshot(*machines), snapshot(pool="b"), limits=LIMITS, intent=wanted)
    assert (made.creates, made.deletes) == ((), ())


@pytest.mark.parametrize(
    ("returned_names", "there", "ended"),
    [
        pytest.param((), [machine(0), machine(1)], DONE, id="all of its machines run"),
        pytest.param((name(1),), [machine(0)], WITH_ERROR, id="one was given back"),
        pytest.param((name(0), name(1)), [], WITH_ERROR, id="all were given back"),
    ],
)
def test_without_any_trace_of_hf_a_request_that_was_served_counts_as_read(
    returned_names: tuple[str, ...], there: list[Machine], ended: RequestStatus
) -> None:
    """Without HF's activity, the loop can only guess whether HF has read the end of a request. It must assume so.
    Otherwise it would make the request's machines again, or cancel the request as forgotten."""
    wanted = intent(*returned_names)
    remembered = rebuilt(wanted, *there)
    again = remembered.requests[REQUEST]
    assert (again.ended, again.reported_at) == (ended, NOW)
    made = plan(remembered, snapshot(*there), snapshot(pool="b"), limits=LIMITS, intent=wanted)
    assert (made.creates, made.deletes) == ((), ())


def test_a_request_whose_machines_do_not_run_yet_goes_on() -> None:
    again = rebuilt(intent(), machine(0, Phase.PENDING)).requests[REQUEST]
    assert (again.ended, again.slots[0].verdict) == (None, Verdict.OPEN)


# --- returns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "hindered"),
    [
        *((result, {}) for result in ReturnResult),
        *((ReturnResult.STUCK, {"x": Failure(error, "a: b")}) for error in ErrorClass),
    ],
)
def test_an_ended_return_request_stays_as_it_was_reported(result: ReturnResult, hindered: dict[str, Failure]) -> None:
    ended = DONE if result is ReturnResult.GONE else WITH_ERROR
    returned_names = giving_back("x", results={"x": result}, hindered=hindered, ended=ended)
    answer = return_answer(returned_names, memory(), PREFIX)
    again = rebuilt(intent("x"), reported={RETURN: answer}).returns[RETURN]
    assert (again.results, again.ended, again.reported_at) == ({"x": result}, ended, NOW)
    assert again.hindered == hindered
    assert return_answer(again, memory(), PREFIX) == answer
    message = json.loads(answer.text)["machines"][0]["message"]
    assert message.startswith((NOT_OURS, STUCK_UNKNOWN_MACHINE)) is (result is not ReturnResult.GONE)


def test_an_open_return_request_is_read_anew() -> None:
    answer = return_answer(giving_back("x", results={}), memory(), PREFIX)
    again = rebuilt(intent("x"), reported={RETURN: answer}).returns[RETURN]
    assert (again.results, again.ended, again.deadline_at) == ({}, None, NOW + LIMITS.return_deadline_seconds)
