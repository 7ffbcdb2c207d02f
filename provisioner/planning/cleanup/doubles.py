"""Doubles: several objects with one name, in a place that does not keep names unique. One object of each name stays."""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import Delete, DeleteReason, Machine, Slot
from provisioner.planning.core.draft import DELETE_AGAIN, Draft


def delete_doubles(draft: Draft) -> None:
    """Choose one object for each name that several objects have. This object stays as the machine.

    Delete the other objects at once. If a name has no slot, its objects are orphans and are deleted slowly.
    """
    draft.doubles = {uid: at for uid, at in draft.doubles.items() if draft.now < at + DELETE_AGAIN}
    for pool, snapshot in list(draft.snapshots.items()):
        chosen: dict[str, Machine] = {}
        for name, others in snapshot.doubles.items() if pool not in draft.distrusted else ():
            slot = draft.find_slot(name)
            if slot is None or slot.is_set_aside or name not in snapshot.machines:
                continue
            objects = (snapshot.machines[name], *others)
            chosen[name] = _choose(slot, objects)
            for uid in {one.fingerprint.uid for one in objects} - {chosen[name].fingerprint.uid}:
                _delete(draft, slot, uid)
        if chosen:
            draft.snapshots[pool] = replace(snapshot, machines={**snapshot.machines, **chosen})


def _choose(slot: Slot, objects: tuple[Machine, ...]) -> Machine:
    """Return the object that was reported to HF as the machine. If there is no such object, return the first object."""
    known = slot.observed.fingerprint.uid
    return next((one for one in objects if slot.is_with_hf and one.fingerprint.uid == known), objects[0])


def _delete(draft: Draft, slot: Slot, uid: str) -> None:
    if uid not in draft.doubles and slot.pool not in draft.busy:
        draft.doubles[uid] = draft.now
        draft.deletes.append(Delete(slot.name, slot.pool, DeleteReason.DOUBLED, uid))
    draft.wake_at(draft.doubles.get(uid, draft.now) + DELETE_AGAIN)
