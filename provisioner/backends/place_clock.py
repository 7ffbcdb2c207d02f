"""The time of a place and the speed of its calls, by the place's responses.

Its clock and ours have to agree, or logins and certificates are refused.
"""

from __future__ import annotations

import time
from collections import deque

from provisioner.backends import Finding, Severity
from provisioner.backends.network import epoch_of

MOST_SECONDS = 60.0
"""By how much the clocks may differ. A host that is synchronized is off by less than one; tokens bear five minutes."""


SLOW_SECONDS, SLOW_CALLS, LATELY = 3.0, 3, 600.0
"""A place is slow while each of so many last calls took so long; calls of longer ago do not count. Seconds."""


class PlaceClock:
    """Follows the place's clock by the ``Date`` of each response (RFC 9110, 6.6.1)."""

    def __init__(self) -> None:
        self._calls = deque[tuple[float, float]](maxlen=SLOW_CALLS)
        """Monotonic time and seconds of each of the last calls."""
        self._last: tuple[float, float] | None = None
        """Seconds by which the place's clock was ahead of this host's wall clock and monotonic clock."""

    def hear(self, date: str | None, seconds: float) -> None:
        """A response came just now, with this header, to a call that took so long."""
        now = time.monotonic()
        self._calls.append((now, seconds))
        if date:
            said = epoch_of(date)
            self._last = None if said is None else (said - time.time(), said - now)

    def slowness(self) -> tuple[str, ...]:
        """Return a sentence for operators if calls are slow; an empty tuple if they are not."""
        calls = tuple(self._calls)  # other threads add to them
        taken = [seconds for at, seconds in calls if at > time.monotonic() - LATELY and seconds >= SLOW_SECONDS]
        if len(taken) < SLOW_CALLS:
            return ()
        return (f"calls take {sum(taken) / SLOW_CALLS:.0f} s: what is done there takes longer than usual",)

    def ahead(self) -> float | None:
        """Seconds by which the place's clock is ahead of this host's; None where it has not said the time."""
        return self._last and self._last[0]

    def now(self) -> float | None:
        """Return the time of the place's clock now, in epoch seconds; None if no response had a Date."""
        return self._last and self._last[1] + time.monotonic()


def clock_findings(pool: str, ahead: float | None) -> list[Finding]:
    """What is wrong with this host's clock, by that of a pool's place."""
    if ahead is None or abs(ahead) <= MOST_SECONDS:
        return []
    text = (
        f"this host's clock is {abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} the place's: logins will be "
        "refused, and times that people are shown are wrong; correct it, and keep it synchronized (chronyc tracking)"
    )
    return [Finding(pool, Severity.ERROR, text)]
