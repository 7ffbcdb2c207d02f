"""The monotonic time and the waits of the threads that follow the API server, which tests replace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class Waits(NamedTuple):
    """A clock of this host, and a wait by it."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], object] = threading.Event.wait
    """Waits until the event is set, but at most some seconds."""


SYSTEM = Waits()
