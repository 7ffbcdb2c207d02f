"""The protocol of a backend: observe one pool, create and delete machines, and report each error by one of a few error
classes.

A backend does not retry an action, because the next cycle does. A backend makes no decision, because the plan does.

Names: each machine has a name of its own. Some places keep names unique: they refuse a second object with the same
name. For any other place, the backend lists the machines before each create.

A create may have an unknown effect. The backend repeats such a create only if two lists lack the name. The lists must
have begun at least ``lag_seconds`` apart.

Several objects may have the same name nevertheless. These objects are then in ``Snapshot.doubles``. The plan keeps one
object of each name and deletes the others at once. If a new object has the name of a closed slot, the plan also deletes
this object at once.

States: a place may hold a machine in a queue on purpose. This machine is PENDING with ``queued`` and without a failure.
If the place has no room for a machine, the machine has ``spills_at_once``, so that another pool makes a machine in its
place. A machine that has ended and needs no delete is in ``Snapshot.ends``.

Hosts: a machine joins the grid under its name, because HF knows the machine by this name. A kind may make the name the
host name (a pod, an instance). Any other kind sets ``HF_MACHINE_NAME`` to the name in the machine's environment. The
machine's start script reads this variable.

Two machines on one host must not share a host name. The kind makes hosts exclusive by default, or its check warns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from provisioner.model import FAULT, Create, Delete, ErrorClass, Failure, LossCause, Outcome, Snapshot


class BackendError(Exception):
    """A failed observation or call, with its error class and the cloud's message."""

    def __init__(self, error: ErrorClass, text: str, retry_after: float | None = None) -> None:
        super().__init__(f"{error}: {text}")
        self.failure = Failure(error, text)
        self.lines = text.splitlines()
        """The lines of the text: one for each pool if the error concerns several pools."""
        self.retry_after = retry_after
        """Seconds for which a throttling cloud asks to receive no calls; None if the cloud named no time."""


class Severity(StrEnum):
    """The severity of a finding."""

    NOTE = "note"
    """A value that the loop read at a working place, so that the operator can compare the value with the place."""
    WARNING = "warning"
    """The place works, with a drawback that the operator should know."""
    ERROR = "error"
    """The place cannot make machines, or will itself end machines that the loop needs."""
    REFUSED = "refused"
    """The loop must not begin, because it could change machines that belong to others."""

    @property
    def is_fault(self) -> bool:
        """Return True if the finding means that the place does not work."""
        return self in (Severity.ERROR, Severity.REFUSED)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a pool's place, and the way to fix the problem; or a note."""

    pool: str
    severity: Severity
    text: str

    @property
    def problem(self) -> str:
        """Return the finding as text, in the form of ``Snapshot.problems``."""
        return FAULT + self.text if self.severity.is_fault else self.text


CAUSE_SECONDS = 300.0
"""Seconds for which a backend remembers why a machine ended. No plan needs the cause later."""

SPOT_GRACE_SECONDS = 30.0
"""Seconds between the preemption notice and the end of a Spot instance (API reference, Scheduling)."""

MayStart = Callable[[], bool]
"""A function that is called before each call to a cloud. If it returns False, no new call may start, because the
cycle's time is over or the loop is ending."""


class Backend(Protocol):
    """The backend of one pool. ``observe`` may run in one thread while actions run in another."""

    pool: str
    pace: float
    """Seconds between two observations."""

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to watch, if this kind of place can be watched. Call ``wake`` whenever something has changed."""

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return a complete snapshot of our machines in the pool. Raise BackendError if a list fails or is incomplete.

        The observation begins at ``now``. A shared list may have begun earlier (``Snapshot.began_at``).

        ``sought``: names to search for, with their expected uids. Under these names, our machines without our mark are
        strayed, others' objects are ``foreign``, objects that may be ours are ``name_collisions``.
        """

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Create the machines, several at a time. Return one outcome for each create that was tried.

        A create succeeds if a machine with its slot's identity exists already. After an error with ``stops_batch``, no
        further creates of this template are tried.

        A create with ``is_repeated`` follows an earlier create of this name, which may have made the machine. If the
        backend cannot rule this out, the outcome is ambiguous.
        """

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Begin to delete the machines. If a machine does not exist, its delete is a success.

        With ``uid``, delete only the machine with this uid. Without ``uid``, delete the machine with this name. This
        machine must have our identity. If ``is_adopted`` is set, it may be another provider's machine that HF returned
        to us. With ``is_forced``, give the machine no grace period.
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
    """Memory in units of 2^20 bytes, the unit of HF's nram and Compute's memoryMb."""


@runtime_checkable
class Sized(Protocol):
    """A backend that must ask its place for the size of its machines."""

    def size(self, seconds: float) -> MachineSize | None:
        """Return the size that the place reports; None if the place reports no size. Raise BackendError if the place
        does not respond within ``seconds``."""


@runtime_checkable
class Timed(Protocol):
    """A backend whose place sends its own time with each response."""

    def ahead(self) -> float | None:
        """Return how many seconds the place's clock was ahead of this host's clock at the last response; None if
        unknown."""


@runtime_checkable
class Watching(Protocol):
    """A backend that observes by combining an older list with the events that followed."""

    def list_after(self, when: float) -> None:
        """Ask for a new list that begins at ``when`` (loop time) or later.

        The backend may make the list in any of its threads. Observations do not wait for this list: they use the newest
        complete list. ``Snapshot.listed_at`` is the time of the list that an observation used.
        """


@dataclass(frozen=True, slots=True)
class Ended:
    """A record for operators about a machine that ended without a delete by the loop."""

    machine: str
    request: str
    template: str
    uid: str
    """Uid of the machine; empty if its kind of place has no uids."""
    lost: bool
    """True if the machine was reported to HF. False if the machine never ran, or ended before its request ended."""
    cause: LossCause | None
    failure: Failure | None


@runtime_checkable
class Recording(Protocol):
    """A backend whose place keeps records for operators, for example Kubernetes Events."""

    def record_ends(self, ends: Sequence[Ended]) -> None:
        """Record these ends in the background and return at once. If the place refuses a record, the record is
        dropped."""


@runtime_checkable
class Rehearsing(Protocol):
    """A backend that can try the loop's calls at its place without an effect."""

    def rehearse(self, template: str) -> list[Finding]:
        """Return findings about this template: reasons why the place would refuse its machine, and missing rights.

        Raise BackendError if the place does not respond.
        """


class Measure(NamedTuple):
    """A number of a backend, exported as the metric ``hf_provisioner_KIND_NAME`` with the label ``pool``."""

    name: str
    """Name of the metric without its prefix, ending with its unit."""
    meaning: str
    value: float


@runtime_checkable
class Measuring(Protocol):
    """A backend with metrics of its own."""

    def measures(self) -> Sequence[Measure]:
        """Return the measures with their present values, without a call to the place. Each scrape of the metrics calls
        this method in a thread of the HTTP server."""


@runtime_checkable
class Checkable(Protocol):
    """A backend that can find settings of its place that will cause failures."""

    def check(self, seconds: float) -> list[Finding]:
        """Return the findings about the place. All calls together may take at most ``seconds``. Raise BackendError if
        the place does not respond."""
