"""Refusals: machines that their place does not take or has no room for, whatever becomes of their slots.

No I/O, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from provisioner.model import ErrorClass, Memory, PendingReason, Slot, Snapshot, Transition, Verdict
from provisioner.planning.core.slots import lacks_room

HELD_BY_WINDOW = frozenset({PendingReason.BACKOFF, PendingReason.WINDOW})
"""Why machines are deferred where a pool backs off: one at a time probes it."""


class Refusal(NamedTuple):
    """Machines of a template that a pool's place refuses, or one of them."""

    pool: str
    template: str
    error: ErrorClass
    text: str
    """Why, in the words of the place."""
    machines: int = 1


def waiting(memory: Memory, snapshots: Mapping[str, Snapshot]) -> Mapping[str, Refusal]:
    """The refused machines that are still asked for, by name.

    That no node takes a pod is no refusal while its place has not said that it has none to add.
    """
    return {
        slot.name: refusal
        for record in memory.requests.values()
        if record.ended is None
        for slot in record.slots.values()
        if slot.verdict is Verdict.OPEN and slot.failure is not None
        if (refusal := _refusal(record.template, slot))
        and (not refusal.error.has_no_room or lacks_room(slot, snapshots))
    }


def news(
    transitions: Iterable[Transition], waited: Mapping[str, Refusal], held: Mapping[str, Refusal]
) -> Iterator[Refusal]:
    """Machines that were refused lately, of which ``waited`` were waiting before, as ``held`` are now.

    A slot whose machine was refused may be open, failed or withdrawn: it counts once for each class.
    """
    for name, refusal in held.items():
        if not _same(waited.get(name), refusal):
            yield refusal
    for one in transitions:
        if one.closes and (ended := _refusal(one.template, one.slot)) and not _same(waited.get(one.slot.name), ended):
            yield ended


def held_back(memory: Memory, deferred: Mapping[tuple[str, str, PendingReason], int]) -> Iterator[Refusal]:
    """Machines that are deferred because the pool backs off from a refusal."""
    for (pool, template, reason), machines in deferred.items():
        learned = memory.windows.get((pool, template))
        failure = learned.backs_off_from if learned else None
        if reason in HELD_BY_WINDOW and failure is not None and failure.error.is_refusal:
            yield Refusal(pool, template, failure.error, failure.text, machines)


def _refusal(template: str, slot: Slot) -> Refusal | None:
    """Why the machine of a slot was refused; None where it ran, was never asked for, or has another trouble."""
    failure = slot.failure
    if failure is None or not failure.error.is_refusal or slot.ran is not None or slot.submitted is None:
        return None
    return Refusal(slot.pool, template, failure.error, failure.text)


def _same(former: Refusal | None, refusal: Refusal) -> bool:
    return former is not None and former.error is refusal.error
