"""Loop time: the loop's own clock, which goes on across restarts (law: time is an argument)."""

from __future__ import annotations

import time
from typing import Protocol

LONGEST_GAP = 3600.0
"""Seconds of the wall clock's gap across a restart that count as loop time at most."""


def utc(wall: float) -> str:
    """Epoch seconds as people read them."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall))


class Clock(Protocol):
    """Where the loop takes its time from."""

    def now(self) -> float:
        """Loop time in seconds."""

    def wall(self) -> float:
        """The host's clock, epoch seconds."""


class LoopClock:
    """Loop time: the wall clock's time when it first ran, carried on by the monotonic clock.

    ``time_before`` and ``wall_before``: loop time and wall clock when the loop before wrote its memory.
    """

    def __init__(self, time_before: float | None = None, wall_before: float | None = None) -> None:
        self._monotonic = time.monotonic()
        self._start = time.time()
        if time_before is not None and wall_before is not None:
            self._start = time_before + min(max(time.time() - wall_before, 0.0), LONGEST_GAP)

    def now(self) -> float:
        """Loop time in seconds."""
        return self._start + time.monotonic() - self._monotonic

    def wall(self) -> float:
        """Epoch seconds of this host."""
        return time.time()
