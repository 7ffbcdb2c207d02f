"""The protocol of a backend: observe one pool, create and delete machines, and report errors in few classes.

A backend never retries an action, because the next cycle does, and never decides, because the plan does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from provisioner.model import Create, Delete, ErrorClass, Failure, LossCause, Outcome, Snapshot


class BackendError(Exception):
    """A failed observation or call, with its class and the cloud's words."""

    def __init__(self, error: ErrorClass, text: str, retry_after: float | None = None) -> None:
        super().__init__(f"{error}: {text}")
        self.failure = Failure(error, text)
        self.lines = text.splitlines()
        """The lines of the text: one for each pool if the error concerns several pools."""
        self.retry_after = retry_after
        """Seconds for which a throttling cloud asks not to be called; None if the cloud gave no time."""


class Severity(StrEnum):
    """The severity of a finding."""

    WARNING = "warning"
    """The place works, with a drawback that the operator should know."""
    ERROR = "error"
    """Machines cannot be made, or others will delete them."""
    REFUSED = "refused"
    """The loop must not begin, because it could change machines that belong to others."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a pool's place, with the way to fix it."""

    pool: str
    severity: Severity
    text: str


CAUSE_SECONDS = 300.0
"""Seconds for which a backend remembers why a machine ended: longer than a plan can be late."""

SPOT_GRACE_SECONDS = 30.0
"""Seconds between the preemption notice and the end of a Spot instance (Scheduling in the API's reference)."""

MayStart = Callable[[], bool]
"""A question asked before each call to a cloud. False: start no new call, because the cycle's time is over or the loop
is ending."""


class Backend(Protocol):
    """The backend of one pool. ``observe`` and the actions may run at the same time in different threads."""

    pool: str
    lag: float
    """Seconds that must lie between the beginnings of two snapshots that prove an absence (GKE 0, MIG 30)."""
    pace: float
    """Seconds between two observations."""

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to watch if this kind of place can be watched. ``wake`` is called when something changed."""

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return a complete snapshot of our machines in the pool, begun at ``now``. Raise BackendError otherwise.

        A snapshot from a list that pools share may have begun a little earlier, and contains that time.

        ``sought``: names to search for individually, each with the expected uid if known. Our machines among them that
        are no longer listed as ours are in ``machines``, marked as strayed. Objects that are not ours are in
        ``foreign``. Objects that may be ours but are no machines of this pool are in ``name_collisions``.
        """

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Create the machines, several at a time. Return one outcome for each machine that was tried.

        A machine that already exists with its slot's identity is a success. The first error that ``stops_batch`` stops
        further creates of its template, which then have no outcome.
        """

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Begin to delete the machines. A machine that does not exist is a success.

        ``uid``: delete only the machine with this uid; without it, the machine with this name and our identity.
        ``adopted``: without a uid, delete the machine with this name, whoever owns it.
        ``force``: give the machine no grace period, if this kind of place has grace periods.
        """

    def close(self) -> None:
        """End watches and connections."""


@dataclass(frozen=True, slots=True)
class MachineSize:
    """The size of a pool's machines."""

    name: str
    """The source of the size, e.g. ``machine type n2-standard-4``."""
    cores: float
    megabytes: float
    """Memory in units of 2^20 bytes, as HF's nram and Compute's memoryMb."""


@runtime_checkable
class Sized(Protocol):
    """A backend that has to ask its place for the size of its machines."""

    def size(self, seconds: float) -> MachineSize | None:
        """Ask the place within ``seconds``. Return None if it gives no size. Raise BackendError without a response."""


@runtime_checkable
class Timed(Protocol):
    """A backend whose place gives its time in each response."""

    def ahead(self) -> float | None:
        """Return the seconds by which the place's clock was ahead of this host's at the last response, or None."""


@runtime_checkable
class Watching(Protocol):
    """A backend whose observations combine an older list with the events since."""

    def list_after(self, when: float) -> None:
        """Base observations from ``when`` (loop time) on a list begun no sooner. Start such a list if none exists.

        Any thread may make the list, and observations do not wait for it. ``Snapshot.listed_at`` is the time of the
        list that an observation used.
        """


@dataclass(frozen=True, slots=True)
class Ended:
    """A machine that ended by itself, as recorded for operators at its place."""

    machine: str
    request: str
    template: str
    uid: str
    """Uid of the machine; empty if its kind of place has no uids."""
    lost: bool
    """The machine was reported to HF. False: it never ran, or it ended before its request did."""
    cause: LossCause | None
    failure: Failure | None


@runtime_checkable
class Recording(Protocol):
    """A backend whose place keeps a record for operators, for example Kubernetes Events."""

    def record_ends(self, ends: Sequence[Ended]) -> None:
        """Record these ends in the background. Return at once; a refused record has no further effect."""


@runtime_checkable
class Rehearsing(Protocol):
    """A backend that can try the loop's calls at its place without any effect."""

    def rehearse(self, template: str) -> list[Finding]:
        """Return the reasons for which the place would refuse a machine of this template, and the rights that we lack.

        Raise BackendError if the place does not answer.
        """


@runtime_checkable
class Checkable(Protocol):
    """A backend that can find settings of its place that will cause failures."""

    def check(self, seconds: float) -> list[Finding]:
        """Ask the place within ``seconds``. Raise BackendError if the place does not answer."""
