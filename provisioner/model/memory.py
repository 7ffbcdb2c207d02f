"""Memory: the state that the loop keeps from one cycle to the next (memory.json)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from provisioner.model.enums import DESIRED, BrakeReason, DeleteReason, Failure, LossCause, RequestStatus, Verdict
from provisioner.model.snapshot import UNKNOWN_MACHINE, Fingerprint, Notice
from provisioner.names import SLOT_DIGITS


class Tries(NamedTuple):
    """Earlier tries of one wanted machine."""

    failed: int = 0
    """Number of slots that failed and used up a try."""
    failure: Failure | None = None
    """Failure of the last slot that failed. If the last slot only ran out of time, this is the failure of an earlier
    slot."""


UNTRIED = Tries()


class Observed(NamedTuple):
    """The state of a slot's machine as its place has shown it."""

    is_accepted: bool = False
    """True if a create call for the machine succeeded."""
    was_seen: bool = False
    absent_since: float | None = None
    """Start time of the first complete snapshot that lacked the machine. None: no snapshot has lacked the machine since
    it was last seen."""
    fingerprint: Fingerprint = UNKNOWN_MACHINE
    ip: str = ""
    public_ip: str = ""
    launched: int = 0
    notice: Notice | None = None
    is_queued: bool = False
    """True if a queue of the place held the machine when it was last seen."""
    is_strayed: bool = False
    """True if the machine had lost its identity when it was last seen. After the loss, only name and uid identify the
    machine."""
    expires_at: float | None = None
    """Epoch seconds by the place's clock at which the place will end the machine."""
    cause: LossCause | None = None
    """Cause of the end of the machine, announced or observed."""
    queued_since: int = 0
    """Epoch seconds by the place's clock at which the wait in the queue began. 0: unknown."""
    queue_reason: str = ""
    """The place's reason for the wait in the queue."""


class Life(NamedTuple):
    """Rare moments of a machine's life, in loop time."""

    released_at: float | None = None
    """Moment at which an observation first showed that the queue has released the machine. The machine's boot time
    counts from this moment."""
    down_since: float | None = None
    """Moment since which a machine that ran is down. The slot's ``failure`` contains the reason."""
    retiring_at: float | None = None
    """Moment at which HF was asked to return the machine because of its age or its known end. The machine runs until
    HF returns it."""
    used_from: float | None = None
    """Moment at which the machine's usage begins. None: usage begins at ``asked_at``. Usage begins later if the machine
    waited first, or if it appeared again after it had counted as gone."""
    is_early_loss: bool = False
    """True if the machine ended by itself soon after it began to run, so that it counts as a failed boot of its
    pool."""


class Deletion(NamedTuple):
    """Progress of deleting a closed slot's machine. Moments are in loop time."""

    closed_at: float | None = None
    """Moment at which the slot was closed."""
    reason: DeleteReason | None = None
    is_gone: bool = False
    """True if the machine is proven gone, so that the slot needs no further action."""
    sent_at: float | None = None
    """Moment at which the latest delete was recorded, before the call."""
    first_sent_at: float | None = None
    """Moment at which the first delete was recorded. A delete that was recorded but never sent does not count."""
    hindrance: Failure | None = None
    """The place's reason why the machine still exists: the delete was refused or had no effect."""
    is_stuck: bool = False
    """True if the machine still exists long after its grace period. An operator should check it."""
    is_forced: bool = False
    """True if a delete without a grace period was recorded, before the call."""


BOOTING = "ContainersNotReady"
"""First word of the failure that each pod has until its containers are ready."""


