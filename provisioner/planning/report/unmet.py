"""Unmet machines: the wanted machines of an open request that do not run.

The machines are grouped by pool and by the pending reason that the plan found. The module uses no I/O, clock or logger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from provisioner.model import DESIRED, NEVER, Deferral, ErrorClass, PendingReason, RequestRecord, Slot, Unmet, Verdict
from provisioner.planning.allocate.budget import format_used_up_budget
from provisioner.planning.allocate.capacity import Capacity
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import find_machine, get_boot_deadline, get_spill_time
from provisioner.planning.core.window_and_backoff import get_pending_limit, is_blocked

TOTAL = "max_machines_total, over all templates"
"""Text of the pending reason if the cap over all templates is used up."""

SPILLS = frozenset(
    {
        PendingReason.UNSENT,
        PendingReason.UNANSWERED,
        PendingReason.STARTING,
        PendingReason.QUEUED,
        PendingReason.TROUBLED,
    }
)
"""Pending reasons of slots that the plan withdraws after some time, so that the next pool makes the machine."""


def find_unmet(draft: Draft, capacity: Capacity, order: Iterable[str]) -> Mapping[str, tuple[Unmet, ...]]:
    """Return the unmet machines by request. ``order``: the order in which the plan serves the requests."""
    found: dict[str, tuple[Unmet, ...]] = {}
    first: dict[tuple[str, str], str] = {}
    for id_ in order:
        record = draft.requests[id_]
        if record.ended is not None:
            continue
        unmet = list(_find_unmet_slots(draft, capacity, record)) if record.slots else []
        if deferral := draft.deferrals.get(id_):
            asks_first = first.setdefault((deferral.pool, record.template), id_)
            unmet.append(_deferred(draft, capacity, record, deferral, "" if asks_first == id_ else asks_first))
        if unmet:
            found[id_] = tuple(unmet)
    return found


# --- slots that do not run --------------------------------------------------------------------------------------------


def _find_unmet_slots(draft: Draft, capacity: Capacity, record: RequestRecord) -> Iterator[Unmet]:
    """Yield the unmet machines with a slot, grouped by pool, reason and error class."""
    groups = defaultdict[tuple[str, PendingReason, ErrorClass | None], list[Slot]](list)
    for slot in [slot for slot in record.slots.values() if slot.ran_at is None or slot.life.down_since is not None]:
        if reason := _find_reason(draft, slot):
            is_plain = reason in (PendingReason.UNSEEN, PendingReason.QUEUED)
            failure = None if is_plain else slot.trouble or slot.tries.failure
            groups[slot.pool, reason, failure.error if failure else None].append(slot)
    for (pool, reason, _), slots in groups.items():
        explanation = _explain(draft, record.template, reason, slots)
        spill = _find_spill(draft, capacity, record.template, slots) if reason in SPILLS else {}
        yield Unmet(pool, reason, len(slots), **explanation, **spill)


def _find_reason(draft: Draft, slot: Slot) -> PendingReason | None:
    """Return the most specific reason why a slot's machine does not run; None if another slot replaces this slot."""
    if slot.verdict not in DESIRED:
        given_up = slot.verdict is Verdict.FAILED and slot.submitted_at is None
        return PendingReason.GIVEN_UP if given_up or slot.verdict is Verdict.CANCELLED else None
    if slot.life.down_since is not None:
        return PendingReason.TROUBLED
    if slot.is_set_aside:
        return PendingReason.SET_ASIDE
    if slot.pool not in draft.snapshots:
        return PendingReason.UNSEEN
    if slot.submitted_at is None:
        return PendingReason.UNSENT
    if slot.observed.is_queued and slot.failure is None:
        return PendingReason.QUEUED
    if slot.trouble is not None:
        return PendingReason.TROUBLED
    return PendingReason.STARTING if slot.observed.was_seen or slot.observed.is_accepted else PendingReason.UNANSWERED


def _explain(draft: Draft, template: str, reason: PendingReason, slots: list[Slot]) -> dict[str, Any]:
    """Return fields of ``Unmet``: the failure behind the reason, since when the reason applies, and when the next try
    begins."""
    since = min([slot.asked_at for slot in slots])
    if reason is PendingReason.UNSEEN:
        return {"error": ErrorClass.UNAVAILABLE, "since": since}
    if reason is PendingReason.QUEUED:
        return _explain_queue(draft, slots)
    trouble, next_try, pool = slots[0].trouble, None, slots[0].pool
    failure = trouble or slots[0].tries.failure
    if reason not in (PendingReason.SET_ASIDE, PendingReason.GIVEN_UP):
        window = draft.window(pool, template)
        if reason is PendingReason.UNSENT:
            next_try = max(draft.now, window.retry_at)
        else:
            deadline = min([get_boot_deadline(slot, draft.pool(pool)) for slot in slots])
            next_try = None if deadline == NEVER else deadline
        if window.backs_off_from is not None and trouble is None:
            failure, since = window.backs_off_from, window.blocked_at
    error_facts = {"error": failure.error, "text": failure.text} if failure else {}
    return {**error_facts, "since": since, "next_try_at": next_try}


