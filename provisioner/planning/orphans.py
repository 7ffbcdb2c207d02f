"""What happens beside the requests: machines nobody explains, requests HF forgot, records that may go.

Pure: no I/O, no clock, no logger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from provisioner.model import (
    BrakeReason,
    Contact,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    Intent,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    Slot,
    Snapshot,
    Verdict,
    evolve,
)
from provisioner.names import split_name
from provisioner.planning.draft import OWNED, SOON, Draft
from provisioner.planning.returns import DELETE_AGAIN, find_slot, proven_absent, revoke

FEW_ORPHANS = 5
"""So many orphans of a pool are never suspicious by themselves."""

ORPHAN_SHARE = 0.1
"""Above this share of a pool's machines, orphans mean that our files are wrong, not the machines."""

LISTS_GATHER = 3600.0
"""Seconds of HF's lists without a machine's name before that is noted: they come in parts, and a note is a write."""

NEVER = float("-inf")
"""Loop time of what has not happened."""

UNLISTED = Failure(ErrorClass.OTHER, "No list of HostFactory named the machine any more.")

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
                draft.put(record.id, evolve(slot, pool=pool, gone=False, delete=slot.delete or DeleteReason.FAILED))
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
    # What HF lists is HF's, whatever our files have lost.
    used = pursued | contact.listed.keys()
    strange = {name: pool for pool, names in draft.unknown.items() for name in names if name not in used}
    _check_brake(draft, strange)
    kept = {name: since for name, since in draft.orphans.items() if name in strange or not _all_seen(draft)}
    draft.orphans = kept | {name: draft.now for name in strange if name not in kept}
    for name in sorted(strange, key=lambda name: (draft.orphans[name], name)):  # as release.py tells it
        _delete_orphan(draft, name, strange[name], busy)
    _note_lost_strangers(draft, contact, returned)


def _check_brake(draft: Draft, strange: Mapping[str, str]) -> None:
    places = Counter(strange.values())
    for pool in draft.snapshots:
        if places[pool] and pool in draft.before.unseen_pools:
            draft.latch(BrakeReason.MEMORY_LOST, f"memory.json is new, but {places[pool]} machines of ours run.", pool)
    _check_number(draft, strange, "have no request")
    unseen = tuple(pool for pool in draft.before.unseen_pools if pool not in draft.snapshots)
    if unseen != draft.before.unseen_pools:
        draft.changes["unseen_pools"] = unseen


def _check_number(draft: Draft, doomed: Mapping[str, str], what: str) -> None:
    """So many at once mean that our files are wrong, unless a person saw these very names."""
    places = Counter(pool for name, pool in doomed.items() if name not in draft.before.accepted)
    for pool, count in places.items():
        machines = len(draft.snapshots[pool].machines)
        if count > max(FEW_ORPHANS, ORPHAN_SHARE * machines):
            draft.latch(BrakeReason.TOO_MANY_ORPHANS, f"{count} of {machines} machines {what}.", pool)


def _delete_orphan(draft: Draft, name: str, pool: str, busy: Set[str]) -> None:
    limits, now, since = draft.limits, draft.now, draft.orphans[name]
    ripe = since + limits.orphan_grace
    if draft.brake is not None or pool in busy:
        return
    if now < ripe or draft.snapshots[pool].began <= since:
        draft.wake_at(ripe)
        return
    if not _spend_orphan_delete(draft):
        return
    # If it is still there after a while, it is deleted again, and counts again.
    draft.orphans[name] = now - limits.orphan_grace + DELETE_AGAIN
    draft.deletes.append(
        Delete(name, pool, DeleteReason.ORPHANED, draft.snapshots[pool].machines[name].fingerprint.uid)
    )


def _spend_orphan_delete(draft: Draft) -> bool:
    """Count one more against the cap per hour; False when it is reached."""
    now = draft.now
    recent = tuple(at for at in draft.changes.get("orphan_deletes", draft.before.orphan_deletes) if at > now - 3600)
    if len(recent) >= draft.limits.orphan_cap_per_hour:
        if recent:
            draft.wake_at(min(recent) + 3600)
        return False
    draft.changes["orphan_deletes"] = (*recent, now)
    return True


def _shows(snapshot: Snapshot, name: str) -> bool:
    return name in snapshot.machines or name in snapshot.foreign or name in snapshot.namesakes


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
            if any(_shows(snapshot, name) for snapshot in draft.snapshots.values()):
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


# --- machines HF forgot -----------------------------------------------------------------------------------------------


