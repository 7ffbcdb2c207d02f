"""Slots among requests: which one a name belongs to, what a request misses, what was tried for it, what it awaits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from provisioner.model import DESIRED, ErrorClass, Failure, PoolLimits, RequestRecord, Slot, Verdict
from provisioner.names import split_name

CANCELLED_MESSAGE = "Cancelled: HostFactory did not ask for this request."

BY_A_PERSON = "Cancelled by a person: "
"""Begins the message of a request that a person has cancelled; the lever follows."""


class Gap(NamedTuple):
    """A machine that a request misses: neither there, nor on its way, nor given up."""

    tries: int = 0
    """Tries of it that failed."""
    failure: Failure | None = None
    """Why the last slot for it failed; None where none has."""


UNTRIED = Gap()


def slot_named(requests: Mapping[str, RequestRecord], prefix: str, name: str) -> Slot | None:
    """The slot of this name; None for a name of another shape, or of a request or a number that is not known."""
    parts = split_name(prefix, name)
    record = requests.get(parts[0]) if parts else None
    return record.slots.get(parts[1]) if parts and record else None


def missing(record: RequestRecord) -> int:
    """Machines of a request that are neither there, nor on their way, nor given up."""
    slots = record.slots.values()
    ended = [slot for slot in slots if slot.verdict not in DESIRED]
    given_up = sum(
        slot.verdict is Verdict.CANCELLED or (slot.verdict is Verdict.FAILED and slot.submitted is None)
        for slot in ended
    )
    return record.count - (len(slots) - len(ended) + given_up + record.withheld)


def gaps(record: RequestRecord) -> list[Gap]:
    """The machines that a request misses, those first that failed least often.

    Of the slots that failed as the n-th try, as many are replaced as there are slots with n tries before them.
    """
    wanted = missing(record)
    if wanted <= 0:
        return []
    failed = defaultdict[int, list[Gap]](list)
    taken = Counter({0: record.withheld - record.count})  # at first nothing was tried
    for slot in record.slots.values():
        if slot.verdict is not Verdict.WITHDRAWN:
            taken[slot.tries] += 1
        if slot.verdict is Verdict.FAILED and slot.submitted is not None:
            left = _gap_after(slot)
            failed[left.tries].append(left)
    tried = [gap for tries in sorted(failed) for gap in failed[tries][max(0, taken[tries]) :]]
    # Slots of an earlier version know of no tries: more may seem to be left than there are.
    return [UNTRIED] * (wanted - len(tried)) + tried[-wanted:]


def _gap_after(slot: Slot) -> Gap:
    """What a slot that failed leaves. That time ran out is no reason where an earlier slot had a better one."""
    failure, before = slot.failure, slot.tried
    if failure is None:
        return Gap(slot.tries, before)
    late = failure.error is ErrorClass.TIMEOUT and before is not None
    return Gap(slot.tries + failure.error.spends_try, before if late else failure)


def pending(record: RequestRecord) -> list[Slot]:
    """The slots of a request whose machines are to run and do not yet."""
    slots = record.slots.values()
    return [slot for slot in slots if slot.ran is None and slot.verdict is Verdict.OPEN and not slot.set_aside]


def down(record: RequestRecord) -> list[Slot]:
    """Return the slots of an open request whose machines ran and do not run now."""
    slots = record.slots.values()
    return [slot for slot in slots if slot.down is not None and slot.verdict is Verdict.OPEN and not slot.set_aside]


def boots_by(slot: Slot, submitted: float, limits: PoolLimits) -> float:
    """When its machine has to run. One that is held back on purpose has a deadline of its own, and boots after it."""
    if slot.gated:
        return submitted + limits.gated_deadline
    return (submitted if slot.lifted is None else slot.lifted) + limits.boot_deadline


def tells_cancel(message: str) -> bool:
    """The message of a request, or of a machine, that was cancelled."""
    return message == CANCELLED_MESSAGE or message.startswith(BY_A_PERSON)
