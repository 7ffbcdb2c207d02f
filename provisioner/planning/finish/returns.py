"""Return requests: close the slots of returned machines. Follow each machine until it has left no leftovers."""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import (
    LONG_AGO,
    Delete,
    DeleteReason,
    Limits,
    Memory,
    RequestStatus,
    ReturnRecord,
    ReturnResult,
    Slot,
    Verdict,
)
from provisioner.planning.core.draft import DELETE_AGAIN, Draft
from provisioner.planning.core.holds import format_stop_message
from provisioner.planning.core.slots import find_slot
from provisioner.planning.observe.absence import is_proven_absent


def find_names_to_query(memory: Memory, limits: Limits) -> dict[str, dict[str, str]]:
    """Return, by pool, the names for which the next observation asks the place. Each name is mapped to the expected uid
    of its machine; empty if unknown.

    Every pool gets the names without a slot in open return requests. It also gets the names of its own slots whose
    machines are absent or strayed. It gets no names of other pools' slots, because several pools may share a place.
    """
    open_ = (return_record for return_record in memory.returns.values() if return_record.ended is None)
    given_back = {name for return_record in open_ for name in return_record.names if name not in return_record.results}
    unknown_machines = {name: "" for name in given_back if find_slot(memory.requests, limits.prefix, name) is None}
    names = {pool: dict(unknown_machines) for pool in limits.pools}
    for _, slot in memory.slots:
        is_sought = slot.observed.absent_since is not None or slot.observed.is_strayed
        if is_sought and slot.pool in names and not slot.deletion.is_gone:
            names[slot.pool][slot.name] = slot.observed.fingerprint.uid
    return names


def settle_returns(draft: Draft) -> None:
    """Advance each open return request. A return request ends when every name in it has a result."""
    for record in list(draft.returns.values()):
        if record.ended is not None:
            continue
        draft.wake_at(record.deadline_at)
        settled = _settle(draft, record)
        if len(settled.results) == len(set(settled.names)):
            clean = all(result is ReturnResult.GONE for result in settled.results.values())
            status = RequestStatus.COMPLETE if clean else RequestStatus.COMPLETE_WITH_ERROR
            settled = replace(settled, ended=status, ended_at=draft.now)
        message = "" if settled.ended is RequestStatus.COMPLETE else format_stop_message(draft.holds)
        if message != settled.message:
            settled = replace(settled, message=message)
        if settled != record:
            draft.returns[settled.id] = settled


def _settle(draft: Draft, record: ReturnRecord) -> ReturnRecord:
    results, absent, sent = dict(record.results), dict(record.absent), dict(record.sent)
    hindered = dict(record.hindered)
    for name in record.names:
        if name in results:
            continue
        slot = draft.find_slot(name)
        result = _slot_result(draft, slot) if slot else _unknown_machine_result(draft, name, absent, sent)
        if result is None and draft.now >= record.deadline_at:
            result = ReturnResult.STUCK
            if slot is not None and slot.deletion.hindrance is not None:
                hindered[name] = slot.deletion.hindrance
        if result is not None:
            results[name] = result
    return replace(record, results=results, absent=absent, sent=sent, hindered=hindered)


def _slot_result(draft: Draft, slot: Slot) -> ReturnResult | None:
    is_reported = draft.requests[slot.request].reported_at is not None
    if slot.verdict is Verdict.OPEN:
        slot = draft.close(slot, Verdict.CANCELLED, reason=DeleteReason.CANCELLED)
    elif slot.verdict is Verdict.SUCCEEDED and is_reported:
        announced = slot.observed.notice.cause if slot.observed.notice else None
        slot = draft.close(slot, Verdict.RETURNED, reason=DeleteReason.RETURNED, cause=announced)
    elif slot.verdict in (Verdict.SUCCEEDED, Verdict.LOST) and not is_reported:
        slot = fail_returned_early(draft, slot)
    return ReturnResult.GONE if slot.deletion.is_gone else None


def fail_returned_early(draft: Draft, slot: Slot) -> Slot:
    """Report a succeeded machine as failed, because HF returned it before reading the answer that names it as
    succeeded. Return the changed slot."""
    if slot.deletion.reason is DeleteReason.CANCELLED:
        return slot
    draft.update_record(slot.request, ended=RequestStatus.COMPLETE_WITH_ERROR)
    return report_unread_as_failed(draft, slot)


def report_unread_as_failed(draft: Draft, slot: Slot) -> Slot:
    """Report a succeeded machine as failed from now on, and return the changed slot. This is allowed only while HF has
    not read that the machine succeeded."""
    if slot.verdict is Verdict.SUCCEEDED:
        return draft.close(slot, Verdict.RETURNED, reason=DeleteReason.CANCELLED)
    marked = slot.with_deletion(reason=DeleteReason.CANCELLED)
    draft.put_slots(slot.request, marked)
    return marked


def _unknown_machine_result(
    draft: Draft, name: str, absent: dict[str, float], sent: dict[str, float]
) -> ReturnResult | None:
    """Return the result for a returned name without a slot; None while the result is unknown. Delete the machine if it
    has our identity, or if its name begins with one of ``adopt_prefixes``."""
    for pool, snapshot in draft.snapshots.items():
        machine = snapshot.machines.get(name)
        if machine is None and name not in snapshot.foreign:
            continue
        if machine is None and not name.startswith(draft.limits.adopt_prefixes):
            return ReturnResult.NOT_OURS
        absent.pop(name, None)
        if pool in draft.busy:
            return None
        if draft.now >= sent.get(name, LONG_AGO) + DELETE_AGAIN:
            sent[name] = draft.now
            uid = machine.fingerprint.uid if machine else ""
            draft.deletes.append(Delete(name, pool, DeleteReason.RETURNED, uid, is_adopted=machine is None))
        draft.wake_at(sent[name] + DELETE_AGAIN)
        return None
    if any(name in snapshot.name_collisions for snapshot in draft.snapshots.values()):
        absent.pop(name, None)
        return None
    asked = all(name in snapshot.asked for snapshot in draft.snapshots.values())
    return ReturnResult.GONE if asked and is_proven_absent(draft, name, absent) else None
