"""Absence: the rules by which a machine counts as gone.

Either snapshots lack the machine, or the machine has been down for too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from provisioner.model import DESIRED, ErrorClass, Failure, LossCause, MachineEnd, RequestRecord, Slot, Verdict
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.observe.ends import EarlyLosses, End, end_slot, is_expiry
from provisioner.planning.observe.trust import SHARE, needs_later_list

LATE_CREATE = 60.0
"""Seconds for which a create without a successful response may still take effect. Every call to a place ends within
this time."""

VANISHED = Failure(ErrorClass.OTHER, "The machine vanished.")


def note_absent(draft: Draft, record: RequestRecord, slot: Slot, early: EarlyLosses) -> None:
    """Note that a complete snapshot lacks a slot's machine.

    If the place reports a cause of the machine's end, the machine counts as gone. If not, two snapshots must lack the
    machine, and must begin at least ``lag_seconds`` apart. The later snapshot must also have asked the place for the
    machine's name. If many machines vanish at once, two snapshots are not enough.
    """
    snapshot, since = draft.snapshots[slot.pool], slot.observed.absent_since
    end = snapshot.ends.get(slot.name)
    if slot.is_set_aside or (end is None and _may_appear(slot)):
        return
    expected_since, lag = _expected_since(slot), draft.pool(slot.pool).lag_seconds
    if end is not None and end.is_proven:
        if not needs_later_list(draft, slot):
            _settle(draft, record, slot, end, early)
    elif snapshot.began_at <= expected_since:
        draft.wake_at(max(expected_since, draft.now) + SOON)
    elif since is None:
        draft.put_slots(record.id, slot.with_observed(absent_since=snapshot.began_at))
        draft.wake_at(draft.now + max(lag, SOON))
    elif snapshot.began_at <= since or snapshot.began_at - since < lag:
        draft.wake_at(draft.now + max(since + lag - snapshot.began_at, SOON))
    elif needs_later_list(draft, slot):
        return
    elif slot.name not in snapshot.asked:  # the machine may have strayed, so ask the place for its name
        draft.wake_at(draft.now + SOON)
    else:
        _settle(draft, record, slot, MachineEnd(), early)


def _settle(draft: Draft, record: RequestRecord, slot: Slot, end: MachineEnd, early: EarlyLosses) -> None:
    """Record that a slot's machine is gone. If the slot should have a machine, the slot ends.

    The slot ends with the cause that the place reports now. Without such a cause, an earlier observed cause counts.
    """
    if slot.verdict not in DESIRED:
        draft.put_slots(record.id, slot.with_deletion(is_gone=True))
        return
    began_at = draft.snapshots[slot.pool].began_at
    since = began_at if slot.observed.absent_since is None else slot.observed.absent_since
    known = end.cause if end.cause is not LossCause.UNKNOWN else slot.observed.cause
    cause = known or (LossCause.EXPIRES if is_expiry(draft, slot, since) else LossCause.UNKNOWN)
    end_slot(draft, record, slot, End(end.failure or VANISHED, cause, since, gone=True), early)


def _may_appear(slot: Slot) -> bool:
    """Return whether the slot's machine may still appear. The slot is then open, and no snapshot has shown its machine
    yet."""
    return slot.verdict is Verdict.OPEN and not slot.observed.was_seen


def _expected_since(slot: Slot) -> float:
    """Return the moment until which an observation without the machine proves nothing.

    Only an observation that begins later proves that the machine is gone. The moment is the close of the slot or the
    last moment at which the create could take effect, whichever is later.
    """
    may_appear_until = (slot.submitted_at or 0.0) + (0.0 if slot.observed.is_accepted else LATE_CREATE)
    return max(may_appear_until, slot.deletion.closed_at or 0.0)


def end_down(draft: Draft, slots: Sequence[tuple[RequestRecord, Slot]], early: EarlyLosses) -> None:
    """Give up the machines that have been down for too long.

    If many machines of a pool are down at once, give up no machine of this pool.
    """
    if not slots:
        return
    down = Counter(slot.pool for _, slot in slots)
    running = Counter(slot.pool for _, slot in draft.slots() if slot.is_with_hf)
    many = {pool for pool in down if down[pool] > max(1.0, SHARE * running[pool])}
    for record, slot in slots:
        limit, since = draft.pool(slot.pool).down_seconds, slot.life.down_since or 0.0
        if not limit or slot.pool in many or not draft.is_due(since + limit):
            continue
        reason = slot.failure.text if slot.failure else "The machine is not ready."
        failure = Failure(ErrorClass.OTHER, f"The machine has not run for {limit:g} s: {reason}")
        end_slot(draft, record, slot, End(failure, LossCause.UNKNOWN, since), early)


def is_proven_absent(draft: Draft, name: str, absent: dict[str, float]) -> bool:
    """Return whether all pools lack a machine in two complete sets of snapshots.

    The second set must begin at least the longest ``lag_seconds`` after the first. ``absent`` records, by name, when
    the first set began.
    """
    if not draft.limits.pools or any(pool not in draft.snapshots for pool in draft.limits.pools):
        return False
    began = min(snapshot.began_at for snapshot in draft.snapshots.values())
    lag = max(pool.lag_seconds for pool in draft.limits.pools.values())
    first = absent.setdefault(name, began)
    draft.wake_at(draft.now + max(first + lag - began, SOON))
    return began > first and began - first >= lag
