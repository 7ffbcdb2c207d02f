"""Clean-up: delete the machines of closed slots. A delete is sent again while the machine exists. A delete is forced
only if ``force_after_seconds`` is configured."""

from __future__ import annotations

from provisioner.model import DESIRED, LONG_AGO, NEVER, Delete, DeleteReason, Machine, Phase, RequestRecord, Slot
from provisioner.planning.core.draft import DELETE_AGAIN, Draft
from provisioner.planning.core.slots import find_machine

DELETE_LATEST = 300.0
"""Longest time in seconds between two deletes of the same machine."""

UNKNOWN_GRACE = 120.0
"""Seconds after the first delete within which a machine has to be gone if its place reports no grace period."""


def delete_closed(draft: Draft) -> None:
    """Delete the machines of closed slots if they still exist. Mark the slots whose machines are stuck."""
    for record, closed in draft.slots():
        if closed.deletion.is_gone or closed.verdict in DESIRED or closed.is_set_aside:
            continue
        if (machine := find_machine(closed, draft.snapshots)) is None:
            continue
        slot = _mark_stuck(draft, record, closed, machine)
        if slot.deletion.reason is not None and slot.pool not in draft.busy:
            _delete(draft, record, slot, slot.deletion.reason, machine)


def _mark_stuck(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine) -> Slot:
    """Return the slot, marked as stuck if its machine should be gone but still exists.

    The mark is set ``stuck_after_seconds`` after the moment by which the machine had to be gone.
    """
    stuck = slot.deletion.is_stuck and machine.phase is Phase.STOPPING
    if not stuck:
        stuck = draft.is_due(_gone_by_at(slot, machine) + draft.pool(slot.pool).stuck_after_seconds)
    if stuck is not slot.deletion.is_stuck:
        slot = slot.with_deletion(is_stuck=stuck)
        draft.put_slots(record.id, slot)
    return slot


def _delete(draft: Draft, record: RequestRecord, slot: Slot, reason: DeleteReason, machine: Machine) -> None:
    """Send the delete that is due, if any: the first delete, a repeated delete, or a forced delete."""
    force = _is_forced_now(draft, slot, machine)
    sent = slot.deletion.sent_at
    again = LONG_AGO if sent is None else sent + _repeat_seconds(slot, sent)
    if draft.now < again and (slot.deletion.is_forced or not force):
        draft.wake_at(again)
        return
    first_sent = draft.now if slot.deletion.first_sent_at is None else slot.deletion.first_sent_at
    draft.put_slots(record.id, slot.with_deletion(sent_at=draft.now, first_sent_at=first_sent, is_forced=force))
    draft.deletes.append(Delete(slot.name, slot.pool, reason, machine.fingerprint.uid, is_forced=force))
    draft.wake_at(draft.now + _repeat_seconds(slot, draft.now))


def _gone_by_at(slot: Slot, machine: Machine) -> float:
    """Return the moment by which the machine must be gone: the end of its grace period.

    If the period is unknown, the moment is ``UNKNOWN_GRACE`` after the machine's first delete.
    """
    ends, first_sent = _grace_ends_at(machine), slot.deletion.first_sent_at
    return first_sent + UNKNOWN_GRACE if ends == NEVER and first_sent is not None else ends


def _repeat_seconds(slot: Slot, sent: float) -> float:
    """Return the seconds until a delete is sent again. The interval grows, because a place that has ignored several
    deletes may ignore all."""
    tried = 0.0 if slot.deletion.first_sent_at is None else sent - slot.deletion.first_sent_at
    return min(DELETE_LATEST, max(DELETE_AGAIN, tried / 2))


def _is_forced_now(draft: Draft, slot: Slot, machine: Machine) -> bool:
    """Return whether a delete of the machine is forced now; False if forced deletes are not configured.

    Also return False if no delete was sent yet, because a delete with a grace period always comes first.
    """
    after = draft.pool(slot.pool).force_after_seconds
    if after is None or (slot.deletion.sent_at is None and not slot.deletion.is_forced):
        return False
    return draft.is_due(_grace_ends_at(machine) + after)


def _grace_ends_at(machine: Machine) -> float:
    """Return the end of the machine's grace period; ``NEVER`` if the machine is not stopping or reports no period."""
    return machine.notice.ends_at if machine.phase is Phase.STOPPING and machine.notice else NEVER
