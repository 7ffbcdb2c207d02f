"""UTC text, and the seconds of an hour and a day. The scripts import this module at each call, so it imports only
modules that load fast."""

from __future__ import annotations

from time import gmtime, strftime

HOUR, DAY = 3_600.0, 86_400.0
"""An hour and a day in seconds."""

FIRST, END = -62_135_596_800.0, 253_402_300_800.0
"""Start of the year 1 and of the year 10,000, in epoch seconds."""


def format_utc(wall: float, *, milliseconds: bool = False) -> str:
    """Return epoch seconds as UTC text. A damaged file may contain a time outside the years 1 to 9999. For such a time,
    return the words "an impossible time" and the seconds."""
    if not FIRST <= wall < END:
        return f"an impossible time ({wall:g})"
    fraction = f".{int(wall % 1.0 * 1000):03d}" if milliseconds else ""
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(wall)) + fraction + "Z"
