"""Slots among requests: which one a name belongs to, what a request misses, what it waits for."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.model import DESIRED, RequestRecord, Slot, Verdict
from provisioner.names import split_name


def slot_named(requests: Mapping[str, RequestRecord], prefix: str, name: str) -> Slot | None:
    """The slot of this name; None for a name of another shape, or of a request or a number that is not known."""
    parts = split_name(prefix, name)
    record = requests.get(parts[0]) if parts else None
    return record.slots.get(parts[1]) if parts and record else None


def missing(record: RequestRecord) -> int:
    """Machines of a request that are neither there, nor on their way, nor given up."""
    return record.count - sum(
        slot.verdict in DESIRED
        or slot.verdict is Verdict.CANCELLED
        or (slot.verdict is Verdict.FAILED and slot.submitted is None)
        for slot in record.slots.values()
    )


def pending(record: RequestRecord) -> list[Slot]:
    """The slots of a request whose machines are to run and do not yet."""
    slots = record.slots.values()
    return [slot for slot in slots if slot.ran is None and slot.verdict is Verdict.OPEN and not slot.set_aside]
