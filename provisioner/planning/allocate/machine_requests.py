"""Machine requests: the machines to request, with their pools and names.

If machines stay missing, the module also finds the reason.
"""

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
from provisioner.planning.allocate.budget import format_used_up_budget
from provisioner.planning.allocate.capacity import Capacity, find_pool_failure
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.core.holds import find_hold_failure
from provisioner.planning.core.slots import (
    count_free_numbers,
    find_missing_tries,
    get_spill_time,
    lacks_room,
    pending_slots,
    with_wait,
)

MOST_LINES = 1000
"""Maximum number of failed slots for machines that were never tried. Each of these slots reports to HF why its machine
cannot be made. If there are more such machines, one slot stands for all of them, because HF may request a hundred
thousand machines."""

SLOW = Failure(ErrorClass.OTHER, "The machine did not run in time; another pool was tried.")

NO_NUMBERS = Failure(
    ErrorClass.OTHER, f"The {SLOT_NUMBERS:,} slot numbers of the request are used up; make a new request."
)


def request_machines(draft: Draft, record: RequestRecord, capacity: Capacity, over_message: str = "") -> None:
    """Request the missing machines as far as pools, windows and caps allow. Fail the machines that can never be made.

    ``over_message``: the end of a sentence that names the passed time limit; empty while the request has time.
    """
    template = draft.limits.templates.get(record.template)
    if template is None or not template.pools:
        failure = Failure(ErrorClass.INVALID, draft.limits.template_problem(record.template))
        fail_missing(draft, record, find_missing_tries(record), failure)
        return
    for slot in pending_slots(record):
        if slot.pool in draft.snapshots:
            _pursue(draft, record, slot, template, capacity)
    wanted = find_missing_tries(draft.requests[record.id])
    if over_message and wanted:
        fail_missing(draft, record, wanted, _find_reason(draft, record, template, capacity, over_message))
    elif wanted:
        _fill(draft, record, template, wanted, capacity)


def _fill(
    draft: Draft, record: RequestRecord, template: TemplateLimits, wanted: list[Tries], capacity: Capacity
) -> None:
    """Request the missing machines. Fail machines that have no tries left or that exceed the template's maxNumber."""
    if count_free_numbers(draft.requests[record.id]) <= len(wanted):  # keep one number for the slot with the reason
        fail_missing(draft, record, [UNTRIED] * len(wanted), NO_NUMBERS)
        return
    hopeful = bisect_left(wanted, template.tries, key=lambda gap: gap.failed) if template.tries else len(wanted)
    maximum = MAX_NUMBER if template.max_machines is None else template.max_machines
    fitting = min(hopeful, max(0, maximum - capacity.desired[template.id]))
    text = f"The template's maxNumber of {maximum} machines is reached (template {template.id})."
    fail_missing(draft, record, wanted[fitting:], Failure(ErrorClass.QUOTA, text))
    _spread(draft, record, template, wanted[:fitting], capacity)


def _pursue(draft: Draft, record: RequestRecord, slot: Slot, template: TemplateLimits, capacity: Capacity) -> None:
    """Handle an open slot whose machine does not run: send its create, send it again, or withdraw the slot for
    another pool."""
    if slot.submitted_at is None:
        if capacity.claim_create(slot, template.id):
            _submit(draft, record, slot)
        elif not capacity.is_pausing(slot, template.id):
            capacity.count_closed(slot, template.id)
            draft.close(slot, Verdict.WITHDRAWN)
        return
    pool = _spill_to(draft, slot, template, capacity)
    if pool is not None:
        _withdraw(draft, slot, template, capacity)
        _open(draft, record, pool, [slot.tries], capacity)
    elif not slot.observed.is_accepted and not slot.observed.was_seen:
        _repeat(draft, record, slot, capacity)


def _spill_to(draft: Draft, slot: Slot, template: TemplateLimits, capacity: Capacity) -> str | None:
    """Return the next pool that takes the machine; None if the machine stays.

    A machine moves at once if its place has no room for it. Any other machine moves ``spill_after_seconds`` after its
    create or its release from a queue. A machine in a queue moves after ``queue_spill_seconds``, if this is configured.
    """
    later = draft.limits.pools_after(template.id, slot.pool)
    if not later or count_free_numbers(draft.requests[slot.request]) < 2:
        return None
    if not (lacks_room(slot, draft.snapshots) or draft.is_due(get_spill_time(slot, draft.pool(slot.pool)))):
        return None
    return next((pool for pool in later if capacity.room(pool, template.id).machines > 0), None)


def _withdraw(draft: Draft, slot: Slot, template: TemplateLimits, capacity: Capacity) -> None:
    failure = slot.failure or with_wait(slot, SLOW)
    if not slot.observed.is_queued:
        draft.count_failed_boot(slot, failure)
    capacity.count_closed(slot, template.id)
    draft.close(slot, Verdict.WITHDRAWN, reason=DeleteReason.WITHDRAWN, failure=failure)


