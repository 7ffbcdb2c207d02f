"""What ends the loop's wait."""

from __future__ import annotations

import time

import pytest

from provisioner.loop.wakeups import Wake, Wakeups


@pytest.mark.parametrize(
    ("changed", "source"),
    [(True, Wake.INTENT), (False, Wake.TIMER)],
    ids=["a changed intent ends the wait", "else the time does"],
)
def test_what_ends_a_wait_is_counted(changed: bool, source: Wake) -> None:
    counted: list[Wake] = []
    Wakeups(counted.append).wait(0.05, 0.01, lambda: changed)
    assert counted == [source]


def test_many_hints_are_one_wake_up() -> None:
    wakeups = Wakeups()
    for _ in range(5):
        wakeups.wake(Wake.WATCH)
    wakeups.wait(600.0, 0.01, lambda: False)
    began = time.monotonic()
    wakeups.wait(0.05, 0.01, lambda: False)
    assert time.monotonic() - began >= 0.05, "the second wait found nothing new"
