"""Wake-ups: hints that start the loop's next cycle early. A lost hint does no harm, because the next cycle also
starts without a hint."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from queue import Empty, SimpleQueue


class Wake(StrEnum):
    """The source of a wake-up."""

    TIMER = "timer"
    INTENT = "intent"
    WATCH = "watch"
    PUBSUB = "pubsub"
    SIGNAL = "signal"


class Wakeups:
    """A queue of hints that something may have changed. One thread waits for the hints. Hints that arrive together
    count as one hint."""

    def __init__(self, count: Callable[[Wake], None] = lambda _: None) -> None:
        self._hints: SimpleQueue[Wake] = SimpleQueue()
        self._count = count

    def wake(self, source: Wake) -> None:
        """Start the next cycle as soon as the pace allows. This method is safe in a signal handler, because it takes no
        lock (see ``Latch``)."""
        self._hints.put(source)

    def wait(self, seconds: float, poll: float, changed: Callable[[], bool]) -> None:
        """Wait at most ``seconds`` for a wake-up, or until ``changed()`` returns True. ``changed`` is called every
        ``poll`` seconds."""
        deadline = time.monotonic() + seconds
        while not self._woken(min(poll, max(0.0, deadline - time.monotonic()))):
            if changed():
                self._count(Wake.INTENT)
                return
            if time.monotonic() >= deadline:
                self._count(Wake.TIMER)
                return

    def _woken(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for a hint. Count all hints that have arrived, and return whether any has
        arrived."""
        try:
            self._count(self._hints.get(timeout=seconds))
        except Empty:
            return False
        for _ in range(self._hints.qsize()):
            self._count(self._hints.get())
        return True
