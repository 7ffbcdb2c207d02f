"""Tests of wake-ups: the events that end the loop's wait."""

from __future__ import annotations

import pytest

from provisioner.loop.wakeups import Wake, Wakeups


@pytest.mark.parametrize(
    ("changed", "source"),
    [(True, Wake.INTENT), (False, Wake.TIMER)],
    ids=["a changed intent ends the wait", "else the time does"],
)
def test_what_ends_a_wait_is_counted(changed: bool, source: Wake) -> None:
    counted: list[Wake] = []
    Wakeups(counted.append).wait(0.02, 0.01, lambda: changed)
    assert counted == [source]


def test_many_hints_are_one_wake_up() -> None:
    counted: list[Wake] = []
    wakeups = Wakeups(counted.append)
    for _ in range(5):
        wakeups.wake(Wake.WATCH)
    wakeups.wait(600.0, 0.01, lambda: False)
    assert counted == [Wake.WATCH] * 5
    wakeups.wait(0.01, 0.01, lambda: False)
    assert counted[5:] == [Wake.TIMER], "the second wait finds no hint"
