"""One cycle's order: take what was seen, read what is wanted, plan, record, act, remember.

The order is the promise: nothing is asked of a cloud before memory.json says so (law: recorded before acted), for every
instruction may be the last one of this process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from provisioner.loop.actors import Actors, Results, batches
from provisioner.loop.clock import CYCLE, Clock
from provisioner.loop.contact import Contacts
from provisioner.loop.cycle import Changes, CycleReport, Mandate
from provisioner.loop.history import History
from provisioner.loop.holds import CurrentHolds
from provisioner.loop.publisher import Publisher
from provisioner.loop.startup import CachedIntent, CachedMemory, Startup, StartupInputs
from provisioner.model import (
    LONG_AGO,
    Brake,
    BrakeReason,
    Contact,
    Intent,
    Limits,
    Look,
    Memory,
    Plan,
    RequestRecord,
    ReturnRecord,
    Snapshot,
)
from provisioner.planning.collect.orphans import without_brake
from provisioner.planning.finish.returns import sought
from provisioner.planning.observe.outcomes import remember
from provisioner.planning.plan import World, decide, fresh, make_plan, make_trim, perceive
from provisioner.state.errors import StateError, StateMissing, StateUnreadable
from provisioner.state.interfaces import State

NO_PLAN = Plan(Memory(""), due=LONG_AGO)


@dataclass(frozen=True, slots=True)
class Planned:
    """What the last plan was made from: while all of it is the same and nothing is due, there is nothing to plan."""

    inputs: tuple[object, ...] = ()
    held: object = None
    """Keeps alive what ``inputs`` names by identity."""
    plan: Plan = NO_PLAN
    """The plan. It is carried out once; what it defers and distrusts stays in force until the next one."""


class Reconciler:
    """Holds one state directory's memory between cycles."""

    def __init__(
        self,
        *,
        clock: Clock,
        state: State,
        actors: Actors,
        limits: Limits,
        provisioner: str,
        mandate: Mandate,
    ) -> None:
        self.limits = limits
        self.memory: Memory | None = None
        self._holds = CurrentHolds(state)
        self._clock = clock
        self._state = state
        self._actors = actors
        self._mandate = mandate
        self._intent = CachedIntent(state, provisioner, mandate.check)
        self._memory_file = CachedMemory(state, clock, mandate.check)
        self._startup = Startup(state, clock, self._memory_file)
        self._contacts = Contacts(state)
        self._publisher = Publisher(state, mandate.check)
        self._history = History(state)
        self._planned = Planned()
        self._number = 0

    def cycle(self, looks: Mapping[str, Look]) -> CycleReport:
        """One pass. Raises SupersededError; whatever else goes wrong is in the report."""
        self._number += 1
        CYCLE.set(self._number)
        began, results = time.monotonic(), self._actors.collect()
        plan: Plan | None = None
        problem, lock_wait = "", None
        now, holds = self._clock.now(), self._holds.read()
        recorded: Plan | None = None
        made = self._remember(results, now)
        transitions, windows = made.transitions, made.windows
        try:
            self._mandate.check()
            self._take_in(looks, now)
            if self.memory is not None:
                self._publisher.begin(self.memory, self.limits, self._contacts.latest, now)
                if self._publisher.unpublished:
                    # A plan may rely on what the one before let HF know (a cancel does).
                    self._publish(self.memory, now)
                plan = self._plan(looks, now)
                self._record(plan.memory if plan else self.memory, now)
                if plan is not None:
                    recorded = plan
                    transitions += plan.transitions
                    windows += plan.windows
                self._publish(self.memory, now)
            if plan is not None:
                self._act(plan)
                lock_wait = self._intent.forget(plan.forget)
                self._intent.warn_writers(plan.memory.generation)
        except StateError as error:
            problem = str(error)
            self._planned = replace(self._planned, inputs=())
        changed = results, transitions, windows, recorded, self._holds.tell(), self._publisher.tell()
        self._history.take(Changes(self._number, self._clock.wall(), *changed, self._holds.paused(self.limits)))
        return CycleReport(
            number=self._number,
            now=now,
            seconds=time.monotonic() - began,
            looks=looks,
            memory=self.memory,
            plan=plan,
            deferred=self._planned.plan.deferred,
            unmet=None if self._planned.plan is NO_PLAN else self._planned.plan.unmet,
            distrusted=self._startup.distrusted or self._planned.plan.distrusted,
            ahead=self._clock.wall() - now,
            results=results,
            transitions=transitions,
            problem=problem,
            lock_wait=lock_wait,
            levers=holds,
        )

    def settle(self) -> Changes:
        """Record the outcomes of the last batches, before the loop ends. Raises StateError, SupersededError."""
        now, results = self._clock.now(), self._actors.collect()
        made = self._remember(results, now)
        changes = Changes(self._number, self._clock.wall(), results, made.transitions, made.windows)
        if self.memory is not None:
            self._record(self.memory, now)
        self._history.take(changes, ending=True)
        return changes

    def sought(self) -> Mapping[str, Mapping[str, str]]:
        """By pool: the names that it is asked for, each with the uid that is meant, if one is known."""
        return {} if self.memory is None else sought(self.memory, self.limits)

    def preview(self, looks: Mapping[str, Look]) -> Plan | None:
        """What the next cycle would do; nothing is written, nothing is done. Raises StateError."""
        now, holds = self._clock.now(), self._holds.read()
        intent = self._load(looks, now)
        if self.memory is None or intent is None:
            return None
        world = World(intent, looks, self._contacts.read(now, intent), wall=self._clock.wall(), levers=holds)
        return make_plan(world, self.memory, self.limits, now)

    def trim(self, *, dry_run: bool) -> tuple[str, ...]:
        """Let what may leave the files leave them, or only say what: the ids. Looks at no pool. Raises StateError."""
        now, left = self._clock.now(), dict[str, None]()
        self._holds.read()
        while (intent := self._load({}, now)) is not None and self.memory is not None:
            plan = make_trim(intent, self._contacts.read(now, intent), self.memory, self.limits, now)
            left |= dict.fromkeys(plan.forget)
            if dry_run or not (plan.forget or plan.memory is not self.memory):
                break
            # In the cycle's order. First marks and intent, then, as intent lacks them, memory and status.
            self._record(plan.memory, now)
            self._publish(plan.memory, now)
            self._intent.forget(plan.forget)
        return tuple(left)

    def _take_in(self, looks: Mapping[str, Look], now: float) -> None:
        """Load; and record at once what a lost intent or a person says of the brake."""
        try:
            self._load(looks, now)
        except (StateMissing, StateUnreadable) as error:
            self._keep_memory(now, lost=isinstance(error, StateMissing))
            raise
        if self.memory is not None and self._state.recovery_asked():
            self._record(without_brake(self.memory), now)
            self._state.recovery_done()

    def _keep_memory(self, now: float, *, lost: bool) -> None:
        """Keep memory.json whole, from which `recover` makes intent again; where intent is lost, latch the brake."""
        if lost and self.memory is None:
            self.memory = self._startup.without_intent(self.limits, now)
        memory = self.memory
        if lost and memory is not None and memory.brake is None:
            memory = replace(memory, brake=Brake(BrakeReason.INTENT_LOST, now, "intent.json is missing."))
        if memory is not None:
            self._record(memory, now)

    def _load(self, looks: Mapping[str, Look], now: float) -> Intent | None:
        """Intent, and at the first time memory."""
        intent = self._intent.read(starting=self.memory is None)
        newest = self._intent.newest
        if intent is not None:
            self.memory = self._startup.memory(self.memory, StartupInputs(intent, newest, looks, self.limits, now))
            # Where intent is an old copy, the plan sees it by memory's generation.
            known = newest if intent.generation < newest else 0
            generation = max(known, self.memory.generation)
            if (self.memory.epoch, self.memory.generation) != (self._mandate.epoch, generation):
                self.memory = replace(self.memory, epoch=self._mandate.epoch, generation=generation)
        return intent

    def _remember(self, results: Sequence[Results], now: float) -> Plan:
        """Take the outcomes of batches into memory; return what changed in it."""
        if self.memory is None or not results:
            return NO_PLAN
        outcomes = [outcome for done in results for outcome in done.outcomes]
        unsent = [action for done in results for action in done.unsent]
        made = remember(self.memory, outcomes, unsent, self.limits, now)
        self.memory = made.memory
        return made

    def _plan(self, looks: Mapping[str, Look], now: float) -> Plan | None:
        """None when everything is as at the last plan and nothing has fallen due."""
        intent = self._intent.held
        assert self.memory is not None
        assert intent is not None
        contact, busy, holds = self._contacts.read(now, intent), self._actors.busy(), self._holds.latest
        rest = (intent.generation, id(self.limits), id(holds), busy, _seen(looks, self.limits, now))
        inputs = (id(self.memory), _heard(contact, self.memory), *rest)
        if inputs == self._planned.inputs and now < self._planned.plan.due:
            return None
        world = World(intent, looks, contact, busy, self._clock.wall(), holds)
        draft = perceive(world, self.memory, self.limits, now)
        if told := self._publisher.superseded(self.memory, draft) - contact.told:
            contact = self._contacts.hear(told)
            world = replace(world, contact=contact)
            draft = perceive(world, self.memory, self.limits, now)
        plan = decide(draft, world)
        # Next time the same memory is expected: the one this plan leaves.
        inputs = (id(plan.memory), _heard(contact, plan.memory), *rest)
        self._planned = Planned(inputs, (looks, self.limits, holds), plan)
        return plan

    def _publish(self, memory: Memory, now: float) -> None:
        self._publisher.publish(memory, self.limits, self._holds.latest, self._contacts.latest, now)

    def _record(self, memory: Memory, now: float) -> None:
        """Make a memory durable before anything is done about it (law: recorded before acted)."""
        self._memory_file.record(memory, now)
        self.memory = memory

    def _act(self, plan: Plan) -> None:
        if plan.creates or plan.deletes:
            self._mandate.check()
        deadline = time.monotonic() + self._mandate.act_seconds
        for batch in batches(plan.creates, plan.deletes):
            self._actors.submit(batch, lambda: time.monotonic() < deadline and not self._mandate.stopping())


def _seen(looks: Mapping[str, Look], limits: Limits, now: float) -> object:
    """What matters of the looks: what they say, and whether a plan may still rest on them."""
    return tuple((*_identity(look), fresh(look, limits, now)) for look in looks.values())


def _identity(look: Look) -> tuple[object, ...]:
    """The same for two looks that say the same, except for when they began."""
    if isinstance(look, Snapshot):
        said = look.causes, look.foreign, look.namesakes, look.asked, look.spec, look.answered_by, look.listed
        return look.pool, id(look.machines), *said
    return (look.pool,)


def _heard(contact: Contact, memory: Memory) -> object:
    """What matters of HF's calls: each of them while it has still to hear of an end, else only what is new in them."""
    records: list[RequestRecord | ReturnRecord] = [*memory.requests.values(), *memory.returns.values()]
    return contact if None in [record.told_at for record in records] else contact.news
