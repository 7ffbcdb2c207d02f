"""Deadlines: a machine that does not run in time fails. A request ends when all its machines run or have failed.

The time of a request is over at the request's deadline. If most of its machines run, the time may be over earlier: when
no other machine has changed for ``straggler_seconds``.
"""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import DeleteReason, ErrorClass, Failure, RequestRecord, RequestStatus, Slot, Verdict
from provisioner.planning.allocate.capacity import Capacity, find_pool_failure
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import (
    count_missing,
    down_slots,
    find_machine,
    get_boot_deadline,
    pending_slots,
    with_wait,
)

NOT_BOOTED = Failure(ErrorClass.TIMEOUT, "The machine did not run within its boot deadline.")

SHORT_OUTAGE = 30.0
"""Seconds for which a machine may be down at its request's deadline before the machine fails. Most machines recover in
this time."""


def format_time_over(draft: Draft, record: RequestRecord) -> str:
    """Return the end of a sentence that names the time limit that has passed; empty while the request has time."""
    if draft.is_due(record.deadline_at):
        return "before the request's deadline"
    template = draft.limits.templates.get(record.template)
    if template is None or not template.straggler_after_seconds:
        return ""
    running = len(_running(record)) - len(down_slots(record))
    if not record.count or running / record.count < template.straggler_share:
        return ""
    if any(slot.pool not in draft.snapshots for slot in (*pending_slots(record), *down_slots(record))):
        return ""  # a machine may run unseen in a pool that is not observed
    if not draft.is_due(_last_change_at(record) + template.straggler_after_seconds):
        return ""
    return f"within straggler_seconds ({template.straggler_after_seconds:g}) of the last change of its request"


def _last_change_at(record: RequestRecord) -> float:
    """Return the moment of the last change of a machine of the request.

    A change is the opening or close of a slot, a first run, or a release from a queue.
    """
    return max(
        when
        for slot in record.slots.values()
        for when in (slot.opened_at, slot.ran_at, slot.deletion.closed_at, slot.life.released_at)
        if when is not None
    )


def _running(record: RequestRecord) -> list[Slot]:
    return [slot for slot in record.slots.values() if slot.verdict is Verdict.OPEN and slot.ran_at is not None]


def close_overdue(draft: Draft, record: RequestRecord, capacity: Capacity, over_message: str) -> None:
    """Fail the machines that did not run in time.

    A machine that never ran fails at its boot deadline, or at once if its place denies it. Such a machine also fails
    when the request's time is over (``over_message`` is not empty). A machine that ran and is down fails at the
    request's deadline. But the machine gets at least ``SHORT_OUTAGE`` seconds to recover.
    """
    for slot in down_slots(record):
        if draft.is_due(max(record.deadline_at, (slot.life.down_since or 0.0) + SHORT_OUTAGE)):
            why = slot.failure or Failure(ErrorClass.OTHER, "The machine is not ready.")
            _time_out(draft, record, slot, why, capacity)
    for slot in pending_slots(record):
        if over_message:
            _time_out(draft, record, slot, _late_failure(draft, record, slot, over_message), capacity)
        elif slot.submitted_at is not None and slot.pool in draft.snapshots:
            denied = slot.failure is not None and slot.failure.error is ErrorClass.DENIED  # waiting would not help
            if denied or draft.is_due(get_boot_deadline(slot, draft.pool(slot.pool))):
                failure = slot.failure or _boot_failure(draft, slot)
                _time_out(draft, record, slot, failure, capacity)
                draft.count_failed_boot(slot, failure)


def _late_failure(draft: Draft, record: RequestRecord, slot: Slot, over_message: str) -> Failure:
    """Return the reason why a machine does not run although its request's time is over."""
    late = Failure(ErrorClass.TIMEOUT, f"The machine did not run {over_message}.")
    if slot.observed.is_queued:  # the place has accepted the machine, so a failure of the pool explains nothing
        return slot.failure or with_wait(slot, late)
    return slot.failure or find_pool_failure(draft, slot.pool, record.template) or late


def _boot_failure(draft: Draft, slot: Slot) -> Failure:
    machine = find_machine(slot, draft.snapshots)
    state = f" It is {machine.state}." if machine and machine.state else ""
    return replace(NOT_BOOTED, text=NOT_BOOTED.text + state)


def _time_out(draft: Draft, record: RequestRecord, slot: Slot, failure: Failure, capacity: Capacity) -> None:
    capacity.count_closed(slot, record.template)
    draft.close(slot, Verdict.FAILED, reason=DeleteReason.TIMED_OUT, failure=failure)


def end_request(draft: Draft, record: RequestRecord) -> None:
    """Give the request its terminal answer. Do nothing while one of its machines is missing or on its way.

    Laws: a request always ends, a terminal answer stays.
    """
    if pending_slots(record) or down_slots(record) or count_missing(record) > 0:
        return
    running = _running(record)
    draft.put_slots(record.id, *[slot._replace(verdict=Verdict.SUCCEEDED) for slot in running])
    status = RequestStatus.COMPLETE if len(running) >= record.count else RequestStatus.COMPLETE_WITH_ERROR
    draft.update_record(record.id, ended=status, ended_at=draft.now)
