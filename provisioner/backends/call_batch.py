"""Batches of calls to a cloud. Several calls run at a time, and each call has its own outcome.

After some failures of a create, further creates of the same template would fail, too. These creates are not sent. A
batch does not retry a call, because the next cycle does.
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
"""A function that sends one request. If the cloud accepts the request, the function returns the failures by machine
name; empty if all actions succeeded. If all actions failed, the function raises BackendError."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a cloud. A request is for one action, or for several actions that the cloud accepts together."""

    actions: tuple[Action, ...]
    send: Send


def run_calls(calls: Sequence[Call], *, workers: int, may_start: MayStart, flow: Flow | None = None) -> list[Outcome]:
    """Send ``calls``, each with its own time-out. Return the outcomes of the sent calls, in their order.

    At most ``workers`` calls run at once. A ``flow`` may lower this number. If ``may_start`` returns False, or if the
    server asks for a pause, no further call is sent.

    A failure with ``stops_batch`` stops further creates of the same template.
    """
    return _Batch(calls, workers, may_start, flow).run() if calls else []


class _Batch:
    """The calls of one batch, and the templates of which no further creates are sent."""

    def __init__(self, calls: Sequence[Call], workers: int, may_start: MayStart, flow: Flow | None) -> None:
        self._max_workers = workers
        self._may_start = may_start
        self._flow = flow
        self._lock = threading.Lock()
        self._remaining = deque(enumerate(calls))
        self._outcomes: list[list[Outcome]] = [[] for _ in calls]
        self._stopped_templates: set[str] = set()
        self._working = 0
        self._threads: list[threading.Thread] = []

    def run(self) -> list[Outcome]:
        """Send all calls that may be sent. Return all outcomes."""
        with self._lock:
            self._start_worker()
        for thread in self._threads:  # A worker appends the next worker to this list before it ends.
            thread.join()
        return [outcome for outcomes in self._outcomes for outcome in outcomes]

    def _start_worker(self) -> None:
        """Start one more worker, which waits for the lock that the caller holds. Raise RuntimeError if no thread can
        start."""
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._work,), name=f"call-{self._working}", daemon=True
        )
        thread.start()
        self._threads.append(thread)
        self._working += 1
        if self._flow is not None:
            self._flow.add_caller()

    def _work(self) -> None:
        """Send calls until ``_next_call`` returns None or there are too many workers. Start one more worker if the
        limit allows it."""
        while True:
            with self._lock:
                following = self._next_call() if self._room() >= 0 or self._working == 1 else None
                if following is None:
                    self._working -= 1
                    if self._flow is not None:
                        self._flow.remove_caller()
                    return
                if self._remaining and self._room() > 0:
                    with contextlib.suppress(RuntimeError):  # The present workers send the rest.
                        self._start_worker()
            number, call = following
            self._outcomes[number] = self._send(call)

    def _room(self) -> int:
        """Return how many more workers may start. If the number is negative, that many workers have to end."""
        own = self._max_workers - self._working
        return own if self._flow is None else min(own, self._flow.room())

    def _next_call(self) -> tuple[int, Call] | None:
        """Return the next call that may be sent, with its index; None if there is none."""
        while self._remaining:
            number, call = self._remaining.popleft()
            if not self._stopped_templates.isdisjoint(_templates(call.actions)):
                continue
            if self._may_start() and (self._flow is None or self._flow.open(time.monotonic())):
                return number, call
            self._remaining.clear()
        return None

    def _send(self, call: Call) -> list[Outcome]:
        """Send one call. Report its duration to the flow, which limits concurrent calls, or report that the server
        refused the call."""
        began = time.monotonic()
        failures, wait = _send_call(call)
        ended = time.monotonic()
        errors = {failure.error for failure in failures.values()}
        is_busy = any(error.is_ambiguous for error in errors)  # Retry-After applies to other calls, too.
        if self._flow is not None and (ErrorClass.THROTTLED in errors or (wait and is_busy)):
            self._flow.refused(began, ended, wait)
        elif self._flow is not None and ErrorClass.UNAVAILABLE not in errors:  # no response, so the speed is unknown
            self._flow.answered(type(call.actions[0]).__name__, began, ended)
        stopping = {name for name, failure in failures.items() if failure.error.stops_batch}
        with self._lock:
            self._stopped_templates |= _templates(action for action in call.actions if action.name in stopping)
        return [Outcome(action, failures.get(action.name), wait) for action in call.actions]


def _templates(actions: Iterable[Action]) -> set[str]:
    """Return the templates of the creates among ``actions``. Deletes have no template, so a delete is never stopped."""
    return {action.template for action in actions if isinstance(action, Create)}


def _send_call(call: Call) -> tuple[Mapping[str, Failure], float | None]:
    """Send a call. Return the call's failures by name, and the pause in seconds for which the cloud asked (None: no
    pause).

    An unexpected exception fails only its own call. The other calls keep their outcomes.
    """
    names = [action.name for action in call.actions]
    try:
        return call.send(), None
    except BackendError as error:
        return dict.fromkeys(names, error.failure), error.retry_after
    except Exception as error:
        log.exception("Call failed unexpectedly", extra={"machines": names})
        return dict.fromkeys(names, Failure(ErrorClass.OTHER, f"{type(error).__name__}: {error}")), None
