"""Machines that are old or have a known end: which of them retire, and how many at a time. The loop names such machines
to HF and does not delete them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from provisioner.hostfactory import Loss
from provisioner.model import (
    DeleteReason,
    HfActivity,
    Limits,
    LossCause,
    Machine,
    Memory,
    Notice,
    Phase,
    Plan,
    RequestStatus,
    ReturnRequest,
    Slot,
    Snapshot,
    Verdict,
    Window,
)
from provisioner.planning.finish.lifetime import LAST_CALL, RETIRING_SHARE
from provisioner.planning.report.answers import AGED, find_losses
from tests.unit.core import (
    BEFORE,
    NOW,
    OTHER,
    REQUEST,
    SEEN,
    STOCKOUT,
    TEMPLATE,
    failed_observation,
    intent_of,
    limits,
    machine,
    memory,
    name,
    plan,
    pool,
    record,
    running,
    snapshot,
    two_templates,
)

LIFE = 1000.0
OLD = NOW - LIFE
DONE = RequestStatus.COMPLETE


def mortal(lifetime: float | None = LIFE, **changes: Any) -> Limits:
    known = limits(pool("a", **changes))
    return replace(known, templates={TEMPLATE: replace(known.templates[TEMPLATE], max_lifetime_seconds=lifetime)})


def grid(*slots: Slot, **changes: Any) -> Memory:
    """Return a request that has ended, and whose end HF knows."""
    return memory(record(*slots, **({"ended": DONE, "reported_at": BEFORE} | changes)))


def aged(number: int = 0, **changes: Any) -> Slot:
    return running(number, Verdict.SUCCEEDED, **({"ran_at": OLD} | changes))


def observe(count: int = 1) -> Any:
    return snapshot(*(machine(number) for number in range(count)))


def retiring_at(known: Memory) -> list[str]:
    """Return the names that are shown to HF."""
    return sorted(find_losses(known, HfActivity(), NOW))


@pytest.mark.parametrize(
    ("one", "lifetime", "is_retiring"),
    [
        pytest.param(aged(), LIFE, True, id="it has lived for so long"),
        pytest.param(aged(ran_at=OLD + 1), LIFE, False, id="not yet"),
        pytest.param(aged(), None, False, id="no lifetime"),
        pytest.param(aged(notice=Notice(LossCause.PREEMPTED, NOW + 9)), LIFE, False, id="it ends anyway, and is named"),
    ],
)
def test_which_machines_retire(one: Slot, lifetime: float | None, is_retiring: bool) -> None:
    made = plan(grid(one), snapshot(machine(notice=one.observed.notice)), limits=mortal(lifetime))
    kept = made.memory.requests[REQUEST].slots[0]
    assert kept.life.retiring_at == (NOW if is_retiring else None)
    assert (kept.verdict, made.deletes, made.closes) == (Verdict.SUCCEEDED, (), ()), "it runs on"
    assert (find_losses(made.memory, HfActivity(), NOW).get(name(0)) == AGED) is is_retiring


def test_the_word_for_it_is_its_own_and_its_grace_never_says_that_it_is_gone() -> None:
    assert AGED.cause not in set(LossCause)
    assert AGED.grace > 0


def test_hf_is_retiring_only_what_it_knows_of() -> None:
    untold = plan(grid(aged(), reported_at=None), observe(), limits=mortal())
    assert retiring_at(untold.memory) == []
    one_runs = memory(record(running(0, ran_at=OLD), running(1, ran_at=OLD), count=3))
    assert retiring_at(plan(one_runs, observe(2), limits=mortal()).memory) == []


def test_the_plan_is_due_when_the_next_one_is_old_enough() -> None:
    made = plan(grid(aged(ran_at=OLD + 50), aged(1, ran_at=OLD + 70)), observe(2), limits=mortal())
    assert (made.due_at, retiring_at(made.memory)) == (NOW + 50, [])


@pytest.mark.parametrize(
    ("machines", "most"),
    [
        pytest.param(1, 1, id="one: it"),
        pytest.param(19, 1, id="of nineteen one"),
        pytest.param(20, 2, id="of twenty two"),
        pytest.param(55, 5, id="of fifty-five five"),
    ],
)
def test_a_share_is_retiring_at_a_time_the_oldest_first(machines: int, most: int) -> None:
    slots = [aged(number, ran_at=OLD - number) for number in range(machines)]
    known = plan(grid(*slots), observe(machines), limits=mortal()).memory
    assert most == max(1, int(RETIRING_SHARE * machines))
    assert retiring_at(known) == sorted(name(number) for number in range(machines)[-most:])
    again = plan(known, observe(machines), limits=mortal(), now=NOW + 9)
    assert again.memory is known, "those that are named and not returned count"


def test_a_machine_that_hf_gives_back_makes_room_for_the_next_and_only_that_one_is_deleted() -> None:
    slots = [aged(number, ran_at=OLD - number) for number in range(3)]
    known = plan(grid(*slots), observe(3), limits=mortal()).memory
    assert retiring_at(known) == [name(2)]
    returning = intent_of(known, generation=2, returns={"ret-x": ReturnRequest("ret-x", (name(2),), 0.0)})
    made = plan(known, observe(3), limits=mortal(), intent=returning)
    assert [(delete.name, delete.reason) for delete in made.deletes] == [(name(2), DeleteReason.RETURNED)]
    assert made.memory.requests[REQUEST].slots[2].verdict is Verdict.RETURNED
    assert retiring_at(made.memory) == [name(1)]


def test_the_share_is_of_the_templates_machines_in_all_its_requests() -> None:
    numbers, other = {REQUEST: range(10), OTHER: range(10), "c" * 10: range(40)}, {"c" * 10: "U"}
    known = memory(*(
        record(*(running(number, Verdict.SUCCEEDED, id_, ran_at=OLD) for number in each), id_=id_, ended=DONE,
               reported_at=BEFORE, template=other.get(id_, TEMPLATE))
        for id_, each in numbers.items()
    ))  # fmt: skip
    there = snapshot(*(machine(number, request=id_) for id_, each in numbers.items() for number in each))
    both = mortal()
    both = replace(both, templates=two_templates(pool("a")).templates | both.templates)
    names = retiring_at(plan(known, there, limits=both).memory)
    assert len(names) == 2
    assert not any("c" * 10 in each for each in names), "another template has none"


BACKS_OFF = {("a", TEMPLATE): Window(window=1, level=1, is_probing=True, retry_at=NOW + 9, failure=STOCKOUT)}


@pytest.mark.parametrize(
    ("known_window", "paused", "waiting", "expected"),
    [
        pytest.param({}, False, True, 3, id="all is well: a tenth, whoever waits"),
        pytest.param(BACKS_OFF, False, False, 1, id="its pool backs off: one"),
        pytest.param(BACKS_OFF, False, True, 0, id="its pool backs off, and a request waits: none"),
        pytest.param({}, True, False, 1, id="its pool is paused: one"),
    ],
)
def test_a_grid_does_not_drain_where_nothing_can_be_made_anew(
    known_window: dict[tuple[str, str], Window], paused: bool, waiting: bool, expected: int
) -> None:
    known = grid(*(aged(number) for number in range(30)))
    if waiting:
        known = replace(known, requests=known.requests | {OTHER: record(id_=OTHER, count=1)})
    made = plan(replace(known, windows=known_window), observe(30), limits=mortal(is_paused=paused))
    assert len(retiring_at(made.memory)) == expected


def test_a_machine_in_a_pool_that_is_not_seen_is_not_named() -> None:
    assert retiring_at(plan(grid(aged()), failed_observation(), limits=mortal()).memory) == []


# --- ends that the place announces -----------------------------------------------------------------------------------

EPOCH, ANNOUNCE = 1_700_000_000.0, 3600.0
"""The place's clock when an observation begins, and the seconds before an end from which the end is reported."""


