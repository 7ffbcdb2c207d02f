"""What a backend promises: it observes one pool, creates and deletes machines, and says what went wrong in few classes.

A backend never retries an action and never decides: the next cycle is the retry, the plan decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from provisioner.model import Create, Delete, ErrorClass, Failure, LossCause, Outcome, Snapshot


class BackendError(Exception):
    """An observation or a call that failed, with its class and the cloud's words."""

    def __init__(self, error: ErrorClass, text: str, retry_after: float | None = None) -> None:
        super().__init__(f"{error}: {text}")
        self.failure = Failure(error, text)
        self.lines = text.splitlines()
        """The text as it was given: a line for each of several pools."""
        self.retry_after = retry_after
        """Seconds for which a throttling cloud asks not to be called; None when it did not say."""


class Severity(StrEnum):
    """How bad a finding is."""

    WARNING = "warning"
    """It works, with a drawback that people should know."""
    ERROR = "error"
    """Machines cannot be made, or others will take them away."""
    REFUSED = "refused"
    """The loop must not begin: it could touch what is not its own."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a pool's place, and what to do about it."""

    pool: str
    severity: Severity
    text: str


CAUSE_SECONDS = 300.0
"""How long a kind remembers why a machine went: longer than a plan can be late."""

SPOT_GRACE_SECONDS = 30.0
"""A Spot instance gets so long between the notice and the end (Scheduling in the API's reference)."""

MayStart = Callable[[], bool]
"""Asked before each call to a cloud; False: the cycle's time is over (or the loop is ending), start no new call."""


class Backend(Protocol):
    """One pool. ``observe`` and the actions may run at the same time in different threads."""

    pool: str
    lag: float
    """Seconds two snapshots must begin apart before both prove an absence (GKE 0, MIG 30)."""
    pace: float
    """Seconds between two observations."""

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to watch, if this kind of place can; ``wake`` is called when something changed."""

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Everything of ours that the pool holds, complete, begun at ``now``; raises BackendError otherwise.

        A backend whose pools share lists may have begun a little earlier: the snapshot says when.
        ``sought``: names that are asked for by themselves, each with the uid that is meant, if one is known; of what
        stands under them, our machines that are not shown as ours any more are ``machines`` that strayed, others that
        are not ours ``foreign``, and others that may be ours, but are no machine of this pool, ``name_collisions``.
        """

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Create the machines, some at a time; one outcome for each that was tried, a success for one that exists
        already with its slot's identity.

        The first error that ``stops_batch`` stops further creates of its template, which then have no outcome.
        """

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Begin to delete the machines; one that is not there is a success.

        ``uid``: only that incarnation is touched; without it, what has the name and our identity.
        ``adopted``: without ``uid``, what has the name is touched, whoever's it is.
        ``force``: it has no grace, where this kind of place gives any.
        """

    def close(self) -> None:
        """End watches and connections."""


@dataclass(frozen=True, slots=True)
class MachineSize:
    """How big the machines of a pool are."""

    name: str
    """What says so, e.g. ``machine type n2-standard-4``."""
    cores: float
    megabytes: float
    """Memory in units of 2^20 bytes, as HF's nram and Compute's memoryMb."""


@runtime_checkable
class Sized(Protocol):
    """A backend that has to ask its place how big its machines are."""

    def size(self, seconds: float) -> MachineSize | None:
        """Ask the place, for so long at most; None when it does not say, BackendError when it does not answer."""


@runtime_checkable
class Timed(Protocol):
    """A backend whose place says what time it is, in each response."""

    def ahead(self) -> float | None:
        """Seconds by which the place's clock was ahead of this host's at the last response; None where it is silent."""


@runtime_checkable
class Watching(Protocol):
    """A backend whose observations rest on an older list and on what was heard since."""

    def list_after(self, when: float) -> None:
        """From ``when`` on (loop time), looks rest on a list begun no sooner: make one if there is none, in any thread.

        Looks do not wait for it: ``Snapshot.listed`` says on which one an observation rests.
        """


@dataclass(frozen=True, slots=True)
class Ended:
    """A machine that ended by itself, for people who look at its place."""

    machine: str
    request: str
    template: str
    uid: str
    """Of what was seen; empty where its kind of place gives none."""
    lost: bool
    """HF was told of it; else it never ran, or ended before its request did."""
    cause: LossCause | None
    failure: Failure | None


@runtime_checkable
class Recording(Protocol):
    """A backend whose place keeps a record, for people, of what happens there."""

    def record_ends(self, ends: Sequence[Ended]) -> None:
        """Add that these have ended, in the background: returns at once, and what is refused changes nothing."""


@runtime_checkable
class Rehearsing(Protocol):
    """A backend that can try, without any effect, what the loop will ask of its place."""

    def rehearse(self, template: str) -> list[Finding]:
        """What its place would refuse of a machine of this template, and which rights we lack.

        Raises BackendError when it does not answer.
        """


@runtime_checkable
class Checkable(Protocol):
    """A backend that can say what of its place's settings will go wrong."""

    def check(self, seconds: float) -> list[Finding]:
        """Ask the place, for so long at most; raises BackendError when it does not answer."""
