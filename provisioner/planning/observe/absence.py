"""Absence: when a machine counts as gone because snapshots lack it, or because it has been down for too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from provisioner.model import DESIRED, ErrorClass, Failure, LossCause, RequestRecord, Slot, Verdict
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.observe.ends import EarlyLosses, End, end_slot, is_expiry
from provisioner.planning.observe.trust import SHARE, needs_later_list

LATE_CREATE = 60.0
"""Seconds for which a create without a successful response may still take effect. Every call ends sooner."""

VANISHED = Failure(ErrorClass.OTHER, "The machine vanished.")


def note_absent(draft: Draft, record: RequestRecord, slot: Slot, early: EarlyLosses) -> None:
    """Note that a complete snapshot lacks a slot's machine.

    Two snapshots that begin at least ``lag_seconds`` apart prove that the machine is gone, unless many vanish at once.
    """
    snapshot, since = draft.snapshots[slot.pool], slot.observed.absent_since
    shown_cause = snapshot.causes.get(slot.name)
    if slot.is_set_aside or _may_appear(slot, shown_cause):
        return
    is_explained = shown_cause not in (None, LossCause.UNKNOWN)
    cause = shown_cause if is_explained and slot.verdict in DESIRED else slot.observed.cause
    expected_since, lag = _expected_since(slot), draft.pool(slot.pool).lag_seconds
    if snapshot.began_at <= expected_since:
        draft.wake_at(max(expected_since, draft.now) + SOON)
    elif since is None:
        draft.put_slots(record.id, slot.with_observed(absent_since=snapshot.began_at, cause=cause))
        draft.wake_at(draft.now + max(lag, SOON))
    elif snapshot.began_at <= since or snapshot.began_at - since < lag:
        draft.wake_at(draft.now + max(since + lag - snapshot.began_at, SOON))
    elif needs_later_list(draft, slot):
        return
    elif not is_explained and slot.name not in snapshot.asked:  # it may have strayed, so ask the place for this name
        draft.wake_at(draft.now + SOON)
    elif slot.verdict in DESIRED:
        unknown = LossCause.EXPIRES if is_expiry(draft, slot, since) else LossCause.UNKNOWN
        end_slot(draft, record, slot, End(VANISHED, cause or unknown, since, gone=True), early)
    else:
        draft.put_slots(record.id, slot.with_deletion(is_gone=True))


def _may_appear(slot: Slot, shown_cause: LossCause | None) -> bool:
    """Return whether the machine may still appear. This holds if no snapshot has shown it and its place does not
    report its end."""
    return slot.verdict is Verdict.OPEN and not slot.observed.was_seen and shown_cause is None


def _expected_since(slot: Slot) -> float:
    """Return the moment after which an observation can prove that the machine is gone. Before this moment, its
    create may have been under way, or its slot was open."""
    may_appear_until = (slot.submitted_at or 0.0) + (0.0 if slot.observed.is_accepted else LATE_CREATE)
    return max(may_appear_until, slot.deletion.closed_at or 0.0)


def end_down(draft: Draft, slots: Sequence[tuple[RequestRecord, Slot]], early: EarlyLosses) -> None:
    """Give up the machines that have been down for too long. In a pool where many machines are down at once, keep
    them."""
    if not slots:
        return
    down = Counter(slot.pool for _, slot in slots)
    running = Counter(slot.pool for other in draft.records() for slot in other.slots.values() if slot.is_with_hf)
    many = {pool for pool in down if down[pool] > max(1.0, SHARE * running[pool])}
    for record, slot in slots:
        limit, since = draft.pool(slot.pool).down_seconds, slot.life.down_since or 0.0
        if not limit or slot.pool in many:
            continue
        if draft.now < since + limit:
            draft.wake_at(since + limit)
            continue
        reason = slot.failure.text if slot.failure else "The machine is not ready."
        failure = Failure(ErrorClass.OTHER, f"The machine has not run for {limit:g} s: {reason}")
        end_slot(draft, record, slot, End(failure, LossCause.UNKNOWN, since), early)


def is_proven_absent(draft: Draft, name: str, absent: dict[str, float]) -> bool:
    """Return whether a machine is missing in all pools in two sets of complete snapshots that began the longest lag
    apart.

    ``absent`` records by name when the first set began.
    """
    if not draft.limits.pools or any(pool not in draft.snapshots for pool in draft.limits.pools):
        return False
    began = min(snapshot.began_at for snapshot in draft.snapshots.values())
    lag = max(pool.lag_seconds for pool in draft.limits.pools.values())
    first = absent.setdefault(name, began)
    draft.wake_at(draft.now + max(first + lag - began, SOON))
    return began > first and began - first >= lag
