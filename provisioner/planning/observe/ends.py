"""Ends: machines that end by themselves; in their first minutes, they count against their pool as failed boots.

A machine's life is counted in loop time, from the plan that first saw it run to the observation that first showed its
end, whether or not anybody looked in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provisioner.model import DESIRED, DeleteReason, Failure, LossCause, Phase, RequestRecord, Slot, Verdict, Window
from provisioner.planning.core import window
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.core.slots import machine_of

OTHERS_DOING = frozenset(LossCause) - {LossCause.EXITED, LossCause.UNKNOWN}
"""Causes, announced or found, that say nothing of what a machine runs: a deletion is somebody's decision. An unknown
cause counts against the pool."""

PUNCTUAL = 60.0
"""Seconds before the end that its place has told from which a machine that ends has come to it."""

Key = tuple[str, str]
"""Pool and template."""


@dataclass(frozen=True, slots=True)
class End:
    """How a machine ended by itself."""

    failure: Failure
    cause: LossCause
    seen: float
    """When the observation began that first showed it."""
    gone: bool = False
    """Nothing of the machine is left."""


class EarlyLosses:
    """The early losses that one plan finds."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._news: dict[Key, list[tuple[float, Failure]]] = {}
        """When their machines were asked for, and why they ended."""

    def mark(
        self, record: RequestRecord, slot: Slot, failure: Failure, cause: LossCause, ended: float
    ) -> tuple[Slot, Failure]:
        """The slot of a machine that was not asked to end and does, and why; an observation begun at ``ended`` shows
        it."""
        limit = self._draft.pool(slot.pool).early_loss
        if not (slot.life.early or _is_early(slot, cause, ended, limit)):
            return slot, failure
        failure = Failure(failure.error, f"Lost in its first {limit:g} s: {failure.text}")
        if not slot.life.early:
            self._news.setdefault((slot.pool, record.template), []).append((slot.asked_at, failure))
        return slot.with_life(early=True), failure

    def judge(self) -> None:
        """Close the windows where most machines are lost so; open those where one has outlived its first minutes."""
        draft = self._draft
        for key, losses in self._news.items():
            newest = max(submitted for submitted, _ in losses)
            news = window.Losses(_fates(draft, *key), losses[-1][1], newest, len(losses))
            draft.set_window(*key, window.lost_early(draft.window(*key), news, draft.now, draft.limits))
        closed = {key: learned for key in draft.windows if (learned := draft.window(*key)).early_loss is not None}
        if closed:
            _judge_probes(draft, closed)


def _is_early(slot: Slot, cause: LossCause, ended: float, limit: float) -> bool:
    announced = slot.observed.notice.cause if slot.observed.notice else None
    others = not OTHERS_DOING.isdisjoint((cause, slot.observed.cause, announced))
    return slot.ran is not None and ended - slot.ran < limit and not others


def _fates(draft: Draft, pool: str, template: str) -> list[bool]:
    """Of each machine that ran in a pool for a template, from the newest on: was it lost in its first minutes?"""
    ran = [
        (-slot.ran, slot.life.early)
        for record in draft.records()
        if record.template == template
        for slot in record.slots.values()
        if slot.pool == pool and slot.ran is not None
    ]
    return [early for _, early in sorted(ran)]


def _judge_probes(draft: Draft, closed: Mapping[Key, Window]) -> None:
    """Where early losses closed the window: has a machine that was asked for since outlived its first minutes?"""
    for record in draft.records():
        for slot in record.slots.values():
            shut = closed.get((slot.pool, record.template))
            if shut is None or slot.ran is None or slot.asked_at < shut.blocked_at or slot.verdict not in DESIRED:
                continue
            machine = machine_of(slot, draft.snapshots)
            if machine is None or machine.phase is not Phase.RUNNING:
                continue
            proven_at = slot.ran + draft.pool(slot.pool).early_loss
            if draft.snapshots[slot.pool].began >= proven_at:
                key = slot.pool, record.template
                draft.set_window(*key, window.outlived(draft.window(*key), slot.asked_at))
            else:
                draft.wake_at(max(proven_at, draft.now) + SOON)  # a later observation that says the same is no news


def is_expiry(draft: Draft, slot: Slot, seen: float) -> bool:
    """Its place had told its end, and an observation begun at ``seen``, about then, is the first to show it, or one
    was."""
    if slot.observed.cause is not None:
        return slot.observed.cause is LossCause.EXPIRES
    ends = draft.expiry(slot.pool, slot.observed.expires)
    return ends is not None and seen >= ends - PUNCTUAL


def end_slot(draft: Draft, record: RequestRecord, slot: Slot, end: End, early: EarlyLosses) -> None:
    """A machine ended by itself: lost when HF had been told of it for good, else failed (and replaced)."""
    slot, failure = early.mark(record, slot, end.failure, end.cause, end.seen)
    lost = slot.verdict is Verdict.SUCCEEDED
    verdict, reason = (Verdict.LOST, DeleteReason.LOST) if lost else (Verdict.FAILED, DeleteReason.FAILED)
    draft.close(slot, verdict, reason=reason, failure=failure, cause=end.cause, gone=end.gone)
    if not lost and slot.ran is None:
        draft.count_failed_boot(slot, failure)
