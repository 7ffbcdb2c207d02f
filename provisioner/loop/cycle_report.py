"""The values of a cycle.

``Mandate`` is the permission to run cycles as the loop of one epoch. ``Changes`` is for the journal. ``CycleReport`` is
for metrics, log and pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from provisioner.loop.batch_threads import Results
from provisioner.loop.holds import HoldChange
from provisioner.loop.publisher import Reported
from provisioner.model import (
    NO_HOLDS,
    Distrusted,
    DistrustReason,
    ErrorClass,
    Failure,
    Holds,
    Memory,
    Observation,
    PendingReason,
    Plan,
    Snapshot,
    Transition,
    Unmet,
    WindowChange,
    find_failures,
    find_snapshots,
)
from provisioner.planning.observe.trust import format_distrust
from provisioner.process_end import CommandFailed
from provisioner.state.directory_note import find_former

CycleResult = Literal["ok", "partial", "failed"]


class SupersededError(CommandFailed):
    """Raised if a newer loop has taken over. This loop must then no longer write or act.

    Law: one writer per file, one loop.
    """


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one cycle: from the plan, the outcomes of calls, the holds and the publisher."""

    number: int
    """Number of the cycle."""
    wall: float
    """Epoch seconds at the cycle's end."""
    results: Sequence[Results] = ()
    transitions: Sequence[Transition] = ()
    """The slots that changed."""
    windows: Sequence[WindowChange] = ()
    plan: Plan | None = None
    """The plan of the cycle if its memory was recorded; else None."""
    holds: Sequence[HoldChange] = ()
    reported: Sequence[Reported] = ()
    paused: frozenset[str] | None = None
    """Pools that accept no new machine; None if they are the same as in the previous cycle."""


@dataclass(frozen=True, slots=True)
class CycleReport:
    """The observations and actions of one cycle, for metrics, health, log and status page."""

    number: int
    now: float
    seconds: float
    observations: Mapping[str, Observation]
    """Observations as the observers made them, including snapshots that the plan distrusts. ``snapshots`` and
    ``unseen`` take the distrust into account."""
    memory: Memory | None
    """The memory; None until it is loaded or rebuilt."""
    plan: Plan | None
    """The plan; None if planning was skipped or impossible."""
    deferred: Mapping[tuple[str, str, PendingReason], int]
    results: Sequence[Results] = ()
    """Results of the batches that ended since the previous cycle."""
    transitions: Sequence[Transition] = ()
    """The slots that changed."""
    problem: str = ""
    """Reason why this cycle could not do its work; empty if the cycle did it."""
    is_elsewhere: bool = False
    """True if the machines seem to belong to the loop of another state directory."""
    lock_wait_seconds: float | None = None
    """Seconds for which this cycle waited for the lock of intent.json; None if it did not need the lock."""
    unmet: Mapping[str, tuple[Unmet, ...]] | None = None
    """Unmet machines of each open request, by the last plan; None before the first plan."""
    distrusted: Mapping[str, Distrusted] = field(default_factory=dict)
    """Pools whose newest snapshot must not be acted upon, with the reason."""
    ahead_seconds: float = 0.0
    """Seconds by which the wall clock is ahead of loop time."""
    holds: Holds = NO_HOLDS
    """The holds that were in force."""

    @property
    def closes(self) -> Sequence[Transition]:
        """Return the transitions of the slots that ended."""
        return [one for one in self.transitions if one.is_closed]

    @property
    def result(self) -> CycleResult:
        """Return ``ok``, ``partial`` (some action or observation failed) or ``failed``."""
        if self.problem:
            return "failed"
        failed = any(outcome.failure for results in self.results for outcome in results.outcomes)
        return "partial" if failed or len(self.snapshots) < len(self.observations) else "ok"

    @property
    def snapshots(self) -> Mapping[str, Snapshot]:
        """Return the snapshots that may be acted upon (law: a failed observation is not an empty observation)."""
        return {name: observation for name, observation in self.own_snapshots.items() if name not in self.distrusted}

    @property
    def own_snapshots(self) -> Mapping[str, Snapshot]:
        """Return the snapshots that show the right place of their pool. A snapshot distrusted for a mass loss is
        included."""
        unseen = self.unseen
        return {name: seen for name, seen in find_snapshots(self.observations).items() if name not in unseen}

    @property
    def unseen(self) -> Mapping[str, Failure]:
        """Return, by pool, why no snapshot shows the right place of the pool."""
        return find_failures(self.observations) | {
            name: Failure(ErrorClass.INVALID, format_distrust(name, distrusted, self.ahead_seconds))
            for name, distrusted in self.distrusted.items()
            if distrusted.reason is not DistrustReason.MASS_LOSS and name in self.observations
        }

    @property
    def problems(self) -> Mapping[str, tuple[str, ...]]:
        """Return texts for operators, by pool. The texts describe the problems that the snapshot shows at the pool's
        place.

        For a distrusted snapshot, a further text gives the reason of the distrust.
        """
        return {
            name: (*snapshot.problems, format_distrust(name, self.distrusted[name], self.ahead_seconds))
            if name in self.distrusted
            else snapshot.problems
            for name, snapshot in self.own_snapshots.items()
        }


def check_directory(report: CycleReport, directory: str, note: str) -> CycleReport:
    """Return the report. Add a problem if machines exist but HostFactory has recorded no request in the directory.

    ``note``: path of the note that names the state directories used before (``state/directory_note.py``).
    """
    pools = [pool for pool, snapshot in report.own_snapshots.items() if snapshot.machines]
    if report.memory is not None or report.problem or not pools:
        return report
    former = find_former(note, directory)
    known = f"The loop worked on {former} before." if former else "It is not known where the loop worked before."
    text = (
        f"{directory}: HostFactory has recorded no request here, but machines of this provisioner exist (pools "
        f"{', '.join(pools)}). {known} Start the loop with the directory of HostFactory's scripts (--state-dir or "
        "HF_PROVIDER_WORKDIR). If this is that directory, run `provisioner init`: the machines become orphans."
    )
    return replace(report, problem=text, is_elsewhere=True)


@dataclass(frozen=True, slots=True)
class Mandate:
    """The right of a process to write and act as the loop of one epoch (law: one writer per file, one loop)."""

    epoch: int = 0
    check: Callable[[], None] = lambda: None
    """Function that raises SupersededError if the state directory has the epoch of a newer loop."""
    stopping: Callable[[], bool] = lambda: False
    """Function that returns True if the process has been asked to end, so that no further call starts."""
    act_seconds: float = 2.0
    """Seconds in which a cycle may start calls."""
