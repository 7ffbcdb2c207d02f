"""Machines that ended by themselves, told to the places that keep a record for people. Nothing depends on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from provisioner.backends import Backend, Ended, Recording
from provisioner.loop.cycle import CycleReport
from provisioner.model import Transition, Verdict


def record_ends(report: CycleReport, backends: Mapping[str, Backend]) -> None:
    """Let each place keep a record of its machines that this cycle found ended."""
    ends = defaultdict[str, list[Ended]](list)
    for close in report.closes:
        if (end := _ended(close)) is not None:
            ends[close.slot.pool].append(end)
    for pool, ones in ends.items():
        backend = backends.get(pool)
        if isinstance(backend, Recording):
            backend.record_ends(ones)


def _ended(close: Transition) -> Ended | None:
    """None if HF gave the machine back, an operator cancelled it, or it never was there."""
    slot = close.slot
    if not (close.is_lost or slot.verdict is Verdict.FAILED) or not (slot.seen or slot.accepted):
        return None
    return Ended(
        slot.name,
        slot.request,
        close.template,
        uid=slot.fingerprint.uid,
        lost=close.is_lost,
        cause=slot.cause,
        failure=slot.failure,
    )
