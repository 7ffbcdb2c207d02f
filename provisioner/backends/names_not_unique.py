"""Rules for places that do not keep the names of machines unique: list before a create, and one machine of each name.

A create that got no response may still take effect, so the create is repeated only after two lists without its name.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from provisioner.backends import BackendError, MayStart
from provisioner.backends.call_batch import Call, run_calls
from provisioner.model import Action, Create, ErrorClass, Failure, Machine, MachineEnd, Outcome, Phase

Listed = TypeVar("Listed")
"""Content of a list, as the place's own code reads the list."""
Job = TypeVar("Job", contravariant=True)
"""A job in a list of the place."""


class UncertainCreates:
    """The names whose creates may still take effect. ``lag``: minimum seconds between two lists that together prove
    that a name is unused. Thread-safe."""

    def __init__(self, lag: float) -> None:
        self._lag = lag
        self._lock = threading.Lock()
        self._absent_since: dict[str, float] = {}
        """Monotonic time of the first list without each name; infinite as long as there was no such list."""

    def note(self, name: str) -> None:
        """Note that the create of this name has ended, but may still take effect."""
        with self._lock:
            self._absent_since[name] = math.inf

    def settle(self, name: str) -> None:
        """Note that a list shows this name, so that its create is no longer uncertain."""
        with self._lock:
            self._absent_since.pop(name, None)

    def check(self, create: Create, listed_at: float) -> None:
        """Raise BackendError (TIMEOUT) if an earlier create of the name may still take effect.

        ``listed_at``: monotonic time at which a list without the name began.
        """
        with self._lock:
            since = self._absent_since.get(create.name, math.inf if create.is_repeated else -math.inf)
            if since != math.inf and listed_at >= since + self._lag and listed_at != since:
                self._absent_since.pop(create.name, None)
                return
            self._absent_since[create.name] = min(since, listed_at)
        text = f"an earlier create of {create.name} may still take effect: the loop waits for a second list without it"
        raise BackendError(ErrorClass.TIMEOUT, text)


def list_before(
    actions: Sequence[Action], read: Callable[[], Listed], may_start: MayStart
) -> tuple[Listed | None, list[Outcome]]:
    """Return a list that begins now, and no outcomes. If the list fails, return None and an outcome with this failure
    for each action, because none of the actions is sent. If the list may not start, return None and no outcomes."""
    found: list[Listed] = []

    def attempt() -> Mapping[str, Failure]:
        try:
            found.append(read())
        except BackendError as error:
            # No create was sent, so no machine has failed: the create is tried again.
            is_unread = error.failure.error in (ErrorClass.TIMEOUT, ErrorClass.OTHER)
            error_class = ErrorClass.UNAVAILABLE if is_unread else error.failure.error
            raise BackendError(error_class, error.failure.text, error.retry_after) from error
        return {}

    outcomes = run_calls([Call(tuple(actions), attempt)], workers=1, may_start=may_start) if actions else []
    return (found[0], []) if found else (None, outcomes)


class Reader(Protocol[Job]):
    """The functions that read a place's jobs as machines of one pool."""

    def is_shown(self, job: Job, sought: Mapping[str, str]) -> bool:
        """Return True if the job shows that it belongs to the pool. A job that no longer shows this also counts if it
        has the uid that ``sought`` has for its name."""

    def end(self, job: Job) -> MachineEnd | None:
        """Return how a job has ended; None if the machine still exists. The record of an ended job need not be
        deleted."""

    def machine(self, job: Job) -> Machine:
        """Return the machine of a job."""


@dataclass(frozen=True, slots=True)
class Divided(Generic[Job]):
    """The jobs of a list, divided as in ``Snapshot``."""

    machines: dict[str, Machine]
    ends: dict[str, MachineEnd]
    doubles: dict[str, tuple[Machine, ...]]
    others: dict[str, Sequence[Job]]
    """By sought name: existing jobs of this name that are not machines of the pool."""


def divide(listed: Mapping[str, Sequence[Job]], sought: Mapping[str, str], reader: Reader[Job]) -> Divided[Job]:
    """Divide the jobs of a list. ``listed``: the jobs of each name, the oldest first. ``sought``: the expected uid of
    each sought name."""
    divided: Divided[Job] = Divided({}, {}, {}, {})
    for name, jobs in listed.items():
        ours = [job for job in jobs if reader.is_shown(job, sought)]
        ends = [reader.end(job) for job in ours]
        if live := [reader.machine(job) for job, end in zip(ours, ends, strict=True) if end is None]:
            divided.machines[name], doubles = keep_one(live)
            if doubles:
                divided.doubles[name] = doubles
        elif ends:
            divided.ends[name] = ends[-1] or MachineEnd()
        elif name in sought and any(reader.end(job) is None for job in jobs):
            divided.others[name] = jobs
    return divided


def keep_one(machines: Sequence[Machine]) -> tuple[Machine, tuple[Machine, ...]]:
    """Return the machine that keeps the name, and those other machines that have not begun to end.

    ``machines``: all machines of this name, the oldest first. The machine that has run longest keeps the name; if none
    runs, the oldest pending machine; if none is pending, the oldest.
    """
    running = [one for one in machines if one.phase is Phase.RUNNING]
    kept = min(running, key=lambda one: one.launched) if running else machines[0]
    if not running and (standing := [one for one in machines if one.phase is Phase.PENDING]):
        kept = standing[0]
    doubles = (one for one in machines if one is not kept and one.phase in (Phase.PENDING, Phase.RUNNING))
    return kept, tuple(doubles)
