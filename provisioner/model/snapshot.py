"""Snapshots of the clouds, and the activity of HostFactory that the loop has noticed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from provisioner.model.enums import Failure, LossCause, Phase
from provisioner.names import format_printable


class Fingerprint(NamedTuple):
    """Values that distinguish a machine from another machine of the same name. An empty value is unknown."""

    uid: str = ""
    created: str = ""
    started: str = ""
    ip: str = ""

    def differs(self, other: Fingerprint) -> bool:
        """Return whether a known value has changed. A value that was unknown before does not count as changed."""
        pairs = zip(self, other, strict=True)
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)

    def with_appeared(self, other: Fingerprint) -> Fingerprint:
        """Return this fingerprint, completed with values that only ``other`` has. If ``other`` adds no value, return
        the same object."""
        merged = Fingerprint(*(mine or theirs for mine, theirs in zip(self, other, strict=True)))
        return self if merged == self else merged


UNKNOWN_MACHINE = Fingerprint()


@dataclass(frozen=True, slots=True)
class Notice:
    """The announced end of a running machine."""

    cause: LossCause
    ends_at: float
    """Loop time at which the machine will be gone."""


@dataclass(frozen=True, slots=True)
class Queued:
    """The wait of a machine that its place holds in a queue on purpose. The moments are epoch seconds by the place's
    clock. They are shown but never compared. 0: unknown."""

    since: int = 0
    reason: str = ""
    """The place's words, on one line."""
    expected_start: int = 0
    """The place's estimate of the machine's start. Memory does not contain the estimate, because it may change with
    each observation."""

    def __post_init__(self) -> None:
        """Make the reason printable. The reason comes from a place and goes to terminals, pages and HostFactory."""
        object.__setattr__(self, "reason", format_printable(self.reason))


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of this provisioner as its pool shows it."""

    name: str
    phase: Phase
    fingerprint: Fingerprint = UNKNOWN_MACHINE
    ip: str = ""
    public_ip: str = ""
    launched: int = 0
    """Start of the machine in epoch seconds by the cloud's clock. The value never changes, because HF requires this. 0:
    unknown."""
    failure: Failure | None = None
    """The place's reason why the machine does not run, or does not run yet."""
    cause: LossCause | None = None
    """Cause of the end of a machine that is GONE or STOPPING, if known."""
    notice: Notice | None = None
    queued: Queued | None = None
    """The wait of a PENDING machine in a queue. A normal wait is no failure: ``failure`` is None."""
    spills_at_once: bool = False
    """True if the place has said that it has no room, so that the template's next pool should make the machine."""
    is_strayed: bool = False
    """True if a machine has lost its identity: its pod has lost our labels, or its group has abandoned it."""
    is_nameless: bool = False
    """True if a machine runs at its place but its name does not resolve yet."""
    state: str = ""
    """The place's word for the present state of the machine; empty for the usual states."""
    expires_at: float | None = None
    """Epoch seconds by the place's clock at which the place will end the machine. None: unknown or never."""
    hindrance: Failure | None = None
    """The place's reason why a machine that is being deleted still exists."""


FAULT = "PLACE: "
"""First word of the text of a problem that an operator has to fix at the place."""


