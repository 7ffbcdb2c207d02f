"""Machine-hours. The plan that finds a machine gone counts its hours once, on the days of its life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.model import Limits, Memory, Slot, Verdict
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.usage import (
    EARLIER,
    LONGEST,
    Span,
    by_pool,
    count_usage,
    find_span,
    get_month,
    get_usage,
    split_by_day,
)
from provisioner.state.memory_file import MemoryCodec
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
    limits,
    machine,
    memory,
    plan,
    pool,
    record,
    running,
    slot,
    snapshot,
)

DAY = 86_400.0
SHORT = limits(pool("a"), pool("b"), usage_days=3)
CELL = (TEMPLATE, "a", "")

Lives = Sequence[tuple[int, int, float, float]]
"""Pool and account of each machine, and the seconds before ``NOW`` at which it was requested and was gone."""


def lives() -> st.SearchStrategy[Lives]:
    ago = st.floats(0, 9 * DAY, allow_nan=False)
    return st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), ago, ago), min_size=1, max_size=8)


def there_were(lived: Lives) -> Memory:
    """Return a memory of machines that the next plan finds gone. Machines of one account belong to one request."""
    slots: dict[int, list[Slot]] = {0: [], 1: []}
    for number, (where, account, one, other) in enumerate(lived):
        asked, absent = NOW - max(one, other), NOW - min(one, other)
        facts = {"pool": "ab"[where], "was_seen": True, "submitted_at": asked, "absent_since": absent}
        slots[account].append(slot(number, Verdict.FAILED, (REQUEST, OTHER)[account], **facts))
    records = [record(*slots[0]), record(*slots[1], id_=OTHER, rc_account="night")]
    return memory(*records, time=NOW, time_wall=NOW)


def gone(remembered: Memory, numbers: Sequence[int], *, ahead: float = 0.0, allowed: Limits = SHORT) -> Memory:
    """Return the memory after a plan that finds these machines gone."""
    draft = Draft(remembered, {}, allowed, NOW, NOW + ahead)
    for known_slot in list(draft.records()):
        for one in list(known_slot.slots.values()):
            if one.number in numbers:
                draft.put_slots(known_slot.id, alter(one, is_gone=True))
    count_usage(draft)
    return draft.memory()


def whole(lived: Lives) -> int:
    """Return the sum of all milliseconds."""
    return sum(round(((NOW - min(ago)) - (NOW - max(ago))) * 1000) for _, _, *ago in lived)


@given(begin=st.floats(0, 4e9), seconds=st.floats(0, 40 * DAY), ahead=st.floats(-1e9, 1e9))
def test_the_days_of_a_machine_add_up_to_its_time(begin: float, seconds: float, ahead: float) -> None:
    days = list(split_by_day(Span(begin, begin + seconds), ahead))

    assert sum(part for _, part in days) == round((begin + seconds - begin) * 1000)
    assert all(0 < part <= DAY * 1000 for _, part in days)
    assert all(part == DAY * 1000 for _, part in days[1:-1]), "each day between the first and the last is a whole one"
    dates = [date.fromisoformat(day) for day, _ in days]
    assert dates == [dates[0] + timedelta(days=number) for number in range(len(dates))] if dates else not seconds >= 1


def test_a_machine_is_split_at_midnight_of_the_wall_clock() -> None:
    assert list(split_by_day(Span(DAY - 1.5, DAY + 0.25), 0.0)) == [("1970-01-01", 1500), ("1970-01-02", 250)]
    assert list(split_by_day(Span(0.0, 2.0), 20_000 * DAY - 1.0)) == [("2024-10-03", 1000), ("2024-10-04", 1000)]


@pytest.mark.parametrize("wall", [-1e15, 1e15])
def test_a_wall_clock_beyond_all_calendars_loses_no_time_and_a_damaged_file_ends_in_time(wall: float) -> None:
    assert sum(part for _, part in split_by_day(Span(0.0, 3 * DAY), wall)) == 3 * DAY * 1000
    assert sum(part for _, part in split_by_day(Span(-1e18, 0.0), 0.0)) == LONGEST


def test_a_month_ends_where_the_next_begins() -> None:
    days, begins, ends = get_month(31.5 * DAY)
    assert (days, begins, ends) == ("1970-02-", 31 * DAY, 59 * DAY)
    assert get_month(364.5 * DAY) == ("1970-12-", 334 * DAY, 365 * DAY)


@settings(max_examples=40)
@given(lived=lives(), order=st.randoms(), some=st.integers(0, 8))
def test_when_and_in_which_order_machines_are_found_gone_changes_nothing(
    lived: Lives, order: Random, some: int
) -> None:
    numbers, many = list(range(len(lived))), replace(SHORT, usage_days=92)
    order.shuffle(numbers)
    one_by_one = there_were(lived)
    reported = get_usage(one_by_one, NOW, 0.0)
    assert get_usage(gone(one_by_one, numbers[:some], allowed=many), NOW, 0.0) == reported
    for number in numbers:
        one_by_one = gone(one_by_one, [number], allowed=many)

    assert one_by_one.usage.days == gone(there_were(lived), numbers, allowed=many).usage.days
    assert sum(by_pool(one_by_one.usage.days).values()) == whole(lived)


@settings(max_examples=40)
@given(lived=lives(), ahead=st.floats(-1e9, 1e9))
def test_days_that_are_kept_no_longer_stay_in_the_sum_of_their_pool(lived: Lives, ahead: float) -> None:
    kept = gone(there_were(lived), range(len(lived)), ahead=ahead)
    every = gone(there_were(lived), range(len(lived)), ahead=ahead, allowed=replace(SHORT, usage_days=92))

    assert by_pool(kept.usage.days) == by_pool(every.usage.days)
    assert len(kept.usage.days.keys() - {EARLIER}) <= 3
    newest = sorted(every.usage.days)[-3:]
    assert {day: kept.usage.days[day] for day in newest} == {day: every.usage.days[day] for day in newest}


def test_a_day_to_which_nothing_is_added_is_not_encoded_again() -> None:
    codec = MemoryCodec()
    first = gone(there_were([(0, 0, 3 * DAY, 2 * DAY), (0, 0, 60.0, 0.0)]), [0])
    before = codec.encode(first)["usage"]
    after = codec.encode(gone(first, [1]))["usage"]
    assert before
    assert all(after[day] is document for day, document in before.items())


def test_a_machine_counts_from_its_create_until_the_first_observation_that_lacks_it() -> None:
    remembered = memory(record(running(0), rc_account="night"))
    missed = plan(remembered, snapshot(began=SEEN), limits=SHORT)
    assert missed.memory.usage.days == {}
    proven = plan(missed.memory, snapshot(began=NOW + 29), limits=SHORT, now=NOW + 30)
    assert proven.memory.usage.days == {"1970-01-01": {(TEMPLATE, "a", "night"): round((SEEN - BEFORE) * 1000)}}
    assert proven.memory.usage.since_wall == NOW + 30


def test_a_plan_in_which_no_machine_goes_counts_nothing() -> None:
    remembered = memory(record(running(0)))
    assert plan(remembered, snapshot(machine(0)), limits=SHORT).memory.usage is remembered.usage


def test_the_same_memory_planned_twice_counts_once() -> None:
    """If the loop crashes before it writes memory, it plans again from the memory that was written last. The hours of a
    machine must not be counted twice."""
    known_slot = memory(record(slot(0, Verdict.FAILED, was_seen=True, absent_since=BEFORE + 50.0)))
    first = plan(known_slot, snapshot(), limits=SHORT).memory
    assert (
        first.usage.days
        == plan(known_slot, snapshot(), limits=SHORT).memory.usage.days
        == {"1970-01-01": {CELL: 50_000}}
    )
    again = plan(first, snapshot(began=NOW + 1), limits=SHORT, now=NOW + 2).memory
    assert again.usage == first.usage


def test_a_machine_that_is_known_to_be_gone_counts_no_more_whatever_is_noted_of_it() -> None:
    counted = gone(there_were([(0, 0, 60.0, 0.0)]), [0])
    draft = Draft(counted, {}, SHORT, NOW)
    draft.put_slots(REQUEST, alter(counted.requests[REQUEST].slots[0], retiring_at=NOW))
    count_usage(draft)
    assert draft.memory().usage is counted.usage


def test_a_machine_that_waits_for_room_counts_once_it_has_found_it() -> None:
    waiting = slot(0, was_seen=True, failure=STOCKOUT)
    assert find_span(waiting, NOW) is None
    placed = plan(memory(record(waiting)), snapshot(machine(0)), limits=SHORT).memory
    assert find_span(placed.requests[REQUEST].slots[0], NOW + 5) == Span(NOW, NOW + 5)


@pytest.mark.parametrize(
    ("known_slot", "counts"),
    [
        pytest.param(slot(0), False, id="one that was not seen"),
        pytest.param(slot(0, was_seen=True), True, id="one that boots"),
        pytest.param(slot(0, was_seen=True, is_queued=True), False, id="one behind a gate"),
        pytest.param(slot(0, was_seen=True, failure=BROKEN), True, id="one that does not come up"),
        pytest.param(running(0, failure=STOCKOUT), True, id="one that ran"),
        pytest.param(slot(0, was_seen=True, failure=STOCKOUT, used_from=BEFORE), True, id="one that counted before"),
    ],
)
def test_which_machines_count(known_slot: Slot, counts: bool) -> None:
    assert (find_span(known_slot, NOW) is not None) is counts


def test_a_machine_that_comes_back_late_counts_again_from_then_on() -> None:
    ended = slot(0, Verdict.FAILED, was_seen=True, is_gone=True, absent_since=BEFORE + 50.0)
    back = plan(memory(record(ended)), snapshot(machine(0)), limits=SHORT).memory
    assert back.usage.days == {}
    assert find_span(back.requests[REQUEST].slots[0], NOW + 7) == Span(NOW, NOW + 7)


def test_the_sum_of_all_parts_is_the_whole_in_whatever_way_it_is_cut() -> None:
    counted = gone(there_were([(0, 0, 3 * DAY, 0.0), (1, 1, DAY / 3, 7.0)]), [0, 1], allowed=limits())
    for part in range(3):
        sums = Counter[str]()
        for cells in counted.usage.days.values():
            for cell, milliseconds in cells.items():
                sums[cell[part]] += milliseconds
        assert sum(sums.values()) == sum(by_pool(counted.usage.days).values()) == round((3 * DAY + DAY / 3 - 7) * 1000)
