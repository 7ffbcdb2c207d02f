"""What happens beside the requests: machines nobody explains, requests HF forgot, records that may go.

Pure: no I/O, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from provisioner.draft import OWNED, SOON, Draft
from provisioner.model import (
    BrakeReason,
    Contact,
    Delete,
    DeleteReason,
    Intent,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    Slot,
    Verdict,
    split_name,
)
from provisioner.returns import DELETE_AGAIN, find_slot, proven_absent

FEW_ORPHANS = 5
"""So many orphans of a pool are never suspicious by themselves."""

ORPHAN_SHARE = 0.1
"""Above this share of a pool's machines, orphans mean that our files are wrong, not the machines."""

CANCELLED_MESSAGE = "Cancelled: HostFactory did not ask for this request."


# --- machines nobody explains -----------------------------------------------------------------------------------------


def adopt(draft: Draft) -> None:
    """Machines of an unfinished request that memory does not know (it went back in time) become open slots.

    One that a memory made again gave up for gone is recognised by its name: it is to be deleted.
    """
    for pool, names in draft.unknown.items():
        for name in list(names):
            parts = split_name(draft.limits.prefix, name)
            record = draft.requests.get(parts[0]) if parts else None
            if parts is None or record is None:
                continue
            slot = draft.slot(*parts)
            if slot is not None and not slot.pool and slot.verdict not in OWNED:
                draft.put(record.id, replace(slot, pool=pool, gone=False, delete=slot.delete or DeleteReason.FAILED))
                names.remove(name)
            if slot is not None or record.ended is not None:
                continue
            draft.latch(BrakeReason.MEMORY_OLDER, f"memory.json does not know machine {name} of a known request.", pool)
            draft.update(record.id, next_slot=max(record.next_slot, parts[1] + 1))
            draft.put(
                record.id,
                Slot(name, parts[1], pool, Verdict.OPEN, draft.now, submitted=draft.now, accepted=True, seen=True),
            )
            names.remove(name)


def find_orphans(draft: Draft, contact: Contact, busy: Set[str]) -> None:
    """Note machines of ours without a request; delete them slowly, unless the brake holds (law 6)."""
    returned = {name for record in draft.returns.values() for name in record.names}
    pursued = {name for record in draft.returns.values() if record.ended is None for name in record.names}
    strange = {name: pool for pool, names in draft.unknown.items() for name in names if name not in pursued}
    _check_brake(draft, strange)
    kept = {name: since for name, since in draft.orphans.items() if name in strange or not _all_seen(draft)}
    draft.orphans = kept | {name: draft.now for name in strange if name not in kept}
    for name, pool in strange.items():
        _delete_orphan(draft, name, pool, busy)
    _note_lost_strangers(draft, contact, returned)


def _check_brake(draft: Draft, strange: dict[str, str]) -> None:
    for pool, snapshot in draft.snapshots.items():
        count = sum(place == pool for place in strange.values())
        if count and pool in draft.before.unseen_pools:
            draft.latch(BrakeReason.MEMORY_LOST, f"memory.json is new, but {count} machines of ours run.", pool)
        if count > max(FEW_ORPHANS, ORPHAN_SHARE * len(snapshot.machines)):
            draft.latch(
                BrakeReason.TOO_MANY_ORPHANS, f"{count} of {len(snapshot.machines)} machines have no request.", pool
            )
    unseen = tuple(pool for pool in draft.before.unseen_pools if pool not in draft.snapshots)
    if unseen != draft.before.unseen_pools:
        draft.changes["unseen_pools"] = unseen


def _delete_orphan(draft: Draft, name: str, pool: str, busy: Set[str]) -> None:
    limits, now, since = draft.limits, draft.now, draft.orphans[name]
    ripe = since + limits.orphan_grace
    if draft.brake is not None or pool in busy:
        return
    if now < ripe or draft.snapshots[pool].began <= since:
        draft.wake_at(ripe)
        return
    recent = tuple(at for at in draft.changes.get("orphan_deletes", draft.before.orphan_deletes) if at > now - 3600)
    if len(recent) >= limits.orphan_cap_per_hour:
        draft.wake_at(min(recent) + 3600)
        return
    draft.changes["orphan_deletes"] = (*recent, now)
    # If it is still there after a while, it is deleted again, and counts again.
    draft.orphans[name] = now - limits.orphan_grace + DELETE_AGAIN
    draft.deletes.append(
        Delete(name, pool, DeleteReason.ORPHANED, draft.snapshots[pool].machines[name].fingerprint.uid)
    )


def _all_seen(draft: Draft) -> bool:
    return all(pool in draft.snapshots for pool in draft.limits.pools)


