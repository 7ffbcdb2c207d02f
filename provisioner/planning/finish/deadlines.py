"""Deadlines: what did not run in time fails, and a request ends once nothing of it is missing or on its way.

A request's time is over at its deadline, or when the last few of its machines hold up the many that run.
"""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import (
    DeleteReason,
    ErrorClass,
    Failure,
    RequestRecord,
    RequestStatus,
    Slot,
    Verdict,
)
from provisioner.planning.allocate.capacity import Capacity, pool_trouble
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import boots_by, down, machine_of, missing, pending

NOT_BOOTED = Failure(ErrorClass.TIMEOUT, "The machine did not run within its boot deadline.")

BLIP = 30.0
"""Seconds for which a machine may be down at its request's deadline without being given up: most recover."""


def time_over(draft: Draft, record: RequestRecord) -> str:
    """Until when a request's machines had to run, in words that follow what did not happen; empty: there is time."""
    draft.wake_at(record.deadline)
    if draft.now >= record.deadline:
        return "before the request's deadline"
    template = draft.limits.templates.get(record.template)
    if template is None or not template.straggler_after or not _many_run(record, template.straggler_share):
        return ""
    if any(slot.pool not in draft.snapshots for slot in (*pending(record), *down(record))):
        return ""  # a machine may run where nobody sees it
    ends = _last_change(record) + template.straggler_after
    draft.wake_at(ends)
    if draft.now < ends:
        return ""
    return f"within straggler_seconds ({template.straggler_after:g}) of the last change of its request"


def _many_run(record: RequestRecord, share: float) -> bool:
    """At least this share of the machines that the request wants."""
    return bool(record.count) and (len(_running(record)) - len(down(record))) / record.count >= share


def _last_change(record: RequestRecord) -> float:
    """When a machine of the request last made a step, or was asked for or given up."""
    return max(
        when
        for slot in record.slots.values()
        for when in (slot.opened, slot.ran, slot.deletion.closed, slot.life.ungated_at)
        if when is not None
    )


def _running(record: RequestRecord) -> list[Slot]:
    return [slot for slot in record.slots.values() if slot.verdict is Verdict.OPEN and slot.ran is not None]


def close_overdue(draft: Draft, record: RequestRecord, capacity: Capacity, over: str) -> None:
    """Fail what did not run in time: a slot by its boot deadline, and all once the request's time is ``over``.

    At the request's deadline also machines that ran and have been down for a while, which HF must not get.
    """
    now = draft.now
    for slot in down(record):
        ends = max(record.deadline, (slot.life.down or 0.0) + BLIP)
        if now >= ends:
            why = slot.failure or Failure(ErrorClass.OTHER, "It is not ready.")
            _time_out(draft, record, slot, why, capacity)
        else:
            draft.wake_at(ends)
    for slot in pending(record):
        if over:
            late = Failure(ErrorClass.TIMEOUT, f"The machine did not run {over}.")
            failure = slot.failure or pool_trouble(draft, slot.pool, record.template) or late
            _time_out(draft, record, slot, failure, capacity)
        elif slot.submitted is not None and slot.pool in draft.snapshots:
            denied = slot.failure is not None and slot.failure.error is ErrorClass.DENIED  # no time would change that
            due = now if denied else boots_by(slot, draft.pool(slot.pool))
            if now >= due:
                failure = slot.failure or _not_booted(draft, slot)
                _time_out(draft, record, slot, failure, capacity)
                draft.count_failed_boot(slot, failure)
            else:
                draft.wake_at(due)


def _not_booted(draft: Draft, slot: Slot) -> Failure:
    machine = machine_of(slot, draft.snapshots)
    state = f" It is {machine.state}." if machine and machine.state else ""
    return replace(NOT_BOOTED, text=NOT_BOOTED.text + state)


def _time_out(draft: Draft, record: RequestRecord, slot: Slot, failure: Failure, capacity: Capacity) -> None:
    capacity.released(slot, record.template)
    draft.close(slot, Verdict.FAILED, reason=DeleteReason.TIMED_OUT, failure=failure)


def conclude(draft: Draft, record: RequestRecord) -> None:
    """Give the request its terminal answer once nothing of it is missing or on its way.

    (Laws: a request always ends, a terminal answer stays.)
    """
    if pending(record) or down(record) or missing(record) > 0:
        return
    running = _running(record)
    draft.put(record.id, *[slot._replace(verdict=Verdict.SUCCEEDED) for slot in running])
    status = RequestStatus.COMPLETE if len(running) >= record.count else RequestStatus.COMPLETE_WITH_ERROR
    draft.update(record.id, ended=status, ended_at=draft.now)
