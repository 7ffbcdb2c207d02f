"""Mass loss: a look that lacks many machines at once is not believed before a second one says the same.

Until a second list, begun ``PoolLimits.mass_loss`` seconds later, lacks them too, the pool counts as one that cannot be
seen: HF gives up every machine that it is told is lost, so one wrong list would cost the whole grid.
"""

from __future__ import annotations

from collections.abc import Iterable

from provisioner.model import DESIRED, Doubt, LossCause, PoolLimits, Slot, Snapshot
from provisioner.planning.draft import SOON, Draft

FEW = 5
"""Up to so many machines that are missing at once raise no doubt: HF gets over them, and a node holds as many."""

SHARE = 0.2
"""Up to this share of a pool's machines raises none either: in a large pool some always end at the same time."""


def doubts(draft: Draft, absent: Iterable[Slot]) -> dict[str, Doubt]:
    """The pools whose look lacks too many machines that HF was told of, and that no second look lacks yet."""
    missing: dict[str, list[Slot]] = {}
    for slot in absent:
        if slot.verdict in DESIRED and slot.ran is not None and _is_doubtful(draft, slot):
            missing.setdefault(slot.pool, []).append(slot)
    return {
        pool: _doubt(draft, slots, running)
        for pool, slots in missing.items()
        if is_mass(len(slots), running := told(draft, pool))
    }


def is_mass(missing: int, told: int) -> bool:
    """So many missing machines at once, of those that HF was told of, are not believed to be gone."""
    return missing > FEW and missing > SHARE * told


def apart(limits: PoolLimits) -> float:
    """How far apart the lists must begin that prove a mass loss; 0 where one is told as any other."""
    return max(limits.lag, limits.mass_loss) if limits.mass_loss else 0.0


def waits(draft: Draft, slot: Slot) -> bool:
    """An absent machine of a pool in doubt needs a later look than any other would."""
    doubt = draft.doubts.get(slot.pool)
    if doubt is None or not (doubt.astray or _is_doubtful(draft, slot)):
        return False
    draft.wake_at(max(doubt.settled_by, draft.now) + SOON)
    return True


def _is_doubtful(draft: Draft, slot: Slot) -> bool:
    """Nobody has said why the machine went, and no list begun late enough lacks it."""
    snapshot, wait = draft.snapshots[slot.pool], apart(draft.pool(slot.pool))
    confirmed = slot.absent is not None and snapshot.proves - slot.absent >= wait
    return wait > 0 and not (slot.set_aside or confirmed or _is_explained(slot, snapshot))


def _is_explained(slot: Slot, snapshot: Snapshot) -> bool:
    causes = {snapshot.causes.get(slot.name), slot.cause} - {None, LossCause.UNKNOWN}
    return slot.notice is not None or bool(causes)


def told(draft: Draft, pool: str) -> int:
    """How many machines of the pool HF has or was told of."""
    slots = (slot for record in draft.records() for slot in record.slots.values() if slot.pool == pool)
    return sum(slot.ran is not None and slot.verdict in DESIRED for slot in slots)


def _doubt(draft: Draft, slots: list[Slot], told: int) -> Doubt:
    pool = slots[0].pool
    since = min(draft.snapshots[pool].began if slot.absent is None else slot.absent for slot in slots)
    return Doubt(len(slots), told, since, since + apart(draft.pool(pool)))
