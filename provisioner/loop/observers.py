"""Observers: each pool is observed in its own thread and at its own pace.

A slow pool therefore does not delay the other pools.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping

from provisioner.backends import Backend, BackendError, Watching
from provisioner.loop.clock import Clock
from provisioner.model import ErrorClass, Failure, Observation, ObservationFailed

log = logging.getLogger(__name__)

OBSERVER_END_SECONDS = 1.0
"""Seconds that a running observation gets to finish when the loop ends. The observation's result is not used."""

CLOSE_SECONDS = 2.0
"""Seconds that all observers together get to end and to close their connections. An observer that needs longer ends
with the process."""

GATHER_SECONDS = 0.1
"""Seconds from a hint to the observation that the hint causes. All hints within these seconds together cause one
observation."""


class Observer:
    """The observer of one pool. The observer runs in its own thread at the pool's pace, and keeps the newest
    observation."""

    def __init__(self, backend: Backend, clock: Clock, wake: Callable[[], None]) -> None:
        self._backend = backend
        self._clock = clock
        self._wake = wake
        self._sought: Mapping[str, str] = {}
        self._observation: Observation = ObservationFailed(
            backend.pool, clock.now(), Failure(ErrorClass.UNAVAILABLE, "The pool has not been observed yet.")
        )
        self._logged_error: ErrorClass | None = None
        """Error class of the observations that fail now, as last logged; None while observations succeed."""
        self._hint = threading.Event()
        self._quiet_seconds = 0.0
        """Seconds for which the place asked to receive no calls (Retry-After)."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"observe-{backend.pool}", daemon=True)

    def start(self) -> None:
        """Start the backend and the thread."""
        self._backend.start(self.observe_now)
        self._thread.start()

    def latest(self, sought: Mapping[str, str]) -> Observation:
        """Return the newest observation. ``sought``: names that the next observation queries, with the expected uid of
        each."""
        if sought != self._sought:
            self._sought = sought
            self._hint.set()
        return self._observation

    def list_after(self, when: float) -> None:
        """Once loop time has reached ``when``, accept only lists that were started at ``when`` or later.

        The call has no effect on a backend that makes a new list for each observation.
        """
        if isinstance(self._backend, Watching):
            self._backend.list_after(when)

    def observe_now(self) -> None:
        """Observe soon, without waiting for the pool's pace. If the place has asked to receive no calls for some time,
        this time is still kept."""
        self._hint.set()

    def stop(self, seconds: float = OBSERVER_END_SECONDS) -> None:
        """End the thread and close the connections of the backend. An observation under way gets ``seconds`` to end."""
        self._ended = True
        self._hint.set()
        self._thread.join(seconds)
        self._backend.close()

    def _run(self) -> None:
        while not self._ended:
            self._hint.clear()
            observation = self._observe()
            is_new = getattr(observation, "machines", None) is not getattr(self._observation, "machines", None)
            self._observation = observation
            if is_new:
                self._wake()
            until = time.monotonic() + self._quiet_seconds
            if self._hint.wait(self._backend.pace):
                time.sleep(GATHER_SECONDS)
            while not self._ended and time.monotonic() < until:
                time.sleep(GATHER_SECONDS)

    def _observe(self) -> Observation:
        began, self._quiet_seconds = self._clock.now(), 0.0
        try:
            seen = self._backend.observe(began, self._sought)
            self._logged_error = None
            return seen
        except BackendError as error:
            failure, self._quiet_seconds = error.failure, error.retry_after or 0.0
        except Exception as error:  # A bug in a backend must not stop the loop.
            if not self._ended:  # Once the connections are closed, an observation may fail in any way.
                log.exception("Backend failed during an observation", extra={"pool": self._backend.pool})
            failure = Failure(ErrorClass.OTHER, f"internal error: {error}")
        if self._logged_error is not failure.error and not self._ended:
            self._logged_error = failure.error
            level = logging.ERROR if failure.error.needs_operator_to_observe else logging.WARNING
            log.log(level, "Pool cannot be seen", extra={"pool": self._backend.pool, **failure.log_fields})
        return ObservationFailed(self._backend.pool, began, failure)


def stop_all(observers: Collection[Observer]) -> None:
    """End all observers in parallel. Each observer may be waiting for a cloud that does not answer."""
    threads = [threading.Thread(target=observer.stop, daemon=True) for observer in observers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + CLOSE_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
