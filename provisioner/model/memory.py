"""What the loop remembers from one cycle to the next (memory.json)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from provisioner.model.enums import DESIRED, BrakeReason, DeleteReason, Failure, LossCause, RequestStatus, Verdict
from provisioner.model.snapshot import UNKNOWN_MACHINE, Fingerprint, Notice
from provisioner.names import SLOT_DIGITS


class Tries(NamedTuple):
    """What was tried for one wanted machine before."""

    failed: int = 0
    """Slots that failed and spent a try."""
    failure: Failure | None = None
    """Why the last slot failed, or one before it that had a better reason than that time ran out."""


UNTRIED = Tries()


class Observed(NamedTuple):
    """What the place has shown of a slot's machine."""

    accepted: bool = False
    """A create call was answered with success."""
    seen: bool = False
    absent: float | None = None
    """Begin of the first complete snapshot that lacks the machine, since it was last seen."""
    fingerprint: Fingerprint = UNKNOWN_MACHINE
    ip: str = ""
    public_ip: str = ""
    launched: int = 0
    notice: Notice | None = None
    gated: bool = False
    """The machine was last seen held back on purpose."""
    strayed: bool = False
    """The machine was last seen without what makes it ours: only its name and uid lead to it."""
    expires: float | None = None
    """Epoch seconds, by the place's clock, at which the place ends the machine."""
    cause: LossCause | None = None
    """Why the machine ends or ended."""


class Life(NamedTuple):
    """Moments of a machine's life that few machines have, in loop time."""

    ungated_at: float | None = None
    """When the machine was first seen held back no more: its boot counts from then."""
    down: float | None = None
    """Since when the machine, which ran, does not; why is the slot's ``failure``."""
    retiring_at: float | None = None
    """When the machine was offered to HF because of its age or its near end. It runs until HF returns it."""
    used_from: float | None = None
    """From when the machine counts as used, if not from ``asked_at``: it had waited, or came back late."""
    early: bool = False
    """The machine ran and ended by itself in its first minutes: it counts against its pool as a failed boot."""


class Deletion(NamedTuple):
    """How the machine of a closed slot is deleted."""

    closed: float | None = None
    """When the slot was closed."""
    reason: DeleteReason | None = None
    gone: bool = False
    """The machine is proven absent: the slot needs no further action."""
    sent: float | None = None
    """When a delete was last recorded, before the call."""
    begun: float | None = None
    """When the first delete that was sent was recorded."""
    hindrance: Failure | None = None
    """The place's reason why the machine is not deleted: a refused delete, or one without effect."""
    stuck: bool = False
    """The machine is still there long after the end of its grace period: an operator should look."""
    forced: bool = False
    """A delete without grace was recorded, before the call."""


class Slot(NamedTuple):
    """One try to fill one wanted machine of a request: name and pool are for ever (law: a name is used once).

    A tuple of tuples, as ten thousand may change in one cycle: a changed copy costs a third of that of a dataclass.
    """

    name: str
    pool: str
    verdict: Verdict
    opened: float
    submitted: float | None = None
    """When its create was recorded, before the call. None: known never to have been sent."""
    ran: float | None = None
    """When its machine was first seen running, with all that HF needs to know."""
    observed: Observed = Observed()
    failure: Failure | None = None
    set_aside: bool = False
    """A verdict was asked of it that the table forbids: no action is taken for it until an operator has looked."""
    life: Life = Life()
    deletion: Deletion = Deletion()
    tries: Tries = UNTRIED

    @property
    def number(self) -> int:
        """The number among the slots of its request, as its name says: ``<prefix>-<request>-<slot>``."""
        return int(self.name[-SLOT_DIGITS:])

    @property
    def request(self) -> str:
        """The id of the request that it belongs to, as its name says."""
        return self.name.rsplit("-", 2)[1]

    @property
    def is_with_hf(self) -> bool:
        """HF has the machine, or was told that it runs."""
        return self.ran is not None and self.verdict in DESIRED

    @property
    def asked_at(self) -> float:
        """When its machine was asked for; when the slot was opened, where no create is recorded."""
        return self.opened if self.submitted is None else self.submitted

    @property
    def boots_from(self) -> float:
        """When its boot began: with its create, or once its machine was held back no more."""
        return self.asked_at if self.life.ungated_at is None else self.life.ungated_at

    def with_observed(self, **facts: Any) -> Slot:
        """Return the slot with other facts of its machine."""
        return self._replace(observed=self.observed._replace(**facts))

    def with_life(self, **moments: Any) -> Slot:
        """Return the slot with other moments of its machine's life."""
        return self._replace(life=self.life._replace(**moments))

    def with_deletion(self, **facts: Any) -> Slot:
        """Return the slot with another state of its deletion."""
        return self._replace(deletion=self.deletion._replace(**facts))


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What the loop knows of a request."""

    id: str
    template: str
    count: int
    read: float
    """When the loop first read it."""
    deadline: float
    """When what is missing fails (law: a request always ends)."""
    slots: Mapping[int, Slot] = field(default_factory=dict)
    next_slot: int = 0
    ended: RequestStatus | None = None
    """Its terminal status; never None again once set."""
    ended_at: float | None = None
    message: str = ""
    rc_account: str = ""
    reported_at: float | None = None
    """When it was noticed that HF knows the terminal answer."""
    cancelling: bool = False
    """First half of a cancel: the answer says so; machines go only if HF still does not poll."""
    trimmed: bool = False
    """Leaving the files: removed from intent next, from memory when intent no longer has it."""
    withheld: int = 0
    """Machines of it that were given up untried, beside the slots that say why."""


class ReturnResult(StrEnum):
    """How one name of a return request ended."""

    GONE = "gone"
    NOT_OURS = "not_ours"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class ReturnRecord:
    """What the loop knows of a return request."""

    id: str
    names: tuple[str, ...]
    read: float
    deadline: float
    results: Mapping[str, ReturnResult] = field(default_factory=dict)
    absent: Mapping[str, float] = field(default_factory=dict)
    """Names that are no slot of ours: begin of the first set of complete snapshots that lack them."""
    sent: Mapping[str, float] = field(default_factory=dict)
    """Names that are no slot of ours: when their delete was last recorded."""
    ended: RequestStatus | None = None
    ended_at: float | None = None
    reported_at: float | None = None
    trimmed: bool = False
    message: str = ""
    """Why its machines are not deleted, while a hold holds that back or held it back when its time was over."""
    hindered: Mapping[str, Failure] = field(default_factory=dict)
    """Names whose machines did not go until its time was over, or are no slot of ours, and why."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was learned about one template in one pool; ``window`` machines may be pending there."""

    window: int
    """Machines that may be pending now."""
    spec: str = ""
    """The spec it was learned with."""
    ran: int = 0
    """Slots of this round that ran."""
    failed: int = 0
    """Slots of this round that failed at create or boot."""
    level: int = 0
    """How many back-offs in a row."""
    blocked_at: float = 0.0
    """When the present series of back-offs began: only a later submission can end it."""
    retry_at: float = 0.0
    """No create before this."""
    probing: bool = False
    """One machine at a time, until one succeeds."""
    failure: Failure | None = None
    """The reason of the back-off."""
    boot: bool = False
    """That is why a machine did not run whose create was taken: only one that runs shows that it is over."""
    closed_since: float | None = None
    """Since when a slot has waited for the window."""
    early_loss: Failure | None = None
    """How a machine was lost in its first minutes when most were: until one outlives these, none that runs is proof."""

    @property
    def backs_off_from(self) -> Failure | None:
        """The reason of the back-off; None while the pool takes creates."""
        return self.failure if self.level else None


