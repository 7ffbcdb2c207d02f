"""Plans: creates, deletes, slots that close, and the outcomes of calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from provisioner.model.enums import DESIRED, NEVER, DeleteReason, DistrustReason, ErrorClass, Failure, PendingReason
from provisioner.model.memory import Memory, RequestRecord, ReturnRecord, Slot, Window


@dataclass(frozen=True, slots=True)
class Create:
    """The action that makes the machine of an open slot."""

    name: str
    pool: str
    template: str
    request: str
    is_repeated: bool = False
    """True if an earlier create of the machine may have been applied."""


@dataclass(frozen=True, slots=True)
class Delete:
    """The action that deletes a machine. A machine that has the name but another uid is not deleted. An empty ``uid``
    stands for a machine that was never seen, so its uid is unknown."""

    name: str
    pool: str
    reason: DeleteReason
    uid: str = ""
    is_forced: bool = False
    """True to delete without a grace period, because the grace period is over and the machine still exists."""
    is_adopted: bool = False
    """True for a machine of another provider that HF returned to this provisioner and whose name the configuration
    adopts. Such a machine does not have this provisioner's identity."""


Action = Create | Delete


@dataclass(frozen=True, slots=True)
class Outcome:
    """An action that was attempted, and its error if it failed."""

    action: Action
    failure: Failure | None = None
    retry_after: float | None = None
    """Seconds for which a throttling cloud asked to receive no calls; None if the cloud did not say."""


class Transition(NamedTuple):
    """A change of one slot by a plan or by the outcome of an action. Journal, log, metrics and usage show such
    changes."""

    template: str
    read_at: float
    """Loop time at which the slot's request was read."""
    before: Slot | None
    """The slot before the change. None: the slot is new."""
    slot: Slot

    @property
    def is_first_run(self) -> bool:
        """Return whether this change shows the slot's machine running for the first time."""
        return self.slot.ran_at is not None and (self.before is None or self.before.ran_at is None)

    @property
    def is_closed(self) -> bool:
        """Return whether this change closed the slot."""
        return self.slot.verdict not in DESIRED and (self.before is None or self.before.verdict in DESIRED)

    @property
    def is_gone(self) -> bool:
        """Return whether the slot's machine was first proven gone by this change."""
        return self.slot.deletion.is_gone and not (self.before is not None and self.before.deletion.is_gone)


class WindowChange(NamedTuple):
    """A window that changed."""

    pool: str
    template: str
    before: Window | None
    """The window before the change. None: the window is new."""
    window: Window


class Deferral(NamedTuple):
    """Machines of a request that no pool takes now."""

    pool: str
    """The pool for which the machines wait; if they wait for no pool, the first pool of the template."""
    machines: int
    reasons: Mapping[str, PendingReason]
    """The reason why each pool takes no machine, by pool. Only the pools that the plan has considered are included."""


@dataclass(frozen=True, slots=True)
class Distrusted:
    """The reason why the newest snapshot of a pool may not be acted upon. Moments are in loop time."""

    reason: DistrustReason
    since: float
    """Start time of the first snapshot that gave the reason."""
    until: float
    """A list that begins at this moment or later is trusted again; ``NEVER`` if an operator has to decide."""
    missing: int = 0
    """Number of machines that are missing without a cause."""
    expected: int = 0
    """Number of machines in the pool that HF has or that were reported to HF as running."""
    detail: str = ""
    """End of a sentence that begins with the pool's name and says why the place is wrong."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """Machines that a request wants and that do not run. All these machines are in one pool and have the same reason.

    Moments are in loop time.
    """

    pool: str
    """The pool of the machines, or the pool from which they would be requested first."""
    reason: PendingReason
    machines: int
    error: ErrorClass | None = None
    """The class of the failure behind the reason; None if no failure is behind it."""
    text: str = ""
    """The cloud's text, or the name of a cap over all templates."""
    since: float | None = None
    """Moment since which the reason applies. If this moment is unknown, the moment since which the machines are wanted.
    None: memory has the moment, in the window of the pool and template."""
    next_try_at: float | None = None
    """Moment at which the next try begins. None: as soon as the reason is gone."""
    spills_to: str = ""
    """The next pool to request the machines from; empty if no pool has room."""
    spills_at: float | None = None
    """Moment from which the machines may be requested from ``spills_to``. None: as soon as this pool takes the
    machines."""
    behind: str = ""
    """Request that is served first and waits for the same pool and template; empty if there is none."""
    bound: int | None = None
    """The size of the cap or window that is used up."""
    elsewhere: Mapping[str, PendingReason] = field(default_factory=dict)
    """The reason why each other pool takes no machine, by pool."""
    full: Mapping[str, int] = field(default_factory=dict)
    """The caps of the other pools that are used up, by pool."""
    expected_start: int = 0
    """Earliest start of a queued machine by its place's estimate and clock, in epoch seconds. 0: unknown."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of one cycle, and the memory that must be durable before the first action."""

    memory: Memory
    """The memory to record. If the plan changes no part of memory, this is the object from which the plan was made."""
    creates: tuple[Create, ...] = ()
    deletes: tuple[Delete, ...] = ()
    transitions: tuple[Transition, ...] = ()
    """The changes of slots."""
    windows: tuple[WindowChange, ...] = ()
    new_records: tuple[RequestRecord | ReturnRecord, ...] = ()
    """Requests and return requests that were read for the first time."""
    deferrals: Mapping[str, Deferral] = field(default_factory=dict)
    """Machines of each request that no pool takes now."""
    deferred: Mapping[tuple[str, str, PendingReason], int] = field(default_factory=dict)
    """Number of machines that are wanted, missing and held back, by pool, template and reason."""
    unmet: Mapping[str, tuple[Unmet, ...]] = field(default_factory=dict)
    """Machines of each open request that do not run, in the order in which the requests are served."""
    forget: tuple[str, ...] = ()
    """Ids to remove from intent.json now."""
    distrusted: Mapping[str, Distrusted] = field(default_factory=dict)
    """Pools whose newest snapshot may not be acted upon."""
    due_at: float = NEVER
    """Loop time until which another plan from the same inputs would have the same result."""

    @property
    def closes(self) -> tuple[Transition, ...]:
        """Return the changes that closed a slot."""
        return tuple(one for one in self.transitions if one.is_closed)
