"""Refusals: machines that their place rejects or has no room for.

A refused machine counts even if its slot is withdrawn or succeeds later. The module uses no I/O, clock or logger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from provisioner.model import ErrorClass, Memory, PendingReason, Slot, Snapshot, Transition, Verdict
from provisioner.planning.core.slots import lacks_room

HELD_BY_WINDOW = frozenset({PendingReason.BACKOFF, PendingReason.WINDOW})
"""Pending reasons of machines that are deferred while a pool backs off, or while one machine at a time probes it."""


class Refusal(NamedTuple):
    """Machines of a template that the place of a pool refuses."""

    pool: str
    template: str
    error: ErrorClass
    text: str
    """The reason in the words of the place."""
    machines: int = 1


def find_waiting_refusals(memory: Memory, snapshots: Mapping[str, Snapshot]) -> Mapping[str, Refusal]:
    """Return the refusal of each refused machine that is still requested, by the machine's name.

    A pod that fits on no node counts as refused only after its place has reported that it cannot add a node.
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


def find_new_refusals(
    transitions: Iterable[Transition], waited_before: Mapping[str, Refusal], waiting_now: Mapping[str, Refusal]
) -> Iterator[Refusal]:
    """Yield a refusal for each machine that was refused since the last cycle.

    ``waited_before`` and ``waiting_now`` are the results of ``find_waiting_refusals`` in the last cycle and now. The
    slot of a refused machine may be open, failed or withdrawn. A slot counts once for each error class.
    """
    for name, refusal in waiting_now.items():
        if not _is_same(waited_before.get(name), refusal):
            yield refusal
    for one in transitions:
        ended = _refusal(one.template, one.slot) if one.is_closed else None
        if ended and not _is_same(waited_before.get(one.slot.name), ended):
            yield ended


def find_deferred_refusals(memory: Memory, deferred: Mapping[tuple[str, str, PendingReason], int]) -> Iterator[Refusal]:
    """Yield a refusal for machines that are deferred because their pool backs off after a refusal."""
    for (pool, template, reason), machines in deferred.items():
        window = memory.windows.get((pool, template))
        failure = window.backs_off_from if window else None
        if reason in HELD_BY_WINDOW and failure is not None and failure.error.is_refusal:
            yield Refusal(pool, template, failure.error, failure.text, machines)


def _refusal(template: str, slot: Slot) -> Refusal | None:
    """Return the refusal of a slot's machine. Return None if the machine ran, was never requested, or failed for
    another reason."""
    failure = slot.failure
    if failure is None or not failure.error.is_refusal or slot.ran_at is not None or slot.submitted_at is None:
        return None
    return Refusal(slot.pool, template, failure.error, failure.text)


def _is_same(former: Refusal | None, refusal: Refusal) -> bool:
    return former is not None and former.error is refusal.error
