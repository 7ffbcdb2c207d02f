"""The clock of a place and the duration of its calls. Both come from the responses of the place.

The clocks of place and host have to agree. If they differ, logins and certificates are refused.
"""

from __future__ import annotations

import time
from collections import deque

from provisioner.backends.proxies_and_authorities import epoch_of

MOST_SECONDS = 60.0
"""Largest difference of the clocks in seconds. The clock of a synchronized host is wrong by less than a second, and
tokens allow a difference of five minutes."""


SLOW_SECONDS, SLOW_CALLS, LATELY = 3.0, 3, 600.0
"""Seconds after which a call is slow; number of last calls that must all be slow; seconds after which a call no
longer counts."""


class PlaceClock:
    """The time of the place's clock and the duration of its calls. The time comes from the ``Date`` of each response
    (RFC 9110, 6.6.1)."""

    def __init__(self) -> None:
        self._calls = deque[tuple[float, float]](maxlen=SLOW_CALLS)
        """Monotonic time and seconds of each of the last calls."""
        self._ahead_of_monotonic: float | None = None
        """Seconds by which the place's clock is ahead of this host's monotonic clock; None without a ``Date``."""

    def hear(self, date: str | None, seconds: float | None = None) -> None:
        """Note the ``Date`` header of a response that arrived just now. ``seconds``: the duration of the call; None if
        it was not measured."""
        now = time.monotonic()
        if seconds is not None:
            self._calls.append((now, seconds))
        if date:
            place_time = epoch_of(date)
            self._ahead_of_monotonic = None if place_time is None else place_time - now

    def slowness(self) -> tuple[str, ...]:
        """Return a tuple with a sentence for operators if the last calls were slow; else an empty tuple."""
        calls = tuple(self._calls)  # a copy, because other threads append to the calls
        durations = [seconds for at, seconds in calls if at > time.monotonic() - LATELY and seconds >= SLOW_SECONDS]
        if len(durations) < SLOW_CALLS:
            return ()
        return (f"calls take {sum(durations) / SLOW_CALLS:.0f} s: all actions there take longer than usual",)

    def ahead(self) -> float | None:
        """Return the seconds by which the place's clock is ahead of this host's; None if no response had a Date."""
        now = self.now()
        return None if now is None else now - time.time()

    def now(self) -> float | None:
        """Return the present time by the place's clock, in epoch seconds; None if no response had a Date."""
        return None if self._ahead_of_monotonic is None else self._ahead_of_monotonic + time.monotonic()


def clock_message(ahead: float | None) -> str:
    """Return a sentence on the difference of the clocks and how to fix it; empty if the difference is unknown or
    small."""
    if ahead is None or abs(ahead) <= MOST_SECONDS:
        return ""
    much = f"{abs(ahead) / 60:.0f} min" if abs(ahead) >= 300 else f"{abs(ahead):.0f} s"
    return (
        f"this host's clock is {much} {'behind' if ahead > 0 else 'ahead of'} the place's, so logins are refused and "
        "displayed times are wrong: correct the clock, and keep it synchronized (chronyc tracking)"
    )
