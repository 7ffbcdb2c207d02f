"""The order of one cycle: take the observations, read intent, plan, record, act, remember.

The process may end at any instruction. A call to a cloud therefore starts only after memory.json contains the call's
slot (law: recorded before acted).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from provisioner.loop.batch_threads import Actors, Results, batches
from provisioner.loop.clock import CYCLE, Clock
from provisioner.loop.cycle_report import Changes, CycleReport, Mandate
from provisioner.loop.hf_activity import HfActivityReader
from provisioner.loop.holds import CurrentHolds
from provisioner.loop.journal_lines import History
from provisioner.loop.publisher import Publisher
from provisioner.loop.startup_and_cached_state import CachedIntent, CachedMemory, Startup, StartupInputs
from provisioner.model import (
    LONG_AGO,
    Brake,
    BrakeReason,
    HfActivity,
    Intent,
    Limits,
    Memory,
    Observation,
    Plan,
    RequestRecord,
    ReturnRecord,
    Snapshot,
)
from provisioner.planning.cleanup.orphans import release_brake
from provisioner.planning.finish.returns import find_names_to_query
from provisioner.planning.observe.call_outcomes import apply_outcomes
from provisioner.planning.plan import PlanInputs, apply_inputs, decide, is_fresh, make_plan, make_trim
from provisioner.state.errors import StateError, StateMissing, StateUnreadable
from provisioner.state.protocols import State

NO_PLAN = Plan(Memory(""), due_at=LONG_AGO)


@dataclass(frozen=True, slots=True)
class Planned:
    """The last plan and its inputs. The loop skips planning while the inputs stay the same and no new plan is due."""

    inputs: tuple[object, ...] = ()
    referenced: object = None
    """The objects whose ids are in ``inputs``. While they are referenced here, Python cannot reuse the ids."""
    plan: Plan = NO_PLAN
    """The last plan, which is carried out once. The deferrals of this plan, and the pools that it distrusts, stay in
    effect until the next plan."""


class Reconciler:
    """Runner of the cycles on one state directory, which keeps the memory between cycles."""

    def __init__(
        self, *, clock: Clock, state: State, actors: Actors, limits: Limits, provisioner: str, mandate: Mandate
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
        self._hf_activity = HfActivityReader(state)
        self._publisher = Publisher(state, mandate.check)
        self._history = History(state)
        self._planned = Planned()
        self._number = 0

    def cycle(self, observations: Mapping[str, Observation]) -> CycleReport:
        """Run one cycle. Raises SupersededError. Any other failure is in the report."""
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
            self._load_and_release_brake(observations, now)
            if self.memory is not None:
                self._publisher.begin(self.memory, self.limits, self._hf_activity.latest, now)
                if self._publisher.unpublished:
                    # A plan may need the published answers of the previous plan. For example, a cancel does.
                    self._publish(self.memory, now)
                plan = self._plan(observations, now)
                self._record(plan.memory if plan else self.memory, now)
                if plan is not None:
                    recorded = plan
                    transitions += plan.transitions
                    windows += plan.windows
                self._publish(self.memory, now)
            if plan is not None:
                self._act(plan)
                lock_wait = self._intent.forget(plan.forget)
                self._intent.record_generation(plan.memory.generation)
        except StateError as error:
            problem = str(error)
            self._planned = replace(self._planned, inputs=())
        changed = results, transitions, windows, recorded, self._holds.log_changes(), self._publisher.pop_news()
        paused = self._holds.changed_pauses(self.limits)
        self._history.record(Changes(self._number, self._clock.wall(), *changed, paused))
        return CycleReport(
            number=self._number,
            now=now,
            seconds=time.monotonic() - began,
            observations=observations,
            memory=self.memory,
            plan=plan,
            deferred=self._planned.plan.deferred,
            unmet=None if self._planned.plan is NO_PLAN else self._planned.plan.unmet,
            distrusted=self._startup.distrusted or self._planned.plan.distrusted,
            ahead_seconds=self._clock.wall() - now,
            results=results,
            transitions=transitions,
            problem=problem,
            lock_wait_seconds=lock_wait,
            holds=holds,
        )

    def settle(self) -> Changes:
        """Record the outcomes of the last batches; return the changes. Raises StateError, SupersededError."""
        now, results = self._clock.now(), self._actors.collect()
        made = self._remember(results, now)
        changes = Changes(self._number, self._clock.wall(), results, made.transitions, made.windows)
        if self.memory is not None:
            self._record(self.memory, now)
        self._history.record(changes, ending=True)
        return changes

    def sought(self) -> Mapping[str, Mapping[str, str]]:
        """Return, by pool, the names that the next observation queries, with their uids (empty if unknown)."""
        return {} if self.memory is None else find_names_to_query(self.memory, self.limits)

    def preview(self, observations: Mapping[str, Observation]) -> Plan | None:
        """Return the plan of the next cycle, without writing a file or acting; None before HF's first request. Raises
        StateError."""
        now, holds = self._clock.now(), self._holds.read()
        intent = self._load(observations, now)
        if self.memory is None or intent is None:
            return None
        activity = self._hf_activity.read(now, intent)
        world = PlanInputs(intent, observations, activity, wall=self._clock.wall(), holds=holds)
        return make_plan(world, self.memory, self.limits, now)

    def trim(self, *, dry_run: bool) -> tuple[str, ...]:
        """Remove the records that may leave the files, and return their ids. The pools are not observed.

        With ``dry_run``, remove no record, and return the ids of the records that may leave now. Raises StateError.
        """
        now, removed = self._clock.now(), dict[str, None]()
        self._holds.read()
        while (intent := self._load({}, now)) is not None and self.memory is not None:
            plan = make_trim(intent, self._hf_activity.read(now, intent), self.memory, self.limits, now)
            removed |= dict.fromkeys(plan.forget)
            if dry_run or not (plan.forget or plan.memory is not self.memory):
                break
            # As in a cycle, a record leaves poll markers and intent first, and memory and status in the next pass.
            self._record(plan.memory, now)
            self._publish(plan.memory, now)
            self._intent.forget(plan.forget)
        return tuple(removed)

    def _load_and_release_brake(self, observations: Mapping[str, Observation], now: float) -> None:
        """Load intent and memory. Write memory at once if intent is lost or an operator has released the brake."""
        is_asked = self._state.take_release()  # before intent is read, because an operator writes intent first
        try:
            self._load(observations, now)
        except (StateMissing, StateUnreadable) as error:
            self._keep_memory(now, lost=isinstance(error, StateMissing))
            raise
        if is_asked and (memory := self.memory) is not None:
            if memory.brake is None or memory.brake.since < now:  # no operator has seen a brake of this cycle
                self._record(release_brake(memory), now)
            self._state.forget_release()

    def _keep_memory(self, now: float, *, lost: bool) -> None:
        """Record memory, from which `recover` rebuilds lost or unreadable intent. Latch the brake if intent is lost."""
        if lost and self.memory is None:
            self.memory = self._startup.without_intent(self.limits, now)
        if (memory := self.memory) is not None:
            if lost and memory.brake is None:
                memory = replace(memory, brake=Brake(BrakeReason.INTENT_LOST, now, "intent.json is missing."))
            self._record(memory, now)

    def _load(self, observations: Mapping[str, Observation], now: float) -> Intent | None:
        """Read intent, load memory in the first cycle, and return intent; None before HF's first request."""
        intent = self._intent.read(starting=self.memory is None)
        newest = self._intent.newest
        if intent is not None:
            inputs = StartupInputs(intent, newest, observations, self.limits, now)
            self.memory = self._startup.memory(self.memory, inputs)
            # If memory's generation is higher, the plan detects that intent is an old copy.
            generation = max(self.memory.generation, newest if intent.generation < newest else 0)
            if (self.memory.epoch, self.memory.generation) != (self._mandate.epoch, generation):
                self.memory = replace(self.memory, epoch=self._mandate.epoch, generation=generation)
        return intent

    def _remember(self, results: Sequence[Results], now: float) -> Plan:
        """Apply the outcomes of batches to memory; return the changes as a plan."""
        if self.memory is None or not results:
            return NO_PLAN
        outcomes = [outcome for done in results for outcome in done.outcomes]
        unsent = [action for done in results for action in done.unsent]
        made = apply_outcomes(self.memory, outcomes, unsent, self.limits, now)
        self.memory = made.memory
        return made

    def _plan(self, observations: Mapping[str, Observation], now: float) -> Plan | None:
        """Make the next plan; return None if all inputs are the same as before and no planned moment has come."""
        intent = self._intent.latest
        assert self.memory is not None
        assert intent is not None
        activity, busy, holds = self._hf_activity.read(now, intent), self._actors.busy(), self._holds.latest
        rest = (intent.generation, id(self.limits), id(holds), busy, _observation_key(observations, self.limits, now))
        inputs = (id(self.memory), _activity_key(activity, self.memory), *rest)
        if inputs == self._planned.inputs and now < self._planned.plan.due_at:
            return None
        world = PlanInputs(intent, observations, activity, busy, self._clock.wall(), holds)
        draft = apply_inputs(world, self.memory, self.limits, now)
        if answered_ids := self._publisher.settle_revised_answers(self.memory, draft) - activity.read_ids:
            activity = self._hf_activity.add_reported(answered_ids)
            world = replace(world, activity=activity)
            draft = apply_inputs(world, self.memory, self.limits, now)
        plan = decide(draft, world)
        # The next cycle starts from the memory that this plan returns.
        inputs = (id(plan.memory), _activity_key(activity, plan.memory), *rest)
        self._planned = Planned(inputs, (observations, self.limits, holds), plan)
        return plan

    def _publish(self, memory: Memory, now: float) -> None:
        self._publisher.publish(memory, self.limits, self._holds.latest, self._hf_activity.latest, now)

    def _record(self, memory: Memory, now: float) -> None:
        """Make a memory durable before the loop acts on it (law: recorded before acted)."""
        self._memory_file.record(memory, now)
        self.memory = memory

    def _act(self, plan: Plan) -> None:
        if plan.creates or plan.deletes:
            self._mandate.check()
        deadline = time.monotonic() + self._mandate.act_seconds
        for batch in batches(plan.creates, plan.deletes):
            self._actors.submit(batch, lambda: time.monotonic() < deadline and not self._mandate.stopping())


def _observation_key(observations: Mapping[str, Observation], limits: Limits, now: float) -> object:
    """Return a key of the observations: their content, and whether each is recent enough for a plan."""
    return tuple((*_identity(observation), is_fresh(observation, limits, now)) for observation in observations.values())


def _identity(observation: Observation) -> tuple[object, ...]:
    """Return a key that is equal for observations with the same content. The times of the observations do not
    matter."""
    if isinstance(observation, Snapshot):
        names = observation.foreign, observation.name_collisions, observation.asked
        changes = observation.ends, observation.doubles
        place = observation.spec, observation.endpoint_identity, observation.listed_at
        return observation.pool, id(observation.machines), *names, *changes, *place
    return (observation.pool,)


def _activity_key(activity: HfActivity, memory: Memory) -> object:
    """Return a key of HF's activity.

    If HF has yet to read the terminal answer of at least one request, each call of HF changes the key. Once HF has read
    all of them, only calls that bring news change the key.
    """
    records: list[RequestRecord | ReturnRecord] = [*memory.requests.values(), *memory.returns.values()]
    return activity if None in [record.reported_at for record in records] else activity.news
