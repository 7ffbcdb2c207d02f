"""The project's words as types: what is wanted, what is seen, what is remembered, what is decided.

Every value is frozen. Times are loop time in seconds (law: time is an argument) unless a name says
``wall``. No I/O, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, cast


class Phase(StrEnum):
    """What a machine is seen doing. Observed, never enforced."""

    SUBMITTED = "submitted"
    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    GONE = "gone"
    """Dead. In a snapshot its remains are still there and have to be deleted."""


class Verdict(StrEnum):
    """What became of a slot."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    RETURNED = "returned"
    LOST = "lost"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    CANCELLED = "cancelled"


DESIRED = frozenset({Verdict.OPEN, Verdict.SUCCEEDED})
"""Verdicts of slots that should have a machine."""

NEVER = float("inf")
"""Loop time of what will not happen."""

LONG_AGO = float("-inf")
"""Loop time of what has not happened, where what matters is how long ago it did."""


class DeleteReason(StrEnum):
    """Why a machine is deleted. There is no other reason (law: nothing is deleted by count)."""

    RETURNED = "returned"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"
    LOST = "lost"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"


class DeferReason(StrEnum):
    """Why a wanted machine is not created now."""

    WINDOW = "window"
    CAP = "cap"
    BACKOFF = "backoff"
    PAUSED = "paused"
    BUDGET = "budget"


class ErrorClass(StrEnum):
    """Classes of failures; the class picks the back-off, the metric label, the log word and HF's message."""

    THROTTLED = "throttled"
    STOCKOUT = "stockout"
    QUOTA = "quota"
    DENIED = "denied"
    INVALID = "invalid"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    NOT_FOUND = "not_found"
    OTHER = "other"


STOPPING_ERRORS = frozenset({ErrorClass.QUOTA, ErrorClass.DENIED, ErrorClass.STOCKOUT, ErrorClass.INVALID})
"""The first of these stops further creates of that pool and template in the cycle: the next call would get the same."""

AMBIGUOUS_ERRORS = frozenset({ErrorClass.TIMEOUT, ErrorClass.UNAVAILABLE})
"""The call may have been applied although no answer came: the create is repeated under the same name."""


class LossCause(StrEnum):
    """Why a succeeded machine is lost."""

    PREEMPTED = "preempted"
    EVICTED = "evicted"
    DELETED = "deleted"
    NODE = "node"
    EXITED = "exited"
    UNKNOWN = "unknown"


class RequestStatus(StrEnum):
    """HF's three words for a request. The last two are terminal and never revert (law: a terminal answer stays)."""

    RUNNING = "running"
    COMPLETE = "complete"
    COMPLETE_WITH_ERROR = "complete_with_error"


class BrakeReason(StrEnum):
    """Why nothing is deleted as an orphan until ``provisioner recover --release-brake`` is run (law: the brake)."""

    INTENT_OLDER = "intent_older"
    INTENT_LOST = "intent_lost"
    MEMORY_OLDER = "memory_older"
    MEMORY_LOST = "memory_lost"
    REQUEST_LOST = "request_lost"
    TOO_MANY_ORPHANS = "too_many_orphans"
    IDENTITY_CLASH = "identity_clash"
    POOL_ASTRAY = "pool_astray"


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong: the class for us, the text in the cloud's own words for people."""

    error: ErrorClass
    text: str


# --- what is wanted (intent.json) -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """HF asks for ``count`` machines of a template, as a script recorded it."""

    id: str
    template: str
    count: int
    created_wall: float
    """Epoch seconds on the script's host. Only read when memory is lost."""
    rc_account: str = ""
    """LSF's account of the request; echoed with each machine."""


@dataclass(frozen=True, slots=True)
class ReturnRequest:
    """HF gives the named machines back. Names are short host names, as machine names are."""

    id: str
    names: tuple[str, ...]
    created_wall: float


@dataclass(frozen=True, slots=True)
class Intent:
    """What intent.json holds."""

    provisioner: str
    generation: int
    requests: Mapping[str, Request]
    returns: Mapping[str, ReturnRequest]


# --- what is seen -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells a machine from another of the same name. An empty field is unknown."""

    uid: str = ""
    created: str = ""
    started: str = ""
    ip: str = ""

    def differs(self, other: Fingerprint) -> bool:
        """True when a known value changed; a value that appears is no change."""
        return (
            bool(self.uid and other.uid and self.uid != other.uid)
            or bool(self.created and other.created and self.created != other.created)
            or bool(self.started and other.started and self.started != other.started)
            or bool(self.ip and other.ip and self.ip != other.ip)
        )