def reported(left: float, number: int = 0) -> Machine:
    """Return a machine whose place will end it ``left`` seconds after this plan."""
    return replace(machine(number), expires_at=EPOCH + NOW + left - SEEN)


def ending(*left: float, wall: float | None = EPOCH) -> Snapshot:
    return snapshot(*(reported(one, number) for number, one in enumerate(left)), wall=wall)


def planned(
    *left: float, lifetime: float | None = None, slots: Sequence[Slot] = (), wall: float | None = EPOCH
) -> Plan:
    slots = slots or [aged(number, ran_at=BEFORE) for number in range(len(left))]
    return plan(grid(*slots), ending(*left, wall=wall), limits=mortal(lifetime, announce_seconds=ANNOUNCE))


@pytest.mark.parametrize(
    ("left", "grace"),
    [
        pytest.param(ANNOUNCE + 1, None, id="long before: nothing is said"),
        pytest.param(ANNOUNCE, 3600, id="from then on: the seconds that are left"),
        pytest.param(90.7, 90, id="a minute before"),
        pytest.param(-5.0, 1, id="it is late: as long as it runs it is not gone"),
    ],
)
def test_a_machine_is_named_before_its_place_ends_it(left: float, grace: int | None) -> None:
    made = planned(left)
    loss = find_losses(made.memory, HfActivity(), NOW).get(name(0))
    assert loss == (None if grace is None else Loss(grace, LossCause.EXPIRES))
    assert (made.deletes, made.closes) == ((), ()), "it runs on"
    if grace is None:
        assert made.due_at == NOW + 1


