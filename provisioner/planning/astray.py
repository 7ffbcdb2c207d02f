"""A pool astray: another place answers for it, as where a kubeconfig, a context or an address leads to another cluster.

It is known by the place's own identity, where a look has it, else by what it shows: none of the pool's machines, and
new ones of ours that nobody asked for.
"""

from __future__ import annotations

from provisioner.model import DESIRED, NEVER, BrakeReason, Doubt, Slot
from provisioner.names import split_name
from provisioner.planning.draft import Draft


def find_astray(draft: Draft) -> None:
    """Doubt the looks at such pools until a person releases the brake, or a look shows that the pool is back."""
    memory = draft.before
    astray, answered_by = dict(memory.astray), dict(memory.answered_by)
    for pool, snapshot in draft.snapshots.items():
        words = _elsewhere(draft, pool) if snapshot.answered_by else _strange_alone(draft, pool)
        if words:
            astray.setdefault(pool, draft.now)
            _doubt(draft, pool, words, astray[pool])
            continue
        astray.pop(pool, None)
        if snapshot.answered_by:
            answered_by[pool] = snapshot.answered_by
    for name, changed in (("astray", astray), ("answered_by", answered_by)):
        if changed != getattr(memory, name):
            draft.changes[name] = changed


def _elsewhere(draft: Draft, pool: str) -> str:
    """Where the pool's machines were made in another place than this look shows: in which."""
    seen = draft.snapshots[pool].answered_by
    held = draft.before.answered_by.get(pool, seen)
    if held == seen or not any(slot.submitted is not None and not slot.gone for slot in _slots(draft, pool)):
        return ""
    return f"is {seen} now, but its machines were made in {held}"


def _strange_alone(draft: Draft, pool: str) -> str:
    """Where a look lacks all machines of the pool and shows some of ours that nobody asked for: how many."""
    doubt, noted = draft.doubts.get(pool), pool in draft.before.astray
    if not noted and (doubt is None or doubt.machines < doubt.expected):
        return ""
    ran = [slot for slot in _slots(draft, pool) if slot.ran is not None and slot.verdict in DESIRED]
    strange = _strange(draft, pool)
    shown = any(slot.name in draft.snapshots[pool].machines for slot in ran)
    if shown or not ran or not (noted or strange - draft.before.orphans.keys()):
        return ""
    draft.orphans |= dict.fromkeys(strange - draft.orphans.keys(), draft.now)
    return f"shows none of its {len(ran)} machines but {len(strange)} that nobody asked for"


def _doubt(draft: Draft, pool: str, words: str, since: float) -> None:
    machines = sum(slot.ran is not None and slot.verdict in DESIRED for slot in _slots(draft, pool))
    draft.doubts[pool] = Doubt(machines, machines, since, NEVER, words)
    draft.latch(BrakeReason.POOL_ASTRAY, f"It {words}. To release the brake is to say that they are lost.", pool)


def _slots(draft: Draft, pool: str) -> list[Slot]:
    return [slot for record in draft.records() for slot in record.slots.values() if slot.pool == pool]


def _strange(draft: Draft, pool: str) -> frozenset[str]:
    """The machines that the pool shows of requests that nobody knows."""
    names = ((name, split_name(draft.limits.prefix, name)) for name in draft.snapshots[pool].machines)
    return frozenset(name for name, parts in names if parts is None or parts[0] not in draft.requests)
