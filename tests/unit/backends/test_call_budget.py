"""The number of calls in a minute, and the pause after Compute refused one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from provisioner.backends import BackendError, call_budget
from provisioner.backends.call_budget import CallBudget, TooManyCalls
from provisioner.model import ErrorClass

NEVER = 1000.0


class Window:
    """A budget whose waits advance the test's clock."""

    def __init__(self, calls: int, clock: list[float]) -> None:
        self.budget = CallBudget(calls, window=60.0)
        self.clock = clock
        self._began = clock[0]
        self.budget._closed.wait = self._wait

    def _wait(self, seconds: float) -> bool:
        self.clock[0] += seconds
        return False

    @property
    def passed(self) -> float:
        """Return the seconds that the calls have waited."""
        return self.clock[0] - self._began

    def wait_for_read(self, within: float = NEVER) -> ErrorClass | None:
        try:
            self.budget.wait_for_read(self.clock[0] + within)
        except BackendError as error:
            return error.failure.error
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [5000.0]
    monkeypatch.setattr(call_budget, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_call_beyond_the_budget_waits_for_the_window(clock: list[float]) -> None:
    window = Window(3, clock)
    assert [window.wait_for_read() for _ in range(3)] == [None] * 3
    assert window.passed == 0.0
    assert window.wait_for_read() is None
    assert window.passed == 60.0


def test_each_call_waits_for_a_window_of_its_own(clock: list[float]) -> None:
    """A call must count in the minute in which it is sent, even if it had to wait for this minute."""
    window = Window(1, clock)
    assert [window.wait_for_read() for _ in range(4)] == [None] * 4
    assert window.passed == 180.0


def test_a_call_whose_turn_comes_too_late_fails_at_once(clock: list[float]) -> None:
    window = Window(3, clock)
    assert [window.wait_for_read(59.0) for _ in range(4)] == [None, None, None, ErrorClass.THROTTLED]
    assert window.passed == 0.0


def test_mutations_count_and_do_not_wait(clock: list[float]) -> None:
    """A call that changes something must not wait, but must count. A read must wait until fewer calls than the limit
    were sent within the last minute."""
    window = Window(1, clock)
    window.budget.count_change()
    clock[0] += 10.0
    window.budget.count_change()
    assert window.passed == 10.0
    assert window.wait_for_read() is None
    assert window.passed == 70.0


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        pytest.param(TooManyCalls(ErrorClass.THROTTLED, "used up"), 60.0, id="a window is used up"),
        pytest.param(TooManyCalls(ErrorClass.THROTTLED, "used up", 5.0), 60.0, id="it asks for less than a window"),
        pytest.param(BackendError(ErrorClass.UNAVAILABLE, "busy", 90.0), 90.0, id="it is busy and asks for time"),
        pytest.param(BackendError(ErrorClass.DENIED, "no", 7.0), 7.0, id="any error that asks for time"),
    ],
)
def test_after_a_refusal_nothing_is_sent_for_as_long_as_was_asked_for(
    clock: list[float], error: BackendError, seconds: float
) -> None:
    window = Window(100, clock)
    window.budget.follow(error)
    window.budget.follow(BackendError(ErrorClass.OTHER, "a later one that asks for nothing"))
    clock[0] += seconds - 1.0
    assert window.wait_for_read() is ErrorClass.THROTTLED
    with pytest.raises(BackendError, match="none is sent for 1 s"):
        window.budget.count_change()
    clock[0] += 1.0
    assert window.wait_for_read() is None


def test_the_end_of_the_loop_ends_a_wait_and_lets_no_read_begin(clock: list[float]) -> None:
    window = Window(1, clock)
    assert window.wait_for_read() is None
    window.budget._closed.wait = lambda _: window.budget.close()
    assert window.wait_for_read() is ErrorClass.UNAVAILABLE
    assert window.wait_for_read() is ErrorClass.UNAVAILABLE
