"""Lifetimes: machines older than their template allows are offered to HF a few at a time, so that a new image rolls.

HF gives them back when it is done with them, as any other; until then they run (law: nothing is deleted by count).
"""

from __future__ import annotations

from collections.abc import Sequence

from provisioner.model import DESIRED, RequestRecord, Slot, TemplateLimits, Verdict, evolve
from provisioner.planning.draft import Draft
from provisioner.planning.slots import missing, pending

OFFERED_SHARE = 0.1
"""Share of a template's machines that may be offered at a time: a grid computes with so much less while others boot."""


def offer_aged(draft: Draft) -> None:
    """Offer the oldest of the machines that have run for their template's ``max_lifetime``."""
    for template in draft.limits.templates.values():
        if template.max_lifetime is not None:
            records = [record for record in draft.records() if record.template == template.id]
            _offer(draft, records, _at_once(draft, template, records), template.max_lifetime)


def _offer(draft: Draft, records: Sequence[RequestRecord], most: int, lifetime: float) -> None:
    """Offer the oldest, as long as no more than ``most`` are offered and not given back."""
    heard = [record for record in records if record.told_at is not None]
    aged = [slot for record in heard for slot in record.slots.values() if slot.verdict is Verdict.SUCCEEDED]
    more = most - sum(slot.offered is not None for slot in aged)
    for ran, slot in sorted((slot.ran, slot) for slot in aged if slot.ran is not None and _may_be_offered(draft, slot)):
        if more <= 0:
            return
        if draft.now < ran + lifetime:
            draft.wake_at(ran + lifetime)
            return
        draft.put(slot.request, evolve(slot, offered=draft.now))
        more -= 1


def _may_be_offered(draft: Draft, slot: Slot) -> bool:
    """It was not, it is not about to end anyway, and its pool is seen."""
    return slot.offered is None and slot.notice is None and slot.pool in draft.snapshots


def _at_once(draft: Draft, template: TemplateLimits, records: Sequence[RequestRecord]) -> int:
    """How many may be offered at a time. Where no pool is sound, one, and none before those given back are replaced."""
    if not any(_sound(draft, pool, template.id) for pool in template.pools):
        waiting = any(record.ended is None and (missing(record) > 0 or pending(record)) for record in records)
        return 0 if waiting else 1
    running = sum(
        slot.ran is not None and slot.verdict in DESIRED for record in records for slot in record.slots.values()
    )
    return max(1, int(OFFERED_SHARE * running))


def _sound(draft: Draft, pool: str, template: str) -> bool:
    """What is given back can be made anew there, as far as anybody knows."""
    return pool in draft.snapshots and not draft.pool(pool).paused and draft.window(pool, template).level == 0