@dataclass(frozen=True, slots=True)
class Notice:
    """The place has said that a running machine will end."""

    cause: LossCause
    ends: float
    """Loop time when it will be gone."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of ours as its pool shows it."""

    name: str
    phase: Phase
    fingerprint: Fingerprint = Fingerprint()
    ip: str = ""
    public_ip: str = ""
    launched: int = 0
    """Epoch seconds by the cloud's clock; HF wants it constant. 0 = unknown."""
    failure: Failure | None = None
    """Why it does not run (yet), in the place's words."""
    cause: LossCause | None = None
    """Why it is GONE or STOPPING, when that is known."""
    notice: Notice | None = None
    gated: bool = False
    """Somebody, such as a queue, holds it back on purpose: nobody looks for a node for it yet."""
    no_room: bool = False
    """Its place has said that it has no room for it: it waits until something else goes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one pool holds, seen completely. A failed look raises instead (law: a failed look is not an empty look)."""

    pool: str
    began: float
    """When the look began; everything true before then is in it, within the backend's lag."""
    machines: Mapping[str, Machine]
    """Ours, by name. The same object as in the snapshot before when nothing changed."""
    foreign: frozenset[str] = frozenset()
    """Of the names asked about, those that exist here and are not ours."""
    spec: str = ""
    """Fingerprint of the pod spec or instance template; a new one resets what was learned about the pool."""
    asked: frozenset[str] = frozenset()
    """The names that this look asked about. Of any other name it says only whether a machine of ours has it."""
    causes: Mapping[str, LossCause] = field(default_factory=dict)
    """Machines that have gone, perhaps between two looks, and why."""
    problems: tuple[str, ...] = ()
    """What people should know of the pool's place: what others did to it, which of its settings will go wrong."""
    namesakes: frozenset[str] = frozenset()
    """Of the names asked about, those that stand in the pool's place without being its machines. They may be ours, so
    none of them is gone."""
    place: str = ""
    """What tells the pool's place from any other of the same name, as the uid of a namespace; empty: nobody says."""
    listed: float | None = None
    """When the list began that it rests on, where what was heard since then was added to one; None: with the look."""

    @property
    def proves(self) -> float:
        """Since when the place itself, and nothing that was heard of it before, shows this."""
        return self.began if self.listed is None else self.listed


@dataclass(frozen=True, slots=True)
class Unobserved:
    """A pool that could not be seen completely. It gets no actions (law: a failed look is not an empty look)."""

    pool: str
    began: float
    failure: Failure


Look = Snapshot | Unobserved


NEWS_SECONDS = 300.0
"""That HF goes on to list the same hosts is news so often: which of them no list names is a matter of an hour."""


@dataclass(frozen=True, slots=True)
class Contact:
    """What was noticed of HF's calls. Kept in memory only: after a restart everything counts as just polled."""

    polled: Mapping[str, float] = field(default_factory=dict)
    """When a poll of an id was last noticed."""
    since: float = 0.0
    """Since when HF's calls have been noticed: silence before it proves nothing."""
    active: float = 0.0
    """When any call of HF was last noticed."""
    told: frozenset[str] = frozenset()
    """Ids whose terminal answer a script has read."""
    inventory: frozenset[str] = frozenset()
    """The hosts that HF's latest lists name, by short name: one list may be a part of the whole."""
    listed: Mapping[str, float] = field(default_factory=dict)
    """When a list was last noticed to name a host; for a day."""
    lists: float = 0.0
    """When any list was last noticed."""
    started: float = 0.0
    """When this process began to notice; before ``since`` when HF was away in the meantime."""

    @property
    def news(self) -> tuple[object, ...]:
        """The same for two contacts between which HF has only gone on to list the same hosts, for ``NEWS_SECONDS``."""
        return self.told, self.inventory, self.since, self.started, len(self.polled), self.active // NEWS_SECONDS


# --- what is remembered (memory.json) ---------------------------------------------------------------------------------


