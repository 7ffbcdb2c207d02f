"""Orphans, and machines that are missing from HF's own lists of its machines.

Orphans are machines with our identity that no request explains. The loop deletes orphans slowly. It deletes machines
that HF's lists omit only if this is configured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from provisioner.model import (
    DESIRED,
    HOUR,
    LONG_AGO,
    NEVER,
    BrakeReason,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    HfActivity,
    Memory,
    Observed,
    OrphanLimits,
    Slot,
    Snapshot,
    Verdict,
)
from provisioner.names import OPERATOR_ACCOUNT, SLURM_ACCOUNT, split_name
from provisioner.planning.core.draft import DELETE_AGAIN, Draft
from provisioner.planning.observe.absence import is_proven_absent
from provisioner.planning.observe.trust import check_identity

FEW_ORPHANS = 5
"""Number of orphans in a pool up to which the brake does not latch, however small the pool is."""

ORPHAN_SHARE = 0.1
"""Share of a pool's machines that may be orphans without latching the brake. More orphans show that our files are
wrong."""

LISTS_GATHER = 3600.0
"""Seconds for which HF's lists must lack a machine's name before the plan records the absence. HF lists its machines in
parts, and each absence recorded too early would cost a write of memory."""

MADE_BY_ANOTHER = "have no request and are younger than this loop: another provisioner has the same id and name prefix"
"""End of the sentence about orphans that are younger than this loop. Lost files cannot explain such orphans, because
this loop has not made them."""

UNLISTED = Failure(ErrorClass.OTHER, "No list of HostFactory named the machine any more.")


def open_unrecorded_slots(draft: Draft) -> None:
    """Open the slots that memory lacks because memory is an old copy: a slot for each existing machine of an open
    request.

    Also complete the closed slots that have no pool. A rebuilt memory contains such slots for machines that seemed
    gone. If such a machine exists, record its pool in the slot. A later step then deletes the machine.
    """
    for pool, names in draft.unknown.items():
        for name in list(names):
            parts = split_name(draft.limits.prefix, name)
            record = draft.requests.get(parts[0]) if parts else None
            if parts is None or record is None:
                continue
            slot = record.slots.get(parts[1])
            if slot is not None and not slot.pool and slot.verdict not in DESIRED:
                reason = slot.deletion.reason or DeleteReason.FAILED
                draft.put_slots(record.id, slot._replace(pool=pool).with_deletion(is_gone=False, reason=reason))
                names.remove(name)
            if slot is not None or record.ended is not None:
                continue
            draft.latch(BrakeReason.MEMORY_OLDER, f"memory.json lacks machine {name} of a known request.", pool)
            draft.update_record(record.id, next_slot=max(record.next_slot, parts[1] + 1))
            seen = Observed(is_accepted=True, was_seen=True)
            draft.put_slots(record.id, Slot(name, pool, Verdict.OPEN, draft.now, draft.now, observed=seen))
            names.remove(name)


def find_orphans(draft: Draft, activity: HfActivity) -> None:
    """Note the machines with our identity that no request explains. Delete them slowly unless the brake is latched
    (law: orphans go slowly)."""
    returned = {name for record in draft.returns.values() for name in record.names}
    orphan_pools = _find_orphan_pools(draft, activity)
    _check_brake(draft, orphan_pools)
    young = check_identity(draft, activity, orphan_pools)
    _check_number(draft, young, MADE_BY_ANOTHER, BrakeReason.IDENTITY_CONFLICT)
    is_all_observed = draft.limits.pools.keys() <= draft.snapshots.keys()
    kept = {name: at for name, at in draft.orphans.since.items() if name in orphan_pools or not is_all_observed}
    since = kept | {name: draft.now for name in orphan_pools if name not in kept}
    draft.orphans = replace(draft.orphans, since=since)
    # telemetry/brake_release_forecast.py shows the orphans in the same order.
    for name in sorted(orphan_pools, key=lambda name: (since[name], name)):
        _delete_orphan(draft, name, orphan_pools[name])
    _note_lost_unknown_machines(draft, activity, returned)


def _find_orphan_pools(draft: Draft, activity: HfActivity) -> dict[str, str]:
    """Return the pool of each orphan, by name. An orphan has no slot, and neither HF's lists nor open returns name it.

    A machine that HF lists belongs to HF, even if our files have lost its request.
    """
    pursued = {name for record in draft.returns.values() if record.ended is None for name in record.names}
    return {
        name: pool
        for pool, names in draft.unknown.items()
        for name in names
        if name not in pursued and name not in activity.listed_at
    }


def _check_brake(draft: Draft, orphan_pools: Mapping[str, str]) -> None:
    """Latch the brake if the orphans show that our files are wrong. ``orphan_pools``: the pool of each orphan."""
    counts = Counter(orphan_pools.values())
    for pool in draft.snapshots:
        if counts[pool] and pool in draft.places.unseen:
            draft.latch(BrakeReason.MEMORY_LOST, f"memory.json is new, but {counts[pool]} machines of ours run.", pool)
    _check_number(draft, orphan_pools, "have no request")
    unseen = tuple(pool for pool in draft.places.unseen if pool not in draft.snapshots)
    draft.places = replace(draft.places, unseen=unseen)


def _check_number(
    draft: Draft, pools: Mapping[str, str], description: str, reason: BrakeReason = BrakeReason.TOO_MANY_ORPHANS
) -> None:
    """Latch the brake if too many of the given machines are in one pool. ``pools``: the pool of each machine, by name.

    Machines that an operator accepted with an earlier release of the brake do not count. ``description``: words that
    follow the number of machines in the text for operators.
    """
    counts = Counter(pool for name, pool in pools.items() if name not in draft.orphans.accepted)
    for pool, count in counts.items():
        machines = len(draft.snapshots[pool].machines)
        if count > max(FEW_ORPHANS, ORPHAN_SHARE * machines):
            draft.latch(reason, f"{count} of {machines} machines {description}.", pool)


def _delete_orphan(draft: Draft, name: str, pool: str) -> None:
    limits, now, since = draft.limits, draft.now, draft.orphans.since[name]
    due = since + limits.orphans.grace_seconds
    if draft.brake is not None or pool in draft.busy:
        return
    if not draft.is_due(due) or draft.snapshots[pool].began_at <= since or not _count_orphan_delete(draft):
        return
    # A machine that still exists after a while is deleted again; the second delete counts against the cap too.
    again = now - limits.orphans.grace_seconds + DELETE_AGAIN
    draft.orphans = replace(draft.orphans, since={**draft.orphans.since, name: again})
    uid = draft.snapshots[pool].machines[name].fingerprint.uid
    draft.deletes.append(Delete(name, pool, DeleteReason.ORPHANED, uid))


def _count_orphan_delete(draft: Draft) -> bool:
    """Count one more delete against the cap per hour; return False if the cap is reached."""
    now, deletes = draft.now, draft.orphans.deletes
    if not draft.is_due(delete_allowed_at(deletes, draft.limits.orphans, now)):
        return False
    draft.orphans = replace(draft.orphans, deletes=(*(at for at in deletes if at > now - HOUR), now))
    return True


def delete_allowed_at(deletes: Sequence[float], limits: OrphanLimits, at: float) -> float:
    """Return the moment, not before ``at``, from which the cap per hour allows one more delete; ``NEVER`` if the cap is
    0.

    ``deletes``: the moments of earlier deletes, in order.
    """
    cap = limits.cap_per_hour
    if cap <= 0:
        return NEVER
    return at if len(deletes) < cap else max(at, deletes[-cap] + HOUR)


def _is_shown(snapshot: Snapshot, name: str) -> bool:
    return name in snapshot.machines or name in snapshot.foreign or name in snapshot.name_collisions


def _note_lost_unknown_machines(draft: Draft, activity: HfActivity, returned: Set[str]) -> None:
    """Note the machines in HF's lists that have no slot and that no snapshot shows. HF is then asked to return them.

    Names that this provisioner cannot have made are skipped. While the brake is latched, no machine is noted.
    """
    absent: dict[str, float] = {}
    lost: list[str] = []
    if draft.brake is None:
        unknown_machines = set(activity.inventory)
        for record in draft.records() if unknown_machines else ():
            unknown_machines.difference_update([slot.name for slot in record.slots.values()])
        for name in sorted(unknown_machines - returned):
            if split_name(draft.limits.prefix, name) is None:
                continue
            if any(_is_shown(snapshot, name) for snapshot in draft.snapshots.values()):
                continue
            if name in draft.hosts.unknown:
                absent[name] = draft.hosts.unknown[name]
            if is_proven_absent(draft, name, absent):
                lost.append(name)
    draft.hosts = replace(draft.hosts, unknown=absent, lost=tuple(lost))


def find_unlisted(draft: Draft, activity: HfActivity) -> None:
    """Note the machines that were reported to HF and that HF's lists omit. Delete these machines only if
    ``unlisted_after_seconds`` is configured.

    Time counts only while HF sends lists. If HF's lists stop for a while, each machine's time starts again at 0. Lists
    never name the machines of an operator and of Slurm, because these do not call getReturnRequests.
    """
    before, recent, inventory = draft.hosts.unlisted, activity.last_list_at - LISTS_GATHER, activity.inventory
    unlisted: dict[str, float] = {}
    listed = [record for record in draft.records() if record.rc_account not in (OPERATOR_ACCOUNT, SLURM_ACCOUNT)]
    for slots in (record.slots.values() for record in listed if record.reported_at is not None):
        for slot in [slot for slot in slots if slot.name not in inventory and slot.verdict is Verdict.SUCCEEDED]:
            if activity.listed_at.get(slot.name, LONG_AGO) <= recent:
                since = _unlisted_since(slot, activity, before.get(slot.name))
                if since is not None:
                    unlisted[slot.name] = since
    if draft.limits.orphans.unlisted_after_seconds is not None and not draft.holds.stop:
        _delete_unlisted(draft, activity, unlisted)
    draft.hosts = replace(draft.hosts, unlisted=unlisted)


def _unlisted_since(slot: Slot, activity: HfActivity, noted: float | None) -> float | None:
    """Return the moment since which HF's lists have not named a slot's machine.

    Return None in the first ``LISTS_GATHER`` seconds, because the next list may name the machine. ``noted``: the moment
    recorded in memory, if any.
    """
    named = activity.listed_at.get(slot.name, LONG_AGO)
    away_until = activity.since if activity.since > activity.started_at else LONG_AGO
    if noted is not None and noted >= max(named, away_until):
        return noted
    since = max(named, activity.since, slot.opened_at if slot.ran_at is None else slot.ran_at)
    return since if activity.last_list_at - since >= LISTS_GATHER else None


def _delete_unlisted(draft: Draft, activity: HfActivity, unlisted: Mapping[str, float]) -> None:
    """Close the slots of machines that HF's lists have not named for ``unlisted_after_seconds``. The brake and the cap
    per hour on deletes of orphans apply."""
    # A restart of the loop loses the lists, so an hour of new lists has to confirm that the names are missing.
    confirmed = activity.last_list_at - activity.since >= LISTS_GATHER
    limit = activity.last_list_at - (draft.limits.orphans.unlisted_after_seconds or 0.0)
    slots = [slot for name, since in unlisted.items() if since <= limit and (slot := draft.find_slot(name))]
    due = [slot for slot in slots if slot.pool in draft.snapshots]
    if not confirmed or not due:
        return
    _check_number(draft, {slot.name: slot.pool for slot in due}, "are in no list of HostFactory")
    for slot in due:
        if draft.brake is not None or not _count_orphan_delete(draft):
            return
        draft.close(slot, Verdict.LOST, reason=DeleteReason.ORPHANED, failure=UNLISTED)


def release_brake(memory: Memory) -> Memory:
    """Return the memory after an operator has released the brake. The orphans and unlisted machines that are known now
    do not latch the brake again.

    If the brake reported a wrong endpoint, the pool's next endpoint identity counts as right.
    """
    brake, places = memory.brake, memory.places
    if brake is not None and brake.reason is BrakeReason.WRONG_ENDPOINT:
        # Only the machines of the brake's pool are confirmed to be gone.
        wrong, endpoints = dict(places.wrong_since), dict(places.endpoints)
        wrong.pop(brake.pool, None)
        endpoints.pop(brake.pool, None)
        places = replace(places, wrong_since=wrong, endpoints=endpoints)
    accepted = (*memory.orphans.since, *memory.hosts.unlisted)
    orphans = replace(memory.orphans, accepted=accepted, appeared={})
    return replace(memory, brake=None, orphans=orphans, places=places)
