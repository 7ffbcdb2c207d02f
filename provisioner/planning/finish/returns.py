"""What HF gives back: close the slots of the named machines, follow each name until nothing of it is left."""

from __future__ import annotations

from collections.abc import Set
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
from provisioner.planning.core.holds import why_stopped
from provisioner.planning.core.slots import slot_named
from provisioner.planning.observe.absence import proven_absent


def sought(memory: Memory, limits: Limits) -> dict[str, dict[str, str]]:
    """By pool: the names that it is asked for, each with the uid that is meant, empty where none is known.

    Those that HF gives back and that are no slot of ours, and those of the pool's own slots whose machines were not
    seen as ours: another pool may share its place, and they are none of its machines.
    """
    open_ = (back for back in memory.returns.values() if back.ended is None)
    given_back = {name for back in open_ for name in back.names if name not in back.results}
    unknown_machines = {name: "" for name in given_back if slot_named(memory.requests, limits.prefix, name) is None}
    names = {pool: dict(unknown_machines) for pool in limits.pools}
    for _, slot in memory.slots:
        if (
            not slot.deletion.gone
            and (slot.observed.absent is not None or slot.observed.strayed)
            and slot.pool in names
        ):
            names[slot.pool][slot.name] = slot.observed.fingerprint.uid
    return names


def settle_returns(draft: Draft, busy: Set[str]) -> None:
    """Take each open return request one step further, and end it when every name is settled."""
    for record in list(draft.returns.values()):
        if record.ended is not None:
            continue
        draft.wake_at(record.deadline)
        settled = _settle(draft, record, busy)
        if len(settled.results) == len(set(settled.names)):
            clean = all(result is ReturnResult.GONE for result in settled.results.values())
            status = RequestStatus.COMPLETE if clean else RequestStatus.COMPLETE_WITH_ERROR
            settled = replace(settled, ended=status, ended_at=draft.now)
        message = "" if settled.ended is RequestStatus.COMPLETE else why_stopped(draft.holds)
        if message != settled.message:
            settled = replace(settled, message=message)
        if settled != record:
            draft.returns[settled.id] = settled


def _settle(draft: Draft, record: ReturnRecord, busy: Set[str]) -> ReturnRecord:
    results, absent, sent = dict(record.results), dict(record.absent), dict(record.sent)
    hindered = dict(record.hindered)
    for name in record.names:
        if name in results:
            continue
        slot = draft.named(name)
        result = _slot_result(draft, slot) if slot else _unknown_machine_result(draft, name, absent, sent, busy)
        if result is None and draft.now >= record.deadline:
            result = ReturnResult.STUCK
            if slot is not None and slot.deletion.hindrance is not None:
                hindered[name] = slot.deletion.hindrance
        if result is not None:
            results[name] = result
    return replace(record, results=results, absent=absent, sent=sent, hindered=hindered)


def _slot_result(draft: Draft, slot: Slot) -> ReturnResult | None:
    told = draft.requests[slot.request].reported_at is not None
    if slot.verdict is Verdict.OPEN:
        slot = draft.close(slot, Verdict.CANCELLED, reason=DeleteReason.CANCELLED)
    elif slot.verdict is Verdict.SUCCEEDED and told:
        announced = slot.observed.notice.cause if slot.observed.notice else None
        slot = draft.close(slot, Verdict.RETURNED, reason=DeleteReason.RETURNED, cause=announced)
    elif slot.verdict in (Verdict.SUCCEEDED, Verdict.LOST) and not told:
        slot = take_back(draft, slot)
    return ReturnResult.GONE if slot.deletion.gone else None


def take_back(draft: Draft, slot: Slot) -> Slot:
    """Tell a machine as failed that HF gave back before it read the terminal answer, which names it as succeeded."""
    if slot.deletion.reason is DeleteReason.CANCELLED:
        return slot
    draft.update(slot.request, ended=RequestStatus.COMPLETE_WITH_ERROR)
    return revoke(draft, slot)


def revoke(draft: Draft, slot: Slot) -> Slot:
    """Tell a machine as failed from now on that succeeded and that HF has not heard of."""
    if slot.verdict is Verdict.SUCCEEDED:
        return draft.close(slot, Verdict.RETURNED, reason=DeleteReason.CANCELLED)
    marked = slot.with_deletion(reason=DeleteReason.CANCELLED)
    draft.put(slot.request, marked)
    return marked


def _unknown_machine_result(
    draft: Draft, name: str, absent: dict[str, float], sent: dict[str, float], busy: Set[str]
) -> ReturnResult | None:
    """A name that is no slot of ours: ours by identity, adopted, someone else's, undecided, or nowhere."""
    for pool, snapshot in draft.snapshots.items():
        machine = snapshot.machines.get(name)
        if machine is None and name not in snapshot.foreign:
            continue
        if machine is None and not name.startswith(draft.limits.adopt_prefixes):
            return ReturnResult.NOT_OURS
        absent.pop(name, None)
        if pool in busy:
            return None
        if draft.now >= sent.get(name, LONG_AGO) + DELETE_AGAIN:
            sent[name] = draft.now
            uid = machine.fingerprint.uid if machine else ""
            draft.deletes.append(Delete(name, pool, DeleteReason.RETURNED, uid, adopted=machine is None))
        draft.wake_at(sent[name] + DELETE_AGAIN)
        return None
    if any(name in snapshot.name_collisions for snapshot in draft.snapshots.values()):
        absent.pop(name, None)
        return None
    asked = all(name in snapshot.asked for snapshot in draft.snapshots.values())
    return ReturnResult.GONE if asked and proven_absent(draft, name, absent) else None
