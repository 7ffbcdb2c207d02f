"""Clean-up: deletes of the machines of closed slots, repeated while they exist, and forced only if configured."""

from __future__ import annotations

from collections.abc import Set

from provisioner.model import (
    DESIRED,
    LONG_AGO,
    NEVER,
    Delete,
    DeleteReason,
    Machine,
    Phase,
    RequestRecord,
    Slot,
)
from provisioner.planning.core.draft import DELETE_AGAIN, Draft
from provisioner.planning.core.slots import find_machine

DELETE_LATEST = 300.0
"""Most seconds between two deletes of the same machine."""

UNKNOWN_GRACE = 120.0
"""Seconds after its first delete within which a machine has to be gone if its place does not report a grace period."""


def delete_closed(draft: Draft, busy: Set[str]) -> None:
    """Delete the machines that still exist under the names of closed slots, and note those that are stuck."""
    for record in draft.records():
        left = [
            slot
            for slot in record.slots.values()
            if not (slot.deletion.is_gone or slot.verdict in DESIRED or slot.is_set_aside)
        ]
        for slot in left:
            machine = find_machine(slot, draft.snapshots)
            if machine is None:
                continue
            slot = _mark_stuck(draft, record, slot, machine)
            if slot.deletion.reason is not None and slot.pool not in busy:
                _delete(draft, record, slot, slot.deletion.reason, machine)


def _mark_stuck(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine) -> Slot:
    """Return the slot, marked as stuck once ``stuck_after_seconds`` has passed since its machine had to be gone."""
    stuck = slot.deletion.is_stuck and machine.phase is Phase.STOPPING
    if not stuck:
        due = _gone_by_at(slot, machine) + draft.pool(slot.pool).stuck_after_seconds
        draft.wake_at(due)
        stuck = draft.now >= due
    if stuck is not slot.deletion.is_stuck:
        slot = slot.with_deletion(is_stuck=stuck)
        draft.put_slots(record.id, slot)
    return slot


def _delete(draft: Draft, record: RequestRecord, slot: Slot, reason: DeleteReason, machine: Machine) -> None:
    """Send a delete if one is due: the first, a repeated one if the machine still exists, or a forced one at its
    time."""
    force = draft.now >= _forced_at(draft, slot, machine)
    again = (
        LONG_AGO
        if slot.deletion.sent_at is None
        else slot.deletion.sent_at + _repeat_seconds(slot, slot.deletion.sent_at)
    )
    if draft.now < again and (slot.deletion.is_forced or not force):
        draft.wake_at(again)
        return
    first_sent = draft.now if slot.deletion.first_sent_at is None else slot.deletion.first_sent_at
    draft.put_slots(record.id, slot.with_deletion(sent_at=draft.now, first_sent_at=first_sent, is_forced=force))
    draft.deletes.append(Delete(slot.name, slot.pool, reason, machine.fingerprint.uid, is_forced=force))
    draft.wake_at(draft.now + _repeat_seconds(slot, draft.now))


def _gone_by_at(slot: Slot, machine: Machine) -> float:
    """Return when the machine must be gone: after its grace period, or after ``UNKNOWN_GRACE`` if that period is
    unknown."""
    ends = _grace_ends_at(machine)
    return (
        slot.deletion.first_sent_at + UNKNOWN_GRACE
        if ends == NEVER and slot.deletion.first_sent_at is not None
        else ends
    )


def _repeat_seconds(slot: Slot, sent: float) -> float:
    """Return the seconds until a delete is sent again. They grow, because a place that ignored some deletes may ignore
    all."""
    tried = 0.0 if slot.deletion.first_sent_at is None else sent - slot.deletion.first_sent_at
    return min(DELETE_LATEST, max(DELETE_AGAIN, tried / 2))


def _forced_at(draft: Draft, slot: Slot, machine: Machine) -> float:
    """Return the moment from which a machine is deleted by force, which is never before a delete with a grace period
    was sent."""
    after = draft.pool(slot.pool).force_after_seconds
    if after is None or (slot.deletion.sent_at is None and not slot.deletion.is_forced):
        return NEVER
    due = _grace_ends_at(machine) + after
    draft.wake_at(due)
    return due


def _grace_ends_at(machine: Machine) -> float:
    """Return the end of the machine's grace period; ``NEVER`` for a machine that does not terminate."""
    return machine.notice.ends_at if machine.phase is Phase.STOPPING and machine.notice else NEVER
