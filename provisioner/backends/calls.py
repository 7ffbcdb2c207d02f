"""Sends a batch of calls to a cloud: some at a time, each with its own end, and none that is known to be useless.

Shared by all backends. It never retries: the next cycle is the retry.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from provisioner.backends import BackendError, MayStart
from provisioner.model import Action, Create, ErrorClass, Failure, Outcome

log = logging.getLogger(__name__)

Send = Callable[[], Mapping[str, Failure]]
"""Sends one request. Returns what failed, by machine name (empty: all went well); raises BackendError when all did."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a cloud, for one action or for several that the cloud takes together."""

    actions: tuple[Action, ...]
    send: Send


def run_calls(
    calls: Sequence[Call], *, workers: int, may_start: MayStart, stops: Collection[ErrorClass] = ()
) -> list[Outcome]:
    """Send ``calls``, at most ``workers`` at once, and return the outcomes of those that were sent, in their order.

    A failure never stops another call, except that the first one whose class is in ``stops`` stops the creates of the
    same template that are not yet sent. Nothing is sent once ``may_start()`` is False. Returns when all sent calls have
    ended, so each call must have its own time-out.
    """
    if not calls:
        return []
    batch = _Batch(may_start, frozenset(stops))
    with ThreadPoolExecutor(min(workers, len(calls)), thread_name_prefix="call") as pool:
        return [outcome for outcomes in pool.map(batch.run, calls) for outcome in outcomes]


class _Batch:
    """What the calls of one batch know of each other: which templates are stopped."""

    def __init__(self, may_start: MayStart, stops: frozenset[ErrorClass]) -> None:
        self._may_start = may_start
        self._stops = stops
        self._stopped: set[str] = set()
        self._lock = threading.Lock()

    def run(self, call: Call) -> list[Outcome]:
        """Send one call unless it is too late or useless."""
        with self._lock:
            if not self._stopped.isdisjoint(_templates(call.actions)):
                return []
        if not self._may_start():
            return []
        begun = time.monotonic()
        failures = _failures(call)
        seconds = time.monotonic() - begun
        outcomes = [Outcome(action, failures.get(action.name), seconds) for action in call.actions]
        with self._lock:
            self._stopped.update(_templates(o.action for o in outcomes if o.failure and o.failure.error in self._stops))
        return outcomes


def _templates(actions: Iterable[Action]) -> set[str]:
    """The templates of the creates among ``actions``; a delete is never useless."""
    return {action.template for action in actions if isinstance(action, Create)}


def _failures(call: Call) -> Mapping[str, Failure]:
    """What failed of a call, by name. A bug in one call must not hide the outcomes of the others."""
    try:
        return call.send()
    except BackendError as error:
        return {action.name: error.failure for action in call.actions}
    except Exception as error:
        log.exception("Call failed unexpectedly", extra={"machines": [action.name for action in call.actions]})
        failure = Failure(ErrorClass.OTHER, f"{type(error).__name__}: {error}")
        return {action.name: failure for action in call.actions}
