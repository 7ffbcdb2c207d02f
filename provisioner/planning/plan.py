"""The decisions of one cycle: which slots to open, which machines to create, delete and defer, and the reasons.

The caller must record ``Plan.memory`` before it executes any action of the plan. If the loop dies during these actions,
the next plan recovers.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from provisioner.model import NO_HOLDS, HfActivity, Holds, Intent, Limits, Memory, Observation, Plan, find_snapshots
from provisioner.planning.allocate.capacity import Capacity
from provisioner.planning.allocate.fair_order import interleave_templates, order_requests
from provisioner.planning.allocate.machine_requests import request_machines
from provisioner.planning.cleanup.delete_closed import delete_closed
from provisioner.planning.cleanup.doubles import delete_doubles
from provisioner.planning.cleanup.orphans import find_orphans, find_unlisted, open_unrecorded_slots
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.core.request_records import ingest_requests, trim_records
from provisioner.planning.core.usage import count_usage
from provisioner.planning.finish.cancellation import cancel_asked, cancel_unpolled, note_reported
from provisioner.planning.finish.deadlines_and_ends import close_overdue, end_request, format_time_over
from provisioner.planning.finish.lifetime import retire_machines
from provisioner.planning.finish.returns import settle_returns
from provisioner.planning.observe.reconciliation import reconcile
from provisioner.planning.observe.trust import judge_snapshots
from provisioner.planning.report.unmet import find_unmet


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Inputs of a plan besides memory and limits."""

    intent: Intent
    observations: Mapping[str, Observation]
    """Newest observation of each configured pool."""
    activity: HfActivity = field(default_factory=HfActivity)
    busy: Set[str] = frozenset()
    """Pools whose last actions are still under way, so that they get no new actions."""
    wall: float | None = None
    """Wall clock at the plan's ``now``, in epoch seconds. If None, ``Draft`` derives it from memory."""
    holds: Holds = NO_HOLDS
    """Current holds."""


def make_plan(world: PlanInputs, memory: Memory, limits: Limits, now: float) -> Plan:
    """Return the plan of one cycle. ``Plan.memory`` is ``memory`` itself if it did not change."""
    return decide(apply_inputs(world, memory, limits, now), world)


def apply_inputs(world: PlanInputs, memory: Memory, limits: Limits, now: float) -> Draft:
    """Return a draft with the effects of observations, HF's activity, returns and cancels. The draft requests no
    machines yet.

    The draft may revise terminal answers. The caller must settle these answers before it calls ``decide``, which
    revises no answers.
    """
    seen = find_snapshots(world.observations)
    snapshots = {name: snapshot for name, snapshot in seen.items() if is_fresh(snapshot, limits, now)}
    draft = Draft(memory, snapshots, limits, now, world.wall, world.holds)
    draft.busy |= world.busy
    ingest_requests(draft, world.intent)
    judge_snapshots(draft)
    delete_doubles(draft)
    reconcile(draft)
    open_unrecorded_slots(draft)
    # Note read answers before settling returns. Otherwise a returned machine would count as returned too early.
    note_reported(draft, world.activity)
    settle_returns(draft)
    cancel_unpolled(draft, world.activity)
    cancel_asked(draft)
    return draft


def decide(draft: Draft, world: PlanInputs) -> Plan:
    """Complete a draft and return its plan.

    This step requests machines, enforces deadlines, and retires machines. It deletes orphans and leftovers, counts
    usage, and chooses the records to remove.
    """
    capacity = Capacity(draft)
    order = order_requests(draft.records())
    for id_ in order:
        over_message = format_time_over(draft, draft.requests[id_])
        close_overdue(draft, draft.requests[id_], capacity, over_message)
        request_machines(draft, draft.requests[id_], capacity, over_message)
        end_request(draft, draft.requests[id_])
    capacity.note_windows()
    unmet = find_unmet(draft, capacity, order)
    retire_machines(draft)
    # An earlier request may use the room that a later request released.
    if draft.deferrals and any(one.is_closed for one in draft.transitions):
        draft.wake_at(draft.now + SOON)
    find_orphans(draft, world.activity)
    find_unlisted(draft, world.activity)
    delete_closed(draft)
    count_usage(draft)
    trim_records(draft, world.intent, world.activity)
    return Plan(
        memory=draft.memory(),
        creates=interleave_templates(draft.creates),
        deletes=tuple(draft.deletes),
        transitions=draft.transitions,
        windows=draft.window_changes,
        new_records=tuple(draft.newly_read),
        deferrals=draft.deferrals,
        deferred=draft.deferred,
        unmet=unmet,
        forget=tuple(draft.forget),
        distrusted=draft.distrusted,
        due_at=draft.due_at,
    )


def make_trim(intent: Intent, activity: HfActivity, memory: Memory, limits: Limits, now: float) -> Plan:
    """Return a plan that only removes records from the files. The plan needs no snapshots and contains no actions."""
    draft = Draft(memory, {}, limits, now)
    note_reported(draft, activity)
    trim_records(draft, intent, activity)
    return Plan(memory=draft.memory(), forget=tuple(draft.forget))


def is_fresh(observation: Observation, limits: Limits, now: float) -> bool:
    """Return whether an observation belongs to a configured pool and is recent enough to act upon."""
    pool = limits.pools.get(observation.pool)
    return pool is not None and now - observation.began_at <= pool.stale_after_seconds
