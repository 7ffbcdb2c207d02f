"""How many calls may be under way at one server: more while it answers quickly, fewer when it is slow or says so.

:class:`Flow` is the rule (no I/O, no clock); :class:`Readings` makes calls in the background, one at a time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

LEAST = 1
FIRST = 16
MOST = 32
"""An API server's throughput peaks at 16 to 32 calls under way; more only adds latency."""

QUICK_SECONDS = 0.25
"""A response within this is never slow, however quick the idle server was: a quarter of the second that Kubernetes
allows itself for a call that changes something."""
SLOW_TIMES = 4.0
"""A response is slow when it takes so many times the latency of the unloaded server."""
FADING = 1.05
"""The remembered latency of the unloaded server grows by this factor per round: a server that is slower for good is not
overloaded."""
HOLD_SECONDS = 10.0
"""Seconds after a 429 in which the limit does not grow: else a server with a fixed rate refuses every tenth call."""
USUAL_WAIT = 1.0
"""Seconds to wait after a 429 that does not say how long: what API servers themselves ask for."""
CLOSE_SECONDS = 2.0
"""How long the end of a reading is waited for. It dies with the process anyway."""


class Flow:
    """What is known of one server, for all threads that call it; times are monotonic seconds.

    A round is as many responses as calls may be under way, to calls that began in it: the limit changes once in one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callers = 0
        self.limit = FIRST
        """Calls that may be under way."""
        self._not_before = -math.inf
        """No call may begin before this: the server asked for it."""
        self._held_until = -math.inf
        """The limit does not grow before this."""
        self._unloaded: dict[str, float] = {}
        """Seconds that the quickest responses took of late, by kind of call: a webhook may hold up creates alone."""
        self._began = -math.inf
        """When this round began."""
        self._taken: list[tuple[str, float]] = []
        """Kind and seconds of each response of this round."""

    def room(self) -> int:
        """Return how many more callers may begin; if negative, how many should end."""
        return self.limit - self._callers

    def begun(self) -> None:
        """Count a caller, who sends calls to the server, one after the other."""
        with self._lock:
            self._callers += 1

    def ended(self) -> None:
        """Count a caller no more."""
        with self._lock:
            self._callers -= 1

    def open(self, now: float) -> bool:
        """A call may begin now, as far as the server has said."""
        return now >= self._not_before

    def answered(self, kind: str, began: float, now: float) -> None:
        """Note that a call was answered, or not within its time-out."""
        with self._lock:
            if began >= self._began:
                self._taken.append((kind, now - began))
                if len(self._taken) >= self.limit:
                    self._judge(now)

    def refused(self, began: float, now: float, wait: float | None) -> None:
        """Note that the server is too busy, and asks not to be called for ``wait`` seconds."""
        with self._lock:
            self._not_before = max(self._not_before, now + (USUAL_WAIT if wait is None else wait))
            self._held_until = now + HOLD_SECONDS
            if began >= self._began:
                self._begin(self.limit // 2, now)

    def _judge(self, now: float) -> None:
        """End a round: the limit halves if half of the responses were slow, and else grows by a quarter, unless the
        server has refused a call of late."""
        self._unloaded = {kind: seconds * FADING for kind, seconds in self._unloaded.items()}
        for kind, seconds in self._taken:
            self._unloaded[kind] = min(seconds, self._unloaded.get(kind, math.inf))
        slow = sum(seconds > max(QUICK_SECONDS, SLOW_TIMES * self._unloaded[kind]) for kind, seconds in self._taken)
        if 2 * slow >= len(self._taken):
            self._begin(self.limit // 2, now)
        else:
            self._begin(self.limit + (0 if now < self._held_until else max(1, self.limit // 4)), now)

    def _begin(self, limit: int, now: float) -> None:
        self.limit, self._began, self._taken = max(LEAST, min(MOST, limit)), now, []


class Readings:
    """The readings of one thing. Any thread may ask for the next one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._due = 0.0
        """Monotonic time of the earliest next reading."""
        self._reading: threading.Thread | None = None

    def begin(self, pause: float, wanted: Callable[[], Callable[[], None] | None]) -> None:
        """Begin what is ``wanted``, if anything, unless a reading is under way or began within ``pause`` seconds."""
        with self._lock:
            if time.monotonic() < self._due or (self._reading is not None and self._reading.is_alive()):
                return
            read = wanted()
            if read is not None:
                self._due = time.monotonic() + pause
                self._reading = threading.Thread(target=read, name=self._name, daemon=True)
                self._reading.start()

    def put_off(self, seconds: float) -> None:
        """Begin no other one for so long; never for infinite ones."""
        self._due = max(self._due, time.monotonic() + seconds)

    def close(self) -> None:
        """Wait a moment for a reading that is under way."""
        if self._reading is not None:
            self._reading.join(CLOSE_SECONDS)
