"""Lifetimes: machines that are older than their template allows, or whose place has told when it ends them, are offered
to HF a few at a time: so a new image rolls, and no job is killed.

HF gives them back when it is done with them, as any other; until then they run (law: nothing is deleted by count).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from provisioner.model import (
    NEVER,
    LossCause,
    Notice,
    RequestRecord,
    Slot,
    TemplateLimits,
    Verdict,
)
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import missing, pending

RETIRING_SHARE = 0.1
"""Share of a template's machines that may be offered at a time: a grid computes with so much less while others boot."""

LAST_CALL = 600.0
"""Seconds before its end from which a machine is offered however many others are."""


class Offer(NamedTuple):
    """A machine that may be offered."""

    at: float
    """When, if few enough others are."""
    latest: float
    """Time at which it is offered in any case."""
    slot: Slot
    ends: float
    """Time at which its place ends it; ``NEVER`` if that is unknown."""


def offer_ending(draft: Draft) -> None:
    """Offer the machines that have run for their template's ``max_lifetime``, and those whose end comes near."""
    expiring = {one.template for one in draft.records() if any(slot.observed.expires for slot in one.slots.values())}
    for template in draft.limits.templates.values():
        if template.max_lifetime is not None or template.id in expiring:
            records = [record for record in draft.records() if record.template == template.id]
            _offer(draft, records, _at_once(draft, template, records), template.max_lifetime)


def _offer(draft: Draft, records: Sequence[RequestRecord], most: int, lifetime: float | None) -> None:
    """Offer those that are due first, as long as no more than ``most`` are offered and not given back."""
    heard = [record for record in records if record.reported_at is not None]
    held = [slot for record in heard for slot in record.slots.values() if slot.verdict is Verdict.SUCCEEDED]
    more = most - sum(slot.life.retiring_at is not None for slot in held)
    for at, latest, slot, ends in sorted(_offers(draft, held, lifetime)):
        due = at if more > 0 else latest
        if draft.now < due:
            draft.wake_at(due)
            continue
        near = draft.now >= ends - draft.pool(slot.pool).announce
        notice = Notice(LossCause.EXPIRES, ends) if near else None
        if slot.life.retiring_at is None:
            more -= 1
            slot = slot.with_life(retiring_at=draft.now)
        draft.put(slot.request, slot.with_observed(notice=notice))


def _offers(draft: Draft, slots: Sequence[Slot], lifetime: float | None) -> Iterator[Offer]:
    """Yield offers of machines in observed pools without a notice; an aged machine gets another offer for its end."""
    for slot in slots:
        if slot.ran is None or slot.observed.notice is not None or slot.pool not in draft.snapshots:
            continue
        aged = slot.ran + lifetime if lifetime is not None and slot.life.retiring_at is None else NEVER
        ends, announce = draft.expiry(slot.pool, slot.observed.expires) or NEVER, draft.pool(slot.pool).announce
        last_call = announce if slot.life.retiring_at is not None else min(announce, LAST_CALL)
        offer = Offer(min(aged, ends - announce), ends - last_call, slot, ends)
        if offer.at < NEVER:
            yield offer


def _at_once(draft: Draft, template: TemplateLimits, records: Sequence[RequestRecord]) -> int:
    """How many may be offered at a time. Where no pool is sound, one, and none before those given back are replaced."""
    if not any(_sound(draft, pool, template.id) for pool in template.pools):
        waiting = any(record.ended is None and (missing(record) > 0 or pending(record)) for record in records)
        return 0 if waiting else 1
    running = sum(slot.is_with_hf for record in records for slot in record.slots.values())
    return max(1, int(RETIRING_SHARE * running))


def _sound(draft: Draft, pool: str, template: str) -> bool:
    """What is given back can be made anew there, as far as anybody knows."""
    return pool in draft.snapshots and not draft.pool(pool).paused and draft.window(pool, template).level == 0
