"""Fair order. Within a template, age and size decide. Templates take turns, and no request waits for ever."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.model import (
    DESIRED,
    ErrorClass,
    Failure,
    Limits,
    Memory,
    Outcome,
    RequestRecord,
    RequestStatus,
    Slot,
    Verdict,
    Window,
)
from provisioner.planning.allocate.fair_order import order_requests
from provisioner.planning.observe.call_outcomes import apply_outcomes
from tests.unit.core import (
    BEFORE,
    NOW,
    OTHER,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    machine,
    memory,
    plan,
    pool,
    record,
    slot,
    snapshot,
    two_templates,
    unsent,
)

OLD, YOUNG = REQUEST, OTHER


def asking(id_: str, count: int, read: float = BEFORE, *slots: Slot, **changes: Any) -> RequestRecord:
    return record(*slots, id_=id_, count=count, read_at=read, deadline_at=read + 1e6, **changes)


class Grid:
    """A pool in which at most ``room`` machines wait at a time. Machines that are requested in one step run in the next
    step."""

    def __init__(self, *records: RequestRecord, room: int, calls: int = 10_000, limits: Limits | None = None) -> None:
        self.limits = limits or two_templates(pool("a", max_pending=room, initial_window=room))
        self.known: Memory = memory(*records)
        self.calls = calls
        """Number of creates for which one step has time."""
        self.now = NOW
        self.running: dict[str, int] = {}
        self.sent: list[Counter[str]] = []
        """Machines of each request for which a create was sent, by step."""

    def step(self, *new: RequestRecord) -> Counter[str]:
        self.now += 10.0
        requests = {**self.known.requests, **{one.id: replace(one, read_at=self.now) for one in new}}
        self.known = replace(self.known, requests=requests)
        there = [machine(number_of(name), request=name.split("-")[1]) for name in self.running]
        made = plan(self.known, snapshot(*there, began=self.now - 1), limits=self.limits, now=self.now)
        sent, unsent_ = made.creates[: self.calls], made.creates[self.calls :]
        self.running |= {create.name: 1 for create in sent}
        self.known = apply_outcomes(
            made.memory, [Outcome(create) for create in sent], unsent_, self.limits, self.now
        ).memory
        self.sent.append(Counter(create.request for create in sent))
        return self.sent[-1]

    def has(self, id_: str) -> int:
        """Return the number of a request's machines that were made."""
        return sum(step[id_] for step in self.sent)


def number_of(name: str) -> int:
    return int(name[-6:])


def test_the_oldest_request_asks_first_whatever_the_order_of_the_files() -> None:
    grid = Grid(asking(YOUNG, 5, read=BEFORE + 1), asking(OLD, 5), room=3)
    assert [grid.step() for _ in range(3)] == [{OLD: 3}, {OLD: 2, YOUNG: 1}, {YOUNG: 3}]


def test_requests_of_one_size_are_filled_one_after_the_other() -> None:
    """Requests of one size must be filled one after the other. HF uses the machines of a request only when the request
    ends, so half-full requests would give HF no machine."""
    ids = [letter * 10 for letter in "abcde"]
    grid = Grid(*(asking(id_, 10, BEFORE + number) for number, id_ in enumerate(ids)), room=4)
    for _ in range(20):
        grid.step()
    done = [next(step for step in range(20) if sum(s[id_] for s in grid.sent[: step + 1]) == 10) for id_ in ids]
    assert done == [2, 4, 7, 9, 12]


def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    grid = Grid(asking(OLD, 1000), room=5)
    grid.step()
    grid.step(asking(YOUNG, 7))
    for _ in range(3):
        grid.step()
    assert grid.has(YOUNG) == 7
    assert grid.has(OLD) == 5 * 5 - 7


def test_a_large_request_is_not_starved_by_small_ones_that_keep_coming() -> None:
    grid = Grid(asking(OLD, 1000), room=5)
    for number in range(40):
        grid.step(asking(f"{number:010d}", 5))
    served = [bool(step[OLD]) for step in grid.sent]
    assert all(one or other for one, other in pairwise(served)), "every second time at least"
    assert grid.has(OLD) >= 20 * 5


def test_a_small_requests_creates_are_sent_before_those_of_a_large_one_that_wait_for_their_calls() -> None:
    wide = two_templates(pool("a", max_pending=10_000, initial_window=10_000))
    grid = Grid(asking(OLD, 1000), room=0, calls=20, limits=wide)
    grid.step()
    grid.step(asking(YOUNG, 30))
    grid.step()
    grid.step()
    assert grid.has(YOUNG) == 30
    assert sum(map(sum, (step.values() for step in grid.sent))) == 4 * 20, "and no call is left out"


