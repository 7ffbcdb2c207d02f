"""Asking for what is missing: which pool, how many now, under which name, and why not more."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from provisioner.hostfactory import MAX_NUMBER
from provisioner.model import (
    UNTRIED,
    Create,
    Deferral,
    DeleteReason,
    ErrorClass,
    Failure,
    PendingReason,
    RequestRecord,
    Slot,
    TemplateLimits,
    Tries,
    Verdict,
)
from provisioner.names import SLOT_NUMBERS, machine_name
from provisioner.planning.allocate.budget import spent
from provisioner.planning.allocate.capacity import Capacity, pool_trouble
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.core.levers import why_none
from provisioner.planning.core.slots import gaps, lacks_room, numbers_left, pending

MOST_LINES = 1000
"""Machines of a request that are given up at a time with a line for each: HF may ask for a hundred thousand."""

SLOW = Failure(ErrorClass.OTHER, "The machine did not run in time; another pool was tried.")

NO_NUMBERS = Failure(
    ErrorClass.OTHER, f"The {SLOT_NUMBERS:,} slot numbers of the request are used up; make a new request."
)


def ask(draft: Draft, record: RequestRecord, capacity: Capacity, over: str = "") -> None:
    """Ask for what the request misses, as far as pools, windows and caps allow; give up what can never be.

    ``over``: the request's time is, in words that follow what did not happen.
    """
    template = draft.limits.templates.get(record.template)
    if template is None or not template.pools:
        give_up(draft, record, gaps(record), Failure(ErrorClass.INVALID, f"Template {record.template} has no pools."))
        return
    for slot in pending(record):
        if slot.pool in draft.snapshots:
            _pursue(draft, record, slot, template, capacity)
    wanted = gaps(draft.requests[record.id])
    if over and wanted:
        give_up(draft, record, wanted, _why_missing(draft, record, template, capacity, over))
    elif wanted:
        _fill(draft, record, template, wanted, capacity)


def _fill(
    draft: Draft, record: RequestRecord, template: TemplateLimits, wanted: list[Tries], capacity: Capacity
) -> None:
    """Ask for what is missing, but for what was tried often enough and for what is beyond the template's maxNumber."""
    if numbers_left(draft.requests[record.id]) <= len(wanted):  # one is kept to say why under its name
        give_up(draft, record, [UNTRIED] * len(wanted), NO_NUMBERS)
        return
    hopeful = bisect_left(wanted, template.tries, key=lambda gap: gap.failed) if template.tries else len(wanted)
    maximum = MAX_NUMBER if template.max_machines is None else template.max_machines
    fitting = min(hopeful, max(0, maximum - capacity.desired[template.id]))
    text = f"The template's maxNumber of {maximum} machines is reached (template {template.id})."
    give_up(draft, record, wanted[fitting:], Failure(ErrorClass.QUOTA, text))
    _spread(draft, record, template, wanted[:fitting], capacity)


def _pursue(draft: Draft, record: RequestRecord, slot: Slot, template: TemplateLimits, capacity: Capacity) -> None:
    """Send the create of an open slot that does not run, send it again, or withdraw the slot for another pool."""
    if slot.submitted is None:
        if capacity.takes(slot, template.id):
            _submit(draft, record, slot)
        elif not capacity.pausing(slot, template.id):
            capacity.released(slot, template.id)
            draft.close(slot, Verdict.WITHDRAWN)
        return
    pool = _spill_to(draft, slot, template, capacity)
    if pool is not None:
        _withdraw(draft, slot, template, capacity)
        _open(draft, record, pool, [slot.tries], capacity)
    elif not slot.observed.accepted and not slot.observed.seen:
        _repeat(draft, record, slot, capacity)


def _spill_to(draft: Draft, slot: Slot, template: TemplateLimits, capacity: Capacity) -> str | None:
    """The next pool that takes the machine: at once where there is no room for it, else once ``spill_after`` has passed
    since its create or its ungating."""
    if template.pools[-1] == slot.pool or numbers_left(draft.requests[slot.request]) < 2:
        return None
    if lacks_room(slot, draft.snapshots):
        return _next_pool(slot, template, capacity)
    spill_at = slot.boots_from + draft.pool(slot.pool).spill_after
    draft.wake_at(spill_at)
    return _next_pool(slot, template, capacity) if draft.now >= spill_at else None


def _withdraw(draft: Draft, slot: Slot, template: TemplateLimits, capacity: Capacity) -> None:
    failure = slot.failure or SLOW
    draft.count_failed_boot(slot, failure)
    capacity.released(slot, template.id)
    draft.close(slot, Verdict.WITHDRAWN, reason=DeleteReason.WITHDRAWN, failure=failure)


