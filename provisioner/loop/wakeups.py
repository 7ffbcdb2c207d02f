"""Wake-ups: hints that end the loop's wait for its next cycle. A hint is never state."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from queue import Empty, SimpleQueue


class Wake(StrEnum):
    """Who woke the loop."""

    TIMER = "timer"
    INTENT = "intent"
    WATCH = "watch"
    PUBSUB = "pubsub"
    SIGNAL = "signal"


class Wakeups:
    """Hints that something may have changed; many at once are one. One thread waits for them."""

    def __init__(self, count: Callable[[Wake], None] = lambda _: None) -> None:
        self._hints: SimpleQueue[Wake] = SimpleQueue()
        self._count = count

    def wake(self, source: Wake) -> None:
        """Let the next cycle begin as soon as it may; safe in a signal handler, as it takes no lock (see ``Latch``)."""
        self._hints.put(source)

    def wait(self, seconds: float, poll: float, changed: Callable[[], bool]) -> None:
        """Until a wake-up, until ``changed()`` (asked every ``poll`` seconds), or until the time is over."""
        deadline = time.monotonic() + seconds
        while not self._woken(min(poll, max(0.0, deadline - time.monotonic()))):
            if changed():
                self._count(Wake.INTENT)
                return
            if time.monotonic() >= deadline:
                self._count(Wake.TIMER)
                return

    def _woken(self, seconds: float) -> bool:
        """Take and count the hints that there are, or the first within so many seconds; whether there was one."""
        try:
            self._count(self._hints.get(timeout=seconds))
        except Empty:
            return False
        for _ in range(self._hints.qsize()):
            self._count(self._hints.get())
        return True
