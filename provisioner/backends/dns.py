"""Asks whether names resolve, in the background: an observation at a pool never waits for a name server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

WORKERS = 8
"""Look-ups at a time: a name server that does not answer holds each for seconds."""
RETRY_SECONDS = 1.0
"""Seconds between two observation-ups of a name that did not resolve."""


def name_resolves(name: str) -> bool:
    """Whether the system resolves this name; waits for its response."""
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


class Resolver:
    """What is known so far of names that have to resolve."""

    def __init__(
        self, lookup: Callable[[str], bool] = name_resolves, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lookup, self._clock = lookup, clock
        self._lock = threading.Lock()
        self._resolved: set[str] = set()
        self._next: dict[str, float] = {}
        """When to look a name up again; infinite while an observation-up is under way."""
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="resolve")

    def resolves(self, name: str) -> bool:
        """True once the name was seen to resolve; asks when that is due, and never waits."""
        with self._lock:
            if name in self._resolved:
                return True
            if self._next.get(name, 0.0) > self._clock():
                return False
            self._next[name] = float("inf")
        self._workers.submit(self._ask, name)
        return False

    def forget(self, name: str) -> None:
        """The machine is gone; its name does not come back."""
        with self._lock:
            self._resolved.discard(name)
            self._next.pop(name, None)

    def close(self) -> None:
        """Ask no more."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _ask(self, name: str) -> None:
        resolves = self._lookup(name)
        with self._lock:
            if name not in self._next:  # ``forget`` was called meanwhile.
                return
            if resolves:
                self._resolved.add(name)
            self._next[name] = self._clock() + RETRY_SECONDS
