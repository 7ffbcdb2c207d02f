"""Early losses: machines that end in their first minutes by nobody's doing count against their pool as failed boots.

A machine's life is counted in loop time, from the plan that first saw it run to the look that first showed its end,
whether or not anybody looked in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from provisioner.model import DESIRED, Failure, LossCause, Phase, RequestRecord, Slot, Window
from provisioner.planning.core import window
from provisioner.planning.core.draft import SOON, Draft

OTHERS_DOING = frozenset(LossCause) - {LossCause.EXITED, LossCause.UNKNOWN}
"""Causes, announced or found, that say nothing of what a machine runs: a deletion is somebody's decision. An unknown
cause counts against the pool."""

Key = tuple[str, str]
"""Pool and template."""


class EarlyLosses:
    """The early losses that one plan finds."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._news: dict[Key, list[tuple[float, Failure]]] = {}
        """When their machines were asked for, and why they ended."""

    def mark(
        self, record: RequestRecord, slot: Slot, failure: Failure, cause: LossCause, ended: float
    ) -> tuple[Slot, Failure]:
        """The slot of a machine that was not asked to end and does, and why; a look begun at ``ended`` shows it."""
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
            draft.learn(*key, partial(window.lost_early, losses=news, now=draft.now, limits=draft.limits))
        closed = {key: learned for key in draft.pressures if (learned := draft.window(*key)).early_loss is not None}
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
            if shut is None or slot.ran is None or slot.asked_at < shut.blocked_at or not _runs(draft, slot):
                continue
            proven_at = slot.ran + draft.pool(slot.pool).early_loss
            if draft.snapshots[slot.pool].began >= proven_at:
                draft.learn(slot.pool, record.template, partial(window.outlived, submitted=slot.asked_at))
            else:
                draft.wake_at(max(proven_at, draft.now) + SOON)  # a later look that says the same is no news


def _runs(draft: Draft, slot: Slot) -> bool:
    snapshot = draft.snapshots.get(slot.pool)
    machine = snapshot.machines.get(slot.name) if snapshot else None
    return slot.verdict in DESIRED and machine is not None and machine.phase is Phase.RUNNING
