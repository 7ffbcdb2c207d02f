"""Wake-ups: hints that end the loop's wait for its next cycle. A hint is never state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum


class Wake(StrEnum):
    """Who woke the loop."""

    TIMER = "timer"
    INTENT = "intent"
    WATCH = "watch"
    PUBSUB = "pubsub"
    SIGNAL = "signal"


class Wakeups:
    """Hints that something may have changed; many at once are one."""

    def __init__(self, count: Callable[[Wake], None] = lambda _: None) -> None:
        self._event = threading.Event()
        self._count = count

    def wake(self, source: Wake) -> None:
        """Let the next cycle begin as soon as it may."""
        self._count(source)
        self._event.set()

    def wait(self, seconds: float, poll: float, changed: Callable[[], bool]) -> None:
        """Until a wake-up, until ``changed()`` (asked every ``poll`` seconds), or until the time is over."""
        deadline = time.monotonic() + seconds
        while not self._event.wait(min(poll, max(0.0, deadline - time.monotonic()))):
            if changed():
                self._count(Wake.INTENT)
                return
            if time.monotonic() >= deadline:
                self._count(Wake.TIMER)
                return
        self._event.clear()
