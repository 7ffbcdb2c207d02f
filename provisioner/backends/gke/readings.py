"""What is read beside the looks: in the background, one reading at a time, and none too soon after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

CLOSE_SECONDS = 2.0
"""How long the end of a reading is waited for. It dies with the process anyway."""


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