def _explain_queue(draft: Draft, slots: list[Slot]) -> dict[str, Any]:
    """Return fields of ``Unmet``: the reason of the longest wait in a queue, and the earliest expected start."""
    oldest = min(slots, key=lambda slot: slot.asked_at)
    machines = [find_machine(slot, draft.snapshots) for slot in slots]
    starts = [one.queued.expected_start for one in machines if one and one.queued and one.queued.expected_start]
    return {"since": oldest.asked_at, "text": oldest.observed.queue_reason, "expected_start": min(starts, default=0)}


def _find_spill(draft: Draft, capacity: Capacity, template: str, slots: list[Slot]) -> dict[str, Any]:
    """Return fields of ``Unmet`` about the next pool for machines that have slots.

    The fields name the next pool, the moment of the move, and the pools that are skipped.
    """
    has_room = slots[0].failure is None or not slots[0].failure.error.has_no_room
    limits = draft.pool(slots[0].pool)
    spills_at = min([get_spill_time(slot, limits) for slot in slots]) if has_room else None
    return _find_next_pool(draft, capacity, template, slots[0].pool, spills_at)


def _find_next_pool(
    draft: Draft, capacity: Capacity, template: str, pool: str, spills_at: float | None
) -> dict[str, Any]:
    """Return fields of ``Unmet`` about the next pool: the first pool after ``pool`` that takes machines.

    The fields name the next pool and the moment from which it is used. They also say why each pool in between takes no
    machine. If the machines keep their position in a queue and thus never move, return no fields.
    """
    if spills_at == NEVER:
        return {}
    lacks: dict[str, PendingReason] = {}
    facts: dict[str, Any] = {}
    for name in draft.limits.pools_after(template, pool):
        room = capacity.room(name, template)
        if room.machines or room.is_waited_for:
            facts = {"spills_to": name, "spills_at": spills_at}
            break
        lacks[name] = room.reason
    return {**facts, "full": _full_pools(capacity, template, lacks), "elsewhere": _name_unseen(draft, lacks)}


def _full_pools(capacity: Capacity, template: str, pools: Iterable[str]) -> dict[str, int]:
    """Return, by pool, those caps of the given pools that are used up."""
    caps = {pool: capacity.cap(pool, template) for pool in pools}
    return {pool: cap.size for pool, cap in caps.items() if cap is not None and cap.left <= 0}


# --- machines without a slot ------------------------------------------------------------------------------------------


def _deferred(draft: Draft, capacity: Capacity, record: RequestRecord, deferral: Deferral, behind: str) -> Unmet:
    """Return an ``Unmet`` about those machines of a request that no pool takes now.

    The machines count at the pool for which they wait. If they wait for no pool, they count at the first pool.
    ``behind``: the request that is served first.
    """
    reasons = _name_unseen(draft, deferral.reasons)
    pool, template = deferral.pool, record.template
    reason = reasons.pop(pool)
    facts: dict[str, Any] = {"since": record.read_at}
    if reason is PendingReason.UNSEEN:
        facts["error"] = ErrorClass.UNAVAILABLE
    elif reason is PendingReason.BUDGET:
        facts["text"] = format_used_up_budget(draft.limits)
    elif reason is PendingReason.CAP:
        cap = capacity.cap(pool, template)
        facts |= {"bound": cap and cap.size, "text": TOTAL if cap and cap.is_total else ""}
    elif reason is PendingReason.WINDOW:
        facts = _behind_window(draft, capacity, pool, template, reasons)
    elif reason is PendingReason.BACKOFF and is_blocked(draft.window(pool, template), draft.now):
        facts = {}
    facts["full"] = _full_pools(capacity, template, reasons) | facts.get("full", {})
    facts["elsewhere"] = reasons | facts.get("elsewhere", {})
    return Unmet(pool, reason, deferral.machines, behind=behind, **facts)


def _name_unseen(draft: Draft, reasons: Mapping[str, PendingReason]) -> dict[str, PendingReason]:
    """Return the reasons by pool. For a pool that is not observed, ``UNSEEN`` replaces ``BACKOFF``."""
    return {
        pool: PendingReason.UNSEEN if reason is PendingReason.BACKOFF and pool not in draft.snapshots else reason
        for pool, reason in reasons.items()
    }


def _behind_window(
    draft: Draft, capacity: Capacity, pool: str, template: str, elsewhere: Mapping[str, PendingReason]
) -> dict[str, Any]:
    """Return fields of ``Unmet`` about a window: its size, and the moment at which the next pool is used.

    While calls to the pool are under way, the size is left out.
    """
    window = draft.window(pool, template)
    facts: dict[str, Any] = {} if pool in draft.busy else {"bound": get_pending_limit(window)}
    if elsewhere.keys() >= {*draft.limits.pools_after(template, pool)}:
        return facts
    closed = draft.now if window.closed_since is None else window.closed_since
    return facts | _find_next_pool(draft, capacity, template, pool, closed + draft.pool(pool).spill_after_seconds)
