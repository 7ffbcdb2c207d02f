"""Observers: one thread for each pool looks at it at the pool's own pace, so a slow pool delays no other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping

from provisioner.backends import Backend, BackendError, Watching
from provisioner.loop.clock import Clock
from provisioner.model import ErrorClass, Failure, Observation, ObservationFailed

log = logging.getLogger(__name__)

OBSERVER_END = 1.0
"""Seconds that an observation under way gets when the loop ends, which has no use for it."""

CLOSE_SECONDS = 2.0
"""Seconds that all observations under way and all connections get. What is left ends with the process."""

GATHER = 0.1
"""Seconds between a hint and the observation it causes: a burst of events is one observation."""


class Observer:
    """Looks at one pool, at its own pace, in its own thread; the newest observation is always at hand."""

    def __init__(self, backend: Backend, clock: Clock, wake: Callable[[], None]) -> None:
        self._backend = backend
        self._clock = clock
        self._wake = wake
        self._sought: Mapping[str, str] = {}
        self._observation: Observation = ObservationFailed(
            backend.pool, clock.now(), Failure(ErrorClass.UNAVAILABLE, "The pool has not been seen yet.")
        )
        self._told: ErrorClass | None = None
        """Why the observations fail now, as it was logged."""
        self._again = threading.Event()
        self._left_alone = 0.0
        """Seconds for which the place asked for no further call."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"observe-{backend.pool}", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._backend.start(self.observe_now)
        self._thread.start()

    def latest(self, sought: Mapping[str, str]) -> Observation:
        """The newest observation; the next one also asks about the names that are ``sought``."""
        if sought != self._sought:
            self._sought = sought
            self._again.set()
        return self._observation

    def list_after(self, when: float) -> None:
        """Looks are to rest on a list begun at ``when`` or later, as soon as that is past (loop time)."""
        if isinstance(self._backend, Watching):
            self._backend.list_after(when)

    def observe_now(self) -> None:
        """Do not wait for the pace."""
        self._again.set()

    def stop(self, seconds: float = OBSERVER_END) -> None:
        """End the thread, which has so long for its observation, and the backend's connections."""
        self._ended = True
        self._again.set()
        self._thread.join(seconds)
        self._backend.close()

    def _run(self) -> None:
        while not self._ended:
            self._again.clear()
            observation = self._observe()
            news = getattr(observation, "machines", None) is not getattr(self._observation, "machines", None)
            self._observation = observation
            if news:
                self._wake()
            until = time.monotonic() + self._left_alone
            if self._again.wait(self._backend.pace):
                time.sleep(GATHER)
            while not self._ended and time.monotonic() < until:
                time.sleep(GATHER)

    def _observe(self) -> Observation:
        began, self._left_alone = self._clock.now(), 0.0
        try:
            seen = self._backend.observe(began, self._sought)
            self._told = None
            return seen
        except BackendError as error:
            failure, self._left_alone = error.failure, error.retry_after or 0.0
        except Exception as error:  # the edge: a bug in a backend blinds one pool, not the loop
            if not self._ended:  # what was closed under an observation fails in many ways
                log.exception("Backend broke off an observation", extra={"pool": self._backend.pool})
            failure = Failure(ErrorClass.OTHER, f"internal error: {error}")
        if self._told is not failure.error and not self._ended:
            self._told = failure.error
            log.log(
                logging.ERROR if failure.error.stays_unseen else logging.WARNING,
                "Pool cannot be seen",
                extra={"pool": self._backend.pool, **failure.facts},
            )
        return ObservationFailed(self._backend.pool, began, failure)


def stop_all(observers: Collection[Observer]) -> None:
    """End them all at once: each may be in an observation, or hold connections, whose cloud does not answer."""
    threads = [threading.Thread(target=observer.stop, daemon=True) for observer in observers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + CLOSE_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