def test_nothing_is_said_of_an_end_while_the_places_time_is_unknown() -> None:
    assert retiring_at(planned(60.0, wall=None).memory) == []


def test_ends_at_the_same_time_are_reported_a_share_at_a_time_and_all_at_the_last_call() -> None:
    assert len(retiring_at(planned(*[ANNOUNCE - 1] * 30).memory)) == 3
    assert len(retiring_at(planned(*[LAST_CALL] * 30).memory)) == 30
    assert planned(*[LAST_CALL + 7] * 30).due_at == NOW + 7


def test_an_end_that_was_reported_stays_reported_until_its_place_puts_it_off() -> None:
    known = planned(100.0).memory
    again = plan(known, ending(100.0), limits=mortal(None), now=NOW + 10)
    assert again.memory is known
    assert find_losses(known, HfActivity(), NOW + 10)[name(0)] == Loss(90, LossCause.EXPIRES)
    put_off = plan(known, ending(90_000.0), limits=mortal(None), now=NOW + 10).memory
    assert retiring_at(put_off) == []
    assert put_off.requests[REQUEST].slots[0].life.retiring_at is None


def test_a_machine_that_was_named_for_its_age_is_reported_its_end_when_that_is_near() -> None:
    early = planned(ANNOUNCE + 9, lifetime=LIFE, slots=[aged()]).memory
    assert find_losses(early, HfActivity(), NOW) == {name(0): AGED}
    late = plan(early, ending(ANNOUNCE + 9), limits=mortal(), now=NOW + 9).memory
    assert find_losses(late, HfActivity(), NOW + 9) == {name(0): Loss(3600, LossCause.EXPIRES)}
    assert late.requests[REQUEST].slots[0].life.retiring_at == NOW


STOPPED = machine(phase=Phase.STOPPING, cause=LossCause.DELETED, notice=Notice(LossCause.DELETED, NOW + 120))
ENDED = machine(phase=Phase.GONE, cause=LossCause.UNKNOWN)


@pytest.mark.parametrize(
    ("left", "cause"),
    [
        pytest.param(30.0, LossCause.EXPIRES, id="at about its time"),
        pytest.param(3000.0, LossCause.DELETED, id="long before: deleted from outside"),
    ],
)
def test_the_cause_of_an_end_at_its_time_is_that_end(left: float, cause: LossCause) -> None:
    known = planned(left, slots=[aged(ran_at=BEFORE - 1e6)])
    expires = reported(left).expires_at
    stopping = plan(known.memory, snapshot(replace(STOPPED, expires_at=expires), wall=EPOCH), limits=mortal(None))
    assert find_losses(stopping.memory, HfActivity(), NOW)[name(0)].cause is cause
    gone = plan(
        known.memory, snapshot(replace(ENDED, cause=cause, expires_at=expires), wall=EPOCH), limits=mortal(None)
    )
    assert [close.slot.observed.cause for close in gone.closes] == [cause]


@pytest.mark.parametrize(("left", "cause"), [(30.0, LossCause.EXPIRES), (3000.0, LossCause.UNKNOWN)])
def test_so_is_that_of_a_machine_that_vanishes_then(left: float, cause: LossCause) -> None:
    known = planned(left, slots=[aged(ran_at=BEFORE - 1e6)]).memory
    empty = [snapshot(began=SEEN + at, wall=EPOCH + at) for at in (1, 2)]
    closes = []
    for one in empty:
        made = plan(known, one, limits=mortal(None, mass_loss_seconds=0.0))
        known, closes = made.memory, [*closes, *made.closes]
    assert [close.slot.observed.cause for close in closes] == [cause]
