"""What the plan decides: creates, deletes, what is closed, and how calls ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from provisioner.model.memory import Memory, RequestRecord, ReturnRecord, Slot, Window
from provisioner.model.words import (
    DESIRED,
    NEVER,
    DeleteReason,
    DistrustReason,
    ErrorClass,
    Failure,
    PendingReason,
    Verdict,
)


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
    retry_after: float | None = None
    """Seconds for which a throttling cloud asked not to be called; None when it did not say."""


class Transition(NamedTuple):
    """What became of one slot, by a plan or by the outcome of an action: for journal, log, metrics and usage."""

    template: str
    read: float
    """When its request was read."""
    before: Slot | None
    """None: the slot is new."""
    slot: Slot

    @property
    def runs(self) -> bool:
        """Its machine runs for the first time."""
        return self.slot.ran is not None and (self.before is None or self.before.ran is None)

    @property
    def closes(self) -> bool:
        """The slot ended."""
        return self.slot.verdict not in DESIRED and (self.before is None or self.before.verdict in DESIRED)

    @property
    def is_lost(self) -> bool:
        """The machine was lost, also one that HF gave back in time after its end was announced."""
        verdict = self.slot.verdict
        return verdict is Verdict.LOST or (verdict is Verdict.RETURNED and self.slot.observed.cause is not None)

    @property
    def is_gone(self) -> bool:
        """Its machine is proven absent from now on."""
        return self.slot.deletion.gone and not (self.before is not None and self.before.deletion.gone)


class WindowChange(NamedTuple):
    """A window that changed."""

    pool: str
    template: str
    before: Window | None
    """None: the window is new."""
    window: Window


class Deferral(NamedTuple):
    """Machines of a request that no pool takes now."""

    pool: str
    """The pool that they wait for, or would go to first."""
    machines: int
    reasons: Mapping[str, PendingReason]
    """The reason of each pool that was asked."""


@dataclass(frozen=True, slots=True)
class Distrusted:
    """Why the newest snapshot of a pool may not be acted upon."""

    reason: DistrustReason
    since: float
    """When the first snapshot began that showed it."""
    until: float
    """A snapshot whose list begins no sooner than this is trusted; ``NEVER``: an operator decides."""
    missing: int = 0
    """Machines that are missing without a cause."""
    expected: int = 0
    """Machines that HF has or was told of there."""
    detail: str = ""
    """What shows that the place is another one, in words that follow the pool."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """Machines that a request wants and that do not run, of one pool and for one reason. Times are loop time."""

    pool: str
    """The pool where they are, or would go first."""
    reason: PendingReason
    machines: int
    error: ErrorClass | None = None
    """The class of the failure behind the reason, if there is one."""
    text: str = ""
    """The cloud's words, or the name of a cap over all templates."""
    since: float | None = None
    """Since when the reason holds, or else the machines are wanted; None where memory's window says since when."""
    next_try: float | None = None
    """When they, or others in their place, are asked for again. None: as soon as the reason is gone."""
    spills_to: str = ""
    """The pool that is asked next instead."""
    spills_at: float | None = None
    """When that pool is asked. None: as soon as it takes the machines."""
    behind: str = ""
    """The request that waits for the same and asks first."""
    bound: int | None = None
    """The size of the cap or window that is used up."""
    elsewhere: Mapping[str, PendingReason] = field(default_factory=dict)
    """The other pools, and why these take no machine."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one cycle does, and the memory that has to be durable before it does anything."""

    memory: Memory
    """The same object as before when there is nothing to record."""
    creates: tuple[Create, ...] = ()
    deletes: tuple[Delete, ...] = ()
    transitions: tuple[Transition, ...] = ()
    """The slots that changed."""
    windows: tuple[WindowChange, ...] = ()
    asked: tuple[RequestRecord | ReturnRecord, ...] = ()
    """Requests and return requests that were read for the first time."""
    deferrals: Mapping[str, Deferral] = field(default_factory=dict)
    """Machines of each request that no pool takes now."""
    deferred: Mapping[tuple[str, str, PendingReason], int] = field(default_factory=dict)
    """Machines wanted, missing and held back, by pool, template and reason."""
    unmet: Mapping[str, tuple[Unmet, ...]] = field(default_factory=dict)
    """Machines of each open request that do not run, in the order in which the requests ask."""
    forget: tuple[str, ...] = ()
    """Ids that leave intent.json now."""
    distrusted: Mapping[str, Distrusted] = field(default_factory=dict)
    """Pools whose newest snapshot may not be acted upon."""
    due: float = NEVER
    """Loop time before which another plan, of the same inputs, would say the same."""

    @property
    def closes(self) -> tuple[Transition, ...]:
        """The slots that end."""
        return tuple(one for one in self.transitions if one.closes)
