"""Times as operators see them."""

from __future__ import annotations

import time
from datetime import datetime

CLOCK = "%H:%M:%S"


def clock_time(at: float | str) -> str:
    """Return a time of today as the clock of this terminal shows it. ``at``: epoch seconds or UTC text."""
    wall = datetime.fromisoformat(at).timestamp() if isinstance(at, str) else at
    return time.strftime(CLOCK, time.localtime(wall))
