"""The number of concurrent calls to one server. The number grows while responses are quick. The number falls when
responses become slow or the server refuses a call.

:class:`Flow` is the rule (no I/O, no clock). :class:`Readings` makes calls in the background, one at a time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

LEAST = 1
FIRST = 16
MOST = 32
"""The smallest, the first and the largest limit of concurrent calls (``LEAST``, ``FIRST``, ``MOST``). An API server's
throughput peaks at 16 to 32 calls. More calls at once only make each call slower."""

QUICK_SECONDS = 0.25
"""A response within these seconds never counts as slow, even if an idle server is much quicker. Kubernetes' own goal
for a call that changes something is one second; this limit is a quarter of that second."""
SLOW_MULTIPLE = 4.0
"""A response is slow if it takes longer than this multiple of the unloaded server's latency."""
LATENCY_GROWTH = 1.05
"""Factor by which the remembered latency of the unloaded server grows in each round. A server that stays slower is not
overloaded, so the remembered latency grows until it equals the real latency."""
HOLD_SECONDS = 10.0
"""Seconds after a 429 in which the limit does not grow. If the limit grew at once, a server with a fixed rate would
refuse every tenth call."""
USUAL_WAIT_SECONDS = 1.0
"""Seconds to wait after a 429 without Retry-After. API servers that send Retry-After ask for the same time."""
CLOSE_SECONDS = 2.0
"""Seconds to wait for the end of a reading. A reading that takes longer ends with the process."""


class Flow:
    """The limit of concurrent calls to one server, for all threads that call the server. Times are monotonic seconds.

    The limit changes at most once in a round. A round ends when its number of responses reaches the limit. Only calls
    that began in the round count.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callers = 0
        self.limit = FIRST
        """Allowed number of concurrent calls."""
        self._calls_allowed_at = -math.inf
        """Monotonic time before which no call may begin, because the server refused one."""
        self._growth_allowed_at = -math.inf
        """Monotonic time before which the limit does not grow."""
        self._unloaded: dict[str, float] = {}
        """Seconds of the quickest recent responses, by kind of call. The kinds are kept apart, because a webhook may
        delay only creates."""
        self._round_began_at = -math.inf
        """Monotonic time at which this round began."""
        self._round_responses: list[tuple[str, float]] = []
        """Kind and seconds of each response of this round."""

    def room(self) -> int:
        """Return how many more callers may begin. If the number is negative, that many callers have to end."""
        return self.limit - self._callers

    def add_caller(self) -> None:
        """Count one more caller. A caller is a thread that sends one call after the other."""
        with self._lock:
            self._callers += 1

    def remove_caller(self) -> None:
        """Count one caller less."""
        with self._lock:
            self._callers -= 1

    def open(self, now: float) -> bool:
        """Return True if calls may begin at ``now``. After a refusal, the server wants no calls for a while."""
        return now >= self._calls_allowed_at

    def answered(self, kind: str, began: float, now: float) -> None:
        """Note the duration of a call that got a response or timed out."""
        with self._lock:
            if began >= self._round_began_at:
                self._round_responses.append((kind, now - began))
                if len(self._round_responses) >= self.limit:
                    self._end_round(now)

    def refused(self, began: float, now: float, wait: float | None) -> None:
        """Note that the server is too busy and wants no calls for ``wait`` seconds; None means
        ``USUAL_WAIT_SECONDS``."""
        with self._lock:
            self._calls_allowed_at = max(self._calls_allowed_at, now + (USUAL_WAIT_SECONDS if wait is None else wait))
            self._growth_allowed_at = now + HOLD_SECONDS
            if began >= self._round_began_at:
                self._begin_round(self.limit // 2, now)

    def _end_round(self, now: float) -> None:
        """End a round. If at least half of the responses were slow, halve the limit. If not, raise the limit by a
        quarter, unless the server has recently refused a call."""
        self._unloaded = {kind: seconds * LATENCY_GROWTH for kind, seconds in self._unloaded.items()}
        responses = self._round_responses
        for kind, seconds in responses:
            self._unloaded[kind] = min(seconds, self._unloaded.get(kind, math.inf))
        slow = sum(seconds > max(QUICK_SECONDS, SLOW_MULTIPLE * self._unloaded[kind]) for kind, seconds in responses)
        if 2 * slow >= len(responses):
            self._begin_round(self.limit // 2, now)
        else:
            self._begin_round(self.limit + (0 if now < self._growth_allowed_at else max(1, self.limit // 4)), now)

    def _begin_round(self, limit: int, now: float) -> None:
        self.limit, self._round_began_at, self._round_responses = max(LEAST, min(MOST, limit)), now, []


class Readings:
    """A background reader of one sort of data, for example of the Events of a namespace. Only one reading runs at a
    time. Any thread may ask for the next reading."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._next_reading_at = 0.0
        """Monotonic time at which the next reading may begin."""
        self._reading: threading.Thread | None = None

    def begin(self, pause: float, wanted: Callable[[], Callable[[], None] | None]) -> None:
        """Begin a reading, unless the previous reading still runs or its pause is not over.

        ``pause``: minimum seconds from the beginning of this reading to the beginning of the next. ``wanted``: returns
        the function that reads in the background, or None if there is nothing to read.
        """
        with self._lock:
            if time.monotonic() < self._next_reading_at or (self._reading is not None and self._reading.is_alive()):
                return
            read = wanted()
            if read is not None:
                self._next_reading_at = time.monotonic() + pause
                self._reading = threading.Thread(target=read, name=self._name, daemon=True)
                self._reading.start()

    def put_off(self, seconds: float) -> None:
        """Allow no reading to begin for ``seconds``. If ``seconds`` is infinite, no reading ever begins again."""
        self._next_reading_at = max(self._next_reading_at, time.monotonic() + seconds)

    def close(self) -> None:
        """Wait up to ``CLOSE_SECONDS`` for a reading that is under way."""
        if self._reading is not None:
            self._reading.join(CLOSE_SECONDS)
