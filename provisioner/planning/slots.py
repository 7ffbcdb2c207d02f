"""Slots among requests: which one a name belongs to, what a request misses, what it waits for.

Pure: no I/O, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.model import RequestRecord, Slot
from provisioner.names import split_name


def slot_named(requests: Mapping[str, RequestRecord], prefix: str, name: str) -> Slot | None:
    """The slot of this name; None for a name of another shape, or of a request or a number that is not known."""
    parts = split_name(prefix, name)
    record = requests.get(parts[0]) if parts else None
    return record.slots.get(parts[1]) if parts and record else None