@dataclass(frozen=True, slots=True)
class Brake:
    """Nothing of ours is deleted as an orphan while it is latched (law: the brake)."""

    reason: BrakeReason
    since: float
    detail: str
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Uptime:
    """The monotonic clock of a host, which nobody can set."""

    boot: str
    """Which boot of which host it counts from."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Moment:
    """When a memory was written, by each clock."""

    time: float = 0.0
    """Loop time."""
    wall: float = 0.0
    """Epoch seconds; the gap across a restart is clamped (law: time is an argument)."""
    uptime: Uptime | None = None
    """The host's uptime: the gap of a restart within a boot, however the wall clock was set."""

    @property
    def ahead(self) -> float:
        """Seconds from loop time to the wall clock."""
        return self.wall - self.time


@dataclass(frozen=True, slots=True)
class Orphans:
    """Machines of ours that no request explains."""

    since: Mapping[str, float] = field(default_factory=dict)
    """Names that look like orphans, and since when."""
    deletes: tuple[float, ...] = ()
    """When orphans were deleted, for the cap per hour."""
    appeared: Mapping[str, float] = field(default_factory=dict)
    """Orphans that appeared while the loop ran, and when; for an hour, also those that are gone."""
    accepted: tuple[str, ...] = ()
    """Orphans that were known when an operator released the brake: their number latches it no more."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts by whether HF lists them and we know them."""

    unlisted: Mapping[str, float] = field(default_factory=dict)
    """Machines that HF was told of and no list of HF has named for an hour (lists come in parts), and since when."""
    unknown: Mapping[str, float] = field(default_factory=dict)
    """Hosts in HF's list that are named like ours, have no slot and are in no pool; when the first complete set of
    snapshots lacked each."""
    lost: tuple[str, ...] = ()
    """Unknown hosts that two sets of complete snapshots lack: reported as lost."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the machines of the pools are."""

    configured: Mapping[str, str] = field(default_factory=dict)
    """The place of each pool's machines, as ``PoolLimits.where``."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """``Snapshot.endpoint_identity`` of each pool, as it was where its machines are."""
    wrong_since: Mapping[str, float] = field(default_factory=dict)
    """Pools for which another endpoint seems to answer; since when."""
    unseen: tuple[str, ...] = ()
    """Pools not seen yet since this memory was made: a machine of ours there means that a memory was lost."""


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """For how long machines were there that are gone."""

    days: Mapping[str, Mapping[tuple[str, str, str], int]] = field(default_factory=dict)
    """Milliseconds by UTC day, then by template, pool and account; those of days that are kept no longer under an
    empty day, by pool alone."""
    since_wall: float | None = None
    """Since when usage is counted, epoch seconds; None: no machine of this memory has gone yet, or been counted."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the loop must not forget."""

    provisioner: str
    epoch: int = 0
    generation: int = 0
    """Highest generation of intent.json read."""
    written: Moment = Moment()
    requests: Mapping[str, RequestRecord] = field(default_factory=dict)
    returns: Mapping[str, ReturnRecord] = field(default_factory=dict)
    windows: Mapping[tuple[str, str], Window] = field(default_factory=dict)
    """The windows, by (pool, template); the name is that of the table in memory.json."""
    orphans: Orphans = Orphans()
    hosts: Hosts = Hosts()
    places: Places = Places()
    brake: Brake | None = None
    usage: UsageTotals = UsageTotals()

    def wall_of(self, at: float) -> float:
        """Loop time as epoch seconds of the loop's host."""
        return at + self.written.ahead

    @property
    def slots(self) -> Iterator[tuple[RequestRecord, Slot]]:
        """Every slot, with its request."""
        return ((record, slot) for record in self.requests.values() for slot in record.slots.values())
