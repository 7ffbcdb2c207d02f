"""One cycle's decisions: the slots to open, the machines to create and delete, why, and what is held back.

First the outside world is taken in (``reflect``), then what HF said, then what is missing is asked for. The caller
records ``Plan.memory`` before it does anything the plan says; every prefix of a plan leaves a state from which the
next plan recovers. Pure: no I/O, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from provisioner.model import (
    BrakeReason,
    Contact,
    DeleteReason,
    ErrorClass,
    Failure,
    Intent,
    Limits,
    Look,
    Memory,
    Plan,
    PoolLimits,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    Slot,
    Snapshot,
    Verdict,
    evolve,
)
from provisioner.planning import window
from provisioner.planning.cleanup import delete_closed
from provisioner.planning.draft import SOON, Draft
from provisioner.planning.observation import reflect
from provisioner.planning.orphans import adopt, cancel_unpolled, find_orphans, find_unlisted, note_told, trim
from provisioner.planning.relocation import whereabouts
from provisioner.planning.returns import settle_returns
from provisioner.planning.scheduling import Places, ask, missing, waiting


@dataclass(frozen=True, slots=True)
class World:
    """What a plan is made from, beside memory and limits."""

    intent: Intent
    looks: Mapping[str, Look]
    """The newest look at each configured pool."""
    contact: Contact = field(default_factory=Contact)
    busy: Set[str] = frozenset()
    """Pools whose last actions are still under way: they get no new ones."""


def make_plan(world: World, memory: Memory, limits: Limits, now: float) -> Plan:
    """What to do now. ``Plan.memory`` is ``memory`` itself when nothing has to be recorded."""
    snapshots = {
        name: look for name, look in world.looks.items() if isinstance(look, Snapshot) and _fresh(look, limits, now)
    }
    draft = Draft(memory, snapshots, limits, now)
    _read_intent(draft, world.intent)
    reflect(draft)
    adopt(draft)
    # First what HF knew, then what it gave back: it may know of a machine only through the terminal answer.
    note_told(draft, world.contact)
    settle_returns(draft, world.busy)
    cancel_unpolled(draft, world.contact)
    places = Places(draft, world.busy)
    for record in draft.records():
        if record.ended is None:
            _close_overdue(draft, record, places)
            ask(draft, draft.record(record.id), places)
            _conclude(draft, draft.record(record.id))
    places.note_windows()
    if draft.deferred and draft.closes:  # what one request set free, another that was asked before it may take
        draft.wake_at(now + SOON)
    find_orphans(draft, world.contact, world.busy)
    find_unlisted(draft, world.contact)
    delete_closed(draft, world.busy)
    trim(draft, world.intent, world.contact)
    if (known := whereabouts(memory, limits)) != memory.whereabouts:
        draft.changes["whereabouts"] = known
    return Plan(
        memory=draft.memory(),
        creates=tuple(draft.creates),
        deletes=tuple(draft.deletes),
        closes=tuple(draft.closes),
        deferred=dict(draft.deferred),
        forget=tuple(draft.forget),
        due=draft.due,
    )


def make_trim(intent: Intent, contact: Contact, memory: Memory, limits: Limits, now: float) -> Plan:
    """What may leave the files, and nothing else: no pool is seen, nothing is asked of any."""
    draft = Draft(memory, {}, limits, now)
    note_told(draft, contact)
    trim(draft, intent, contact)
    return Plan(memory=draft.memory(), forget=tuple(draft.forget))


def _fresh(look: Snapshot, limits: Limits, now: float) -> bool:
    """Of a pool that is configured, and young enough to act upon (law 4)."""
    pool = limits.pools.get(look.pool)
    return pool is not None and now - look.began <= pool.stale_after


def _read_intent(draft: Draft, intent: Intent) -> None:
    """Take in new requests; notice an intent that went back in time."""
    memory, now, limits = draft.before, draft.now, draft.limits
    if intent.generation < memory.generation:
        draft.latch(
            BrakeReason.INTENT_OLDER,
            f"intent.json has generation {intent.generation}, but {memory.generation} was read before.",
        )
        return  # what it asks for may have been done, and forgotten, long ago
    if intent.generation > memory.generation:
        draft.changes["generation"] = intent.generation
    for request in intent.requests.values():
        if request.id not in draft.requests:
            draft.requests[request.id] = RequestRecord(
                id=request.id,
                template=request.template,
                count=request.count,
                read=now,
                deadline=now + limits.request_deadline,
                rc_account=request.rc_account,
            )
    for wish in intent.returns.values():
        if wish.id not in draft.returns:
            draft.returns[wish.id] = ReturnRecord(
                id=wish.id, names=wish.names, read=now, deadline=now + limits.return_deadline
            )
    lost = [id_ for id_, record in draft.requests.items() if id_ not in intent.requests and not record.trimmed]
    if lost:
        draft.latch(BrakeReason.REQUEST_LOST, f"intent.json lacks {len(lost)} known requests, e.g. {lost[0]}.")


def _close_overdue(draft: Draft, record: RequestRecord, places: Places) -> None:
    """Fail what did not run in time: a slot by its boot deadline, all that is missing by the request's."""
    now = draft.now
    overdue = now >= record.deadline
    draft.wake_at(record.deadline)
    for slot in waiting(record):
        observed = slot.pool in draft.snapshots
        if overdue:
            text = slot.failure or _reason(draft, slot.pool, record.template, observed)
            _time_out(draft, record, slot, text, places)
        elif slot.submitted is not None and observed:
            boot_deadline = _boot_deadline(slot, slot.submitted, draft.pool(slot.pool))
            if now >= boot_deadline:
                text = slot.failure or Failure(ErrorClass.TIMEOUT, "The machine did not run within its boot deadline.")
                _time_out(draft, record, slot, text, places)
                known = draft.pressure(slot.pool, record.template)
                learned = window.failed(known, text, slot.submitted, now, draft.limits, boot=True)
                draft.set_pressure(slot.pool, record.template, learned)
            else:
                draft.wake_at(boot_deadline)


