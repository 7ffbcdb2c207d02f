"""Name resolution in the background. An observation of a pool never waits for a name server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

WORKERS = 8
"""Number of names that are resolved at once. If a name server does not respond, each look-up blocks a thread for
seconds."""
RETRY_SECONDS = 1.0
"""Seconds between two attempts to resolve a name."""


def name_resolves(name: str) -> bool:
    """Ask the system's resolver and wait for its response. Return True if the name resolves."""
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


class Resolver:
    """The host names of machines, each with its state: it has resolved, or it will be tried again."""

    def __init__(
        self, lookup: Callable[[str], bool] = name_resolves, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lookup, self._clock = lookup, clock
        self._lock = threading.Lock()
        self._resolved: set[str] = set()
        self._next_attempt_at: dict[str, float] = {}
        """Monotonic time at which each name is tried next; infinite while it is being tried."""
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="resolve")

    def is_resolved(self, name: str) -> bool:
        """Return True once the name has resolved. If a try is due, start it in the background."""
        with self._lock:
            if name in self._resolved:
                return True
            if self._next_attempt_at.get(name, 0.0) > self._clock():
                return False
            self._next_attempt_at[name] = float("inf")
        self._workers.submit(self._resolve, name)
        return False

    def forget(self, name: str) -> None:
        """Forget the name of a machine that is gone. The name is not needed again, because no later machine gets this
        name."""
        with self._lock:
            self._resolved.discard(name)
            self._next_attempt_at.pop(name, None)

    def close(self) -> None:
        """Start no further tries."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _resolve(self, name: str) -> None:
        resolves = self._lookup(name)
        with self._lock:
            if name not in self._next_attempt_at:  # ``forget`` was called meanwhile.
                return
            if resolves:
                self._resolved.add(name)
            self._next_attempt_at[name] = self._clock() + RETRY_SECONDS
