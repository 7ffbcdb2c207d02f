"""What the loop remembers from one cycle to the next (memory.json)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from provisioner.model.snapshot import Fingerprint, Notice
from provisioner.model.words import DESIRED, BrakeReason, DeleteReason, Failure, LossCause, RequestStatus, Verdict


class Slot(NamedTuple):
    """One try to fill one wanted machine of a request: name and pool are for ever (law: a name is used once).

    A tuple, as ten thousand of them may change in one cycle: a changed copy costs a third of that of a dataclass.
    """

    name: str
    number: int
    pool: str
    verdict: Verdict
    opened: float
    submitted: float | None = None
    """When its create was recorded, before the call. None: known never to have been sent."""
    accepted: bool = False
    """A create call for it was answered with success."""
    seen: bool = False
    ran: float | None = None
    """When it was first seen running, with all that HF needs to know."""
    closed: float | None = None
    absent: float | None = None
    """Begin of the first complete snapshot that lacks it, since it was last seen."""
    gone: bool = False
    """Closed, and its machine is proven absent: nothing is left to do for it."""
    delete: DeleteReason | None = None
    """Why its machine is deleted, once it is closed."""
    delete_sent: float | None = None
    """When a delete of it was last recorded, before the call."""
    fingerprint: Fingerprint = Fingerprint()
    ip: str = ""
    public_ip: str = ""
    launched: int = 0
    failure: Failure | None = None
    cause: LossCause | None = None
    notice: Notice | None = None
    set_aside: bool = False
    """A verdict was asked of it that the table forbids: nothing is done for it until a person has looked."""
    stuck: bool = False
    """Closed, and its machine is still there long after the end of its grace period: a person should look."""
    forced: bool = False
    """A delete without grace was recorded for it, before the call."""
    gated: bool = False
    """Its machine was last seen held back on purpose."""
    lifted: float | None = None
    """When its machine was first seen held back no more: its boot counts from then."""
    early: bool = False
    """Its machine ran and ended in its first minutes by nobody's doing: it counts against its pool as a failed boot."""
    tries: int = 0
    """How many tries of the same wanted machine failed before this one."""
    tried: Failure | None = None
    """Why the slot that this one replaces failed, or one before it that had a better reason than that time ran out."""
    offered: float | None = None
    """Time at which the machine was offered to HF because of its age or its near end. It runs until HF returns it."""
    started: float | None = None
    """From when its machine counts as used, where that is not ``asked_at``: it had waited, or came back late."""
    strayed: bool = False
    """Its machine was last seen to stand without what makes it ours: only its name and uid lead to it."""
    expires: float | None = None
    """Epoch seconds, by the place's clock, at which the place ends the machine."""
    down: float | None = None
    """Since when its machine, which ran, does not; why is its ``failure``."""
    delete_begun: float | None = None
    """Time at which the first delete that was sent was recorded."""
    hindrance: Failure | None = None
    """The place's reason why the machine is not deleted: a refused delete, or one without effect."""

    @property
    def request(self) -> str:
        """The id of the request that it belongs to, as its name says: ``<prefix>-<request>-<slot>``."""
        return self.name.rsplit("-", 2)[1]

    @property
    def is_with_hf(self) -> bool:
        """HF has the machine, or was told that it runs."""
        return self.ran is not None and self.verdict in DESIRED

    @property
    def asked_at(self) -> float:
        """When its machine was asked for; when the slot was opened, where no create is recorded."""
        return self.opened if self.submitted is None else self.submitted


if TYPE_CHECKING:
    evolve = Slot._replace
else:
    _POSITIONS = {name: position for position, name in enumerate(Slot._fields)}

    def evolve(slot, /, **changes):
        """``evolve(slot, field=value, …)``: the slot with some fields changed.

        As ``_replace``, which costs the planning of ten thousand machines half as much time again.
        """
        values = list(slot)
        for name, value in changes.items():
            values[_POSITIONS[name]] = value
        return tuple.__new__(Slot, values)


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
    told_at: float | None = None
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
    told_at: float | None = None
    trimmed: bool = False
    message: str = ""
    """Why its machines are not deleted, while a lever holds that back or held it back when its time was over."""
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
class Memory:
    """What the loop must not forget."""

    provisioner: str
    epoch: int = 0
    generation: int = 0
    """Highest generation of intent.json read."""
    time: float = 0.0
    """Loop time when it was written."""
    time_wall: float = 0.0
    """Wall clock at the same moment; the gap across a restart is clamped (law: time is an argument)."""
    uptime: Uptime | None = None
    """The host's uptime at the same moment: the gap of a restart within a boot, however the wall clock was set."""
    requests: Mapping[str, RequestRecord] = field(default_factory=dict)
    returns: Mapping[str, ReturnRecord] = field(default_factory=dict)
    pressures: Mapping[tuple[str, str], Window] = field(default_factory=dict)
    """The windows, by (pool, template); the name is that of the table in memory.json."""
    orphans: Mapping[str, float] = field(default_factory=dict)
    """Names that look like orphans, and since when."""
    orphan_deletes: tuple[float, ...] = ()
    """When orphans were deleted, for the cap per hour."""
    appeared: Mapping[str, float] = field(default_factory=dict)
    """Orphans that appeared while the loop ran, and when; for an hour, also those that are gone."""
    astray: Mapping[str, float] = field(default_factory=dict)
    """Pools for which another place seems to answer; since when."""
    answered_by: Mapping[str, str] = field(default_factory=dict)
    """``Snapshot.answered_by`` of each pool, as it was where its machines are."""
    accepted: tuple[str, ...] = ()
    """Orphans that were known when a person released the brake: their number latches it no more."""
    unlisted: Mapping[str, float] = field(default_factory=dict)
    """Machines that HF was told of and no list of HF has named for an hour (lists come in parts), and since when."""
    brake: Brake | None = None
    strangers: Mapping[str, float] = field(default_factory=dict)
    """Hosts in HF's list that are named like ours, have no slot and are in no pool; when the first complete set of
    snapshots lacked each."""
    lost_strangers: tuple[str, ...] = ()
    """Those of them that two sets of complete snapshots lack: reported as lost."""
    unseen_pools: tuple[str, ...] = ()
    """Pools not seen yet since this memory was made: a machine of ours there means that a memory was lost."""
    configured_places: Mapping[str, str] = field(default_factory=dict)
    """Where the machines of each pool are, as ``PoolLimits.where``."""
    usage: Mapping[str, Mapping[tuple[str, str, str], int]] = field(default_factory=dict)
    """Milliseconds for which machines were there that are gone: by UTC day, then by template, pool and account. Those
    of days that are kept no longer are under an empty day, by pool alone."""
    usage_since_wall: float | None = None
    """Since when usage is counted, epoch seconds; None: no machine of this memory has gone yet, or been counted."""

    def wall_of(self, at: float) -> float:
        """Loop time as epoch seconds of the loop's host."""
        return self.time_wall + (at - self.time)

    @property
    def slots(self) -> Iterator[tuple[RequestRecord, Slot]]:
        """Every slot, with its request."""
        return ((record, slot) for record in self.requests.values() for slot in record.slots.values())
