"""Observations that lack many machines at once. The loop distrusts the pool until a second observation confirms the
loss."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.lab.fake_backend import Entry
from provisioner.loop.cycle_report import CycleReport
from provisioner.loop.reconciler import _identity
from provisioner.model import (
    DeleteReason,
    Distrusted,
    DistrustReason,
    Limits,
    LossCause,
    MachineEnd,
    Memory,
    Notice,
    Observation,
    Phase,
    Plan,
    RequestStatus,
    Snapshot,
    Verdict,
)
from provisioner.planning.observe.trust import FEW
from provisioner.telemetry.cycle_log import CycleLog
from tests.support.cycle_bench import Bench
from tests.unit.core import (
    NOW,
    REQUEST,
    SEEN,
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
)

APART = 60.0
LIMITS = limits(pool("a", early_loss_seconds=0.0))
ALL = range(10)
LOST = {Verdict.LOST: 10}


def grid(count: int = 10, verdict: Verdict = Verdict.SUCCEEDED, **changes: object) -> Memory:
    """Return a memory with a request of ``count`` running machines.

    By default, the request has ended and HF has them.
    """
    ended = RequestStatus.COMPLETE if verdict is Verdict.SUCCEEDED else None
    slots = [running(number, verdict, **changes) for number in range(count)]
    return memory(record(*slots, ended=ended, reported_at=NOW if ended else None))


def observe(there: Collection[int], began: float = SEEN, **changes: object) -> Snapshot:
    """Return an observation that shows these machines."""
    return snapshot(*(machine(number) for number in there), began=began, **changes)


def planned(known: Memory, *observations: Snapshot, limits: Limits = LIMITS) -> Plan:
    """Return the last of the plans for these observations."""
    for one in observations:
        last = plan(known, one, limits=limits, now=one.began_at + 1)
        known = last.memory
    return last


def verdicts(last: Plan) -> list[Verdict]:
    return [one.verdict for one in last.memory.requests[REQUEST].slots.values()]


@pytest.mark.parametrize(
    ("known", "missing", "changes", "is_distrusted"),
    [
        pytest.param(10, 10, {}, True, id="all of them"),
        pytest.param(10, FEW + 1, {}, True, id="more than a few"),
        pytest.param(10, FEW, {}, False, id="a few, half of them all"),
        pytest.param(60, 13, {}, True, id="more than a fifth"),
        pytest.param(60, 12, {}, False, id="a fifth"),
        pytest.param(5, 5, {}, False, id="a small pool"),
        pytest.param(10, 10, {"mass_loss_seconds": 0.0}, False, id="all, in a pool that does not wait"),
        pytest.param(10, 10, {"lag_seconds": 90.0}, True, id="all, within the lag of the pool"),
    ],
)
def test_many_machines_that_are_missing_at_once_are_distrusted(
    known: int, missing: int, changes: dict[str, float], is_distrusted: bool
) -> None:
    later = 80 if "lag_seconds" in changes else 5
    first, second = observe(range(missing, known)), observe(range(missing, known), SEEN + later)
    last = planned(grid(known), first, second, limits=limits(pool("a", early_loss_seconds=0.0, **changes)))
    assert ("a" in last.distrusted) is is_distrusted
    assert verdicts(last).count(Verdict.LOST) == (0 if is_distrusted else missing)


def test_closed_slots_and_machines_that_never_ran_are_not_counted() -> None:
    slots = [running(number, Verdict.RETURNED) for number in range(8)] + [
        slot(number, was_seen=True) for number in (8, 9)
    ]
    last = planned(memory(record(*slots, count=2)), observe(()), observe((), SEEN + 5))
    assert not last.distrusted
    assert verdicts(last)[8:10] == [Verdict.FAILED] * 2


def test_machines_that_are_shown_as_gone_make_no_room_for_those_that_are_missing() -> None:
    known = planned(grid(100), observe(range(85))).memory
    shown = [machine(number, Phase.GONE if number < 75 else Phase.RUNNING) for number in range(85)]
    last = planned(known, snapshot(*shown, began=SEEN + 5))
    assert (last.distrusted["a"].missing, last.distrusted["a"].expected) == (15, 25)
    assert verdicts(last).count(Verdict.LOST) == 75


def gone_for(cause: LossCause) -> dict[str, Any]:
    return {"ends": {name(number): MachineEnd(cause) for number in ALL}}


@pytest.mark.parametrize(
    ("known", "said", "at_once"),
    [
        *(
            pytest.param({}, gone_for(cause), True, id=cause)
            for cause in (LossCause.PREEMPTED, LossCause.EVICTED, LossCause.NODE, LossCause.DELETED)
        ),
        pytest.param({}, gone_for(LossCause.UNKNOWN), False, id="a cause that is none explains nothing"),
        pytest.param({"notice": Notice(LossCause.PREEMPTED, NOW)}, {}, True, id="their end was announced"),
        pytest.param({"cause": LossCause.NODE}, {}, True, id="their end had begun"),
    ],
)
def test_machines_whose_place_says_why_they_went_are_lost_at_once(
    known: dict[str, Any], said: dict[str, Any], at_once: bool
) -> None:
    last = planned(grid(**known), observe((), **said), observe((), SEEN + 5, **said))
    assert verdicts(last) == [Verdict.LOST if at_once else Verdict.SUCCEEDED] * 10
    assert bool(last.distrusted) is not at_once


def test_in_a_distrusted_pool_those_with_a_cause_are_reported_and_the_others_wait() -> None:
    ends = {name(0): MachineEnd(LossCause.PREEMPTED)}
    last = planned(grid(), observe((), ends=ends), observe((), SEEN + 5, ends=ends))
    assert verdicts(last) == [Verdict.LOST, *[Verdict.SUCCEEDED] * 9]
    assert (last.distrusted["a"].missing, last.distrusted["a"].expected) == (9, 9)


def test_nothing_is_made_in_their_place_and_nothing_is_deleted() -> None:
    """While the pool is distrusted, the loop creates no machine in it, and deletes neither machines of closed slots nor
    orphans."""
    slots = [running(number) for number in ALL] + [slot(10, Verdict.FAILED), slot(11, was_seen=True)]
    known = memory(record(*slots, count=20), orphans={"hf-zzzzzzzzzz-000000": 0.0})
    seen = [machine(10), replace(machine(0, request="zzzzzzzzzz"))]
    last = planned(known, snapshot(*seen), snapshot(*seen, began=SEEN + 5))
    assert last.distrusted
    assert (last.creates, last.deletes, last.closes) == ((), (), ())


def test_other_pools_go_on() -> None:
    known = memory(record(*(running(number) for number in ALL), count=12))
    both = limits(pool("a"), pool("b"))
    last = plan(known, observe(()), snapshot(pool="b"), limits=both)
    assert {one.pool for one in last.creates} == {"b"}
    assert len(last.creates) == 2


def test_a_machine_that_was_given_back_is_not_gone_before_the_second_observation() -> None:
    slots = [running(number, Verdict.SUCCEEDED) for number in ALL]
    shows_again = running(10, Verdict.RETURNED, delete=DeleteReason.RETURNED, closed_at=SEEN - 50)
    known = memory(record(*slots, shows_again, ended=RequestStatus.COMPLETE))
    waiting = planned(known, observe(()), observe((), SEEN + 5))
    assert not waiting.memory.requests[REQUEST].slots[10].deletion.is_gone
    settled = planned(known, observe(()), observe((), SEEN + APART), observe((), SEEN + APART + 5))
    assert settled.memory.requests[REQUEST].slots[10].deletion.is_gone


def test_a_second_observation_that_is_independent_settles_it() -> None:
    first = planned(grid(), observe(()))
    assert first.due_at <= SEEN + APART + 1, "the plan wakes the loop"
    loss = first.distrusted["a"]
    assert loss.reason is DistrustReason.MASS_LOSS
    assert (loss.missing, loss.expected, loss.since, loss.until) == (10, 10, SEEN, SEEN + APART)
    assert verdicts(planned(first.memory, observe((), SEEN + APART - 1))) == [Verdict.SUCCEEDED] * 10
    last = planned(first.memory, observe((), SEEN + APART))
    assert verdicts(last) == [Verdict.LOST] * 10
    assert not last.distrusted


def test_an_observation_that_rests_on_the_list_of_the_first_settles_nothing() -> None:
    """A watch continues from one list. A later observation of the same watch rests on the same list, so it does not
    confirm the loss."""
    first = planned(grid(), observe((), listed_at=SEEN - 1))
    waiting = planned(first.memory, observe((), SEEN + 2 * APART, listed_at=SEEN - 1))
    assert verdicts(waiting) == [Verdict.SUCCEEDED] * 10
    assert waiting.distrusted["a"].until == SEEN + APART
    last = planned(first.memory, observe((), SEEN + 2 * APART, listed_at=SEEN + APART))
    assert verdicts(last) == [Verdict.LOST] * 10


def test_machines_that_show_again_were_never_away() -> None:
    last = planned(grid(), observe(()), observe(ALL, SEEN + 30))
    assert verdicts(last) == [Verdict.SUCCEEDED] * 10
    assert not last.distrusted
    assert all(one.observed.absent_since is None for one in last.memory.requests[REQUEST].slots.values())
    later = planned(last.memory, observe((), SEEN + APART))
    assert later.distrusted["a"].since == SEEN + APART


def test_open_machines_fail_and_are_replaced_once_it_is_settled() -> None:
    known = grid(verdict=Verdict.OPEN)
    known = replace(known, requests={REQUEST: replace(known.requests[REQUEST], count=11)})
    last = planned(known, observe(()), observe((), SEEN + APART))
    assert verdicts(last)[:10] == [Verdict.FAILED] * 10
    assert len(last.creates) == 11


def test_a_loss_that_goes_on_is_reported_in_parts_each_in_time() -> None:
    """Machines that vanished first are reported as lost as soon as their own loss is confirmed. They do not wait for
    machines that vanished later."""
    first, second = observe(range(10, 30)), observe((), SEEN + 30)
    last = planned(grid(30), first, second, observe((), SEEN + APART))
    assert verdicts(last) == [Verdict.LOST] * 10 + [Verdict.SUCCEEDED] * 20
    assert verdicts(planned(last.memory, observe((), SEEN + 30 + APART)))[10:] == [Verdict.LOST] * 20


@given(
    shown=st.lists(st.sets(st.integers(0, 11)), min_size=2, max_size=12),
    steps=st.lists(st.floats(1, 40), min_size=12, max_size=12),
)
def test_whatever_observations_say_no_machine_is_lost_but_by_two_of_them_and_none_waits_for_ever(
    shown: list[set[int]], steps: list[float]
) -> None:
    known, began, first_absent = grid(12), SEEN, dict[int, float]()
    for there, step in zip(shown, steps, strict=False):
        began += step
        before = known
        last = plan(known, observe(there, began), limits=LIMITS, now=began + 1)
        known = last.memory
        for number, one in known.requests[REQUEST].slots.items():
            if number in there:
                first_absent.pop(number, None)
            since = first_absent.setdefault(number, began) if number not in there else began
            was = before.requests[REQUEST].slots[number].verdict
            if was is Verdict.SUCCEEDED and one.verdict is Verdict.LOST:
                assert began > since
            if one.verdict is Verdict.SUCCEEDED:
                assert began - since < APART


def test_operators_are_informed_in_the_log_once_and_with_the_pool_while_it_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, seen, blind = CycleLog(), observe(()), failed_observation("a")
    distrusted = planned(grid(), seen).distrusted
    caplog.set_level(logging.WARNING)
    for later in (0.0, 10.0):
        shown = report({"a": seen}, SEEN + later, distrusted)
        log.record_cycle(shown)
        assert shown.problems["a"] == (
            "10 of 10 machines are missing since 2023-11-14T22:13:20Z, all at once and without a cause. No machine is "
            "made or deleted here, and the loss is not reported to HostFactory, until a list that begins 60 s later "
            "confirms it.",
        )
        assert (shown.unseen, shown.snapshots, shown.result) == ({}, {}, "partial")
    log.record_cycle(report({"a": blind}, SEEN + 15, {}))
    assert len(caplog.records) == 1, "an observation that fails ends no distrust"
    log.record_cycle(report({"a": seen}, SEEN + 20, {}))
    begun, ended = caplog.records
    assert (begun.pool, begun.machines, begun.known, begun.since) == ("a", 10, 10, "2023-11-14T22:13:20Z")  # type: ignore[attr-defined]
    assert ended.getMessage() == "Pool is trusted again"


def report(observations: Mapping[str, Observation], now: float, distrusted: Mapping[str, Distrusted]) -> CycleReport:
    ahead = 1_700_000_000.0 - SEEN
    return CycleReport(1, now, 0.0, observations, memory(), None, {}, distrusted=distrusted, ahead_seconds=ahead)


def test_observations_that_rest_on_different_lists_do_not_say_the_same() -> None:
    seen = observe(())
    assert _identity(replace(seen, listed_at=1.0)) != _identity(replace(seen, listed_at=2.0))
    assert _identity(replace(seen, began_at=1.0)) == _identity(replace(seen, began_at=2.0))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def vanish(bench: Bench) -> dict[str, Entry]:
    """Empty the place, and return the machines that it showed."""
    there, bench.place.place._entries = bench.place.place._entries, {}
    return there


@pytest.mark.parametrize("shows_again", [True, False], ids=["they show again", "a second observation lacks them too"])
def test_a_memory_is_not_made_again_from_one_observation_that_lacks_many_machines(
    bench: Bench, shows_again: bool
) -> None:
    bench.succeed(12)
    there = vanish(bench)
    Path(bench.state.memory.path).unlink()
    bench.restarted()
    report = bench.cycle(5)
    assert report.distrusted.keys() == {"pool", "other"}
    assert "a second observation of these pools, which lack many machines that HostFactory has" in report.problem
    assert not bench.state.status.read_lost()
    if shows_again:
        bench.place.place._entries = there
        assert not bench.cycle().distrusted
    assert not bench.cycle(20).distrusted
    assert len(bench.state.status.read_lost()) == (0 if shows_again else 12)