class Slot(NamedTuple):
    """One try to fill one wanted machine of a request. Name and pool are for ever (law: a name is used once).

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
    """Closed, and its machine goes on terminating long after the end of its grace period: a person should look."""
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
    """When its machine was offered to HF because of its age: it runs until HF gives it back."""
    started: float | None = None
    """From when its machine counts as used, where that is not ``asked_at``: it had waited, or came back late."""

    @property
    def request(self) -> str:
        """The id of the request that it belongs to, as its name says: ``<prefix>-<request>-<slot>``."""
        return self.name.rsplit("-", 2)[1]

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


def evolving(*names: str) -> Callable[..., Slot]:
    """``evolving("ip", …)(slot, ip, …)``: as ``evolve``, for a change that is always of the same fields, all given.

    The function is compiled for them, as a named tuple's own are: it takes half the time.
    """
    held = ", ".join(f"_{name}" for name in Slot._fields)
    values = ", ".join(name if name in names else f"_{name}" for name in Slot._fields)
    source = f"def evolved(slot, {', '.join(names)}):\n    {held} = slot\n    return new(Slot, ({values}))"
    scope: dict[str, Any] = {"new": tuple.__new__, "Slot": Slot}
    exec(source, scope)
    return cast("Callable[..., Slot]", scope["evolved"])


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
    places: Mapping[str, str] = field(default_factory=dict)
    """``Snapshot.place`` of each pool, as it was where its machines are."""
    accepted: tuple[str, ...] = ()
    """Orphans that were known when a person released the brake: their number latches it no more."""
    unlisted: Mapping[str, float] = field(default_factory=dict)
    """Machines that HF was told of and no list of HF has named for an hour (lists come in parts), and since when."""
    brake: Brake | None = None
    strangers: Mapping[str, float] = field(default_factory=dict)
    """Hosts that HF lists, with our shape, that we do not know and no pool holds; since which set of snapshots."""
    lost_strangers: tuple[str, ...] = ()
    """Those of them that two sets of complete snapshots lack: reported as lost."""
    unseen_pools: tuple[str, ...] = ()
    """Pools not seen yet since this memory was made: a machine of ours there means that a memory was lost."""
    whereabouts: Mapping[str, str] = field(default_factory=dict)
    """Where the machines of each pool are, as ``PoolLimits.where``."""
    usage: Mapping[str, Mapping[tuple[str, str, str], int]] = field(default_factory=dict)
    """Milliseconds for which machines were there that are gone: by UTC day, then by template, pool and account. Those
    of days that are kept no longer are under an empty day, by pool alone."""
    usage_since_wall: float | None = None
    """Since when usage is counted, epoch seconds; None: no machine of this memory has gone yet, or been counted."""


# --- what people hold back (levers.json) ------------------------------------------------------------------------------


class LeverKind(StrEnum):
    """What a person holds the loop back by. The words are those of the commands."""

    PAUSE = "pause"
    """A pool gets no new machines."""
    DRAIN = "drain"
    """Nor does this one, and HF is asked to give its machines back."""
    CANCEL = "cancel"
    """An open request ends with what it got; HF is asked to give a machine back."""
    STOP_ALL = "stop-all"
    """No machine is made or deleted anywhere."""


@dataclass(frozen=True, slots=True)
class Lever:
    """One lever that a person has pulled, or let go of."""

    kind: LeverKind
    target: str = ""
    """The pool, the request or the machine; empty where it holds everything."""
    who: str = ""
    """The user's name on the host where the command ran."""
    since: float = 0.0
    """Epoch seconds of that host. For people; never compared."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Levers:
    """What levers.json holds."""

    held: tuple[Lever, ...] = ()
    released: tuple[Lever, ...] = ()
    """Of each that was let go: by whom, when and why, the last time."""

    def of(self, kind: LeverKind) -> Mapping[str, Lever]:
        """Those of a kind that are held, by target."""
        return {lever.target: lever for lever in self.held if lever.kind is kind}

    @property
    def stop(self) -> Lever | None:
        """The lever that holds everything."""
        return next((lever for lever in self.held if lever.kind is LeverKind.STOP_ALL), None)

    def against(self, pool: str) -> Lever | None:
        """What keeps new machines from a pool."""
        kinds = (LeverKind.DRAIN, LeverKind.PAUSE)
        mine = (lever for kind in kinds for lever in self.held if lever.kind is kind and lever.target == pool)
        return self.stop or next(mine, None)


NO_LEVERS = Levers()


# --- limits (configuration, as the plan needs it) ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What one pool may be asked for. Durations in seconds."""

    name: str
    max_machines: int | None = None
    """Cap per template, on observed + submitted machines. None: no cap."""
    max_machines_total: int | None = None
    """The same over all templates."""
    max_pending: int = 1000
    initial_window: int = 100
    boot_deadline: float = 600.0
    early_loss: float = 300.0
    """A machine lost sooner than this after it ran, by nobody's doing, counts as a failed boot. 0: none does."""
    gated_deadline: float = 3600.0
    spill_after: float = 180.0
    lag: float = 0.0
    """How far apart two snapshots must begin before both prove an absence."""
    mass_loss: float = 60.0
    """How far apart two lists must begin before both prove that many machines are gone at once. 0: as for a few."""
    stale_after: float = 60.0
    """A snapshot older than this is no longer acted upon."""
    paused: bool = False
    stuck_after: float | None = None
    """How long after the end of its grace period a terminating machine counts as stuck. None: no end is known here."""
    force_after: float | None = None
    """How long after the end of its grace period a machine of a closed slot is deleted by force. None: never."""
    where: str = ""
    """The place, in words; not how it is reached, which may change while its machines run."""
    price_per_hour: float | None = None
    """What a machine costs, where its template has no price of its own. None: nobody has said."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Where a template's machines may be made, in order, how many of them, and when the last ones are given up."""

    id: str
    pools: tuple[str, ...]
    max_machines: int | None = None
    """HF's maxNumber. None: unlimited."""
    straggler_after: float = 0.0
    """Seconds without a change of a request after which the last of its machines fail. 0: they have its deadline."""
    straggler_share: float = 0.9
    """The share of a request's machines that has to run before."""
    tries: int = 3
    """Tries of one wanted machine that may fail before it is given up. 0: as many as the request's deadline allows."""
    max_lifetime: float | None = None
    """Seconds that a machine runs before it is offered to HF. None: it never is."""
    price_per_hour: float | None = None
    """What a machine costs, in whatever pool. None: what the pool says."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What all machines together may cost."""

    per_hour: float | None = None
    """Most that those which are there or asked for may cost in an hour. None: any."""
    per_month: float | None = None
    """What machines may have cost in a calendar month (UTC) when another one is asked for. None: any."""
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Limits:
    """Everything the plan takes from the configuration. Durations in seconds."""

    prefix: str
    pools: Mapping[str, PoolLimits]
    templates: Mapping[str, TemplateLimits]
    request_deadline: float = 3600.0
    return_deadline: float = 3600.0
    orphan_grace: float = 600.0
    orphan_cap_per_hour: int = 20
    cancel_after: float = 1800.0
    retention: float = 86400.0
    backoff_first: float = 5.0
    backoff_last: float = 1800.0
    backoff_no_room: float = 180.0
    """Longest back-off of a pool that only has no room: a probe of it costs a call."""
    adopt_prefixes: tuple[str, ...] = ()
    delete_unlisted_after: float | None = None
    """None: a machine that no list of HF names is only shown."""
    budget: Budget = Budget()
    usage_days: int = 92
    """Days of which usage is kept."""
    levers: Levers = NO_LEVERS
    """Those that are held. ``planning.levers.in_force`` puts them here, and pauses the pools that they hold."""

    def price(self, template: str, pool: str) -> float | None:
        """What a machine costs in an hour: its template's price, else its pool's. None: nobody has said."""
        own = self.templates.get(template)
        if own is not None and own.price_per_hour is not None:
            return own.price_per_hour
        where = self.pools.get(pool)
        return where.price_per_hour if where else None


