"""The ends of machines that the loop did not delete. A machine that ends in its first minutes counts as a failed boot
of its pool.

A machine's life is measured in loop time. The life begins with the plan that first saw the machine run. The life ends
with the observation that first showed the machine's end. If the loop did not observe the pool for a while, both moments
are late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provisioner.model import DESIRED, DeleteReason, Failure, LossCause, Phase, RequestRecord, Slot, Verdict, Window
from provisioner.planning.core import window_and_backoff
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.core.slots import find_machine

EXTERNAL_CAUSES = frozenset(LossCause) - {LossCause.EXITED, LossCause.UNKNOWN}
"""Causes of an end that lie outside the machine. An end with such a cause does not count as a failed boot. An end with
an unknown cause counts as a failed boot."""

EXPIRY_TOLERANCE = 60.0
"""Seconds by which a machine may end before its known end and still count as ended by its place."""

Key = tuple[str, str]
"""Pool and template."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a machine that the loop did not delete."""

    failure: Failure
    cause: LossCause
    seen: float
    """Start time of the observation that first showed the end."""
    gone: bool = False
    """True if the machine has no leftovers."""


class EarlyLosses:
    """The early losses that one plan finds."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._news: dict[Key, list[tuple[float, Failure]]] = {}
        """By pool and template: the moment of the create, and the failure, of each machine that was newly lost."""

    def mark(self, record: RequestRecord, slot: Slot, end: End) -> tuple[Slot, Failure]:
        """Return the slot and the failure of a machine that ended.

        If the machine was lost early, the returned slot is marked as an early loss. The failure's text then begins with
        this fact.
        """
        limit = self._draft.pool(slot.pool).early_loss_seconds
        if not (slot.life.is_early_loss or _is_early(slot, end, limit)):
            return slot, end.failure
        failure = Failure(end.failure.error, f"Lost in its first {limit:g} s: {end.failure.text}")
        if not slot.life.is_early_loss:
            self._news.setdefault((slot.pool, record.template), []).append((slot.asked_at, failure))
        return slot.with_life(is_early_loss=True), failure

    def judge(self) -> None:
        """Close the windows of pools and templates that lost most machines early.

        Open a closed window if a machine has outlived its first minutes and was requested after the window was closed.
        """
        draft = self._draft
        for key, losses in self._news.items():
            newest = max(submitted for submitted, _ in losses)
            news = window_and_backoff.Losses(_find_early_losses(draft, *key), losses[-1][1], newest, len(losses))
            changed = window_and_backoff.after_early_losses(draft.window(*key), news, draft.now, draft.limits)
            draft.set_window(*key, changed)
        closed = {key: current for key in draft.windows if (current := draft.window(*key)).early_loss is not None}
        if closed:
            _judge_probes(draft, closed)


def _is_early(slot: Slot, end: End, limit: float) -> bool:
    announced = slot.observed.notice.cause if slot.observed.notice else None
    is_external = not EXTERNAL_CAUSES.isdisjoint((end.cause, slot.observed.cause, announced))
    return slot.ran_at is not None and end.seen - slot.ran_at < limit and not is_external


def _find_early_losses(draft: Draft, pool: str, template: str) -> list[bool]:
    """Return a flag for each machine that ran in this pool for this template: True if the machine was lost early.

    The newest machine comes first.
    """
    ran = [
        (-slot.ran_at, slot.life.is_early_loss)
        for record, slot in draft.slots()
        if (slot.pool, record.template) == (pool, template) and slot.ran_at is not None
    ]
    return [early for _, early in sorted(ran)]


def _judge_probes(draft: Draft, closed: Mapping[Key, Window]) -> None:
    """If a machine has outlived its first minutes, open the window that early losses have closed. The machine must have
    been requested after the window was closed."""
    for record, slot in draft.slots():
        key = slot.pool, record.template
        former = closed.get(key)
        if former is None or slot.ran_at is None or slot.asked_at < former.blocked_at:
            continue
        machine = find_machine(slot, draft.snapshots) if slot.verdict in DESIRED else None
        if machine is None or machine.phase is not Phase.RUNNING:
            continue
        proven_at = slot.ran_at + draft.pool(slot.pool).early_loss_seconds
        if draft.snapshots[slot.pool].began_at >= proven_at:
            draft.set_window(*key, window_and_backoff.after_outlived(draft.window(*key), slot.asked_at))
        else:
            draft.wake_at(max(proven_at, draft.now) + SOON)  # a later observation with equal content starts no plan


def is_expiry(draft: Draft, slot: Slot, seen: float) -> bool:
    """Return whether a machine ended because its known end had come.

    If an observation has shown a cause, this cause decides. If not, the machine's known end decides: ``seen`` must be
    near or after it. ``seen``: the start time of the first observation without the machine.
    """
    if slot.observed.cause is not None:
        return slot.observed.cause is LossCause.EXPIRES
    ends = draft.expiry(slot.pool, slot.observed.expires_at)
    return ends is not None and seen >= ends - EXPIRY_TOLERANCE


def end_slot(draft: Draft, record: RequestRecord, slot: Slot, end: End, early: EarlyLosses) -> None:
    """Close the slot of a machine that the loop did not delete. If HF has the terminal answer, the machine is lost. If
    not, the machine has failed and is replaced."""
    slot, failure = early.mark(record, slot, end)
    lost = slot.verdict is Verdict.SUCCEEDED
    verdict, reason = (Verdict.LOST, DeleteReason.LOST) if lost else (Verdict.FAILED, DeleteReason.FAILED)
    draft.close(slot, verdict, reason=reason, failure=failure, cause=end.cause, gone=end.gone)
    if not lost and slot.ran_at is None:
        draft.count_failed_boot(slot, failure)
