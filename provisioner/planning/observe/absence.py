"""Absence: when a machine that snapshots lack, or that does not run any more, counts as gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from provisioner.model import DESIRED, ErrorClass, Failure, LossCause, RequestRecord, Slot, Verdict
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.observe.ends import EarlyLosses, End, end_slot, is_expiry
from provisioner.planning.observe.trust import SHARE, waits

LATE_CREATE = 60.0
"""Seconds for which a create without a good answer may still be under way: longer than any call."""

VANISHED = Failure(ErrorClass.OTHER, "The machine vanished.")


def note_absent(draft: Draft, record: RequestRecord, slot: Slot, early: EarlyLosses) -> None:
    """Note that a complete snapshot lacks a slot's machine.

    Two that begin at least ``lag`` seconds apart prove that the machine is gone, unless many vanish at once.
    """
    snapshot, since = draft.snapshots[slot.pool], slot.observed.absent
    told = snapshot.causes.get(slot.name)
    if slot.set_aside or _may_come(slot, told):
        return
    explained = told not in (None, LossCause.UNKNOWN)
    cause = told if explained and slot.verdict in DESIRED else slot.observed.cause
    expected_since, lag = _expected_since(slot), draft.pool(slot.pool).lag
    if snapshot.began <= expected_since:
        draft.wake_at(max(expected_since, draft.now) + SOON)
    elif since is None:
        draft.put(record.id, slot.with_observed(absent=snapshot.began, cause=cause))
        draft.wake_at(draft.now + max(lag, SOON))
    elif snapshot.began <= since or snapshot.began - since < lag:
        draft.wake_at(draft.now + max(since + lag - snapshot.began, SOON))
    elif waits(draft, slot):
        return
    elif not explained and slot.name not in snapshot.asked:  # it may have strayed: its place is asked by its name
        draft.wake_at(draft.now + SOON)
    elif slot.verdict in DESIRED:
        unknown = LossCause.EXPIRES if is_expiry(draft, slot, since) else LossCause.UNKNOWN
        end_slot(draft, record, slot, End(VANISHED, cause or unknown, since, gone=True), early)
    else:
        draft.put(record.id, slot.with_deletion(gone=True))


def _may_come(slot: Slot, told: LossCause | None) -> bool:
    """Return whether no snapshot has shown the machine yet, and its place does not say that it came and went."""
    return slot.verdict is Verdict.OPEN and not slot.observed.seen and told is None


def _expected_since(slot: Slot) -> float:
    """Only an observation begun after this can prove anything: its create may have been under way, and its slot
    open."""
    may_appear_until = (slot.submitted or 0.0) + (0.0 if slot.observed.accepted else LATE_CREATE)
    return max(may_appear_until, slot.deletion.closed or 0.0)


def lose_down(draft: Draft, slots: Sequence[tuple[RequestRecord, Slot]], early: EarlyLosses) -> None:
    """Give up the machines that have not run again for too long, except where many at once do not."""
    if not slots:
        return
    down = Counter(slot.pool for _, slot in slots)
    running = Counter(slot.pool for one in draft.records() for slot in one.slots.values() if slot.is_with_hf)
    many = {pool for pool in down if down[pool] > max(1.0, SHARE * running[pool])}
    for record, slot in slots:
        limit, since = draft.pool(slot.pool).down, slot.life.down or 0.0
        if not limit or slot.pool in many:
            continue
        if draft.now < since + limit:
            draft.wake_at(since + limit)
            continue
        why = slot.failure.text if slot.failure else "it is not ready"
        failure = Failure(ErrorClass.OTHER, f"It has not run for {limit:g} s: {why}")
        end_slot(draft, record, slot, End(failure, LossCause.UNKNOWN, since), early)


def proven_absent(draft: Draft, name: str, absent: dict[str, float]) -> bool:
    """Two sets of complete snapshots of all pools lack it, begun the longest lag apart; ``absent`` holds the first."""
    if not draft.limits.pools or any(pool not in draft.snapshots for pool in draft.limits.pools):
        return False
    began = min(snapshot.began for snapshot in draft.snapshots.values())
    lag = max(pool.lag for pool in draft.limits.pools.values())
    first = absent.setdefault(name, began)
    draft.wake_at(draft.now + max(first + lag - began, SOON))
    return began > first and began - first >= lag
