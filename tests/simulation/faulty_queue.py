"""Half an hour of a scheduler's queue in virtual time. By chance, calls of the scheduler fail, hang or give a wrong
result.

``Queue`` has the true jobs, and ``Run`` runs the loop's own cycle with HostFactory. A test puts a real backend between
the two, and responds to the backend's calls with the jobs and faults of the queue. Equal seeds make equal runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from provisioner.backends import Backend, BackendError
from provisioner.lab.cloud.world import World
from provisioner.lab.virtual.driver import VirtualClock
from provisioner.lab.virtual.hostfactory import Grid
from provisioner.lab.virtual.scenario import PROVISIONER
from provisioner.lab.virtual.scenario_file import scenarios
from provisioner.lab.virtual.state import VirtualState
from provisioner.loop.batch_threads import Batch
from provisioner.loop.cycle_report import Mandate
from provisioner.loop.reconciler import Reconciler
from provisioner.model import DESIRED, NEVER, DeleteReason, Observation, ObservationFailed, Slot
from provisioner.names import name_pattern
from tests.support.inline_actors import InlineActors

POOL = "a"
PREFIX = "hf"
OLD, LATE, UNSEEN = 60.0, 30.0, 8.0
"""Most seconds by which a list is old, after which a create takes effect that was given up, and for which a list lacks
a new job."""
LAG = OLD + LATE + UNSEEN + 2.0
"""Setting ``lag_seconds`` of the pool, as it has to be for such a place."""
PACE = 10.0
CALM = 1500.0
"""Second from which all faults are over."""
PATIENCE = 3600.0
"""Most seconds of the calm."""
SCENARIO: Mapping[str, Any] = {
    "about": "A queue whose answers are not to be relied on.",
    "pools": {POOL: {"lag_seconds": LAG, "observe_seconds": PACE, "boot_deadline_seconds": 240, "initial_window": 8}},
    "demand": [{"machines": 3}, {"machines": 6, "for_minutes": 24, "walk": 3}],
    "hostfactory": {"poll_seconds": 15, "batch": 3},
    "settings": {"request_deadline_minutes": 10, "return_deadline_minutes": 10},
}
WRONG_REASONS = (DeleteReason.LOST, DeleteReason.ORPHANED, DeleteReason.DOUBLED)
"""Reasons for which no running job may be deleted. Others neither end nor make jobs under our names."""


@dataclass
class Job:
    """A job of the queue. Times are world time."""

    number: int
    name: str
    mark: str
    made_at: float
    runs_at: float
    ends_at: float
    listed_at: float
    """The time since which lists show the job."""
    removed_at: float = NEVER
    """The time since which lists lack the job."""

    def state(self, now: float) -> str:
        """Return ``waiting``, ``running`` or ``ended``."""
        return "ended" if now >= self.ends_at else "running" if now >= self.runs_at else "waiting"


class Queue:
    """A scheduler with its true jobs and its faults."""

    def __init__(self, seed: int, keeps: float = 120.0) -> None:
        """``keeps``: seconds for which the record of an ended job stays."""
        self.world = World(seed=seed)
        self.jobs: dict[int, Job] = {}
        self.broken: list[str] = []
        self.faults = 0
        self.is_alive = True
        """False once the loop's process is killed: no further call has an effect."""
        self.may_delete: Callable[[Job], str] = lambda job: ""
        """A function that returns why a live job must not be deleted; empty if the job may be deleted."""
        self._chance = random.Random(f"{seed} queue")
        self._rate = self._chance.choice((0.02, 0.1, 0.3))
        self._keeps = keeps
        self._kill_after = self._chance.randrange(400)
        self._bouts: dict[tuple[str, ...], tuple[str, float]] = {}
        """The fault that each sort of call has until a time."""
        self._frozen = 0.0
        """The time of the last list that was old."""

    # --- the clock that the backend reads -----------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Return world time, as ``time.monotonic`` does."""
        return self.world.now

    def time(self) -> float:
        """Return the wall clock, as ``time.time`` does."""
        return self.world.wall()

    def pass_time(self, seconds: float) -> None:
        """Let time pass during a call."""
        self.world.advance(self.world.now + seconds)

    # --- faults -------------------------------------------------------------------------------------------------------

    def fault(self, *possible: str) -> str:
        """Begin a call. Return the name of the fault that strikes the call; empty if there is none.

        Raise OSError if the loop's process is dead.
        """
        self._kill_after -= 1
        if self._kill_after == 0 and self.world.now < CALM:
            self.is_alive = False
        if not self.is_alive:
            raise OSError("the process of the loop was killed")
        self.pass_time(self._chance.uniform(0.0, 1.0))
        if self.world.now >= CALM:
            return ""
        if self.world.now >= self._bouts.get(possible, ("", 0.0))[1] and self._chance.random() >= self._rate:
            return ""
        fault, until = self._bouts.get(possible, ("", 0.0))
        if self.world.now >= until:
            fault = self._chance.choice(possible)
            until = self.world.now + self._chance.choice((0.0, 20.0, 100.0))
            self._bouts[possible] = fault, until
        self.faults += 1
        return fault

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return self._chance.random() < share

    def moment(self, *, old: bool) -> float:
        """Return the world time of the state that a list shows: the present or, for an ``old`` list, a time before
        it."""
        now = self.world.now
        if not old:
            return now
        if self._frozen < now - OLD:
            self._frozen = max(0.0, now - self._chance.uniform(0.0, OLD))
        return self._frozen

    # --- calls --------------------------------------------------------------------------------------------------------

    def submit(self, name: str, mark: str) -> int:
        """Make a job. Return its number."""
        number = len(self.jobs) + 1
        now, chance = self.world.now, self._chance
        if name in self.live():
            self.broken.append(f"{now:.0f} s: doubled: {name} was made while it existed")
        runs_at = now + chance.choice((0.0, 5.0, 60.0, 300.0))
        ends_at = runs_at + (chance.uniform(1.0, 600.0) if now < CALM and chance.random() < 0.1 else 1e9)
        listed_at = now + chance.choice((0.0, 0.0, UNSEEN))
        self.jobs[number] = Job(number, name, mark, now, runs_at, ends_at, listed_at, ends_at + self._keeps)
        return number

    def submit_late(self, name: str, mark: str, after: float) -> None:
        """Make a job for a call that has no result. The job appears up to LATE seconds after the end of the call.

        ``after``: seconds until the call ends.
        """
        self.world.after(after + self._chance.uniform(0.0, LATE), lambda: self.submit(name, mark) and None)

    def cancel(self, number: int) -> bool:
        """End a job. Return False if there is no such job, or if the job has already ended."""
        job, now = self.jobs.get(number), self.world.now
        if job is None or job.state(now) == "ended":
            return False
        if why := self.may_delete(job):
            self.broken.append(f"{now:.0f} s: wrongly deleted: {job.name}, {job.state(now)}: {why}")
        job.ends_at, job.removed_at = now, now + self._keeps
        return True

    def forget(self, number: int) -> bool:
        """Remove the record of an ended job. Return False if there is no such record."""
        job, now = self.jobs.get(number), self.world.now
        if job is None or not job.ends_at <= now < job.removed_at:
            return False
        job.removed_at = now
        return True

    def shown(self, at: float) -> list[Job]:
        """Return the jobs that a list with the state of the moment ``at`` shows, the newest first."""
        return [job for job in reversed(self.jobs.values()) if job.listed_at <= at < job.removed_at]

    def live(self) -> set[str]:
        """Return the names of the jobs that have not ended."""
        return {job.name for job in self.jobs.values() if job.state(self.world.now) != "ended"}


