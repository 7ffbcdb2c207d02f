"""Unmet machines: those that open requests want and that do not run, by pool and reason, as the plan met them.

No I/O, no clock, no logger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from provisioner.model import (
    DESIRED,
    ErrorClass,
    Failure,
    PendingReason,
    RequestRecord,
    Slot,
    TemplateLimits,
    Unmet,
    Verdict,
)
from provisioner.planning.allocate.budget import spent
from provisioner.planning.allocate.capacity import Capacity
from provisioner.planning.core.draft import Deferral, Draft
from provisioner.planning.core.slots import boots_by

TOTAL = "max_machines_total, over all templates"
"""The text of the reason if that cap is used up."""

SPILLS = frozenset(
    {
        PendingReason.UNSENT,
        PendingReason.UNANSWERED,
        PendingReason.STARTING,
        PendingReason.GATED,
        PendingReason.TROUBLED,
    }
)
"""The reasons of slots that are withdrawn for the next pool after some time."""


def find_unmet(draft: Draft, capacity: Capacity, order: Iterable[str]) -> Mapping[str, tuple[Unmet, ...]]:
    """Return the unmet machines of each request that has some; ``order``: that in which the requests ask."""
    found: dict[str, tuple[Unmet, ...]] = {}
    first: dict[tuple[str, str], str] = {}
    for id_ in order:
        record = draft.record(id_)
        if record.ended is not None:
            continue
        unmet = list(_of_slots(draft, record))
        if deferral := draft.deferrals.get(id_):
            asks_first = first.setdefault((deferral.pool, record.template), id_)
            one = _deferred(draft, capacity, record, deferral)
            unmet.append(one if asks_first == id_ else replace(one, behind=asks_first))
        if unmet:
            found[id_] = tuple(unmet)
    return found


# --- slots that do not run --------------------------------------------------------------------------------------------


def _of_slots(draft: Draft, record: RequestRecord) -> Iterator[Unmet]:
    """Yield the machines that have a slot: those of each pool, reason and class of error together."""
    groups = defaultdict[tuple[str, PendingReason, ErrorClass | None], list[Slot]](list)
    for slot in [slot for slot in record.slots.values() if slot.ran is None or slot.down is not None]:
        if reason := _reason(draft, slot):
            failure = None if reason is PendingReason.UNSEEN else slot.failure or slot.tried
            groups[slot.pool, reason, failure.error if failure else None].append(slot)
    template = draft.limits.templates.get(record.template)
    for (pool, reason, error), slots in groups.items():
        one = Unmet(pool, reason, len(slots), error, since=min([slot.asked_at for slot in slots]))
        yield _with_spill(draft, _explained(draft, record, one, slots), slots, template)


def _reason(draft: Draft, slot: Slot) -> PendingReason | None:
    """Return the most telling reason why a slot's machine does not run; None if another machine is wanted instead."""
    if slot.verdict not in DESIRED:
        given_up = slot.verdict is Verdict.FAILED and slot.submitted is None
        return PendingReason.GIVEN_UP if given_up or slot.verdict is Verdict.CANCELLED else None
    if slot.down is not None:
        return PendingReason.TROUBLED
    if slot.set_aside:
        return PendingReason.SET_ASIDE
    if slot.pool not in draft.snapshots:
        return PendingReason.UNSEEN
    if slot.submitted is None:
        return PendingReason.UNSENT
    if slot.gated:
        return PendingReason.GATED
    if slot.failure is not None:
        return PendingReason.TROUBLED
    return PendingReason.STARTING if slot.seen or slot.accepted else PendingReason.UNANSWERED


def _explained(draft: Draft, record: RequestRecord, one: Unmet, slots: list[Slot]) -> Unmet:
    """Add the failure behind the reason, and when the machines are asked for again."""
    if one.reason is PendingReason.UNSEEN:
        return replace(one, error=ErrorClass.UNAVAILABLE)
    if failure := slots[0].failure or slots[0].tried:
        one = _because(one, failure)
    if one.reason in (PendingReason.SET_ASIDE, PendingReason.GIVEN_UP):
        return one
    window = draft.window(one.pool, record.template)
    if one.reason is PendingReason.UNSENT:
        one = replace(one, next_try=max(draft.now, window.retry_at))
    else:
        pool = draft.pool(one.pool)
        one = replace(one, next_try=min([boots_by(slot, slot.asked_at, pool) for slot in slots]))
    if window.backs_off_from is None or slots[0].failure is not None:
        return one
    return _because(one, window.backs_off_from, window.blocked_at)


def _because(one: Unmet, failure: Failure, since: float | None = None) -> Unmet:
    return replace(one, error=failure.error, text=failure.text, since=one.since if since is None else since)


def _with_spill(draft: Draft, one: Unmet, slots: list[Slot], template: TemplateLimits | None) -> Unmet:
    """Add the pool that is asked instead, and when."""
    pools = template.pools if template else ()
    after = pools[pools.index(one.pool) + 1 :] if one.pool in pools else ()
    if not after or one.reason not in SPILLS:
        return one
    if slots[0].failure is not None and slots[0].failure.error.has_no_room:
        return replace(one, spills_to=after[0])
    asked = min([slot.asked_at if slot.lifted is None else slot.lifted for slot in slots])
    return replace(one, spills_to=after[0], spills_at=asked + draft.pool(one.pool).spill_after)


# --- machines without a slot ------------------------------------------------------------------------------------------


def _deferred(draft: Draft, capacity: Capacity, record: RequestRecord, deferral: Deferral) -> Unmet:
    """Return the machines that no pool takes, at the pool that they wait for or else the first."""
    reasons = {
        pool: PendingReason.UNSEEN if reason is PendingReason.BACKOFF and pool not in draft.snapshots else reason
        for pool, reason in deferral.reasons.items()
    }
    pool, reason = deferral.pool, reasons.pop(deferral.pool)
    one = Unmet(pool, reason, deferral.machines, since=record.read, elsewhere=reasons)
    if reason is PendingReason.UNSEEN:
        return replace(one, error=ErrorClass.UNAVAILABLE)
    if reason is PendingReason.BUDGET:
        return replace(one, text=spent(draft.limits))
    if reason is PendingReason.CAP:
        cap = capacity.cap(pool, record.template)
        return replace(one, bound=cap and cap.size, text=TOTAL if cap and cap.total else "")
    window = draft.window(pool, record.template)
    if reason is not PendingReason.PAUSED and window.backs_off_from is not None:
        one = _because(one, window.backs_off_from, window.blocked_at)
    if reason is PendingReason.WINDOW:
        return _behind_window(draft, capacity, record, one)
    blocked = reason is PendingReason.BACKOFF and window.retry_at > draft.now
    return replace(one, next_try=window.retry_at) if blocked else one


def _behind_window(draft: Draft, capacity: Capacity, record: RequestRecord, one: Unmet) -> Unmet:
    """Add the width of the window, unless earlier calls are under way, and when the next pool is asked."""
    window = draft.window(one.pool, record.template)
    closed = draft.now if window.closed_since is None else window.closed_since
    if one.pool not in capacity.busy:
        one = replace(one, bound=1 if window.probing else window.window)
    one = one if one.error else replace(one, since=closed)
    pools = draft.limits.templates[record.template].pools
    after = pools[pools.index(one.pool) + 1 :]
    if not after or one.elsewhere.keys() >= set(after):
        return one
    return replace(one, spills_to=after[0], spills_at=closed + draft.pool(one.pool).spill_after)
