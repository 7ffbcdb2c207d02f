"""The machines of a pool in virtual time. The scenario and a random generator decide how machines boot, run, fail and
end.

This module holds the true state of the machines. The module ``backend`` shows the loop this state, distorted as the
scenario says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from provisioner.lab.cloud.world import World
from provisioner.lab.virtual.scenario import Calls, VirtualPool
from provisioner.model import ErrorClass, Failure, Fingerprint, LossCause, Machine, MachineEnd, Phase, Queued

FULL = Failure(ErrorClass.STOCKOUT, "The place has no room for this machine.")
QUOTA = Failure(ErrorClass.QUOTA, "The quota of machines is exceeded.")
DENIED = Failure(ErrorClass.DENIED, "The call is not allowed.")
THROTTLED = Failure(ErrorClass.THROTTLED, "Too many calls.")
UNANSWERED = Failure(ErrorClass.UNAVAILABLE, "There was no answer.")
LOST_ANSWER = Failure(ErrorClass.TIMEOUT, "The answer was lost.")
TAKEN = Failure(ErrorClass.OTHER, "The name is taken.")
BOOT_FAILED = Failure(ErrorClass.OTHER, "The machine ended before it ran: exit code 1.")
DIED = Failure(ErrorClass.OTHER, "The machine ended: exit code 1.")


@dataclass(slots=True)
class Member:
    """A machine of a place, in its true state."""

    name: str
    template: str
    """The template for which the machine was made; empty if another program created it."""
    uid: str
    asked: float
    """The virtual time at which the machine's create took effect."""
    phase: Phase = Phase.PENDING
    is_waiting: bool = False
    """True while the machine waits for room in the place."""
    queued: Queued | None = None
    """The wait for room, if the place has a queue; None if the machine does not wait or the place has no queue."""
    ran: float | None = None
    stopping: bool = False
    failure: Failure | None = None
    cause: LossCause | None = None
    is_ours: bool = True
    """True if the machine has our identity."""
    launched: int = 0

    def set_waiting(self, is_waiting: bool, *, queues: bool) -> None:
        """Begin or end the machine's wait for room. ``queues``: True if the place has a queue. If not, a waiting
        machine reports a failure."""
        self.is_waiting = is_waiting
        self.queued = Queued(self.launched, "Resources") if is_waiting and queues else None
        self.failure = FULL if is_waiting and not queues else None

    @property
    def is_running(self) -> bool:
        """Return True if the machine runs and is not being stopped."""
        return self.phase is Phase.RUNNING and not self.stopping

    def shown(self) -> Machine:
        """Return the machine as an observation shows it."""
        phase = Phase.STOPPING if self.stopping and self.phase is not Phase.GONE else self.phase
        ip = "" if self.ran is None else f"10.{self.uid}"
        fingerprint = Fingerprint(uid=self.uid, ip=ip)
        return Machine(
            self.name,
            phase,
            fingerprint,
            ip,
            launched=self.launched,
            failure=self.failure,
            cause=self.cause,
            queued=self.queued if phase is Phase.PENDING else None,
            spills_at_once=self.is_waiting and self.queued is None,
        )


class Witness(Protocol):
    """A receiver of all true events of a place."""

    def created(self, pool: str, member: Member) -> None:
        """Record that a create took effect."""

    def ran(self, pool: str, member: Member) -> None:
        """Record that the machine runs."""

    def deleting(self, pool: str, member: Member) -> None:
        """Record that the provisioner's delete took effect."""

    def ended(self, pool: str, member: Member) -> None:
        """Record that the machine is no longer pending or running, for any reason."""

    def gone(self, pool: str, member: Member) -> None:
        """Record that the machine no longer exists."""


