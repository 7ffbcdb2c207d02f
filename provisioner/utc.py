"""UTC text, and the seconds of an hour and a day. The scripts import this at each call: it imports nothing that costs
time.
"""

from __future__ import annotations

from time import gmtime, strftime

HOUR, DAY = 3_600.0, 86_400.0
"""Seconds."""

FIRST, END = -62_135_596_800.0, 253_402_300_800.0
"""Epoch seconds at which the years 1 and 10,000 begin."""


def format_utc(wall: float, *, milliseconds: bool = False) -> str:
    """Return epoch seconds as text; in words where no calendar has such a time, as of a damaged file."""
    if not FIRST <= wall < END:
        return f"an impossible time ({wall:g})"
    fraction = f".{int(wall % 1.0 * 1000):03d}" if milliseconds else ""
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(wall)) + fraction + "Z"
