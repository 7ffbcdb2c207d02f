"""Machines that ended by themselves, told to the places that keep a record for people. Nothing depends on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from provisioner.backends import Backend, Ended, Recording
from provisioner.loop.cycle import CycleReport
from provisioner.model import Close, Memory, Verdict
from provisioner.planning.slots import slot_named


def record_ends(report: CycleReport, prefix: str, backends: Mapping[str, Backend]) -> None:
    """Let each place keep a record of its machines that this cycle found ended."""
    if not report.closes or report.memory is None:
        return
    ends = defaultdict[str, list[Ended]](list)
    for close in report.closes:
        if (end := _ended(close, report.memory, prefix)) is not None:
            ends[close.pool].append(end)
    for pool, ones in ends.items():
        backend = backends.get(pool)
        if isinstance(backend, Recording):
            backend.record_ends(ones)


def _ended(close: Close, memory: Memory, prefix: str) -> Ended | None:
    """None where nobody wonders: HF gave it back, a person cancelled it, or it never was there."""
    slot = slot_named(memory.requests, prefix, close.name) if close.lost or close.verdict is Verdict.FAILED else None
    if slot is None or not (slot.seen or slot.accepted):
        return None
    return Ended(
        close.name,
        slot.request,
        close.template,
        uid=slot.fingerprint.uid,
        lost=close.lost,
        cause=close.cause,
        failure=close.failure,
    )
