"""A cycle as values: as which loop it acts, what it changed, and what it saw and did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from provisioner.loop.actors import Results
from provisioner.loop.holds import HoldChange
from provisioner.loop.publisher import Reported
from provisioner.model import (
    NO_LEVERS,
    Distrusted,
    DistrustReason,
    ErrorClass,
    Failure,
    Levers,
    Look,
    Memory,
    PendingReason,
    Plan,
    Snapshot,
    Transition,
    Unmet,
    Unobserved,
    WindowChange,
)
from provisioner.planning.observe.trust import format_distrust

CycleResult = Literal["ok", "partial", "failed"]


class SupersededError(Exception):
    """A newer loop has taken over: this one must not write or act again (law: one writer per file, one loop)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one cycle changed, as its plans, the holds and the publisher returned it."""

    number: int
    """The cycle's."""
    wall: float
    """Epoch seconds at its end."""
    results: Sequence[Results] = ()
    transitions: Sequence[Transition] = ()
    """The slots that changed."""
    windows: Sequence[WindowChange] = ()
    plan: Plan | None = None
    """The cycle's own plan if it was recorded."""
    holds: Sequence[HoldChange] = ()
    reported: Sequence[Reported] = ()
    paused: frozenset[str] | None = None
    """The pools that take no machine; None: as in the cycle before."""


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What one cycle saw and did, for metrics, health, log and people."""

    number: int
    now: float
    seconds: float
    looks: Mapping[str, Look]
    """As the pools were observed; ``snapshots`` and ``unseen`` add whether they are trusted."""
    memory: Memory | None
    """None while there is nothing to work from."""
    plan: Plan | None
    """None when planning was skipped or impossible."""
    deferred: Mapping[tuple[str, str, PendingReason], int]
    results: Sequence[Results] = ()
    """Batches that ended since the cycle before."""
    transitions: Sequence[Transition] = ()
    """The slots that changed."""
    problem: str = ""
    """Why this cycle could not do its work."""
    lock_wait: float | None = None
    """Seconds this cycle waited for intent's lock, if it needed it."""
    unmet: Mapping[str, tuple[Unmet, ...]] | None = None
    """Machines of each open request that do not run, as the last plan met them; None before the first plan."""
    distrusted: Mapping[str, Distrusted] = field(default_factory=dict)
    """Pools whose newest snapshot may not be acted upon."""
    ahead: float = 0.0
    """Seconds from loop time to the wall clock."""
    levers: Levers = NO_LEVERS
    """Those that were in force."""

    @property
    def closes(self) -> Sequence[Transition]:
        """The slots that ended."""
        return [one for one in self.transitions if one.closes]

    @property
    def result(self) -> CycleResult:
        """``ok``, ``partial`` (some action or look failed) or ``failed``."""
        if self.problem:
            return "failed"
        failed = any(outcome.failure for results in self.results for outcome in results.outcomes)
        return "partial" if failed or len(self.snapshots) < len(self.looks) else "ok"

    @property
    def snapshots(self) -> Mapping[str, Snapshot]:
        """The snapshots that may be acted upon (law: a failed look is not an empty look)."""
        return {name: look for name, look in self.shown.items() if name not in self.distrusted}

    @property
    def shown(self) -> Mapping[str, Snapshot]:
        """The snapshots of the pools' own places, also those that lack too many machines to be acted upon."""
        unseen = self.unseen
        return {name: look for name, look in self.looks.items() if isinstance(look, Snapshot) and name not in unseen}

    @property
    def unseen(self) -> Mapping[str, Failure]:
        """The pools whose own places no snapshot shows, and why."""
        failures = {name: look.failure for name, look in self.looks.items() if isinstance(look, Unobserved)}
        return failures | {
            name: Failure(ErrorClass.INVALID, format_distrust(name, distrusted, self.ahead))
            for name, distrusted in self.distrusted.items()
            if distrusted.reason is not DistrustReason.MASS_LOSS and name in self.looks
        }

    @property
    def problems(self) -> Mapping[str, tuple[str, ...]]:
        """What operators should know of the place of each pool that a snapshot shows."""
        return {
            name: (*snapshot.problems, format_distrust(name, self.distrusted[name], self.ahead))
            if name in self.distrusted
            else snapshot.problems
            for name, snapshot in self.shown.items()
        }


@dataclass(frozen=True, slots=True)
class Mandate:
    """As which loop a process writes and acts, and how long it may begin to (law: one writer per file, one loop)."""

    epoch: int = 0
    check: Callable[[], None] = lambda: None
    """Raises SupersededError when a newer loop's epoch stands in the state directory."""
    stopping: Callable[[], bool] = lambda: False
    """The process is to end: no further call is started."""
    act_seconds: float = 2.0
    """Seconds in which the calls of one cycle are started."""
