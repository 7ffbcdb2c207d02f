"""How many calls begin in a minute, and the silence after Compute refused one."""

from __future__ import annotations

import threading
import time

import pytest

from provisioner.backends import BackendError
from provisioner.backends.mig.call_budget import CallBudget
from provisioner.model import ErrorClass
from tests.support.waiting import until

SOON, NEVER = 0.1, 1000.0


def take(budget: CallBudget, within: float) -> ErrorClass | None:
    try:
        budget.take(time.monotonic() + within)
    except BackendError as error:
        return error.failure.error
    return None


def test_a_call_beyond_the_budget_waits_for_the_window() -> None:
    budget = CallBudget(3, window=0.3)
    began = time.monotonic()
    assert [take(budget, NEVER) for _ in range(4)] == [None] * 4
    assert time.monotonic() - began >= 0.3


def test_each_call_waits_for_a_window_of_its_own() -> None:
    """Calls that have left the window are counted no more, and those that waited are."""
    budget = CallBudget(1, window=0.1)
    began = time.monotonic()
    assert [take(budget, NEVER) for _ in range(4)] == [None] * 4
    assert time.monotonic() - began >= 0.3


def test_a_call_whose_turn_comes_too_late_fails_at_once() -> None:
    budget = CallBudget(3, window=60.0)
    assert [take(budget, SOON) for _ in range(4)] == [None, None, None, ErrorClass.THROTTLED]


def test_mutations_count_and_do_not_wait() -> None:
    budget = CallBudget(2, window=60.0)
    for _ in range(5):
        budget.count()
    assert take(budget, SOON) is ErrorClass.THROTTLED


def test_as_many_calls_as_were_too_many_have_to_leave_the_window() -> None:
    budget = CallBudget(1, window=0.2)
    budget.count()
    budget.count()
    began = time.monotonic()
    assert take(budget, NEVER) is None
    assert time.monotonic() - began >= 0.15


def test_after_a_refusal_nothing_is_sent_for_a_window() -> None:
    budget = CallBudget(100, window=0.2)
    budget.refused()
    assert take(budget, NEVER) is ErrorClass.THROTTLED
    with pytest.raises(BackendError, match="quiet for"):
        budget.count()
    until(lambda: take(budget, SOON) is None, 30, what="the next window")


def test_the_end_of_the_loop_ends_a_wait() -> None:
    budget = CallBudget(1, window=60.0)
    assert take(budget, SOON) is None
    ended = threading.Timer(0.05, budget.close)
    ended.start()
    assert take(budget, NEVER) is ErrorClass.UNAVAILABLE
    ended.join()


def test_no_read_begins_after_the_end_of_the_loop() -> None:
    budget = CallBudget(3, window=60.0)
    budget.close()
    assert take(budget, SOON) is ErrorClass.UNAVAILABLE
