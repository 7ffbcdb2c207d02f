"""Rules for places that do not keep machines' names unique: list before a create, and keep one machine of each name.

A create without a response may still take effect. So the create is repeated only after two lists that lack its name.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from provisioner.backends import BackendError, MayStart
from provisioner.backends.call_batch import Call, run_calls
from provisioner.backends.concurrency import MOST, Flow
from provisioner.model import Action, Create, Delete, ErrorClass, Failure, Machine, MachineEnd, Outcome, Phase, Snapshot
from provisioner.names import name_pattern
from provisioner.schema.setting_types import Pool

Listed = TypeVar("Listed")
"""Content of a list, as the place's own code reads the list."""
Job = TypeVar("Job", contravariant=True)
"""A job in a list of the place."""
SUSPENDED = "{} machines are suspended by their place, e.g. {}: they run on when the place resumes them"
Record = TypeVar("Record")
"""A job as the place's list shows it."""
Listing = Mapping[str, Sequence[Record]]
"""The listed jobs of each name."""


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
    """List the place's jobs before a batch of actions. Return the jobs, and an empty list of outcomes.

    If the jobs cannot be listed, return None and a failed outcome for each action. The caller must not send the actions
    then. If there are no actions, or ``may_start`` forbids the call, return None and an empty list.
    """
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
        """Return True if the job's name and mark show that it belongs to the pool, or if the job has the uid that
        ``sought`` expects for its name."""

    def end(self, job: Job) -> MachineEnd | None:
        """Return how a job has ended; None if the job still counts as a machine. For example, an ended job still counts
        if the loop must delete its record."""

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
    """Divide the jobs of a list into machines, ended machines, surplus machines of the same name, and jobs of others.
    ``listed``: the jobs of each name, the oldest first. ``sought``: the expected uid of each sought name."""
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
    """Return the machine that keeps the name, and all other machines of this name that have not begun to end.

    ``machines``: all machines of this name, the oldest first. The machine that has run longest keeps the name. If no
    machine runs, the oldest pending machine keeps the name. Otherwise, the oldest machine keeps the name.
    """
    running = [one for one in machines if one.phase is Phase.RUNNING]
    kept = min(running, key=lambda one: one.launched) if running else machines[0]
    if not running and (standing := [one for one in machines if one.phase is Phase.PENDING]):
        kept = standing[0]
    doubles = (one for one in machines if one is not kept and one.phase in (Phase.PENDING, Phase.RUNNING))
    return kept, tuple(doubles)


class ListingBackend(ABC, Generic[Record]):
    """A backend whose batches begin with a list of the place's jobs. Each job has the name of its machine."""

    flow: Flow | None = None
    at_once = MOST

    def __init__(self, pool: Pool, prefix: str, lag: float) -> None:
        """Prepare the names. ``prefix``: beginning of the names of our machines. ``lag``: see ``UncertainCreates``."""
        self.pool, self.pace = pool.name, pool.observe_seconds
        self._shape = name_pattern(prefix)
        self._uncertain = UncertainCreates(lag)
        self._machines: Mapping[str, Machine] = {}
        self._digest = ""

    def start(self, wake: Callable[[], None]) -> None:
        """Do nothing, because the place cannot be watched."""

    def close(self) -> None:
        """Do nothing, because connections end with the process."""

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """List the jobs, and make those that are missing."""
        began = time.monotonic()
        listed, outcomes = list_before(creates, self._read_list, may_start)
        calls = [Call((one,), partial(self._create, one, listed, began)) for one in creates if listed is not None]
        return outcomes + run_calls(calls, workers=self.at_once, may_start=may_start, flow=self.flow)

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """List the jobs, and end the jobs of these machines."""
        listed, outcomes = list_before(deletes, self._read_list, may_start)
        calls = [] if listed is None else self._deletions(deletes, listed)
        return outcomes + run_calls(calls, workers=self.at_once, may_start=may_start, flow=self.flow)

    def _create(self, create: Create, listed: Listing[Record], listed_at: float) -> Mapping[str, Failure]:
        """Make one job, unless its name is listed or an earlier create may still take effect. The name of a job that
        has ended also counts as listed."""
        if jobs := listed.get(create.name):
            if not self._has_own(jobs):
                raise BackendError(ErrorClass.OTHER, f"the name is taken: a job {create.name} exists and is not ours")
            self._uncertain.settle(create.name)
            return {}
        self._uncertain.check(create, listed_at)
        try:
            self._submit(create)
        except BackendError as error:
            if error.failure.error.is_ambiguous:
                self._uncertain.note(create.name)
            raise
        return {}

    def _snapshot(self, divided: Divided[Any], sought: Mapping[str, str], **facts: Any) -> Snapshot:
        """Return the snapshot of a divided list. A machine that has not changed is the same object as in the previous
        snapshot. ``facts``: further fields of the snapshot."""
        shared = frozenset(name for name, jobs in divided.others.items() if any(map(self._is_of_provisioner, jobs)))
        if divided.machines != self._machines:
            self._machines = divided.machines
        if suspended := [one.name for one in self._machines.values() if one.state]:
            facts["problems"] = (*facts.get("problems", ()), SUSPENDED.format(len(suspended), min(suspended)))
        found = {"ends": divided.ends, "doubles": divided.doubles, "foreign": frozenset(divided.others) - shared}
        known = {"machines": self._machines, "spec": self._digest, "asked": frozenset(sought)}
        return Snapshot(self.pool, name_collisions=shared, **{**known, **found, **facts})

    def _is_of_provisioner(self, job: Any) -> bool:
        """Return True if the job is of this provisioner, in whatever pool."""
        return False

    def _deletions(self, deletes: Sequence[Delete], listed: Listing[Record]) -> list[Call]:
        """Return the calls that end the jobs of these machines."""
        return [Call((delete,), partial(self._delete, delete, listed)) for delete in deletes]

    @abstractmethod
    def _read_list(self) -> Listing[Record]:
        """Return the jobs by name. Raise BackendError if the list fails."""

    @abstractmethod
    def _has_own(self, jobs: Sequence[Record]) -> bool:
        """Return True if one of the jobs is a machine of this pool."""

    @abstractmethod
    def _submit(self, create: Create) -> None:
        """Make a job. Raise BackendError on failure."""

    @abstractmethod
    def _delete(self, delete: Delete, listed: Listing[Record]) -> Mapping[str, Failure]:
        """End the listed jobs of the machine to delete. If a job is gone already, this is a success."""