class Slot(NamedTuple):
    """A try to fill one wanted machine of a request. A slot never changes its name and pool (law: a name is used once).

    A slot is a tuple of tuples because one cycle may change ten thousand slots. Copying a dataclass takes three times
    as long.
    """

    name: str
    pool: str
    verdict: Verdict
    opened_at: float
    submitted_at: float | None = None
    """Moment at which the latest create was recorded, before its call. None: no create was sent."""
    ran_at: float | None = None
    """Moment at which the machine was first seen running, with all data that HF needs."""
    observed: Observed = Observed()
    failure: Failure | None = None
    is_set_aside: bool = False
    """True if a change of verdict was tried that ``TRANSITIONS`` forbids. Actions for the slot are stopped until an
    operator has checked it."""
    life: Life = Life()
    deletion: Deletion = Deletion()
    tries: Tries = UNTRIED

    @property
    def number(self) -> int:
        """Return the number of the slot in its request, from its name ``<prefix>-<request>-<slot>``."""
        return int(self.name[-SLOT_DIGITS:])

    @property
    def request(self) -> str:
        """Return the id of the slot's request, from the slot's name."""
        return self.name.rsplit("-", 2)[1]

    @property
    def may_exist(self) -> bool:
        """Return whether a create was recorded and the machine is not proven gone."""
        return self.submitted_at is not None and not self.deletion.is_gone

    @property
    def is_lost(self) -> bool:
        """Return whether the machine was lost. A machine also counts as lost if its end was announced before HF
        returned it."""
        return self.verdict is Verdict.LOST or (self.verdict is Verdict.RETURNED and self.observed.cause is not None)

    @property
    def is_with_hf(self) -> bool:
        """Return whether HF has the machine, or the machine was reported to HF as running."""
        return self.ran_at is not None and self.verdict in DESIRED

    @property
    def asked_at(self) -> float:
        """Return the moment at which the machine was requested. If no create is recorded, return the moment at which
        the slot was opened."""
        return self.opened_at if self.submitted_at is None else self.submitted_at

    @property
    def boots_from(self) -> float:
        """Return the moment at which the machine's boot began: its release from a queue, or its create if no queue has
        released it."""
        return self.asked_at if self.life.released_at is None else self.life.released_at

    @property
    def trouble(self) -> Failure | None:
        """Return the failure that keeps the machine from running; None if there is no failure.

        Each pod has a failure until its containers are ready. This failure does not count while the machine only boots.
        """
        boots = self.verdict is Verdict.OPEN and self.ran_at is None
        return None if boots and self.failure and self.failure.text.startswith(BOOTING) else self.failure

    @property
    def may_cost(self) -> bool:
        """Return whether a machine that costs money may exist for the slot. The result is False if the place refused
        the create, even before the machine is proven gone."""
        is_known = self.observed.was_seen or self.observed.is_accepted or self.verdict is not Verdict.FAILED
        return self.may_exist and (is_known or self.failure is None or self.failure.error.is_ambiguous)

    def with_observed(self, **facts: Any) -> Slot:
        """Return a copy of the slot, in which these fields of ``observed`` are replaced."""
        return self._replace(observed=self.observed._replace(**facts))

    def with_life(self, **moments: Any) -> Slot:
        """Return a copy of the slot, in which these fields of ``life`` are replaced."""
        return self._replace(life=self.life._replace(**moments))

    def with_deletion(self, **facts: Any) -> Slot:
        """Return a copy of the slot, in which these fields of ``deletion`` are replaced."""
        return self._replace(deletion=self.deletion._replace(**facts))


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request of HF as the loop follows it. Moments are in loop time."""

    id: str
    template: str
    count: int
    read_at: float
    """Moment at which the loop first read the request."""
    deadline_at: float
    """Moment at which the missing machines fail (law: a request always ends)."""
    slots: Mapping[int, Slot] = field(default_factory=dict)
    next_slot: int = 0
    ended: RequestStatus | None = None
    """Terminal status of the request; never None again once set."""
    ended_at: float | None = None
    message: str = ""
    rc_account: str = ""
    reported_at: float | None = None
    """Moment at which the loop noticed that HF knows the terminal answer."""
    is_cancelling: bool = False
    """True in the first step of a cancel, in which the answer only announces the cancel. The second step deletes the
    machines if HF still does not poll."""
    is_trimmed: bool = False
    """True if the record may leave the files. The record leaves intent first, and then memory."""
    failed_without_slot: int = 0
    """Number of machines that were given up without a try and that have no slot of their own. The failures of other
    slots contain the reason."""


class ReturnResult(StrEnum):
    """The possible results for a machine's name in a return request."""

    GONE = "gone"
    NOT_OURS = "not_ours"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class ReturnRecord:
    """A return request of HF as the loop follows it. Moments are in loop time."""

    id: str
    names: tuple[str, ...]
    read_at: float
    deadline_at: float
    results: Mapping[str, ReturnResult] = field(default_factory=dict)
    absent: Mapping[str, float] = field(default_factory=dict)
    """Names without a slot, each with the start time of the first complete set of snapshots that lacked the name."""
    sent: Mapping[str, float] = field(default_factory=dict)
    """Names without a slot, each with the moment at which its latest delete was recorded."""
    ended: RequestStatus | None = None
    ended_at: float | None = None
    reported_at: float | None = None
    is_trimmed: bool = False
    message: str = ""
    """Text about the hold that prevents the deletion of the return request's machines; empty if there is no such hold.
    If the hold was in force at the deadline, the text stays."""
    hindered: Mapping[str, Failure] = field(default_factory=dict)
    """Reasons why machines were not deleted, by name. For a name with a slot, the reason is recorded at the deadline.
    For a name without a slot, the reason is recorded at any time."""


@dataclass(frozen=True, slots=True)
class Window:
    """The back-off and the pending limit of one template in one pool."""

    window: int
    """Number of machines that may be pending now."""
    spec: str = ""
    """Fingerprint of the pod spec or instance template to which the window applies."""
    ran: int = 0
    """Number of machines that began to run in the present round."""
    failed: int = 0
    """Number of machines whose create or boot failed in the present round. A machine for which its place has no room
    does not count."""
    level: int = 0
    """Number of back-offs in a row; 0 while the pool takes creates."""
    blocked_at: float = 0.0
    """Moment at which the latest back-off began. Only a machine that was submitted after this moment can end the
    back-off."""
    retry_at: float = 0.0
    """Moment before which no create is sent."""
    is_probing: bool = False
    """True while only one machine at a time is requested, to find out whether the pool works again."""
    failure: Failure | None = None
    """The reason of the back-off."""
    is_boot_failure: bool = False
    """True if the back-off began because a machine failed whose create had been accepted. Only a running machine ends
    such a back-off."""
    closed_since: float | None = None
    """Moment since which the window has held machines back; None if it holds back no machines."""
    early_loss: Failure | None = None
    """Failure of the latest early loss, if most machines were lost early. The back-off then lasts until a machine
    outlives its first minutes."""

    @property
    def backs_off_from(self) -> Failure | None:
        """Return the failure from which the window backs off; None if the window does not back off."""
        return self.failure if self.level else None


