"""Carry out plans. Each batch runs in its own thread, so that slow pools delay no other pool.

Each pool has one batch at a time.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Protocol

from provisioner.backends import Backend, Ended, Recording
from provisioner.model import Action, Create, Delete, ErrorClass, Failure, Outcome, Transition, Verdict
from provisioner.names import group_by

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """The actions of one pool in one cycle. Deletes usually come first because they make room for creates."""

    pool: str
    deletes: tuple[Delete, ...]
    creates: tuple[Create, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """The outcomes of a batch."""

    pool: str
    outcomes: tuple[Outcome, ...]
    unsent: tuple[Action, ...]
    """Actions for which no call was started."""

    @classmethod
    def of(cls, batch: Batch, outcomes: Sequence[Outcome]) -> Results:
        """Return the results of a batch. They contain the given outcomes; the actions without an outcome count as
        unsent."""
        tried = {(type(outcome.action), outcome.action.name) for outcome in outcomes}
        every: list[Action] = [*batch.deletes, *batch.creates]
        unsent = [action for action in every if (type(action), action.name) not in tried]
        return cls(batch.pool, tuple(outcomes), tuple(unsent))


def batches(creates: Sequence[Create], deletes: Sequence[Delete]) -> list[Batch]:
    """Group the actions of a plan by pool."""
    gone, made = group_by(attrgetter("pool"), deletes), group_by(attrgetter("pool"), creates)
    return [Batch(pool, tuple(gone.get(pool, ())), tuple(made.get(pool, ()))) for pool in gone | made]


def carry_out(batch: Batch, backend: Backend, may_start: Callable[[], bool], *, creates_first: bool = False) -> Results:
    """Carry out a batch in this thread, and return the outcomes.

    The function does not raise the backend's errors. An error becomes the outcome of the actions. The next observations
    show which of these actions took effect.
    """
    delete = partial(_guarded, batch.deletes, lambda: backend.delete(batch.deletes, may_start), batch.pool)
    create = partial(_guarded, batch.creates, lambda: backend.create(batch.creates, may_start), batch.pool)
    calls = (create, delete) if creates_first else (delete, create)
    return Results.of(batch, [outcome for call in calls for outcome in call()])


def _guarded(actions: Sequence[Action], call: Callable[[], list[Outcome]], pool: str) -> list[Outcome]:
    if not actions:
        return []
    try:
        return call()
    except Exception as error:  # A bug in one backend must not stop the other pools.
        log.exception("Backend failed during a batch", extra={"pool": pool})
        failure = Failure(ErrorClass.UNAVAILABLE, f"internal error: {error}")
        return [Outcome(action, failure) for action in actions]


class Actors(Protocol):
    """The interface of a component that carries out batches."""

    def busy(self) -> Set[str]:
        """Return the pools with a batch under way."""

    def submit(self, batch: Batch, may_start: Callable[[], bool]) -> None:
        """Start a batch of a pool that is not busy."""

    def collect(self) -> list[Results]:
        """Return the results of the batches that ended since the last call."""


class ThreadedActors:
    """Actors that run each batch in its own thread. The actors call ``wake`` when a batch has ended."""

    def __init__(self, backends: Mapping[str, Backend], wake: Callable[[], None]) -> None:
        self._backends = backends
        self._wake = wake
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._ended: list[Results] = []
        self._kept_waiting: set[str] = set()
        """Pools whose deletes left no time for creates. The next batch of such a pool begins with the creates, so that
        some creates start."""

    def busy(self) -> Set[str]:
        """Return the pools whose batch is under way, or whose results were not collected yet."""
        with self._lock:
            return frozenset(self._threads) | {results.pool for results in self._ended}

    def submit(self, batch: Batch, may_start: Callable[[], bool]) -> None:
        """Start a batch in a thread of its own."""
        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(self._run, batch, may_start), name=f"act-{batch.pool}", daemon=True)
        with self._lock:
            self._threads[batch.pool] = thread
        thread.start()

    def collect(self) -> list[Results]:
        """Return the results of the batches that ended since the last call."""
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def settle(self, seconds: float) -> bool:
        """Wait until all batches have ended, but at most ``seconds``. Return False if a batch is still under way."""
        deadline = time.monotonic() + seconds
        for thread in list(self._threads.values()):
            thread.join(max(0.0, deadline - time.monotonic()))
        return not self._threads

    def _run(self, batch: Batch, may_start: Callable[[], bool]) -> None:
        creates_first = batch.pool in self._kept_waiting
        results = carry_out(batch, self._backends[batch.pool], may_start, creates_first=creates_first)
        with self._lock:
            if results.outcomes and batch.creates and set(batch.creates) <= set(results.unsent):
                self._kept_waiting.add(batch.pool)
            else:
                self._kept_waiting.discard(batch.pool)
            self._ended.append(results)
            del self._threads[batch.pool]
        self._wake()


def record_ends(closes: Iterable[Transition], backends: Mapping[str, Backend]) -> None:
    """Ask the places to record the machines that ended although the loop did not delete them.

    Places that cannot record Events are left out. Only operators read these records.
    """
    for pool, pool_closes in group_by(lambda close: close.slot.pool, closes).items():
        backend, ends = backends.get(pool), [*filter(None, map(_ended, pool_closes))]
        if ends and isinstance(backend, Recording):
            backend.record_ends(ends)


def _ended(close: Transition) -> Ended | None:
    """Return the end of a machine. Return None if HF returned the machine, an operator cancelled it, or it never
    existed."""
    slot = close.slot
    has_existed = slot.observed.was_seen or slot.observed.is_accepted
    if not has_existed or not (slot.is_lost or slot.verdict is Verdict.FAILED):
        return None
    return Ended(
        slot.name,
        slot.request,
        close.template,
        uid=slot.observed.fingerprint.uid,
        lost=slot.is_lost,
        cause=slot.observed.cause,
        failure=slot.failure,
    )