def _note_lost_strangers(draft: Draft, contact: Contact, returned: Set[str]) -> None:
    """Hosts that HF lists with names of our shape, that neither we nor any pool know (interface §8, case 89)."""
    absent: dict[str, float] = {}
    lost: list[str] = []
    if draft.brake is None:
        for name in sorted(contact.inventory - returned):
            if split_name(draft.limits.prefix, name) is None or find_slot(draft, name) is not None:
                continue
            if any(name in snapshot.machines or name in snapshot.foreign for snapshot in draft.snapshots.values()):
                continue
            known = draft.before.strangers.get(name)
            if known is not None:
                absent[name] = known
            if proven_absent(draft, name, absent):
                lost.append(name)
    if absent != draft.before.strangers:
        draft.changes["strangers"] = absent
    if tuple(lost) != draft.before.lost_strangers:
        draft.changes["lost_strangers"] = tuple(lost)


# --- requests HF forgot -----------------------------------------------------------------------------------------------


def note_told(draft: Draft, contact: Contact) -> None:
    """HF knows the terminal answer: a script read it, or HF lists a machine of the request."""
    listed = {parts[0] for name in contact.inventory if (parts := split_name(draft.limits.prefix, name))}
    for record in list(draft.requests.values()):
        if record.ended and record.told_at is None and (record.id in contact.told or record.id in listed):
            draft.update(record.id, told_at=draft.now)
    for back in list(draft.returns.values()):
        if back.ended and back.told_at is None and back.id in contact.told:
            draft.update_return(replace(back, told_at=draft.now))


def cancel_unpolled(draft: Draft, contact: Contact) -> None:
    """Cancel requests that HF does not poll while it makes other calls: first say so, then look again (DESIGN §4)."""
    for record in draft.records():
        if record.told_at is not None or record.message == CANCELLED_MESSAGE or record.trimmed:
            continue
        polled = max(contact.polled.get(record.id, 0.0), contact.since, record.read)
        silent = contact.active - polled
        if silent < draft.limits.cancel_after:
            if record.cancelling:
                draft.update(record.id, cancelling=False)
        elif not record.cancelling:
            draft.update(record.id, cancelling=True)
            draft.wake_at(draft.now + SOON)
        else:
            _cancel(draft, record)


def _cancel(draft: Draft, record: RequestRecord) -> None:
    for slot in tuple(record.slots.values()):
        if slot.verdict is Verdict.OPEN:
            draft.close(record, slot, Verdict.CANCELLED, reason=DeleteReason.CANCELLED)
        elif slot.verdict is Verdict.SUCCEEDED:
            draft.close(record, slot, Verdict.RETURNED, reason=DeleteReason.CANCELLED)
    draft.update(
        record.id,
        ended=RequestStatus.COMPLETE_WITH_ERROR,
        ended_at=draft.now,
        cancelling=False,
        message=CANCELLED_MESSAGE,
    )


# --- records that may go ----------------------------------------------------------------------------------------------


def trim(draft: Draft, intent: Intent, contact: Contact) -> None:
    """Let ended records leave: first marked here, then removed from intent, and forgotten when it lacks them."""
    if intent.generation < draft.before.generation:
        return  # an old copy, which may lack what is still to leave
    # Answers to returns are rendered from the requests' slots: those stay as long.
    needed = contact.inventory.union(*(back.names for back in draft.returns.values()))
    for record in draft.records():
        if record.trimmed and record.id not in intent.requests:
            draft.drop(record.id)
        elif record.trimmed or _may_go(draft, record, needed):
            if not record.trimmed:
                draft.update(record.id, trimmed=True)
            draft.forget.append(record.id)
    for back in list(draft.returns.values()):
        if back.trimmed and back.id not in intent.returns:
            del draft.returns[back.id]
        elif back.trimmed or _old(draft, back):
            if not back.trimmed:
                draft.update_return(replace(back, trimmed=True))
            draft.forget.append(back.id)


def _old(draft: Draft, record: RequestRecord | ReturnRecord) -> bool:
    """Its terminal answer was seen by HF (or HF has forgotten it), and was kept for the retention time since."""
    cancelled = isinstance(record, RequestRecord) and record.message == CANCELLED_MESSAGE
    since = record.ended_at if cancelled else record.told_at
    if since is None:
        return False
    draft.wake_at(since + draft.limits.retention)
    return draft.now >= since + draft.limits.retention


def _may_go(draft: Draft, record: RequestRecord, needed: Set[str]) -> bool:
    return _old(draft, record) and all(
        slot.gone and slot.verdict not in OWNED and slot.name not in needed for slot in record.slots.values()
    )