def _repeat(draft: Draft, record: RequestRecord, slot: Slot, capacity: Capacity) -> None:
    """Send a create again if its outcome is unknown. A second create of the same name does no harm."""
    key = (slot.pool, record.template)
    if slot.name in draft.snapshots[slot.pool].ends:
        return  # the slot's machine existed and is gone
    if not capacity.is_usable(*key):
        draft.wake_at(draft.window(*key).retry_at)
    elif slot.submitted_at is not None and draft.snapshots[slot.pool].began_at <= slot.submitted_at:
        draft.wake_at(max(slot.submitted_at, draft.now) + SOON)  # a later observation with equal content starts no plan
    elif capacity.claim_create(slot, record.template):
        _submit(draft, record, slot, again=True)


def _submit(draft: Draft, record: RequestRecord, slot: Slot, *, again: bool = False) -> None:
    draft.put_slots(record.id, slot._replace(submitted_at=draft.now))
    draft.creates.append(Create(slot.name, slot.pool, record.template, record.id, again))


def _spread(
    draft: Draft, record: RequestRecord, template: TemplateLimits, wanted: list[Tries], capacity: Capacity
) -> None:
    """Request machines from the template's pools in the template's order. Record the remaining machines as deferred.

    The deferred machines count at the pool for which they wait. If they wait for no pool, they count at the first pool.
    """
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
                capacity.note_held_back(pool, template.id)
            if room.is_waited_for:
                first = pool
                break
    if wanted:
        draft.deferrals[record.id] = Deferral(first, len(wanted), reasons)


def _open(draft: Draft, record: RequestRecord, pool: str, wanted: Sequence[Tries], capacity: Capacity) -> None:
    """Open slots in a pool, and add a create for each slot to the draft. The caller must record slots and creates
    before it sends the first create."""
    if not wanted:
        return
    slots = _new_slots(draft, record, pool, wanted, submitted=draft.now)
    draft.put_slots(record.id, *slots)
    draft.creates += [Create(slot.name, pool, record.template, record.id) for slot in slots]
    capacity.count_opened(slots[0], record.template, len(slots))


def fail_missing(draft: Draft, record: RequestRecord, wanted: Sequence[Tries], failure: Failure) -> None:
    """Open slots that fail without a create. HF can then read a reason for each missing machine.

    The reason is the failure of the machine's earlier try, else ``failure``. ``wanted`` begins with the untried
    machines. More than ``MOST_LINES`` untried machines share one slot. If too few slot numbers are left, all machines
    share one slot. If no number is left, the request's message gives the reason.
    """
    known = draft.requests[record.id]
    untried = bisect_left(wanted, True, key=lambda gap: gap != UNTRIED)
    lines = wanted[untried - 1 :] if untried > MOST_LINES else wanted
    if (numbers := count_free_numbers(known)) < len(lines):
        lines = [UNTRIED][:numbers]
    if silent := len(wanted) - len(lines):
        message = known.message if lines else f"{failure.error}: {failure.text}"
        draft.update_record(record.id, failed_without_slot=known.failed_without_slot + silent, message=message)
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
    """Return a new slot for each missing machine, with the next free numbers (law: a name is used once).

    The number in a name has a fixed width. The caller must therefore check with ``count_free_numbers`` that enough
    numbers are left.
    """
    first, prefix = draft.requests[record.id].next_slot, draft.limits.prefix
    draft.update_record(record.id, next_slot=first + len(wanted))
    return [
        Slot(machine_name(prefix, record.id, number), pool, Verdict.OPEN, draft.now, submitted, tries=tries)
        for number, tries in enumerate(wanted, first)
    ]


def _find_reason(
    draft: Draft, record: RequestRecord, template: TemplateLimits, capacity: Capacity, over_message: str
) -> Failure:
    """Return the reason why machines are missing. The first reason that applies counts, in this order:

    * a hold on all pools,
    * the last failure of a slot,
    * the failure of a pool,
    * the budget,
    * the time limit.
    """
    if hold_failure := find_hold_failure(draft.holds, template.pools):
        return hold_failure
    failures = [slot.failure for slot in record.slots.values() if slot.verdict is Verdict.FAILED and slot.failure]
    if failures:
        return failures[-1]
    for pool in template.pools:
        if trouble := find_pool_failure(draft, pool, template.id):
            return trouble
    if any(capacity.room(pool, template.id).reason is PendingReason.BUDGET for pool in template.pools):
        return Failure(ErrorClass.QUOTA, format_used_up_budget(draft.limits))
    return Failure(ErrorClass.TIMEOUT, f"No pool had room for the machine {over_message}.")
