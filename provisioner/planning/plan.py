"""One cycle's decisions: the slots to open, the machines to create and delete, why, and what is held back.

The caller records ``Plan.memory`` before it does anything the plan says; every prefix of a plan leaves a state from
which the next plan recovers.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from provisioner.model import NO_LEVERS, Contact, Intent, Levers, Limits, Look, Memory, Plan, Snapshot
from provisioner.planning.allocate.capacity import Capacity
from provisioner.planning.allocate.scheduling import ask
from provisioner.planning.allocate.turns import in_turn, turns
from provisioner.planning.collect.cleanup import delete_closed
from provisioner.planning.collect.orphans import adopt, find_orphans, find_unlisted
from provisioner.planning.collect.records import ingest, trim
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.core.usage import count_usage
from provisioner.planning.finish.cancellation import cancel_asked, cancel_unpolled, note_told
from provisioner.planning.finish.deadlines import close_overdue, conclude, time_over
from provisioner.planning.finish.lifetime import offer_ending
from provisioner.planning.finish.returns import settle_returns
from provisioner.planning.observe.observation import reflect
from provisioner.planning.observe.trust import distrust
from provisioner.planning.report.unmet import find_unmet


@dataclass(frozen=True, slots=True)
class World:
    """What a plan is made from, beside memory and limits."""

    intent: Intent
    looks: Mapping[str, Look]
    """The newest look at each configured pool."""
    contact: Contact = field(default_factory=Contact)
    busy: Set[str] = frozenset()
    """Pools whose last actions are still under way: they get no new ones."""
    wall: float | None = None
    """The wall clock now, as ``Draft`` takes it."""
    levers: Levers = NO_LEVERS
    """Those that are held."""


def make_plan(world: World, memory: Memory, limits: Limits, now: float) -> Plan:
    """What to do now. ``Plan.memory`` is ``memory`` itself when nothing has to be recorded."""
    return decide(perceive(world, memory, limits, now), world)


def perceive(world: World, memory: Memory, limits: Limits, now: float) -> Draft:
    """Return a draft with what was seen, what HF knows and gives back, and what is cancelled; ask for nothing.

    Terminal answers that the draft revises have to be settled before ``decide``, which revises no other.
    """
    snapshots = {
        name: look for name, look in world.looks.items() if isinstance(look, Snapshot) and fresh(look, limits, now)
    }
    draft = Draft(memory, snapshots, limits, now, world.wall, world.levers)
    ingest(draft, world.intent)
    distrust(draft)
    reflect(draft)
    adopt(draft)
    # First what HF knew, then what it gave back: it may know of a machine only through the terminal answer.
    note_told(draft, world.contact)
    settle_returns(draft, world.busy | draft.stopped)
    cancel_unpolled(draft, world.contact)
    cancel_asked(draft)
    return draft


def decide(draft: Draft, world: World) -> Plan:
    """Return the plan: what is asked of which pool, what is too late, orphans, leftovers, usage, retention."""
    busy = world.busy | draft.stopped
    capacity = Capacity(draft, busy)
    order = turns(draft.records())
    for id_ in order:
        over = time_over(draft, draft.requests[id_])
        close_overdue(draft, draft.requests[id_], capacity, over)
        ask(draft, draft.requests[id_], capacity, over)
        conclude(draft, draft.requests[id_])
    capacity.note_windows()
    unmet = find_unmet(draft, capacity, order)
    offer_ending(draft)
    if draft.deferrals and draft.closes:  # what one request set free, another that was asked before it may take
        draft.wake_at(draft.now + SOON)
    find_orphans(draft, world.contact, busy)
    find_unlisted(draft, world.contact)
    delete_closed(draft, busy)
    count_usage(draft)
    trim(draft, world.intent, world.contact)
    return Plan(
        memory=draft.memory(),
        creates=in_turn(draft.creates),
        deletes=tuple(draft.deletes),
        transitions=draft.transitions,
        windows=draft.window_changes,
        asked=tuple(draft.asked),
        deferrals=draft.deferrals,
        deferred=draft.deferred,
        unmet=unmet,
        forget=tuple(draft.forget),
        distrusted=draft.distrusted,
        due=draft.due,
    )


def make_trim(intent: Intent, contact: Contact, memory: Memory, limits: Limits, now: float) -> Plan:
    """What may leave the files, and nothing else: no pool is seen, nothing is asked of any."""
    draft = Draft(memory, {}, limits, now)
    note_told(draft, contact)
    trim(draft, intent, contact)
    return Plan(memory=draft.memory(), forget=tuple(draft.forget))


def fresh(look: Look, limits: Limits, now: float) -> bool:
    """Of a pool that is configured, and young enough to act upon (law: a failed look is not an empty look)."""
    pool = limits.pools.get(look.pool)
    return pool is not None and now - look.began <= pool.stale_after