class Place:
    """A place with all its machines."""

    def __init__(self, pool: VirtualPool, world: World, witness: Witness) -> None:
        self.name = pool.name
        self.pool = pool
        """The settings of the place, with the changes of the scenario that are in effect."""
        self.members: dict[str, Member] = {}
        self.watchers: list[Callable[[Member], None]] = []
        """Functions that are called with a machine when observations begin to show the machine differently."""
        self.behaves: list[Callable[[], None]] = []
        """Functions that are called when the settings of the place change."""
        self.ends: dict[str, MachineEnd] = {}
        """By machine: the ends of machines that no longer exist. Ends without a known cause are left out."""
        self.calls = self.throttled = 0
        self._plain = pool
        self._world = world
        self._witness = witness
        self._chance = random.Random(f"{world.seed} {pool.name}")
        self._changes: list[Mapping[str, Any]] = []
        self._roomy = 0
        """Number of machines that do not wait for room and still exist."""
        self._tokens, self._filled = 0.0, world.now
        self._made = 0
        world.after(60.0, self._preempt_some)

    # --- settings -----------------------------------------------------------------------------------------------------

    def change(self, change: Mapping[str, Any], seconds: float | None) -> None:
        """Change settings of the place for ``seconds`` (None: for the rest of the run)."""
        self._changes.append(change)
        self._behave()
        if seconds is not None:
            self._world.after(seconds, partial(self._change_back, change))

    def _change_back(self, change: Mapping[str, Any]) -> None:
        self._changes.remove(change)
        self._behave()

    def _behave(self) -> None:
        changed = {name: value for change in self._changes for name, value in change.items()}
        self.pool = VirtualPool.model_validate({**dict(self._plain), **changed})
        self._admit()
        for behaves in self.behaves:
            behaves()

    def _changed(self, member: Member) -> None:
        for watcher in self.watchers:
            watcher(member)

    # --- calls --------------------------------------------------------------------------------------------------------

    def take_call(self) -> Failure | None:
        """Count a call. Return the failure if the call has no effect; None if the call takes effect."""
        self.calls += 1
        if not self._may_call():
            self.throttled += 1
            return THROTTLED
        return {Calls.ANSWERED: None, Calls.UNANSWERED: UNANSWERED, Calls.DENIED: DENIED}[self.pool.calls]

    def is_answered(self) -> bool:
        """Decide at random if the response to the present call arrives. Return True if it arrives."""
        return self._chance.random() >= self.pool.lost_answers

    def _may_call(self) -> bool:
        rate = self.pool.calls_per_second
        if rate is None:
            return True
        now = self._world.now
        self._tokens = min(max(1.0, rate), self._tokens + rate * (now - self._filled))
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def create(self, name: str, template: str) -> Failure | None:
        """Make a machine, unless our machine of this name exists already. Return the failure if the place refuses the
        create; None if the place accepts it."""
        there = self.members.get(name)
        if there is not None:
            return None if there.is_ours and not there.stopping and there.phase is not Phase.GONE else TAKEN
        if self.pool.quota is not None and len(self.members) >= self.pool.quota:
            return QUOTA
        if self._chance.random() >= self.pool.ignored_creates:
            self.add(name, template)
        return None

    def delete(self, name: str, uid: str) -> None:
        """Delete the machine with this name and uid (empty: any uid). Another machine of this name stays."""
        member = self.members.get(name)
        if member is None or (uid and member.uid != uid) or self.pool.ignores_deletes:
            return
        self._witness.deleting(self.name, member)
        self._stop(member, self.pool.stop_seconds)

    # --- events -------------------------------------------------------------------------------------------------------

    def add(self, name: str, template: str, *, ours: bool = True) -> None:
        """Add a machine. ``template``: empty if another program made it. ``ours``: True if it has our identity."""
        self._made += 1
        number, now = self._made, self._world.now
        launched = int(self._world.start_wall + now)
        uid = f"{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        member = self.members[name] = Member(name, template, uid, now, launched=launched, is_ours=ours)
        if ours:
            self._witness.created(self.name, member)
        self._find_room(member)
        self._changed(member)
        if self.pool.appears_seconds:
            self._world.after(self.pool.appears_seconds, partial(self._changed, member))

    def take_away(self, share: float, cause: LossCause) -> None:
        """End a random share of our running machines or, if ``cause`` is ``deleted``, of all our machines."""
        everyone = cause is LossCause.DELETED
        there = [member for member in self.ours() if everyone or member.is_running]
        for member in self._chance.sample(there, round(share * len(there))):
            if everyone:
                self._stop(member, self.pool.stop_seconds)
            else:
                self._end(member, DIED if cause is LossCause.EXITED else None, cause)

    def ours(self) -> list[Member]:
        """Return the machines that have our identity."""
        return [member for member in self.members.values() if member.is_ours]

    def _find_room(self, member: Member) -> None:
        capacity = self.pool.capacity
        member.set_waiting(capacity is not None and self._roomy >= capacity, queues=self.pool.queues)
        if not member.is_waiting:
            self._roomy += 1
            self._boot(member)

    def _admit(self) -> None:
        """Give free room to machines that wait, in the order in which they were created."""
        waiting = [member for member in self.members.values() if member.is_waiting and not member.stopping]
        for member in waiting:
            if self.pool.capacity is not None and self._roomy >= self.pool.capacity:
                break
            self._find_room(member)
            self._changed(member)

    def _boot(self, member: Member) -> None:
        pool, chance = self.pool, self._chance
        if chance.random() < pool.hangs:
            return
        p95 = max(pool.boot_p95_seconds or 0.0, pool.boot_seconds)
        seconds = self._world.lognormal(pool.boot_seconds, p95, chance=chance)
        fails, dies = chance.random() < pool.boot_failures, chance.random() < pool.dies
        event = partial(self._end, member, BOOT_FAILED, LossCause.EXITED) if fails else partial(self._run, member, dies)
        self._world.after(seconds, event)

    def _run(self, member: Member, dies: bool) -> None:
        if member.stopping or member.phase is not Phase.PENDING:
            return
        member.phase, member.ran = Phase.RUNNING, self._world.now
        self._witness.ran(self.name, member)
        if dies:
            self._world.after(self.pool.dies_after_seconds, partial(self._end, member, DIED, LossCause.EXITED))
        self._changed(member)

    def _preempt_some(self) -> None:
        self._world.after(60.0, self._preempt_some)
        rate = self.pool.preempted_per_hour
        for member in self.ours() if rate else []:
            if member.is_running and self._chance.random() < rate / 60:
                self._end(member, None, LossCause.PREEMPTED)

    def _end(self, member: Member, failure: Failure | None, cause: LossCause) -> None:
        """End a machine that failed by itself, or that the place took away."""
        if member.phase is Phase.GONE or member.stopping:
            return
        self._witness.ended(self.name, member)
        member.phase = Phase.GONE
        if self.pool.tells_why:
            member.failure, member.cause = failure, cause
        if not self.pool.leftovers:
            self._remove(member)
        self._changed(member)

    def _stop(self, member: Member, seconds: float) -> None:
        if member.stopping:
            return
        if member.phase is not Phase.GONE:
            self._witness.ended(self.name, member)
        member.stopping = True
        self._world.after(0.0 if member.phase is Phase.GONE else seconds, partial(self._remove, member))
        self._changed(member)

    def _remove(self, member: Member) -> None:
        if self.members.get(member.name) is not member:
            return
        del self.members[member.name]
        if member.cause is not None:
            self.ends[member.name] = MachineEnd(member.cause, member.failure)
        if not member.is_waiting:
            self._roomy -= 1
        self._witness.gone(self.name, member)
        self._admit()
        self._changed(member)
