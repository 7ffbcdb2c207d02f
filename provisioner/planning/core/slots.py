"""Slots among requests: which one a name belongs to, what a request misses, what was tried for it, what it awaits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from provisioner.model import (
    DESIRED,
    UNTRIED,
    ErrorClass,
    Machine,
    PoolLimits,
    RequestRecord,
    Slot,
    Snapshot,
    Tries,
    Verdict,
)
from provisioner.names import SLOT_NUMBERS, split_name

CANCELLED_MESSAGE = "Cancelled: HostFactory did not ask for this request."

BY_A_PERSON = "Cancelled by a person: "
"""Begins the message of a request that a person has cancelled; the lever follows."""


def slot_named(requests: Mapping[str, RequestRecord], prefix: str, name: str) -> Slot | None:
    """The slot of this name; None for a name of another shape, or of a request or a number that is not known."""
    parts = split_name(prefix, name)
    record = requests.get(parts[0]) if parts else None
    return record.slots.get(parts[1]) if parts and record else None


def machine_of(slot: Slot, snapshots: Mapping[str, Snapshot]) -> Machine | None:
    """Return the machine of a slot; None if its pool was not seen, or does not show the machine."""
    snapshot = snapshots.get(slot.pool)
    return snapshot.machines.get(slot.name) if snapshot else None


def lacks_room(slot: Slot, snapshots: Mapping[str, Snapshot]) -> bool:
    """Return whether the slot's machine waits, and its place has said that it has no room for it."""
    machine = machine_of(slot, snapshots) if slot.failure is not None else None
    return machine is not None and machine.no_room


def missing(record: RequestRecord) -> int:
    """Machines of a request that are neither there, nor on their way, nor given up."""
    slots = record.slots.values()
    ended = [slot for slot in slots if slot.verdict not in DESIRED]
    given_up = sum(
        slot.verdict is Verdict.CANCELLED or (slot.verdict is Verdict.FAILED and slot.submitted is None)
        for slot in ended
    )
    return record.count - (len(slots) - len(ended) + given_up + record.withheld)


def gaps(record: RequestRecord) -> list[Tries]:
    """Return what was tried for each machine that a request misses, those first that failed least often.

    Of the slots that failed as the n-th try, as many are replaced as there are slots with n tries before them.
    """
    wanted = missing(record)
    if wanted <= 0:
        return []
    failed = defaultdict[int, list[Tries]](list)
    taken = Counter({0: record.withheld - record.count})  # at first nothing was tried
    for slot in record.slots.values():
        if slot.verdict is not Verdict.WITHDRAWN:
            taken[slot.tries.failed] += 1
        if slot.verdict is Verdict.FAILED and slot.submitted is not None:
            left = _tries_after(slot)
            failed[left.failed].append(left)
    tried = [gap for tries in sorted(failed) for gap in failed[tries][max(0, taken[tries]) :]]
    # Slots that were made again know of no tries: more may seem to be left than there are.
    return [UNTRIED] * (wanted - len(tried)) + tried[-wanted:]


def _tries_after(slot: Slot) -> Tries:
    """Return the tries with a slot that failed. That time ran out is no reason if an earlier slot had a better one."""
    failure, before = slot.failure, slot.tries.failure
    if failure is None:
        return slot.tries
    late = failure.error is ErrorClass.TIMEOUT and before is not None
    return Tries(slot.tries.failed + failure.error.spends_try, before if late else failure)


def numbers_left(record: RequestRecord) -> int:
    """Return how many further slots of a request can have a number (law: a name is used once)."""
    return SLOT_NUMBERS - record.next_slot


def pending(record: RequestRecord) -> list[Slot]:
    """The slots of a request whose machines are to run and do not yet."""
    slots = record.slots.values()
    return [slot for slot in slots if slot.ran is None and slot.verdict is Verdict.OPEN and not slot.set_aside]


def down(record: RequestRecord) -> list[Slot]:
    """Return the slots of an open request whose machines ran and do not run now."""
    open_ = [slot for slot in record.slots.values() if slot.verdict is Verdict.OPEN and not slot.set_aside]
    return [slot for slot in open_ if slot.life.down is not None]


def boots_by(slot: Slot, limits: PoolLimits) -> float:
    """When its machine has to run. One that is held back on purpose has a deadline of its own, and boots after it."""
    if slot.observed.gated:
        return slot.asked_at + limits.gated_deadline
    return slot.boots_from + limits.boot_deadline


def tells_cancel(message: str) -> bool:
    """The message of a request, or of a machine, that was cancelled."""
    return message == CANCELLED_MESSAGE or message.startswith(BY_A_PERSON)
