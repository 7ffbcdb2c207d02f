"""Tests of how a plan is carried out: by pool, deletes first, whatever fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from provisioner.loop.batch_threads import Batch, Results, ThreadedActors, batches, carry_out
from provisioner.model import Action, Create, Delete, DeleteReason, ErrorClass, Failure, Outcome
from tests.support.waiting import PATIENCE, until

FAILED = Failure(ErrorClass.OTHER, "no")
SECONDS = 30 * PATIENCE
"""Seconds within which a batch of these tests ends; on an idle machine a batch takes a millisecond."""


def create(name: str, pool: str = "a") -> Create:
    return Create(name, pool, "T", "aaaaaaaaaa")


def delete(name: str, pool: str = "a") -> Delete:
    return Delete(name, pool, DeleteReason.RETURNED)


class Place:
    """A backend that carries out the actions for which ``outcome_of`` returns an outcome."""

    pace = 1.0

    def __init__(self, pool: str = "a", outcome_of: Callable[[Action], Outcome | None] = Outcome) -> None:
        self.pool = pool
        self.outcome_of = outcome_of
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def start(self, wake: Callable[[], None]) -> None: ...

    def close(self) -> None: ...

    def observe(self, now: float, sought: object) -> None: ...

    def create(self, creates: Sequence[Create], may_start: Callable[[], bool]) -> list[Outcome]:
        return self._do("create", creates, may_start)

    def delete(self, deletes: Sequence[Delete], may_start: Callable[[], bool]) -> list[Outcome]:
        return self._do("delete", deletes, may_start)

    def _do(self, verb: str, actions: Sequence[Action], may_start: Callable[[], bool]) -> list[Outcome]:
        assert self.gate.wait(SECONDS)
        outcomes = []
        for action in actions:
            if may_start():
                self.calls.append(f"{verb} {action.name}")
                outcomes.append(self.outcome_of(action))
        return [outcome for outcome in outcomes if outcome is not None]


def always() -> bool:
    return True


def never() -> bool:
    return False


def test_each_pool_gets_one_batch_with_its_own_actions_in_their_order() -> None:
    made = batches([create("c1", "b"), create("c2"), create("c3", "b")], [delete("d1"), delete("d2", "c")])
    assert made == [
        Batch("a", (delete("d1"),), (create("c2"),)),
        Batch("c", (delete("d2", "c"),), ()),
        Batch("b", (), (create("c1", "b"), create("c3", "b"))),
    ]


def test_a_plan_without_actions_has_no_batches() -> None:
    assert batches([], []) == []


def test_deletes_come_first_because_they_make_room() -> None:
    place = Place()
    carry_out(Batch("a", (delete("old"),), (create("new"),)), place, always)
    assert place.calls == ["delete old", "create new"]


def refuse_first(action: Action) -> Outcome:
    return Outcome(action, FAILED if action.name == "c1" else None)


def skip_first(action: Action) -> Outcome | None:
    return None if action.name == "c1" else Outcome(action)


def break_on_creates(action: Action) -> Outcome:
    if isinstance(action, Create):
        raise KeyError("a bug")
    return Outcome(action)


def break_on_deletes(action: Action) -> Outcome:
    if isinstance(action, Delete):
        raise KeyError("a bug")
    return Outcome(action)


UNKNOWN = Failure(ErrorClass.UNAVAILABLE, "internal error: 'a bug'")
C1, C2, D1 = create("c1"), create("c2"), delete("d1")


@pytest.mark.parametrize(
    ("outcome_of", "may_start", "outcomes", "unsent"),
    [
        pytest.param(Outcome, always, (Outcome(D1), Outcome(C1), Outcome(C2)), (), id="all is done"),
        pytest.param(
            refuse_first,
            always,
            (Outcome(D1), Outcome(C1, FAILED), Outcome(C2)),
            (),
            id="one failed create does not stop the others",
        ),
        pytest.param(skip_first, always, (Outcome(D1), Outcome(C2)), (C1,), id="what has no outcome was not sent"),
        pytest.param(Outcome, never, (), (D1, C1, C2), id="when time is up nothing is sent"),
        pytest.param(
            break_on_creates,
            always,
            (Outcome(D1), Outcome(C1, UNKNOWN), Outcome(C2, UNKNOWN)),
            (),
            id="a bug in creating leaves unknown outcomes",
        ),
        pytest.param(
            break_on_deletes,
            always,
            (Outcome(D1, UNKNOWN), Outcome(C1), Outcome(C2)),
            (),
            id="a bug in deleting does not stop the creates",
        ),
    ],
)
def test_what_becomes_of_a_batch(
    outcome_of: Callable[[Action], Outcome | None],
    may_start: Callable[[], bool],
    outcomes: tuple[Outcome, ...],
    unsent: tuple[Action, ...],
) -> None:
    results = carry_out(Batch("a", (D1,), (C1, C2)), Place(outcome_of=outcome_of), may_start)
    assert results == Results("a", outcomes, unsent)


def test_a_create_and_a_delete_of_one_name_are_distinguished() -> None:
    results = carry_out(Batch("a", (delete("x"),), (create("x"),)), Place(outcome_of=skip_none_but_delete), always)
    assert results.unsent == (create("x"),)


def skip_none_but_delete(action: Action) -> Outcome | None:
    return Outcome(action) if isinstance(action, Delete) else None


def test_a_pool_is_busy_until_its_results_are_collected_and_delays_no_other() -> None:
    slow, quick, woken = Place("a"), Place("b"), threading.Event()
    slow.gate.clear()
    actors = ThreadedActors({"a": slow, "b": quick}, woken.set)
    actors.submit(Batch("a", (), (C1,)), always)
    actors.submit(Batch("b", (), (create("c1", "b"),)), always)
    assert woken.wait(SECONDS), "the end of a batch wakes the loop"
    assert [results.pool for results in actors.collect()] == ["b"]
    assert actors.busy() == {"a"}
    slow.gate.set()
    until(lambda: slow.calls, 30)
    assert actors.settle(SECONDS)
    assert actors.busy() == {"a"}, "done, but not collected"
    assert [results.pool for results in actors.collect()] == ["a"]
    assert not actors.busy()


def test_settling_gives_up_on_a_batch_that_does_not_end() -> None:
    slow = Place("a")
    slow.gate.clear()
    actors = ThreadedActors({"a": slow}, lambda: None)
    actors.submit(Batch("a", (), (C1,)), always)
    assert not actors.settle(0.05)
    slow.gate.set()
    assert actors.settle(SECONDS)


def test_creates_come_first_once_deletes_have_left_them_no_time() -> None:
    place = Place()
    actors = ThreadedActors({"a": place}, lambda: None)
    for number in range(3):
        actors.submit(Batch("a", (delete(f"d{number}"),), (C1,)), lambda number=number: place.calls == [] or number > 0)
        assert actors.settle(SECONDS)
    assert place.calls == ["delete d0", "create c1", "delete d1", "delete d2", "create c1"]


def test_deletes_stay_first_where_there_was_no_time_for_them_either() -> None:
    place = Place()
    actors = ThreadedActors({"a": place}, lambda: None)
    for may_start in (never, always):
        actors.submit(Batch("a", (D1,), (C1,)), may_start)
        assert actors.settle(SECONDS)
    assert place.calls == ["delete d1", "create c1"]