def _boot_deadline(slot: Slot, submitted: float, limits: PoolLimits) -> float:
    """When its machine has to run. One that is held back on purpose has a deadline of its own, and boots after it."""
    if slot.gated:
        return submitted + limits.gated_deadline
    return (submitted if slot.lifted is None else slot.lifted) + limits.boot_deadline


def _time_out(draft: Draft, record: RequestRecord, slot: Slot, failure: Failure, places: Places) -> None:
    places.released(slot, record.template)
    draft.close(record, slot, Verdict.FAILED, reason=DeleteReason.TIMED_OUT, failure=failure)


def _reason(draft: Draft, pool: str, template: str, observed: bool) -> Failure:
    """Why a machine that never ran did not: the pool's own trouble, if it has any."""
    if not observed:
        return Failure(ErrorClass.UNAVAILABLE, f"unobservable: pool {pool} could not be seen.")
    known = draft.pressure(pool, template).failure
    return known or Failure(ErrorClass.TIMEOUT, "The machine did not run before the request's deadline.")


def _conclude(draft: Draft, record: RequestRecord) -> None:
    """Give the request its terminal answer once nothing is missing and nothing is on its way (laws 7 and 8)."""
    if waiting(record) or missing(record) > 0:
        return
    running = [slot for slot in record.slots.values() if slot.verdict is Verdict.OPEN and slot.ran is not None]
    for slot in running:
        draft.put(record.id, evolve(slot, verdict=Verdict.SUCCEEDED))
    status = RequestStatus.COMPLETE if len(running) >= record.count else RequestStatus.COMPLETE_WITH_ERROR
    draft.update(record.id, ended=status, ended_at=draft.now)