def _repeat(draft: Draft, record: RequestRecord, slot: Slot, capacity: Capacity) -> None:
    """Send a create again whose outcome nobody knows: a second one of the same name is harmless."""
    key = (slot.pool, record.template)
    if slot.name in draft.snapshots[slot.pool].causes:
        return  # its machine came and went
    if not capacity.usable(*key):
        draft.wake_at(draft.window(*key).retry_at)
    elif slot.submitted is not None and draft.snapshots[slot.pool].began <= slot.submitted:
        draft.wake_at(max(slot.submitted, draft.now) + SOON)  # a later look that says the same is no news
    elif capacity.takes(slot, record.template):
        _submit(draft, record, slot, again=True)


def _submit(draft: Draft, record: RequestRecord, slot: Slot, *, again: bool = False) -> None:
    draft.put(record.id, slot._replace(submitted=draft.now))
    draft.creates.append(Create(slot.name, slot.pool, record.template, record.id, again))


def _next_pool(slot: Slot, template: TemplateLimits, capacity: Capacity) -> str | None:
    """The first pool after the slot's own that takes a machine now."""
    if slot.pool not in template.pools:
        return None
    later = template.pools[template.pools.index(slot.pool) + 1 :]
    return next((pool for pool in later if capacity.room(pool, template.id).machines > 0), None)


def _spread(
    draft: Draft, record: RequestRecord, template: TemplateLimits, wanted: list[Tries], capacity: Capacity
) -> None:
    """Fill the pools in the template's order; what no pool takes is deferred where it would go first."""
    reasons: dict[str, PendingReason] = {}
    first = template.pools[0]
    for pool in template.pools:
        if not wanted:
            break
        room = capacity.room(pool, template.id)
        _open(draft, record, pool, wanted[: room.machines], capacity)
        wanted = wanted[room.machines :]
        if wanted:
            reasons[pool] = room.reason
            if room.reason is PendingReason.WINDOW:
                capacity.hold(pool, template.id)
            if room.waits:
                first = pool
                break
    if wanted:
        draft.deferrals[record.id] = Deferral(first, len(wanted), reasons)


def _open(draft: Draft, record: RequestRecord, pool: str, wanted: Sequence[Tries], capacity: Capacity) -> None:
    """Open slots and ask for their machines; both are recorded before the first call."""
    if not wanted:
        return
    slots = _new_slots(draft, record, pool, wanted, submitted=draft.now)
    draft.put(record.id, *slots)
    draft.creates += [Create(slot.name, pool, record.template, record.id) for slot in slots]
    capacity.opened(slots[0], record.template, len(slots))


def give_up(draft: Draft, record: RequestRecord, wanted: Sequence[Tries], failure: Failure) -> None:
    """Open slots that fail without a create, so that HF hears the reason under a name: the machine's own, if any.

    Where more than ``MOST_LINES`` were never tried, which come first as in ``gaps``, one speaks for all of them; where
    the numbers do not suffice, one slot speaks for all machines, or the request's message if no number is left.
    """
    known = draft.requests[record.id]
    untried = bisect_left(wanted, True, key=lambda gap: gap != UNTRIED)
    lines = wanted[untried - 1 :] if untried > MOST_LINES else wanted
    if (numbers := numbers_left(known)) < len(lines):
        lines = [UNTRIED][:numbers]
    if silent := len(wanted) - len(lines):
        message = known.message if lines else f"{failure.error}: {failure.text}"
        draft.update(record.id, withheld=known.withheld + silent, message=message)
        failure = replace(failure, text=f"{failure.text} So {silent + 1:,} machines of the request are not made.")
    if not lines:
        return
    template = draft.limits.templates.get(record.template)
    pool = template.pools[0] if template and template.pools else ""
    for slot in _new_slots(draft, record, pool, lines):
        draft.close(slot, Verdict.FAILED, failure=slot.tries.failure or failure)


def _new_slots(
    draft: Draft, record: RequestRecord, pool: str, wanted: Sequence[Tries], submitted: float | None = None
) -> list[Slot]:
    """A slot for each machine that is missing, with the next numbers (law: a name is used once).

    The caller has asked ``numbers_left``: no number of more digits than a name has is ever given.
    """
    first, prefix = draft.requests[record.id].next_slot, draft.limits.prefix
    draft.update(record.id, next_slot=first + len(wanted))
    return [
        Slot(machine_name(prefix, record.id, number), pool, Verdict.OPEN, draft.now, submitted, tries=tries)
        for number, tries in enumerate(wanted, first)
    ]


def _why_missing(
    draft: Draft, record: RequestRecord, template: TemplateLimits, capacity: Capacity, over: str
) -> Failure:
    """What holds all its pools, else the last failure of its own slots, its pools' trouble, the budget, or its time."""
    if held := why_none(draft.levers, template.pools):
        return held
    failures = [slot.failure for slot in record.slots.values() if slot.verdict is Verdict.FAILED and slot.failure]
    if failures:
        return failures[-1]
    for pool in template.pools:
        if trouble := pool_trouble(draft, pool, template.id):
            return trouble
    if any(capacity.room(pool, template.id).reason is PendingReason.BUDGET for pool in template.pools):
        return Failure(ErrorClass.QUOTA, spent(draft.limits))
    return Failure(ErrorClass.TIMEOUT, f"No pool had room for the machine {over}.")
