"""Clean-up: the machines of closed slots are deleted, again when they stay, by force only where that is configured."""

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
from provisioner.planning.core.slots import machine_of

DELETE_LATEST = 300.0
"""Most seconds between two deletes of a machine that stays."""

UNHEEDED = 120.0
"""Seconds from its first delete until a machine is to be gone whose place does not say when its grace period ends."""


def delete_closed(draft: Draft, busy: Set[str]) -> None:
    """Delete the machines that are still there under closed slots' names; note those that are stuck."""
    for record in draft.records():
        left = [
            slot
            for slot in record.slots.values()
            if not (slot.deletion.gone or slot.verdict in DESIRED or slot.set_aside)
        ]
        for slot in left:
            machine = machine_of(slot, draft.snapshots)
            if machine is None:
                continue
            slot = _judged(draft, record, slot, machine)
            if slot.deletion.reason is not None and slot.pool not in busy:
                _delete(draft, record, slot, slot.deletion.reason, machine)


def _judged(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine) -> Slot:
    """The slot, marked stuck once ``stuck_after`` has passed since its machine was to be gone."""
    stuck = slot.deletion.stuck and machine.phase is Phase.STOPPING
    if not stuck:
        due = _gone_by(slot, machine) + draft.pool(slot.pool).stuck_after
        draft.wake_at(due)
        stuck = draft.now >= due
    if stuck is not slot.deletion.stuck:
        slot = slot.with_deletion(stuck=stuck)
        draft.put(record.id, slot)
    return slot


def _delete(draft: Draft, record: RequestRecord, slot: Slot, reason: DeleteReason, machine: Machine) -> None:
    """Send a delete when one is due: the first, another when it is still there, and a forced one at its time."""
    force = draft.now >= _forced_from(draft, slot, machine)
    again = LONG_AGO if slot.deletion.sent is None else slot.deletion.sent + _patience(slot, slot.deletion.sent)
    if draft.now < again and (slot.deletion.forced or not force):
        draft.wake_at(again)
        return
    begun = draft.now if slot.deletion.begun is None else slot.deletion.begun
    draft.put(record.id, slot.with_deletion(sent=draft.now, begun=begun, forced=force))
    draft.deletes.append(Delete(slot.name, slot.pool, reason, machine.fingerprint.uid, force=force))
    draft.wake_at(draft.now + _patience(slot, draft.now))


def _gone_by(slot: Slot, machine: Machine) -> float:
    """Return when the machine must be gone: after its grace period, or ``UNHEEDED`` if that has no begin or end."""
    ends = _grace_ends(machine)
    return slot.deletion.begun + UNHEEDED if ends == NEVER and slot.deletion.begun is not None else ends


def _patience(slot: Slot, sent: float) -> float:
    """Seconds until a delete is sent again: longer and longer, as a place that ignored some may ignore all."""
    tried = 0.0 if slot.deletion.begun is None else sent - slot.deletion.begun
    return min(DELETE_LATEST, max(DELETE_AGAIN, tried / 2))


def _forced_from(draft: Draft, slot: Slot, machine: Machine) -> float:
    """From when on a machine is deleted by force; never before a delete with grace was sent."""
    after = draft.pool(slot.pool).force_after
    if after is None or (slot.deletion.sent is None and not slot.deletion.forced):
        return NEVER
    due = _grace_ends(machine) + after
    draft.wake_at(due)
    return due


def _grace_ends(machine: Machine) -> float:
    """When its grace period ends: ``NEVER`` for a machine that does not terminate."""
    return machine.notice.ends if machine.phase is Phase.STOPPING and machine.notice else NEVER