def find_unlisted(draft: Draft, contact: Contact) -> None:
    """Note machines that HF was told of and that its lists no longer name; delete them as orphans only if configured.

    Time counts while lists come: when HF was away, each machine gets its time anew.
    """
    before, fresh = draft.before.unlisted, contact.lists - LISTS_GATHER
    unlisted: dict[str, float] = {}
    places: dict[str, str] = {}
    for record in draft.records():
        if record.told_at is None:
            continue
        for slot in record.slots.values():
            if slot.verdict is Verdict.SUCCEEDED and contact.listed.get(slot.name, NEVER) <= fresh:
                since = _unlisted_since(slot, contact, before.get(slot.name))
                if since is not None:
                    unlisted[slot.name], places[slot.name] = since, slot.pool
    if draft.limits.delete_unlisted_after is not None:
        _delete_unlisted(draft, contact, unlisted, places)
    if unlisted != before:
        draft.changes["unlisted"] = unlisted


def _unlisted_since(slot: Slot, contact: Contact, known: float | None) -> float | None:
    """Since when no list has named it; None while that may be chance."""
    named = contact.listed.get(slot.name, NEVER)
    away_until = contact.since if contact.since > contact.started else NEVER
    if known is not None and known >= max(named, away_until):
        return known
    since = max(named, contact.since, slot.opened if slot.ran is None else slot.ran)
    return since if contact.lists - since >= LISTS_GATHER else None


def _delete_unlisted(draft: Draft, contact: Contact, unlisted: Mapping[str, float], places: Mapping[str, str]) -> None:
    """Close those that have been unlisted for long enough, as slowly and as carefully as orphans go (law 6)."""
    # A restart forgets what the lists said: an hour of lists has to confirm it.
    confirmed = contact.lists - contact.since >= LISTS_GATHER
    limit = contact.lists - (draft.limits.delete_unlisted_after or 0.0)
    due = [name for name, since in unlisted.items() if since <= limit and places[name] in draft.snapshots]
    if not confirmed or not due:
        return
    _check_number(draft, {name: places[name] for name in due}, "are in no list of HostFactory")
    for name in due:
        slot = find_slot(draft, name)
        parts = split_name(draft.limits.prefix, name)
        if draft.brake is not None or slot is None or parts is None or not _spend_orphan_delete(draft):
            return
        draft.close(draft.record(parts[0]), slot, Verdict.LOST, reason=DeleteReason.ORPHANED, failure=UNLISTED)


# --- requests HF forgot -----------------------------------------------------------------------------------------------


def note_told(draft: Draft, contact: Contact) -> None:
    """HF knows the terminal answer: a script read it, or HF lists a machine of the request.

    Or it will never ask for it: a script that was killed before it printed a return's id leaves one that nobody knows.
    """
    listed = {parts[0] for name in contact.inventory if (parts := split_name(draft.limits.prefix, name))}
    for record in list(draft.requests.values()):
        if record.ended and record.told_at is None and (record.id in contact.told or record.id in listed):
            draft.update(record.id, told_at=draft.now)
    for back in list(draft.returns.values()):
        if back.ended and back.told_at is None and (back.id in contact.told or _forgotten(draft, contact, back)):
            draft.update_return(replace(back, told_at=draft.now))


def _forgotten(draft: Draft, contact: Contact, back: ReturnRecord) -> bool:
    silent = _silence(contact, back.id, back.ended_at or back.read)
    return silent >= draft.limits.cancel_after and draft.brake is None


def _silence(contact: Contact, id_: str, since: float) -> float:
    """Seconds for which HF has made other calls and not asked for this."""
    return contact.active - max(contact.polled.get(id_, 0.0), contact.since, since)


def cancel_unpolled(draft: Draft, contact: Contact) -> None:
    """Cancel requests that HF does not poll while it makes other calls: first say so, then look again."""
    for record in draft.records():
        if record.message == CANCELLED_MESSAGE or record.trimmed:
            continue
        if not _is_forgotten(draft, contact, record):
            if record.cancelling:
                draft.update(record.id, cancelling=False)
        elif not record.cancelling:
            draft.update(record.id, cancelling=True)
            draft.wake_at(draft.now + SOON)
        else:
            cancel(draft, record)


def _is_forgotten(draft: Draft, contact: Contact, record: RequestRecord) -> bool:
    """HF does not know how it ended and does not ask. Under the brake it may be our files that have forgotten."""
    silent = _silence(contact, record.id, record.read)
    return record.told_at is None and silent >= draft.limits.cancel_after and draft.brake is None


def cancel(draft: Draft, record: RequestRecord) -> None:
    """End it, and close all that HF was never told of for good."""
    for slot in tuple(record.slots.values()):
        if slot.verdict is Verdict.OPEN:
            draft.close(record, slot, Verdict.CANCELLED, reason=DeleteReason.CANCELLED)
        elif slot.verdict in (Verdict.SUCCEEDED, Verdict.LOST):
            revoke(draft, record, slot)
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
            draft.wake_at(draft.now + SOON)  # its machines' requests may go now
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