class MachineEnd(NamedTuple):
    """The end of a machine that left no leftovers."""

    cause: LossCause = LossCause.UNKNOWN
    failure: Failure | None = None
    """The place's words about the end."""

    @property
    def is_proven(self) -> bool:
        """Return whether the machine is proven gone. A cause or a text from the place is the proof.

        Without this proof, the machine may have strayed and still exist.
        """
        return self.cause is not LossCause.UNKNOWN or self.failure is not None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete view of one pool. An observation that fails returns no snapshot but raises an error (law: a failed
    observation is not an empty observation)."""

    pool: str
    began_at: float
    """Moment at which the observation began. The snapshot shows every change before this moment, except changes within
    the backend's lag."""
    machines: Mapping[str, Machine]
    """This provisioner's machines, by name. If no machine has changed, the mapping is the same object as in the
    previous snapshot."""
    foreign: frozenset[str] = frozenset()
    """Names in ``asked`` that exist at the place but do not have our identity."""
    spec: str = ""
    """Fingerprint of the pod spec or instance template. A new value resets the pool's windows."""
    asked: frozenset[str] = frozenset()
    """Names for which this observation asked the place. For any other name, the snapshot only shows whether a machine
    with our identity has this name."""
    ends: Mapping[str, MachineEnd] = field(default_factory=dict)
    """Ends of machines that have left no leftovers, by name. Machines that existed only between two observations are
    included. If a name is also in ``machines``, its machine exists."""
    doubles: Mapping[str, tuple[Machine, ...]] = field(default_factory=dict)
    """Other live objects that have a name in ``machines``, by this name. A place that keeps names unique has no such
    objects. Each object has a uid."""
    problems: tuple[str, ...] = ()
    """Texts for operators about the pool's place: changes that others made, and settings that will fail. A text about a
    setting that will fail begins with ``FAULT``."""
    name_collisions: frozenset[str] = frozenset()
    """Names in ``asked`` that exist at the place but are not machines of the pool. Such a name does not count as gone,
    because it may belong to a machine of another pool of ours."""
    endpoint_identity: str = ""
    """Unique identity of the endpoint (for example the namespace's uid); empty if unknown."""
    wall: float | None = None
    """Time by the place's clock when the observation began, in epoch seconds. None: unknown."""
    listed_at: float | None = None
    """Start time of the list behind this snapshot. If a watch follows the list, the snapshot also contains the later
    changes that the watch reported. None: the list was started when the observation began."""

    @property
    def confirmed_at(self) -> float:
        """Return the start time of the list behind the snapshot. The place has confirmed the content with this list;
        later changes are known only from a watch."""
        return self.began_at if self.listed_at is None else self.listed_at

    @property
    def log_fields(self) -> dict[str, Any]:
        """Return a summary of the snapshot as fields of a JSON document."""
        return {"machines": len(self.machines), "problems": list(self.problems)}


@dataclass(frozen=True, slots=True)
class ObservationFailed:
    """A failed observation of a pool. The pool gets no actions (law: a failed observation is not an empty
    observation)."""

    pool: str
    began_at: float
    failure: Failure

    @property
    def log_fields(self) -> dict[str, Any]:
        """Return the failure of the observation as fields of log lines and JSON documents."""
        return {**self.failure.log_fields}


Observation = Snapshot | ObservationFailed


def find_snapshots(observations: Mapping[str, Observation]) -> dict[str, Snapshot]:
    """Return the complete observations, by pool."""
    return {name: seen for name, seen in observations.items() if isinstance(seen, Snapshot)}


def find_failures(observations: Mapping[str, Observation]) -> dict[str, Failure]:
    """Return the failures of the observations that failed, by pool."""
    return {name: seen.failure for name, seen in observations.items() if isinstance(seen, ObservationFailed)}


NEWS_SECONDS = 300.0
"""Seconds after which a repeated list of HF counts as news even if it is unchanged. Hosts count as unlisted only
after an hour, so this delay does no harm."""


@dataclass(frozen=True, slots=True)
class HfActivity:
    """The activity of HF that the loop has noticed. Moments are in loop time.

    The activity is not stored. After a restart, every id therefore counts as just polled.
    """

    polled_at: Mapping[str, float] = field(default_factory=dict)
    """Moment at which the latest poll of each id was noticed."""
    since: float = 0.0
    """Moment since which the loop has noticed HF's calls. A silence before this moment proves nothing."""
    last_call_at: float = 0.0
    """Moment at which the latest call of HF was noticed."""
    read_ids: frozenset[str] = frozenset()
    """Ids whose terminal answer a script has read."""
    inventory: frozenset[str] = frozenset()
    """Short names of the hosts in HF's latest lists. A single list may name only some hosts."""
    listed_at: Mapping[str, float] = field(default_factory=dict)
    """Moment at which a list last named each host. A moment is kept for a day."""
    last_list_at: float = 0.0
    """Moment at which the latest list was noticed."""
    started_at: float = 0.0
    """Moment at which this process began to notice calls. ``since`` is later if HF has been away after this moment."""

    @property
    def news(self) -> tuple[object, ...]:
        """Return a key that changes if HF's calls bring news. While HF calls, the key also changes every
        ``NEWS_SECONDS``.

        HF's calls bring news if HF polls a new id, reads a terminal answer or lists other hosts. A call after a silence
        is news too.
        """
        counted = len(self.polled_at), self.last_call_at // NEWS_SECONDS
        return self.read_ids, self.inventory, self.since, self.started_at, *counted
