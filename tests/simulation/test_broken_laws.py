"""Proof that simulations can fail. Each test breaks a law of the loop on purpose, and the judge finds the breach.

Each search uses only events that may show the breach, so it takes seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from provisioner.hostfactory import Loss
from provisioner.loop import reconciler, startup_and_cached_state
from provisioner.loop.holds import CurrentHolds
from provisioner.loop.reconciler import Reconciler
from provisioner.model import (
    Delete,
    DeleteReason,
    HfActivity,
    HoldKind,
    Holds,
    LossCause,
    Memory,
    ObservationFailed,
    RequestRecord,
    RequestStatus,
    ReturnResult,
    Slot,
    Snapshot,
    Verdict,
)
from provisioner.planning import plan
from provisioner.planning.allocate import capacity
from provisioner.planning.cleanup import orphans
from provisioner.planning.core.draft import Draft
from provisioner.planning.finish import returns
from provisioner.planning.report import answers
from provisioner.state.errors import Condition, StateStale
from provisioner.state.kube.memory import KubeMemory
from provisioner.state.kube.memory_reader import MemoryReader, id_of
from provisioner.state.kube.parts import Parts
from provisioner.state.kube.script_state import KubeEntries
from provisioner.state.settled_answers import SettledAnswers
from tests.simulation.laws import Law
from tests.simulation.simulation import VirtualClock
from tests.simulation.stores import STORES, KubeStore, Store
from tests.simulation.test_disasters import Disasters
from tests.simulation.test_laws import Laws, SimulationMachine
from tests.support.kube_schema import Cause, Schema
from tests.support.parts import alter

Break = AbstractContextManager[Any]

BOUNDED = settings(
    max_examples=1000,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


class Alone(SimulationMachine):
    """Events that no other test uses. ``machine_with`` selects some of them by name."""

    @rule()
    def memory_is_lost(self) -> None:
        self.sim.lose(["memory"])

    @rule()
    def memory_is_read(self) -> None:
        """Check that memory comes from one whole write, also if the writing process died during a write."""
        assert self.sim.hf.memory.condition() is not Condition.OLDER, f"{Law.RECORDED}: memory is torn"

    @rule()
    def old_loop_writes_late(self) -> None:
        """Let a superseded loop finish a write that it began before it was superseded. The write must have no
        effect."""
        before = self.sim.store.marks()
        for ghost in self.sim.ghosts:
            if ghost.reconciler.memory is not None:
                with suppress(StateStale):
                    ghost.state.memory.write(ghost.reconciler.memory)
        assert self.sim.store.marks() == before, f"{Law.ONE_LOOP}: a superseded loop wrote"


def machine_with(happenings: Collection[str], store: type[Store]) -> type[SimulationMachine]:
    """Return a state machine in which, after a first request, only these events happen."""
    known = {**vars(Laws), **vars(Disasters), **vars(Alone)}
    events = {name: known[name] for name in ("first_request", *happenings)}
    return type("Focused", (SimulationMachine,), {"store": store, **events})


# --- the breaks -------------------------------------------------------------------------------------------------------


def slot_numbers_are_used_again() -> Break:
    update = Draft.update_record

    def forgetful(self: Draft, id_: str, **changes: Any) -> None:
        update(self, id_, **{name: value for name, value in changes.items() if name != "next_slot"})

    return patch.object(Draft, "update_record", forgetful)


def memory_is_recorded_a_cycle_late() -> Break:
    record = Reconciler._record

    def late(self: Reconciler, memory: Memory, now: float) -> None:
        record(self, vars(self).get("kept", memory), now)
        vars(self)["kept"] = self.memory = memory

    return patch.object(Reconciler, "_record", late)


def a_failed_observation_is_an_empty_pool() -> Break:
    perceive = reconciler.apply_inputs

    def trusting(world: plan.PlanInputs, memory: Memory, *rest: Any) -> Draft:
        names = frozenset(slot.name for _, slot in memory.slots)
        observations = {
            pool: Snapshot(pool, observation.began_at, {}, asked=names)
            if isinstance(observation, ObservationFailed)
            else observation
            for pool, observation in world.observations.items()
        }
        return perceive(replace(world, observations=observations), memory, *rest)

    return patch.object(reconciler, "apply_inputs", trusting)


def an_old_observation_is_as_good_as_a_new_one() -> Break:
    return patch.object(plan, "is_fresh", lambda *_: True)


def any_machine_of_the_pool_is_deleted() -> Break:
    delete_closed = plan.delete_closed

    def by_count(draft: Draft) -> None:
        delete_closed(draft)
        for number, delete in enumerate(draft.deletes):
            if delete.reason is not DeleteReason.ORPHANED:
                name, machine = min(draft.snapshots[delete.pool].machines.items())
                draft.deletes[number] = Delete(name, delete.pool, delete.reason, machine.fingerprint.uid)

    return patch.object(plan, "delete_closed", by_count)


def the_brake_never_latches() -> Break:
    return patch.object(Draft, "latch", lambda *_: None)


def orphans_get_no_grace() -> Break:
    delete_orphan = orphans._delete_orphan

    def hasty(draft: Draft, *rest: Any) -> None:
        draft.limits = alter(draft.limits, orphan_grace=0.0)
        delete_orphan(draft, *rest)

    return patch.object(orphans, "_delete_orphan", hasty)


def nothing_has_a_deadline() -> Break:
    return patch.multiple(plan, close_overdue=lambda *_: None, format_time_over=lambda *_: "")


def nothing_is_planned_because_it_falls_due() -> Break:
    return patch.object(Draft, "wake_at", lambda *_: None)


def a_lost_machine_leaves_its_terminal_answer() -> Break:
    return patch.object(answers, "SUCCEEDED_ONCE", frozenset({Verdict.SUCCEEDED, Verdict.RETURNED}))


def a_terminal_request_is_opened_again() -> Break:
    close = Draft.close

    def reopening(draft: Draft, slot: Slot, verdict: Verdict, **more: Any) -> Slot:
        if verdict is Verdict.LOST:
            draft.update_record(slot.request, ended=None, ended_at=None)
        return close(draft, slot, verdict, **more)

    return patch.object(Draft, "close", reopening)


def the_epoch_is_ignored() -> Break:
    begin = Reconciler.__init__

    def careless(self: Reconciler, **arguments: Any) -> None:
        begin(self, **arguments | {"mandate": replace(arguments["mandate"], check=lambda: None)})

    return patch.object(Reconciler, "__init__", careless)


def time_is_the_wall_clock() -> Break:
    return patch.object(VirtualClock, "now", VirtualClock.wall)


def only_wanted_machines_count_against_a_cap() -> Break:
    begin = capacity.Capacity.__init__

    def blind(self: capacity.Capacity, draft: Draft) -> None:
        begin(self, draft)
        wanted = [
            (slot, (slot.pool, record.template))
            for record in draft.records()
            for slot in record.slots.values()
            if slot.verdict in (Verdict.OPEN, Verdict.SUCCEEDED)
        ]
        self.occupied = Counter(key for _, key in wanted)
        self.starting = Counter(key for slot, key in wanted if slot.ran_at is None)

    return patch.object(capacity.Capacity, "__init__", blind)


def one_observation_proves_an_absence() -> Break:
    pool = Draft.pool
    return patch.object(Draft, "pool", lambda self, name: replace(pool(self, name), lag_seconds=0.0))


def a_return_is_done_when_it_is_read() -> Break:
    return patch.object(returns, "_slot_result", lambda *_: ReturnResult.GONE)


def a_returned_machine_stays_in_a_running_answer() -> Break:
    slot_result = returns._slot_result

    def lenient(draft: Draft, slot: Slot) -> ReturnResult | None:
        return None if slot.verdict is Verdict.OPEN else slot_result(draft, slot)

    return patch.object(returns, "_slot_result", lenient)


def a_request_is_cancelled_unannounced() -> Break:
    cancel_unpolled = plan.cancel_unpolled

    def abrupt(draft: Draft, activity: Any) -> None:
        cancel_unpolled(draft, activity)
        cancel_unpolled(draft, activity)

    return patch.object(plan, "cancel_unpolled", abrupt)


def a_failed_machine_is_not_replaced_but_the_request_completes() -> Break:
    def rash(draft: Draft, record: RequestRecord) -> None:
        conclude(draft, record)
        if any(slot.verdict is Verdict.FAILED for slot in record.slots.values()):
            draft.update_record(record.id, ended=RequestStatus.COMPLETE, ended_at=draft.now)

    conclude = plan.end_request
    return patch.object(plan, "end_request", rash)


def a_memory_made_again_counts_slots_from_the_beginning() -> Break:
    rebuild = startup_and_cached_state.rebuild_memory

    def forgetful(*arguments: Any) -> Memory:
        memory = rebuild(*arguments)
        records = {
            id_: replace(record, next_slot=max(record.slots, default=-1) + 1) for id_, record in memory.requests.items()
        }
        return replace(memory, requests=records)

    return patch.object(startup_and_cached_state, "rebuild_memory", forgetful)


def what_hf_lists_may_be_an_orphan() -> Break:
    find_orphans = orphans.find_orphans

    def deaf(draft: Draft, activity: HfActivity) -> None:
        find_orphans(draft, replace(activity, listed_at={}))

    return patch.object(plan, "find_orphans", deaf)


def the_last_machines_of_a_request_get_no_time() -> Break:
    time_over = plan.format_time_over

    def hasty(draft: Draft, record: RequestRecord) -> str:
        late = time_over(draft, record)
        return late or ("at once" if any(slot.ran_at is not None for slot in record.slots.values()) else "")

    return patch.object(plan, "format_time_over", hasty)


def machines_are_old_from_the_beginning() -> Break:
    offer_ending = plan.retire_machines

    def hasty(draft: Draft) -> None:
        templates = draft.limits.templates
        draft.limits = replace(
            draft.limits, templates={id_: replace(one, max_lifetime_seconds=1.0) for id_, one in templates.items()}
        )
        offer_ending(draft)

    return patch.object(plan, "retire_machines", hasty)


def holds_hold_nothing() -> Break:
    read = CurrentHolds.read

    def lax(self: CurrentHolds) -> Holds:
        self.latest = replace(read(self), current=())
        return self.latest

    return patch.object(CurrentHolds, "read", lax)


def reclaimed_machines_are_reported_as_gone() -> Break:
    asked_back = answers.make_loss_finder

    def rash(holds: Holds) -> Callable[[Slot], Loss | None]:
        asked = asked_back(holds)
        return lambda slot: asked(slot) and Loss(0, LossCause.UNKNOWN)

    return patch.object(answers, "make_loss_finder", rash)


def what_is_cancelled_is_deleted() -> Break:
    cancel_asked = plan.cancel_asked

    def rash(draft: Draft) -> None:
        cancel_asked(draft)
        for name in draft.holds.of_kind(HoldKind.CANCEL):
            slot = draft.find_slot(name)
            if slot is not None and slot.verdict is Verdict.SUCCEEDED:
                draft.close(slot, Verdict.LOST, reason=DeleteReason.LOST)

    return patch.object(plan, "cancel_asked", rash)


def each_caller_prints_its_own_terminal_answer() -> Break:
    settle = SettledAnswers.settle_reported

    def hasty(self: SettledAnswers, id_: str, text: str) -> str:
        settle(self, id_, text)
        return text

    return patch.object(SettledAnswers, "settle_reported", hasty)


# Breaks of rules by which the Kubernetes store alone holds a law:


def a_late_write_is_not_fenced() -> Break:
    return patch.object(KubeMemory, "fence", lambda *_: None)


def the_server_minds_neither_epoch_nor_version() -> Break:
    write, broken_rules = Parts._write, Schema.broken_rules

    def careless(self: Parts, name: str, spec: dict[str, Any], version: str | None) -> dict[str, Any]:
        return write(self, name, spec, version and None)

    def lax(self: Schema, *values: Any) -> list[Cause]:
        return [cause for cause in broken_rules(self, *values) if "this epoch" not in cause.message]

    both = ExitStack()
    both.enter_context(patch.object(Parts, "_write", careless))
    both.enter_context(patch.object(Schema, "broken_rules", lax))
    return both


def the_second_terminal_answer_counts() -> Break:
    add = KubeEntries._add
    return patch.object(KubeEntries, "_add", lambda *arguments: add(*arguments) or True)


def a_record_is_put_into_its_place_before_the_log_has_it() -> Break:
    compare, write_log = KubeMemory._compare, KubeMemory._write_log

    def hasty(self: KubeMemory, documents: dict[str, Any]) -> Any:
        kept, changes = compare(self, documents)
        early = {key for key in changes if id_of(key) and key in self._loaded.kept}
        vars(self)["early"] = {key: changes.pop(key) for key in early}
        return kept | dict.fromkeys(early, self.marks["generation"] + 1), changes

    def late(self: KubeMemory, *arguments: Any) -> None:
        write_log(self, *arguments)
        self._logged |= vars(self)["early"]

    return patch.multiple(KubeMemory, _compare=hasty, _write_log=late)


def a_lost_memory_counts_as_a_first_start() -> Break:
    return patch.object(MemoryReader, "_find_noted", lambda *_: 0)


TIME = ("cycle", "time_passes", "loop_works_for_a_while")
HF = ("hf_requests", "hf_polls_all", "hf_lists_hosts")
LOSSES = ("machines_are_preempted", "machine_vanishes")
HOLDS = ("pool_is_held", "all_is_stopped", "something_is_cancelled", "holds_are_let_go")

DYING = ("cycle_that_dies", "memory_is_read", "time_passes", "hf_polls_all")
SLOWLY = ("hf_polls_slowly", "hf_polls_all", "time_passes")
LATE = ("another_loop_takes_over", "old_loop_writes_late")
LOOPS = ("another_loop_takes_over", "old_loop_wakes")
MEMORY = ("memory_is_lost", "calls_go_wrong", "cycle", "time_passes")
WIPED = ("directory_is_wiped", "operator_releases_the_brake", "hf_polls_all", "loop_works_for_a_while")
SIGHT = f"{Law.SEEN_WHOLE}|{Law.PROVEN}"

Breaks = Mapping[Callable[[], Break], tuple[str, tuple[str, ...]]]
BREAKS: Breaks = {
    slot_numbers_are_used_again: (f"{Law.NAMED_ONCE}|{Law.STAYS}|{Law.PROVEN}", (*TIME, *LOSSES)),
    memory_is_recorded_a_cycle_late: (Law.RECORDED, ("hf_requests", *TIME)),
    a_failed_observation_is_an_empty_pool: (SIGHT, ("cycle_with_bad_observations", "hf_polls_all", *TIME)),
    an_old_observation_is_as_good_as_a_new_one: (SIGHT, ("cycle_with_bad_observations", "hf_requests", "time_passes")),
    any_machine_of_the_pool_is_deleted: (f"{Law.RECORDED}|{Law.PROVEN}", (*HF, *LOSSES, *TIME)),
    the_brake_never_latches: (Law.SLOWLY, ("orphans_appear", *TIME)),
    orphans_get_no_grace: (Law.SLOWLY, ("orphans_appear", *TIME)),
    nothing_has_a_deadline: (Law.ENDS, ("place_has_a_fault", "cycle")),
    nothing_is_planned_because_it_falls_due: (f"{Law.ENDS}|{Law.PROVEN}", ("place_has_a_fault", "cycle")),
    a_lost_machine_leaves_its_terminal_answer: (Law.STAYS, (*HF, *LOSSES, *TIME)),
    a_terminal_request_is_opened_again: (Law.STAYS, (*HF, *LOSSES, *TIME)),
    the_epoch_is_ignored: (f"{Law.ONE_LOOP}|superseded", (*LOOPS, *HF, *LOSSES, *TIME)),
    time_is_the_wall_clock: (Law.PROVEN, ("wall_clock_jumps", "hf_requests", *TIME)),
    only_wanted_machines_count_against_a_cap: (Law.PROVEN, ("hf_returns_all", *HF, *LOSSES, *TIME)),
    one_observation_proves_an_absence: (Law.PROVEN, ("lists_lag", *HF, *TIME)),
    a_return_is_done_when_it_is_read: (Law.PROVEN, ("hf_returns", *HF, *TIME)),
    a_returned_machine_stays_in_a_running_answer: (f"{Law.ENDS}|{Law.PROVEN}", ("hf_returns", *HF, *LOSSES, *TIME)),
    a_request_is_cancelled_unannounced: (Law.STAYS, ("hf_forgets_its_requests", "time_passes")),
    a_memory_made_again_counts_slots_from_the_beginning: (f"{Law.NAMED_ONCE}|{Law.PROVEN}", MEMORY),
    what_hf_lists_may_be_an_orphan: (Law.PROVEN, WIPED),
    the_last_machines_of_a_request_get_no_time: (Law.PROVEN, ("place_has_a_fault", *HF, *TIME)),
    machines_are_old_from_the_beginning: (Law.PROVEN, (*HF, *TIME)),
    holds_hold_nothing: ("holds it back|all is stopped", (*HOLDS, *HF, *TIME)),
    reclaimed_machines_are_reported_as_gone: (Law.PROVEN, (*HOLDS, *HF, *TIME)),
    what_is_cancelled_is_deleted: (Law.PROVEN, (*HOLDS, *HF, *TIME)),
    a_failed_machine_is_not_replaced_but_the_request_completes: ("complete with", (*HF, *LOSSES, *TIME)),
    each_caller_prints_its_own_terminal_answer: (Law.STAYS, SLOWLY),
}

KUBE_BREAKS: Breaks = {
    a_late_write_is_not_fenced: (Law.ONE_LOOP, (*LATE, *TIME)),
    the_server_minds_neither_epoch_nor_version: (Law.ONE_LOOP, (*LATE, *TIME)),
    the_second_terminal_answer_counts: (Law.STAYS, SLOWLY),
    a_record_is_put_into_its_place_before_the_log_has_it: ("memory is torn", DYING),
    a_lost_memory_counts_as_a_first_start: (f"{Law.NAMED_ONCE}|{Law.PROVEN}|this generation", MEMORY),
}


def name(broken: Callable[[], Break]) -> str:
    return broken.__name__.replace("_", " ")


def assert_shown(broken: Callable[[], Break], store: type[Store], words: str, happenings: Collection[str]) -> None:
    with broken(), pytest.raises(AssertionError, match=words):
        run_state_machine_as_test(machine_with(happenings, store), settings=BOUNDED)


CASES = [
    (broken, store) for broken in BREAKS for store in STORES if (broken, store) != (the_epoch_is_ignored, "Kubernetes")
]
"""On Kubernetes, the server too refuses a superseded loop, so ``KUBE_BREAKS`` breaks the server's rule."""


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "store"), CASES, ids=lambda one: one if isinstance(one, str) else name(one))
def test_a_simulation_shows_that(broken: Callable[[], Break], store: str) -> None:
    assert_shown(broken, STORES[store], *BREAKS[broken])


@pytest.mark.slow
@pytest.mark.parametrize("broken", KUBE_BREAKS, ids=name)
def test_a_simulation_on_kubernetes_shows_that(broken: Callable[[], Break]) -> None:
    assert_shown(broken, KubeStore, *KUBE_BREAKS[broken])


@pytest.mark.slow
@pytest.mark.parametrize("happenings", [(*LATE, *TIME), DYING, MEMORY, SLOWLY, WIPED], ids=lambda names: names[0])
def test_an_unbroken_simulation_on_kubernetes_shows_nothing(happenings: Collection[str]) -> None:
    run_state_machine_as_test(machine_with(happenings, KubeStore), settings=settings(BOUNDED, max_examples=8))