def test_a_request_that_waits_for_nothing_changes_nobodys_turn() -> None:
    """Only requests that wait count as the oldest: a request with all its machines takes no turn."""
    assert order_requests([asking("b" * 10, 1), asking("a" * 10, 1)]) == ["b" * 10, "a" * 10], "in the order of intent"
    full = asking(OLD, 1, BEFORE - 9, slot(submitted_at=NOW))
    large, small = asking(YOUNG, 9, BEFORE), asking("c" * 10, 2, BEFORE + 1)
    assert order_requests([full, large, small]) == [OLD, YOUNG, "c" * 10]
    served = asking(YOUNG, 9, BEFORE, slot(request=YOUNG, submitted_at=NOW))
    assert order_requests([full, served, small]) == [OLD, "c" * 10, YOUNG]
    unsent_ = asking("c" * 10, 2, BEFORE + 1, *(unsent(number, request="c" * 10) for number in range(2)))
    assert order_requests([full, served, unsent_]) == [OLD, "c" * 10, YOUNG], "a create that was not sent is waited for"
    # Else one small request after the other would go before a large one.
    gone = asking("d" * 10, 1, BEFORE, slot(request="d" * 10, submitted_at=NOW + 1), ended="complete")
    assert order_requests([full, large, small, gone]) == [OLD, YOUNG, "c" * 10]
    assert order_requests([full, served, small, gone]) == [OLD, YOUNG, "c" * 10], "one that has ended had its turn"


ARRIVALS = st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=5, max_size=10)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(ARRIVALS, st.integers(1, 6), st.integers(1, 8))
def test_whoever_comes_gets_its_turn(arrivals: list[list[int]], room: int, calls: int) -> None:
    grid = Grid(room=room, calls=calls)
    numbers = iter(range(10_000))
    for counts in arrivals:
        ids = [f"{next(numbers):010d}" for _ in counts]
        oldest = next((one.id for one in grid.known.requests.values() if waits(grid, one)), None)
        before = len(grid.sent)
        grid.step(*(asking(id_, count) for id_, count in zip(ids, counts, strict=True)))
        sent = sum(grid.sent[before].values())
        assert sent <= min(room, calls)
        if oldest and waits(grid, grid.known.requests[oldest]):
            assert sent == min(room, calls), "no room is left while a request waits"
    total = sum(one.count for one in grid.known.requests.values())
    for _ in range(2 * total + 2):
        if not any(waits(grid, one) for one in grid.known.requests.values()):
            break
        grid.step()
    grid.step()
    assert all(one.ended is not None for one in grid.known.requests.values())
    assert all(grid.has(one.id) == one.count for one in grid.known.requests.values())


def waits(grid: Grid, one: RequestRecord) -> bool:
    return one.ended is None and grid.has(one.id) < one.count


def test_templates_send_their_creates_in_turn() -> None:
    wide = two_templates(pool("a", max_pending=10_000, initial_window=10_000))
    grid = Grid(asking(OLD, 1000), asking(YOUNG, 30, template="U"), room=0, calls=20, limits=wide)
    for _ in range(3):
        assert grid.step() == {OLD: 10, YOUNG: 10}
    assert grid.step() == {OLD: 20}


def test_a_template_that_gets_nothing_holds_up_no_other() -> None:
    blocked = Window(window=1, level=3, is_probing=True, retry_at=NOW + 99, failure=STOCKOUT)
    slow = Window(window=9, level=1, retry_at=NOW + 99, failure=Failure(ErrorClass.THROTTLED, "slow"))
    for known_window in (blocked, slow, Window(window=1, closed_since=BEFORE)):
        records = asking(OLD, 50, BEFORE, slot()), asking(YOUNG, 5, template="U")
        known = memory(*records, windows={("a", TEMPLATE): known_window})
        made = plan(known, snapshot(), limits=two_templates(pool("a", max_pending=5, max_machines=5)))
        assert Counter(create.request for create in made.creates) == {YOUNG: 5}


def test_a_template_that_has_reached_its_caps_takes_no_room_from_another() -> None:
    full = two_templates(pool("a", max_pending=5, max_machines=5, initial_window=5))
    grid = Grid(asking(OLD, 50), asking(YOUNG, 5, template="U"), room=0, limits=full)
    assert grid.step() == {OLD: 5, YOUNG: 5}
    desired = [one for each in grid.known.requests.values() for one in each.slots.values() if one.verdict in DESIRED]
    assert len(desired) == 10
    assert not [one for one in desired if one.verdict is Verdict.FAILED]


@pytest.mark.parametrize("ended", [None, RequestStatus.COMPLETE])
def test_the_template_whose_open_request_is_the_oldest_asks_first(ended: RequestStatus | None) -> None:
    """The rest of the cap over all templates goes to the template that waited longest. Ended requests do not count."""
    done = asking("c" * 10, 0, BEFORE - 50, ended=ended)
    others = [asking(OLD, 1, BEFORE + 9), asking(YOUNG, 1, BEFORE, template="U")]
    order = [id_ for id_ in order_requests([done, *others]) if id_ != done.id]
    assert order == ([OLD, YOUNG] if ended is None else [YOUNG, OLD])
