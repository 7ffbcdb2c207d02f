"""A limit on the number of calls to one place in any ``window`` seconds. If the place refuses a call because there were
too many, all calls pause.

Compute counts calls in fixed windows of 60 s that begin at unknown times. If there are too many calls, Compute refuses
them with 403 ``rateLimitExceeded`` until the next window.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from provisioner.backends import BackendError
from provisioner.model import ErrorClass


class TooManyCalls(BackendError):
    """Raised if a place refuses all calls until its next window, because there were too many in this window."""


class CallBudget:
    """A limit on the calls to one place. A read waits while the last ``window`` seconds contain ``calls`` calls.
    Changes also count as calls, but never wait. Several threads may use a budget at once."""

    def __init__(self, calls: int, window: float) -> None:
        self._calls, self._window = calls, window
        self._began_at: deque[float] = deque()
        self._quiet_until = 0.0
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def wait_for_read(self, deadline: float) -> None:
        """Wait until a read may begin. Raise BackendError (THROTTLED) if the wait would not end before ``deadline``
        (monotonic time), or if all calls pause.

        Raise BackendError (UNAVAILABLE) if the budget is closed.
        """
        while not self._closed.is_set():
            with self._lock:
                self._check_quiet()
                now = time.monotonic()
                while self._began_at and self._began_at[0] <= now - self._window:
                    self._began_at.popleft()
                if len(self._began_at) < self._calls:
                    self._began_at.append(now)
                    return
                turn = self._began_at[len(self._began_at) - self._calls] + self._window
            if turn > deadline:
                raise BackendError(ErrorClass.THROTTLED, f"our own limit of {self._calls} calls a minute is used up")
            self._closed.wait(turn - now)
        raise BackendError(ErrorClass.UNAVAILABLE, "the provisioner ends")

    def count_change(self) -> None:
        """Count a call that changes something. The call does not wait, because such calls are few and urgent. Raise
        BackendError (THROTTLED) during a pause."""
        with self._lock:
            self._check_quiet()
            self._began_at.append(time.monotonic())

    def follow(self, error: BackendError) -> None:
        """Pause all calls after a refused call, for as long as its ``error`` demands.

        If Compute's window is used up, the pause is a whole window long, so that the next window has begun when the
        pause ends.
        """
        wait = max(error.retry_after or 0.0, self._window if isinstance(error, TooManyCalls) else 0.0)
        with self._lock:
            self._quiet_until = max(self._quiet_until, time.monotonic() + wait)

    def close(self) -> None:
        """Refuse all further reads, also those that wait now. So a long observation does not delay the end of the
        process."""
        self._closed.set()

    def _check_quiet(self) -> None:
        if (left := self._quiet_until - time.monotonic()) > 0:
            words = f"rateLimitExceeded: Compute accepts no more calls of this project; none is sent for {left:.0f} s"
            raise BackendError(ErrorClass.THROTTLED, words)
