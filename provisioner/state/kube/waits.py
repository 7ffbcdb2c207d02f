"""The monotonic clock and the waits of the threads that call the API server. Tests replace both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class Waits(NamedTuple):
    """A clock of this host, and a wait by this clock."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], object] = threading.Event.wait
    """Function that waits until the event is set, but at most for the given seconds."""


SYSTEM = Waits()
