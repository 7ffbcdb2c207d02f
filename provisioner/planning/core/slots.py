"""Slots of requests: find a slot by its name, count missing machines and their tries, and compute boot deadlines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from provisioner.model import (
    DESIRED,
    NEVER,
    UNTRIED,
    ErrorClass,
    Failure,
    Machine,
    PoolLimits,
    RequestRecord,
    Slot,
    Snapshot,
    Tries,
    Verdict,
    format_utc,
)
from provisioner.names import SLOT_NUMBERS, split_name

CANCELLED_MESSAGE = "Cancelled: HostFactory did not poll this request any more."

CANCELLED_BY_OPERATOR = "Cancelled by an operator: "
"""First words of the message of a request that an operator has cancelled. The text of the hold follows."""


def find_slot(requests: Mapping[str, RequestRecord], prefix: str, name: str) -> Slot | None:
    """Return the slot with this name; None if the name is no machine name of ours, or if the slot is unknown."""
    parts = split_name(prefix, name)
    record = requests.get(parts[0]) if parts else None
    return record.slots.get(parts[1]) if parts and record else None


def find_machine(slot: Slot, snapshots: Mapping[str, Snapshot]) -> Machine | None:
    """Return the machine of a slot; None if its pool was not observed or does not show the machine."""
    snapshot = snapshots.get(slot.pool)
    return snapshot.machines.get(slot.name) if snapshot else None


def lacks_room(slot: Slot, snapshots: Mapping[str, Snapshot]) -> bool:
    """Return whether the slot's machine waits because its place has no room for it."""
    machine = find_machine(slot, snapshots) if slot.failure is not None else None
    return machine is not None and machine.spills_at_once


def count_missing(record: RequestRecord) -> int:
    """Return the number of missing machines of a request.

    A machine is not missing if it runs, is on its way, or has been given up.
    """
    slots = record.slots.values()
    ended = [slot for slot in slots if slot.verdict not in DESIRED]
    given_up = sum(
        slot.verdict is Verdict.CANCELLED or (slot.verdict is Verdict.FAILED and slot.submitted_at is None)
        for slot in ended
    )
    return record.count - (len(slots) - len(ended) + given_up + record.failed_without_slot)


def find_missing_tries(record: RequestRecord) -> list[Tries]:
    """Return the earlier tries of each missing machine of a request. Machines with the fewest failed tries come first.

    The machine of a failed slot is missing unless another slot replaces the failed slot. The replacement begins with
    the failed slot's tries, plus one if its failure counts as a try. Each slot replaces only one failed slot.
    """
    wanted = count_missing(record)
    if wanted <= 0:
        return []
    failed = defaultdict[int, list[Tries]](list)
    # The first slot of each machine has no earlier tries.
    taken = Counter({0: record.failed_without_slot - record.count})
    for slot in record.slots.values():
        if slot.verdict is not Verdict.WITHDRAWN:
            taken[slot.tries.failed] += 1
        if slot.verdict is Verdict.FAILED and slot.submitted_at is not None:
            left = _tries_after(slot)
            failed[left.failed].append(left)
    tried = [gap for tries in sorted(failed) for gap in failed[tries][max(0, taken[tries]) :]]
    # A rebuilt memory does not know earlier tries, so it may count more failed tries than missing machines.
    return [UNTRIED] * (wanted - len(tried)) + tried[-wanted:]


def _tries_after(slot: Slot) -> Tries:
    """Return the earlier tries of the slot that will replace the given slot.

    If the given slot's failure counts as a try, the number of tries grows by one. The failure to report is usually the
    given slot's failure. But if the given slot only ran out of time, the failure before it explains more and stays.
    """
    failure, before = slot.failure, slot.tries.failure
    if failure is None:
        return slot.tries
    late = failure.error is ErrorClass.TIMEOUT and before is not None
    return Tries(slot.tries.failed + failure.error.spends_try, before if late else failure)


def count_free_numbers(record: RequestRecord) -> int:
    """Return the number of slot numbers that a request has left (law: a name is used once)."""
    return SLOT_NUMBERS - record.next_slot


def pending_slots(record: RequestRecord) -> list[Slot]:
    """Return the open slots of a request whose machines do not run yet."""
    slots = record.slots.values()
    return [slot for slot in slots if slot.ran_at is None and slot.verdict is Verdict.OPEN and not slot.is_set_aside]


def down_slots(record: RequestRecord) -> list[Slot]:
    """Return the slots of an open request whose machines ran before and do not run now."""
    open_ = [slot for slot in record.slots.values() if slot.verdict is Verdict.OPEN and not slot.is_set_aside]
    return [slot for slot in open_ if slot.life.down_since is not None]


def get_boot_deadline(slot: Slot, limits: PoolLimits) -> float:
    """Return the moment by which a slot's machine has to run; ``NEVER`` while a queue holds the machine."""
    return NEVER if slot.observed.is_queued else slot.boots_from + limits.boot_deadline_seconds


def get_spill_time(slot: Slot, limits: PoolLimits) -> float:
    """Return the moment from which another pool may take a slot's machine; ``NEVER`` if the machine stays in its
    queue."""
    seconds = limits.queue_spill_seconds if slot.observed.is_queued else limits.spill_after_seconds
    return NEVER if seconds is None else slot.boots_from + seconds


def format_wait(slot: Slot) -> str:
    """Return a text that describes a machine's normal wait in a queue of its place; empty for any other machine."""
    known = slot.observed
    since = f" since {format_utc(known.queued_since)}" if known.queued_since else ""
    return f"queued in {slot.pool}{since}: {known.queue_reason}" if known.is_queued and slot.failure is None else ""


def with_wait(slot: Slot, failure: Failure) -> Failure:
    """Return the failure of a machine that is given up. If a queue of its place holds the machine, the text also
    describes this wait."""
    wait = format_wait(slot)
    return replace(failure, text=f"{failure.text} It was {wait}") if wait else failure


def is_cancel_message(message: str) -> bool:
    """Return whether a message says that a request or machine was cancelled."""
    return message == CANCELLED_MESSAGE or message.startswith(CANCELLED_BY_OPERATOR)
