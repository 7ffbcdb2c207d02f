"""Deadlines: what did not run in time fails, and a request ends once nothing of it is missing or on its way."""

from __future__ import annotations

from provisioner.model import (
    DeleteReason,
    ErrorClass,
    Failure,
    PoolLimits,
    RequestRecord,
    RequestStatus,
    Slot,
    Verdict,
    evolve,
)
from provisioner.planning.capacity import Capacity, pool_trouble
from provisioner.planning.draft import Draft
from provisioner.planning.slots import missing, pending

NOT_BOOTED = Failure(ErrorClass.TIMEOUT, "The machine did not run within its boot deadline.")


def close_overdue(draft: Draft, record: RequestRecord, capacity: Capacity) -> None:
    """Fail what did not run in time: a slot by its boot deadline, all that is missing by the request's."""
    now = draft.now
    overdue = now >= record.deadline
    draft.wake_at(record.deadline)
    for slot in pending(record):
        if overdue:
            _time_out(draft, record, slot, slot.failure or _reason(draft, slot.pool, record.template), capacity)
        elif slot.submitted is not None and slot.pool in draft.snapshots:
            boot_deadline = _boot_deadline(slot, slot.submitted, draft.pool(slot.pool))
            if now >= boot_deadline:
                failure = slot.failure or NOT_BOOTED
                _time_out(draft, record, slot, failure, capacity)
                draft.learn_of_boot(slot, failure)
            else:
                draft.wake_at(boot_deadline)


def _boot_deadline(slot: Slot, submitted: float, limits: PoolLimits) -> float:
    """When its machine has to run. One that is held back on purpose has a deadline of its own, and boots after it."""
    if slot.gated:
        return submitted + limits.gated_deadline
    return (submitted if slot.lifted is None else slot.lifted) + limits.boot_deadline


def _time_out(draft: Draft, record: RequestRecord, slot: Slot, failure: Failure, capacity: Capacity) -> None:
    capacity.released(slot, record.template)
    draft.close(slot, Verdict.FAILED, reason=DeleteReason.TIMED_OUT, failure=failure)


def _reason(draft: Draft, pool: str, template: str) -> Failure:
    """Why a machine that never ran did not: the pool's own trouble, if it has any."""
    return pool_trouble(draft, pool, template) or Failure(
        ErrorClass.TIMEOUT, "The machine did not run before the request's deadline."
    )


def conclude(draft: Draft, record: RequestRecord) -> None:
    """Give the request its terminal answer once nothing of it is missing or on its way.

    (Laws: a request always ends, a terminal answer stays.)
    """
    if pending(record) or missing(record) > 0:
        return
    running = [slot for slot in record.slots.values() if slot.verdict is Verdict.OPEN and slot.ran is not None]
    for slot in running:
        draft.put(record.id, evolve(slot, verdict=Verdict.SUCCEEDED))
    status = RequestStatus.COMPLETE if len(running) >= record.count else RequestStatus.COMPLETE_WITH_ERROR
    draft.update(record.id, ended=status, ended_at=draft.now)