class Run:
    """A run of the loop and HostFactory with one pool. The jobs of the queue are the pool's machines."""

    def __init__(self, queue: Queue, make: Callable[[], Backend]) -> None:
        """``make``: function that returns the backend of a new process of the loop."""
        self.queue, self.world, self._make = queue, queue.world, make
        self.scenario = scenarios({"queue": dict(SCENARIO)}, "tests")["queue"]
        self.state = VirtualState(self.world.seed)
        self.grid = Grid(self.scenario, self.state, self.world)
        self.lives = 0
        self._chance = random.Random(f"{self.world.seed} loop")
        self._shape = name_pattern(PREFIX)
        self._reasons: dict[str, DeleteReason] = {}
        self._observation: Observation | None = None
        queue.may_delete = self._why_not
        self._live()

    def play(self) -> list[str]:
        """Play the run to its end. Return the problems, such as laws that were broken."""
        poll_at = 0.0
        while self.world.now < CALM + PATIENCE:
            if self.world.now >= poll_at:
                poll_at = self.world.now + self.scenario.hostfactory.poll_seconds
                self.grid.round()
                self._check_losses()
            self._cycle()
            if self.queue.broken or (self.world.now > CALM + 2 * LAG and self._is_settled()):
                break
            self.queue.pass_time(self._chance.uniform(2.0, 6.0))
        return self._problems()

    def _live(self) -> None:
        """Begin a process of the loop."""
        self.lives += 1
        self.queue.is_alive = True
        self._backend = self._make()
        self._clock = VirtualClock(self.world, self.state.memory.latest, 0.0)
        self._observation, epoch = None, self.state.loop_lock.raise_epoch()
        self._reconciler = Reconciler(
            clock=self._clock,
            state=self.state,
            actors=Actors({POOL: self._backend}, self._note),
            limits=self.scenario.limits(),
            provisioner=PROVISIONER,
            mandate=Mandate(epoch, lambda: None),
        )

    def _cycle(self) -> None:
        observation = self._observe()
        if self.queue.is_alive:
            report = self._reconciler.cycle({POOL: observation})
            if report.problem:
                self.queue.broken.append(f"{self.world.now:.0f} s: {report.problem}")
        if not self.queue.is_alive:
            self._backend.close()
            self._live()

    def _observe(self) -> Observation:
        """Return the newest observation, which may have begun before the last batch."""
        before, now = self._observation, self._clock.now()
        if before is None or now >= before.began_at + PACE:
            sought = self._reconciler.sought().get(POOL, {})
            try:
                self._observation = self._backend.observe(now, sought)
            except BackendError as error:
                self._observation = ObservationFailed(POOL, now, error.failure)
        assert self._observation is not None
        return self._observation

    def _note(self, batch: Batch) -> None:
        self._reasons |= {delete.name: delete.reason for delete in batch.deletes}

    def _slot(self, name: str) -> Slot | None:
        memory = self.state.memory.latest
        return next((slot for _, slot in memory.slots if slot.name == name), None) if memory else None

    def _why_not(self, job: Job) -> str:
        slot, reason = self._slot(job.name), self._reasons.get(job.name)
        if not self._shape.fullmatch(job.name):
            return "it is not ours"
        if job.name in self.grid.hosts:
            return "HostFactory has it"
        if slot is not None and slot.verdict in DESIRED:
            return f"its slot is {slot.verdict}"
        return f"it is {reason}" if reason in WRONG_REASONS and job.state(self.world.now) == "running" else ""

    def _check_losses(self) -> None:
        for name in {job.name for job in self.queue.jobs.values() if job.state(self.world.now) == "running"}:
            if name in self.grid.lost:
                self.queue.broken.append(f"{self.world.now:.0f} s: {name} runs and was reported as lost")

    def _ours(self) -> set[str]:
        return {name for name in self.queue.live() if self._shape.fullmatch(name)}

    def _is_settled(self) -> bool:
        return not self.grid.facts()["open"] and len(self.grid.hosts) == 3 and self._ours() == {*self.grid.hosts}

    def _problems(self) -> list[str]:
        problems = [*self.queue.broken, *self.grid.broken]
        if not problems and not self._is_settled():
            only = sorted(self._ours() ^ {*self.grid.hosts})
            problems.append(f"{self.grid.facts()['open']} requests are open, {only} are at one side only at the end")
        memory = self.state.memory.latest
        if memory is not None and memory.brake is not None:
            problems.append(f"the brake is latched: {memory.brake}")
        return problems


class Actors(InlineActors):
    """Actors that carry out each batch at once. Before that, they call ``show`` with the batch."""

    def __init__(self, backends: Mapping[str, Backend], show: Callable[[Batch], None]) -> None:
        super().__init__(backends)
        self._show = show

    def submit(self, batch: Batch, may_start: Callable[[], bool]) -> None:
        """Call ``show`` with the batch, then carry it out."""
        self._show(batch)
        super().submit(batch, may_start)
