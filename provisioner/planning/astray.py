"""A pool astray: its look shows another world, all of whose machines bear our identity and none is known.

So answers another cluster, where the same provisioner works or has worked: a kubeconfig or an endpoint leads elsewhere.
To believe it would be to tell HF that the whole grid is lost, and to delete the machines of another one.
"""

from __future__ import annotations

from provisioner.model import DESIRED, NEVER, BrakeReason, Doubt, Slot
from provisioner.names import split_name
from provisioner.planning.draft import Draft


def find_astray(draft: Draft) -> None:
    """Doubt, for as long as it takes, the pools that lack all their machines and show new ones without a request."""
    held = dict(draft.before.astray)
    for pool, snapshot in draft.snapshots.items():
        doubt, noted = draft.doubts.get(pool), held.pop(pool, None)
        if noted is None and (doubt is None or doubt.machines < doubt.known):
            continue
        known, strange = _told(draft, pool), _strange(draft, pool)
        shown = any(slot.name in snapshot.machines for slot in known)
        if shown or not known or (noted is None and not strange - draft.before.orphans.keys()):
            continue
        held[pool] = draft.now if noted is None else noted
        _doubt(draft, Doubt(len(known), len(known), held[pool], NEVER, len(strange)), pool)
        draft.orphans |= dict.fromkeys(strange - draft.orphans.keys(), draft.now)
    if held != draft.before.astray:
        draft.changes["astray"] = held


def _doubt(draft: Draft, doubt: Doubt, pool: str) -> None:
    draft.doubts[pool] = doubt
    text = f"It shows none of its {doubt.known} machines but {doubt.strange} that nobody asked for."
    draft.latch(BrakeReason.POOL_ASTRAY, text, pool)


def _told(draft: Draft, pool: str) -> list[Slot]:
    """The machines of the pool that HF has or was told of."""
    slots = (slot for record in draft.records() for slot in record.slots.values() if slot.pool == pool)
    return [slot for slot in slots if slot.ran is not None and slot.verdict in DESIRED]


def _strange(draft: Draft, pool: str) -> frozenset[str]:
    """The machines that the pool shows of requests that nobody knows."""
    names = ((name, split_name(draft.limits.prefix, name)) for name in draft.snapshots[pool].machines)
    return frozenset(name for name, parts in names if parts is None or parts[0] not in draft.requests)
