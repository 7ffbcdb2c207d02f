"""Sends a batch of calls to a cloud: some at a time, each with its own end, and none that is known to be useless.

It never retries: the next cycle is the retry.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from provisioner.backends import BackendError, MayStart
from provisioner.backends.concurrency import Flow
from provisioner.model import Action, Create, ErrorClass, Failure, Outcome

log = logging.getLogger(__name__)

Send = Callable[[], Mapping[str, Failure]]
"""Sends one request. Returns what failed, by machine name (empty: all went well); raises BackendError when all did."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a cloud, for one action or for several that the cloud takes together."""

    actions: tuple[Action, ...]
    send: Send


def run_calls(calls: Sequence[Call], *, workers: int, may_start: MayStart, flow: Flow | None = None) -> list[Outcome]:
    """Send ``calls``, each with a time-out of its own; returns the outcomes of those that were sent, in their order.

    ``workers``: at most so many are under way; with a ``flow``, as many as it lets.
    The first failure whose class ``stops_batch`` stops the creates of its template; no other failure stops a call.
    ``may_start``: once it is False, or the server has asked to be left alone, nothing more is sent.
    """
    return _Batch(calls, workers, may_start, flow).run() if calls else []


class _Batch:
    """The calls of one batch, and what they know of each other: which templates are stopped."""

    def __init__(self, calls: Sequence[Call], workers: int, may_start: MayStart, flow: Flow | None) -> None:
        self._most = workers
        self._may_start = may_start
        self._flow = flow
        self._lock = threading.Lock()
        self._left = deque(enumerate(calls))
        self._outcomes: list[list[Outcome]] = [[] for _ in calls]
        self._stopped: set[str] = set()
        self._working = 0
        self._threads: list[threading.Thread] = []

    def run(self) -> list[Outcome]:
        """Send what may be sent; all outcomes."""
        with self._lock:
            self._employ()
        for thread in self._threads:  # The list grows meanwhile: a worker starts the next one before it ends.
            thread.join()
        return [outcome for outcomes in self._outcomes for outcome in outcomes]

    def _employ(self) -> None:
        """Start one more worker, which waits for the lock that the caller holds; RuntimeError when none can start."""
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._work,), name=f"call-{self._working}", daemon=True
        )
        thread.start()
        self._threads.append(thread)
        self._working += 1
        if self._flow is not None:
            self._flow.begun()

    def _work(self) -> None:
        """Send calls until none is left for this worker; start one more worker if there is room for one."""
        while True:
            with self._lock:
                following = self._take() if self._room() >= 0 or self._working == 1 else None
                if following is None:
                    self._working -= 1
                    if self._flow is not None:
                        self._flow.ended()
                    return
                if self._left and self._room() > 0:
                    with contextlib.suppress(RuntimeError):  # The present workers send the rest.
                        self._employ()
            number, call = following
            self._outcomes[number] = self._send(call)

    def _room(self) -> int:
        """How many more workers may start; when negative, how many have to end."""
        own = self._most - self._working
        return own if self._flow is None else min(own, self._flow.room())

    def _take(self) -> tuple[int, Call] | None:
        """The next call that is neither useless nor too late."""
        while self._left:
            number, call = self._left.popleft()
            if not self._stopped.isdisjoint(_templates(call.actions)):
                continue
            if self._may_start() and (self._flow is None or self._flow.open(time.monotonic())):
                return number, call
            self._left.clear()
        return None

    def _send(self, call: Call) -> list[Outcome]:
        """Send one call, and tell the flow how the server took it."""
        began = time.monotonic()
        failures, wait = _failures(call)
        ended = time.monotonic()
        errors = {failure.error for failure in failures.values()}
        is_busy = any(error.is_ambiguous for error in errors)  # its Retry-After counts for other calls, too
        if self._flow is not None and (ErrorClass.THROTTLED in errors or (wait and is_busy)):
            self._flow.refused(began, ended, wait)
        elif self._flow is not None and ErrorClass.UNAVAILABLE not in errors:  # No response tells no speed.
            self._flow.answered(type(call.actions[0]).__name__, began, ended)
        stopping = {name for name, failure in failures.items() if failure.error.stops_batch}
        with self._lock:
            self._stopped |= _templates(action for action in call.actions if action.name in stopping)
        return [Outcome(action, failures.get(action.name), wait) for action in call.actions]


def _templates(actions: Iterable[Action]) -> set[str]:
    """The templates of the creates among ``actions``; a delete is never useless."""
    return {action.template for action in actions if isinstance(action, Create)}


def _failures(call: Call) -> tuple[Mapping[str, Failure], float | None]:
    """Return what failed of a call, by name, and how long the cloud asks to be left alone.

    A bug in one call must not hide the outcomes of the others.
    """
    names = [action.name for action in call.actions]
    try:
        return call.send(), None
    except BackendError as error:
        return dict.fromkeys(names, error.failure), error.retry_after
    except Exception as error:
        log.exception("Call failed unexpectedly", extra={"machines": names})
        return dict.fromkeys(names, Failure(ErrorClass.OTHER, f"{type(error).__name__}: {error}")), None