@dataclass(frozen=True, slots=True)
class Brake:
    """The latched brake. While it is latched, orphans are not deleted (law: the brake)."""

    reason: BrakeReason
    since: float
    detail: str
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Uptime:
    """A reading of a host's monotonic clock. No user can set this clock."""

    boot: str
    """Identity of the host and of its boot. The clock counts the seconds since this boot."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment at which a memory was written, by several clocks."""

    time: float = 0.0
    """Loop time."""
    wall: float = 0.0
    """Wall clock in epoch seconds. If a restarted loop measures the time since this moment by the wall clock, the time
    is clamped (law: time is an argument)."""
    uptime: Uptime | None = None
    """Uptime of the host. If the host has not booted since this moment, the uptime measures the length of the loop's
    restart, even if the wall clock was set."""

    @property
    def ahead(self) -> float:
        """Return the seconds by which the wall clock was ahead of loop time."""
        return self.wall - self.time


@dataclass(frozen=True, slots=True)
class Orphans:
    """Machines with our identity that no request explains."""

    since: Mapping[str, float] = field(default_factory=dict)
    """Names of orphans, each with the moment at which it was first seen."""
    deletes: tuple[float, ...] = ()
    """Moments of the deletes of orphans, for the cap per hour."""
    appeared: Mapping[str, float] = field(default_factory=dict)
    """Orphans that appeared while the loop ran, each with the moment of its appearance. Memory keeps an entry for an
    hour, even after the orphan is gone."""
    accepted: tuple[str, ...] = ()
    """Orphans that were known when an operator released the brake, so that they cannot latch the brake again."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts about which HF's lists and the provisioner disagree."""

    unlisted: Mapping[str, float] = field(default_factory=dict)
    """Machines that were reported to HF and that HF's lists have not named for an hour. Each machine has the moment
    since which the lists have not named it. A shorter absence proves nothing, because HF sends its list in parts."""
    unknown: Mapping[str, float] = field(default_factory=dict)
    """Unknown hosts: HF's lists contain the host's name, which has our shape, but no slot and no pool has this host.
    Each host has the start time of the first complete set of snapshots that lacked it."""
    lost: tuple[str, ...] = ()
    """Unknown hosts that two complete sets of snapshots lack. The loop reports these hosts to HF as lost."""


@dataclass(frozen=True, slots=True)
class Places:
    """The place of each pool's machines, and the endpoint that serves it."""

    configured: Mapping[str, str] = field(default_factory=dict)
    """Place of each pool's machines, in the form of ``PoolLimits.where``."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """``Snapshot.endpoint_identity`` of the endpoint that has the machines of the pool, by pool."""
    wrong_since: Mapping[str, float] = field(default_factory=dict)
    """Pools for which a wrong endpoint seems to answer, each with the moment at which the wrong endpoint was first
    seen."""
    unseen: tuple[str, ...] = ()
    """Pools that were not observed yet since this memory was made. If such a pool has a machine of ours, an earlier
    memory was lost."""


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """The totals of the time for which machines existed. The time of a machine is added when the machine is gone."""

    days: Mapping[str, Mapping[tuple[str, str, str], int]] = field(default_factory=dict)
    """Milliseconds by UTC day, and then by template, pool and account. The totals of older days are added up by pool,
    under an empty day."""
    since_wall: float | None = None
    """Epoch seconds since which usage is counted. None: this memory has not counted a machine yet."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The complete state that the loop must not lose."""

    provisioner: str
    epoch: int = 0
    generation: int = 0
    """Highest generation of intent.json that the loop has read."""
    written: Moment = Moment()
    requests: Mapping[str, RequestRecord] = field(default_factory=dict)
    returns: Mapping[str, ReturnRecord] = field(default_factory=dict)
    windows: Mapping[tuple[str, str], Window] = field(default_factory=dict)
    """The windows by pool and template. The field's name stays, because memory.json has a table of the same name."""
    orphans: Orphans = Orphans()
    hosts: Hosts = Hosts()
    places: Places = Places()
    brake: Brake | None = None
    usage: UsageTotals = UsageTotals()
    doubles: Mapping[str, float] = field(default_factory=dict)
    """Uids of further objects that have a machine's name, each with the moment at which the object's latest delete was
    recorded."""

    def wall_of(self, at: float) -> float:
        """Return a moment of loop time as epoch seconds on the loop's host."""
        return at + self.written.ahead

    @property
    def slots(self) -> Iterator[tuple[RequestRecord, Slot]]:
        """Yield every slot with its request."""
        return ((record, slot) for record in self.requests.values() for slot in record.slots.values())
