"""The number of calls under way at one server: it grows while responses are quick, and falls if they slow down.

A refusal by the server lowers the number, too. :class:`Flow` is the rule (no I/O, no clock); :class:`Readings` makes
calls in the background, one at a time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

LEAST = 1
FIRST = 16
MOST = 32
"""Calls under way: the least, the first and the largest limit. An API server's throughput peaks at 16 to 32 calls;
more calls under way only add latency."""

QUICK_SECONDS = 0.25
"""Seconds within which a response is never slow, however quick the idle server was: a quarter of the second that
Kubernetes allows itself for a call that changes something."""
SLOW_MULTIPLE = 4.0
"""Multiple of the unloaded server's latency above which a response is slow."""
LATENCY_GROWTH = 1.05
"""Factor per round by which the remembered latency of the unloaded server grows, because a server that stays slower is
not overloaded."""
HOLD_SECONDS = 10.0
"""Seconds after a 429 in which the limit does not grow. Else a server with a fixed rate refuses every tenth call."""
USUAL_WAIT_SECONDS = 1.0
"""Seconds to wait after a 429 without Retry-After, as API servers themselves ask for."""
CLOSE_SECONDS = 2.0
"""Seconds to wait for the end of a reading. The reading ends with the process anyway."""


class Flow:
    """The limit of calls to one server, for all threads that call the server. Times are monotonic seconds.

    A round has as many responses as calls may be under way. Only responses to calls that began in the round count. The
    limit changes once a round.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callers = 0
        self.limit = FIRST
        """Allowed number of concurrent calls."""
        self._calls_allowed_at = -math.inf
        """Monotonic time before which no call may begin, as the server asked."""
        self._growth_allowed_at = -math.inf
        """Monotonic time before which the limit does not grow."""
        self._unloaded: dict[str, float] = {}
        """Seconds of the quickest recent responses, by kind of call, because a webhook may delay creates alone."""
        self._round_began_at = -math.inf
        """Monotonic time at which this round began."""
        self._round_responses: list[tuple[str, float]] = []
        """Kind and seconds of each response of this round."""

    def room(self) -> int:
        """Return the number of callers that may still begin; if negative, the number that should end."""
        return self.limit - self._callers

    def add_caller(self) -> None:
        """Count a caller. A caller sends calls to the server one after the other."""
        with self._lock:
            self._callers += 1

    def remove_caller(self) -> None:
        """Count a caller no longer."""
        with self._lock:
            self._callers -= 1

    def open(self, now: float) -> bool:
        """Return True if the server allows a call now."""
        return now >= self._calls_allowed_at

    def answered(self, kind: str, began: float, now: float) -> None:
        """Note the duration of a call that was answered or timed out."""
        with self._lock:
            if began >= self._round_began_at:
                self._round_responses.append((kind, now - began))
                if len(self._round_responses) >= self.limit:
                    self._end_round(now)

    def refused(self, began: float, now: float, wait: float | None) -> None:
        """Note that the server is too busy and asks not to be called for ``wait`` seconds."""
        with self._lock:
            self._calls_allowed_at = max(self._calls_allowed_at, now + (USUAL_WAIT_SECONDS if wait is None else wait))
            self._growth_allowed_at = now + HOLD_SECONDS
            if began >= self._round_began_at:
                self._begin_round(self.limit // 2, now)

    def _end_round(self, now: float) -> None:
        """End a round. Halve the limit if half of the responses were slow. Else raise it by a quarter, unless the
        server refused a call recently."""
        self._unloaded = {kind: seconds * LATENCY_GROWTH for kind, seconds in self._unloaded.items()}
        for kind, seconds in self._round_responses:
            self._unloaded[kind] = min(seconds, self._unloaded.get(kind, math.inf))
        slow = sum(
            seconds > max(QUICK_SECONDS, SLOW_MULTIPLE * self._unloaded[kind])
            for kind, seconds in self._round_responses
        )
        if 2 * slow >= len(self._round_responses):
            self._begin_round(self.limit // 2, now)
        else:
            self._begin_round(self.limit + (0 if now < self._growth_allowed_at else max(1, self.limit // 4)), now)

    def _begin_round(self, limit: int, now: float) -> None:
        self.limit, self._round_began_at, self._round_responses = max(LEAST, min(MOST, limit)), now, []


class Readings:
    """Background readings of one subject. Any thread may ask for the next reading."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._next_reading_at = 0.0
        """Monotonic time of the earliest next reading."""
        self._reading: threading.Thread | None = None

    def begin(self, pause: float, wanted: Callable[[], Callable[[], None] | None]) -> None:
        """Begin the reading that ``wanted`` returns, if any. A reading under way or begun within ``pause`` seconds
        prevents another."""
        with self._lock:
            if time.monotonic() < self._next_reading_at or (self._reading is not None and self._reading.is_alive()):
                return
            read = wanted()
            if read is not None:
                self._next_reading_at = time.monotonic() + pause
                self._reading = threading.Thread(target=read, name=self._name, daemon=True)
                self._reading.start()

    def put_off(self, seconds: float) -> None:
        """Begin no other reading for ``seconds``; infinite seconds mean never again."""
        self._next_reading_at = max(self._next_reading_at, time.monotonic() + seconds)

    def close(self) -> None:
        """Wait up to ``CLOSE_SECONDS`` for a reading that is under way."""
        if self._reading is not None:
            self._reading.join(CLOSE_SECONDS)
