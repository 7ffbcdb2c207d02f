"""Rules that hold for every plan, for any memory, snapshots, HF activity and holds.

``EXAMPLES=1000 pytest tests/simulation/test_any_plan.py`` tries more situations, which differ in each run.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.model import (
    DESIRED,
    DeleteReason,
    Fingerprint,
    HfActivity,
    HoldKind,
    Holds,
    Machine,
    Memory,
    Observation,
    Phase,
    Plan,
    RequestRecord,
    RequestStatus,
    Slot,
    Snapshot,
    Verdict,
    Window,
)
from provisioner.names import split_name
from provisioner.planning.core.draft import TRANSITIONS
from provisioner.planning.core.holds import limits_under_holds
from provisioner.planning.plan import PlanInputs, apply_inputs, make_plan
from provisioner.planning.report.answers import find_losses, request_answer
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    OTHER,
    PREFIX,
    REQUEST,
    SEEN,
    STOCKOUT,
    TEMPLATE,
    failed_observation,
    giving_back,
    intent_of,
    limits,
    machine,
    memory,
    name,
    pool,
    record,
    slot,
    snapshot,
    two_templates,
)
from tests.unit.planning.test_holds import DRAIN, PAUSE, STOP, cancel

DONE, WITH_ERROR = RequestStatus.COMPLETE, RequestStatus.COMPLETE_WITH_ERROR
SLOTS = 6
THREE = limits(pool("a", max_machines=4, max_pending=3, initial_window=3), pool("b", max_machines=3, lag_seconds=30.0),
               pool("c", is_paused=True), maximum=8)  # fmt: skip
CAPS = {"a": 4, "b": 3, "c": 0}
TIMES = st.sampled_from([NOW - 4000, NOW - 700, NOW - 200, NOW - 100, NOW - 30, NOW - 2, NOW])


@st.composite
def any_slot(draw: st.DrawFn, number: int, request: str, ended: bool) -> Slot:
    open_or_done = Verdict.SUCCEEDED if ended else Verdict.OPEN
    verdict = draw(st.sampled_from([open_or_done, open_or_done, *(Verdict(each) for each in (
        "returned", "lost", "failed", "withdrawn", "cancelled"
    ))]))  # fmt: skip
    where = draw(st.sampled_from(["a", "a", "b", "c", "left"]))
    seen = verdict in (Verdict.SUCCEEDED, Verdict.RETURNED, Verdict.LOST) or draw(st.booleans())
    ran = seen and (verdict not in (Verdict.OPEN, Verdict.FAILED) or draw(st.booleans()))
    opened = draw(TIMES)
    sent = seen or draw(st.booleans())
    return slot(
        number,
        verdict,
        request,
        pool=where,
        opened_at=opened,
        submitted_at=opened if sent else None,
        is_accepted=seen or (sent and draw(st.booleans())),
        was_seen=seen,
        ran_at=opened if ran else None,
        is_gone=verdict not in DESIRED and (not sent or draw(st.booleans())),
        absent_since=draw(st.sampled_from([None, NOW - 40, SEEN])),
        delete_sent=draw(st.sampled_from([None, NOW - 100, NOW - 5])) if verdict not in DESIRED else None,
        fingerprint=machine(number).fingerprint if seen else Fingerprint(),
        failure=draw(st.sampled_from([None, BROKEN, STOCKOUT])),
    )


@st.composite
def any_record(draw: st.DrawFn, request: str) -> RequestRecord:
    ended = draw(st.sampled_from([None, None, DONE, WITH_ERROR]))
    slots = [draw(any_slot(number, request, ended is not None)) for number in range(draw(st.integers(0, SLOTS)))]
    return record(
        *slots,
        id_=request,
        count=draw(st.integers(1, 8)),
        ended=ended,
        ended_at=BEFORE if ended else None,
        reported_at=draw(st.sampled_from([None, BEFORE, NOW - 90_000])) if ended else None,
        deadline_at=draw(st.sampled_from([NOW - 1, NOW, NOW + 500])),
        is_cancelling=draw(st.booleans()),
    )


@st.composite
def any_machine(draw: st.DrawFn, number: int, request: str) -> Machine:
    uid = draw(st.sampled_from([f"uid-{number}"] * 3 + ["another"]))
    return machine(number, draw(st.sampled_from(list(Phase))), request, fingerprint=Fingerprint(uid))


@st.composite
def any_observation(draw: st.DrawFn, where: str, remembered: Memory) -> Observation | None:
    kind = draw(st.sampled_from(["seen", "seen", "seen", "failed", "old", "none"]))
    if kind == "none":
        return None
    if kind == "failed":
        return failed_observation(where)
    mine = [one for one in slots_of(remembered).values() if one.pool == where and not one.deletion.is_gone]
    there = [draw(any_machine(one.number, split_name(PREFIX, one.name)[0])) for one in mine if draw(st.booleans())]  # type: ignore[index]
    strange = [draw(any_machine(90 + number, "cccccccccc")) for number in range(draw(st.integers(0, 2)))]
    began = NOW - 100 if kind == "old" else draw(st.sampled_from([SEEN, NOW - 31, NOW]))
    return snapshot(*there, *strange, pool=where, began=began)


ANY_PRESSURE = st.builds(
    Window,
    window=st.integers(1, 4),
    level=st.just(1),
    blocked_at=st.just(NOW - 50),
    retry_at=st.sampled_from([0.0, NOW + 10]),
    is_probing=st.booleans(),
    failure=st.just(STOCKOUT),
    closed_since=st.sampled_from([None, NOW - 10, NOW - 500]),
)


@st.composite
def any_situation(draw: st.DrawFn) -> tuple[PlanInputs, Memory]:
    records = [draw(any_record(request)) for request in (REQUEST, OTHER)]
    names = [one.name for each in records for one in each.slots.values()]
    returned = giving_back(*draw(st.lists(st.sampled_from([*names, "alien"]), max_size=3)))
    remembered = memory(
        *records,
        *([returned] if returned.names else []),
        windows=draw(st.dictionaries(st.sampled_from([("a", TEMPLATE), ("b", TEMPLATE)]), ANY_PRESSURE)),
        orphans=draw(st.dictionaries(st.sampled_from([name(90, "cccccccccc"), "x"]), st.just(NOW - 700))),
    )
    observations = {
        where: observation for where in "abc" if (observation := draw(any_observation(where, remembered))) is not None
    }
    activity = HfActivity(
        polled_at=draw(st.dictionaries(st.sampled_from([REQUEST, OTHER]), TIMES)),
        last_call_at=draw(TIMES),
        read_ids=draw(st.frozensets(st.sampled_from([REQUEST, OTHER]))),
        inventory=draw(st.frozensets(st.sampled_from([*names, "alien"]))),
    )
    return PlanInputs(
        intent_of(remembered), observations, activity, draw(st.frozensets(st.sampled_from("abc")))
    ), remembered


def usable(world: PlanInputs) -> set[str]:
    """Return the pools that a plan may act upon: they have a recent snapshot and no running batch."""
    seen = {
        observation.pool
        for observation in world.observations.values()
        if isinstance(observation, Snapshot) and NOW - observation.began_at <= 60
    }
    return seen - world.busy


def number_of(machine: str) -> int:
    parts = split_name(PREFIX, machine)
    assert parts is not None
    return parts[1]


def slots_of(remembered: Memory) -> dict[str, Slot]:
    return {one.name: one for each in remembered.requests.values() for one in each.slots.values()}


def there(remembered: Memory, where: str) -> set[str]:
    """Return the machines that may exist in a pool."""
    return {one.name for one in slots_of(remembered).values() if one.pool == where and not one.deletion.is_gone}


# --- the rules --------------------------------------------------------------------------------------------------------


def no_pool_that_is_blind_paused_or_busy_is_asked_for_anything(world: PlanInputs, _: Memory, made: Plan) -> None:
    assert {create.pool for create in made.creates} <= usable(world) - {"c"}
    assert {delete.pool for delete in made.deletes} <= usable(world)


def no_cap_is_exceeded(world: PlanInputs, known: Memory, made: Plan) -> None:
    new = [create for create in made.creates if create.name not in slots_of(known)]
    for where, count in Counter(create.pool for create in new).items():
        observation = world.observations[where]
        assert isinstance(observation, Snapshot)
        assert len(there(made.memory, where) | set(observation.machines)) <= CAPS[where]
        assert where != "a" or count <= 3, "max_pending"


def only_what_is_closed_or_an_orphan_is_deleted_and_each_once(_: PlanInputs, __: Memory, made: Plan) -> None:
    slots = slots_of(made.memory)
    assert max(Counter(delete.name for delete in made.deletes).values(), default=0) <= 1
    for delete in made.deletes:
        one = slots.get(delete.name)
        if one is None or one.pool != delete.pool:
            assert delete.reason in (DeleteReason.ORPHANED, DeleteReason.RETURNED)
        else:
            assert one.verdict not in DESIRED
            assert one.deletion.reason is delete.reason
    assert not {delete.name for delete in made.deletes} & {create.name for create in made.creates}


def each_create_is_of_an_open_recorded_slot_in_its_pool_and_each_name_once(
    _: PlanInputs, known: Memory, made: Plan
) -> None:
    assert max(Counter(create.name for create in made.creates).values(), default=0) <= 1
    for create in made.creates:
        one = made.memory.requests[create.request].slots[number_of(create.name)]
        assert (one.name, one.pool, one.verdict, one.submitted_at) == (create.name, create.pool, Verdict.OPEN, NOW)
        before = slots_of(known).get(one.name)
        assert before is None or (
            before.pool == one.pool and not before.observed.was_seen and not before.observed.is_accepted
        )


def verdicts_change_by_the_table_alone_and_no_answer_reverts(_: PlanInputs, known: Memory, made: Plan) -> None:
    for id_, each in made.memory.requests.items():
        before = known.requests[id_]
        assert before.ended is None or each.ended is not None
        assert before.ended is None or before.reported_at is None or each.ended is before.ended
        assert set(before.slots) <= set(each.slots)
        assert all(number < each.next_slot for number in each.slots)
        for number, one in before.slots.items():
            changed = each.slots[number]
            steps = [*TRANSITIONS[one.verdict], one.verdict]
            # A plan may end a request and close its slot for a return at once, in two allowed steps.
            steps += [later for step in TRANSITIONS[one.verdict] for later in TRANSITIONS[step]]
            assert changed.verdict in steps
            assert (changed.name, changed.pool) == (one.name, one.pool)


def once_recorded_it_asks_for_nothing_again(world: PlanInputs, _: Memory, made: Plan) -> None:
    kept = {id_: wanted for id_, wanted in world.intent.requests.items() if id_ not in made.forget}
    returns = {id_: wanted for id_, wanted in world.intent.returns.items() if id_ not in made.forget}
    again = replace(world, intent=replace(world.intent, requests=kept, returns=returns))
    second = make_plan(again, made.memory, THREE, NOW)
    # Room that one request freed may go to another request, but not twice.
    assert not {create.name for create in made.creates} & {create.name for create in second.creates}
    assert not any(create.is_repeated for create in second.creates)
    assert second.deletes == ()


def the_same_inputs_make_the_same_plan(world: PlanInputs, known: Memory, made: Plan) -> None:
    assert make_plan(world, known, THREE, NOW) == made


def a_request_past_its_deadline_ends(_: PlanInputs, __: Memory, made: Plan) -> None:
    assert all(each.ended is not None or each.deadline_at > NOW for each in made.memory.requests.values())


def what_is_decided_revises_no_terminal_answer_that_was_settled_before(
    world: PlanInputs, known: Memory, made: Plan
) -> None:
    settled = apply_inputs(world, known, THREE, NOW).requests
    for id_, after in made.memory.requests.items():
        if id_ in known.requests and known.requests[id_].ended is not None:
            assert request_answer(after) == request_answer(settled[id_])


RULES = [
    what_is_decided_revises_no_terminal_answer_that_was_settled_before,
    no_pool_that_is_blind_paused_or_busy_is_asked_for_anything,
    no_cap_is_exceeded,
    only_what_is_closed_or_an_orphan_is_deleted_and_each_once,
    each_create_is_of_an_open_recorded_slot_in_its_pool_and_each_name_once,
    verdicts_change_by_the_table_alone_and_no_answer_reverts,
    once_recorded_it_asks_for_nothing_again,
    the_same_inputs_make_the_same_plan,
    a_request_past_its_deadline_ends,
]

# The same situations each time, unless EXAMPLES asks for more.
ANY = settings(max_examples=int(os.environ.get("EXAMPLES", "100")), derandomize="EXAMPLES" not in os.environ)


@ANY
@given(any_situation())
def test_every_plan_keeps_every_rule(situation: tuple[PlanInputs, Memory]) -> None:
    world, known = situation
    made = make_plan(world, known, THREE, NOW)
    for rule in RULES:
        rule(world, known, made)


@ANY
@given(any_situation(), st.integers(1, 9))
def test_a_plan_never_exceeds_the_cap_over_all_templates(situation: tuple[PlanInputs, Memory], most: int) -> None:
    world, remembered = situation
    requests = {
        id_: replace(each, template=of) for (id_, each), of in zip(remembered.requests.items(), "TU", strict=True)
    }
    known, both = replace(remembered, requests=requests), two_templates(pool("a", max_machines_total=most))
    made = make_plan(replace(world, intent=intent_of(known)), known, both, NOW)
    observation = world.observations.get("a")
    if {create.name for create in made.creates} - slots_of(known).keys() and isinstance(observation, Snapshot):
        assert len({*observation.machines, *there(made.memory, "a")}) <= most


ANY_HOLDS = st.lists(
    st.sampled_from([STOP, PAUSE, DRAIN, replace(PAUSE, target="b"), cancel(REQUEST), cancel(name(0)), cancel("gone")]),
    unique=True,
).map(lambda holds: Holds(tuple(holds)))


@ANY
@given(any_situation(), ANY_HOLDS)
def test_no_hold_deletes_and_none_is_overridden(situation: tuple[PlanInputs, Memory], holds: Holds) -> None:
    world, remembered = situation
    reported = make_plan(replace(world, holds=holds), remembered, limits_under_holds(THREE, holds), NOW)
    usual = make_plan(world, remembered, THREE, NOW)
    assert not any(holds.against(create.pool) for create in reported.creates)
    assert not {create.request for create in reported.creates} & holds.of_kind(HoldKind.CANCEL).keys()
    if holds.stop:
        assert (reported.creates, reported.deletes) == ((), ())
    assert {delete.pool for delete in reported.deletes} <= usable(world)
    cancelled = holds.of_kind(HoldKind.CANCEL)
    for id_, before in remembered.requests.items():
        for number, one in before.slots.items():
            alone = usual.memory.requests[id_].slots[number].verdict
            if before.ended or (one.ran_at is not None and id_ in cancelled):
                assert reported.memory.requests[id_].slots[number].verdict in {alone, one.verdict} | DESIRED
    for named, loss in find_losses(reported.memory, world.activity, NOW, holds).items():
        if named not in find_losses(reported.memory, world.activity, NOW):
            assert loss.grace > 0, "an existing machine is never reported as gone"