# --- what is decided --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Create:
    """Make the machine of an open slot."""

    name: str
    pool: str
    template: str
    request: str
    again: bool = False
    """An earlier create of it may have been applied."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a machine, and only the one that was seen (``uid``, empty when it was never seen)."""

    name: str
    pool: str
    reason: DeleteReason
    uid: str = ""
    force: bool = False
    """Without the grace period that it had, and has overstayed."""
    adopted: bool = False
    """Another provider's machine, which HF gave back and whose name the configuration adopts: not ours by identity."""


Action = Create | Delete


@dataclass(frozen=True, slots=True)
class Outcome:
    """An action that was tried, and its error if it had one."""

    action: Action
    failure: Failure | None = None
    seconds: float = 0.0
    retry_after: float | None = None
    """Seconds for which a throttling cloud asked not to be called; None when it did not say."""


@dataclass(frozen=True, slots=True)
class Close:
    """A slot that ended in this plan: for the journal, the log and the metrics."""

    name: str
    pool: str
    template: str
    verdict: Verdict
    failure: Failure | None = None
    cause: LossCause | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """The newest look at a pool lacks too many machines at once to be believed before a second one says the same."""

    machines: int
    """How many are missing and nobody knows why."""
    known: int
    """How many HF has or was told of there."""
    since: float
    """When the look began that was the first to lack one of them."""
    settled_by: float
    """A look whose list begins no sooner than this is believed, whatever it shows; ``NEVER``: a person has to say."""
    astray: str = ""
    """What shows that another place answers for this one, in words for people; empty where nothing does."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one cycle does, and the memory that has to be durable before it does anything."""

    memory: Memory
    """The same object as before when there is nothing to record."""
    creates: tuple[Create, ...] = ()
    deletes: tuple[Delete, ...] = ()
    closes: tuple[Close, ...] = ()
    deferred: Mapping[tuple[str, str, DeferReason], int] = field(default_factory=dict)
    """Machines wanted, missing and held back, by pool, template and reason."""
    forget: tuple[str, ...] = ()
    """Ids that leave intent.json now."""
    doubts: Mapping[str, Doubt] = field(default_factory=dict)
    """Pools whose newest look is not believed yet."""
    due: float = NEVER
    """Loop time before which another plan, of the same inputs, would say the same."""

    @property
    def settled(self) -> bool:
        """Nothing to do and nothing held back."""
        return not (self.creates or self.deletes or self.deferred)
