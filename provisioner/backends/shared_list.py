"""Lists that several pools of one place share. A list for all pools costs the place no more than a list for one
pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from provisioner.backends import BackendError
from provisioner.backends.responses import translated_errors

Items = TypeVar("Items")
"""The content of a list."""

SHARED_PACE_PART = 0.5
"""Time for which a list also serves other pools, as a fraction of the pace. Even if pools observe at different times,
at most two lists are made in one pace."""


@dataclass(frozen=True, slots=True)
class ListResult(Generic[Items]):
    """A complete list."""

    began: float
    """Loop time at which the list began."""
    items: Items


class SharedList(Generic[Items]):
    """A list for several pools. If two pools request the list at about the same time, both pools get the same list."""

    def __init__(self, read: Callable[[float], Items]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._newest: Future[ListResult[Items]] | None = None
        self._began_at = 0.0
        """Monotonic time at which the newest list began."""
        self._last_results: dict[str, Future[ListResult[Items]]] = {}
        """The last list that each pool received, by pool. A list that failed counts as well."""

    @translated_errors()
    def newer(self, pool: str, now: float, *, pace: float, deadline: float) -> ListResult[Items]:
        """Return a complete list that ``pool`` has not received yet. Raise BackendError if the list fails.

        If another pool began to read a list less than half a ``pace`` ago, wait for that list and return it. Otherwise
        read a new list. ``now``: the loop time at which a new list begins.
        """
        asked_at = time.monotonic()
        with self._lock:
            newest = self._newest
            is_old = asked_at > self._began_at + SHARED_PACE_PART * pace
            if newest is None or is_old or self._last_results.get(pool) is newest:
                self._began_at = time.monotonic()
                newest = Future[ListResult[Items]]()
                try:
                    newest.set_result(ListResult(now, self._read(deadline)))
                except Exception as error:  # noqa: BLE001 - shared, so that only one pool waits for a silent server
                    newest.set_exception(error)
                self._newest = newest
            self._last_results[pool] = newest
        try:
            return newest.result()
        except BackendError as error:  # omit Retry-After: the call budget applies it to all pools
            raise BackendError(error.failure.error, error.failure.text) from error
