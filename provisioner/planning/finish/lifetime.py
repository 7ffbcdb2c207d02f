"""Lifetimes: the loop asks HF to return old machines, and machines whose end is known. Only a few retire at a time.

A machine is old if it has run for its template's ``max_lifetime_seconds``. It runs on until HF returns it (law: no
machine is deleted by count). HF returns only idle machines, so a new image is rolled out without killing a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from provisioner.model import NEVER, LossCause, Notice, RequestRecord, Slot, TemplateLimits, Verdict
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import count_missing, pending_slots

RETIRING_SHARE = 0.1
"""Share of a template's machines that may retire at a time. The grid lacks their capacity until their replacements
have booted."""

LAST_CALL = 600.0
"""Seconds before a machine's known end at which the machine retires, even if too many other machines are retiring."""


class Retirement(NamedTuple):
    """A machine that may retire."""

    due_at: float
    """Moment at which the machine retires unless too many others are retiring."""
    latest_at: float
    """Moment at which the machine retires, however many others are retiring."""
    slot: Slot
    ends_at: float
    """Moment at which the place ends the machine; ``NEVER`` if this is unknown."""


def retire_machines(draft: Draft) -> None:
    """Retire the machines that have run for their template's ``max_lifetime_seconds``. Also retire machines whose end
    is near."""
    expiring = {one.template for one in draft.records() if any(slot.observed.expires_at for slot in one.slots.values())}
    for template in draft.limits.templates.values():
        if template.max_lifetime_seconds is not None or template.id in expiring:
            records = [record for record in draft.records() if record.template == template.id]
            _retire(draft, records, _retiring_limit(draft, template, records), template.max_lifetime_seconds)


def _retire(draft: Draft, records: Sequence[RequestRecord], most: int, lifetime: float | None) -> None:
    """Retire the machines that are due, the earliest first. A machine whose end is near retires in any case.

    Other machines retire only while fewer than ``most`` machines are retiring. Machines that HF has returned no longer
    count.
    """
    reported = [record for record in records if record.reported_at is not None]
    succeeded = [slot for record in reported for slot in record.slots.values() if slot.verdict is Verdict.SUCCEEDED]
    more = most - sum(slot.life.retiring_at is not None for slot in succeeded)
    for due_at, latest_at, slot, ends_at in sorted(_find_retirements(draft, succeeded, lifetime)):
        if not draft.is_due(due_at if more > 0 else latest_at):
            continue
        near = draft.now >= ends_at - draft.pool(slot.pool).announce_seconds
        notice = Notice(LossCause.EXPIRES, ends_at) if near else None
        if slot.life.retiring_at is None:
            more -= 1
            slot = slot.with_life(retiring_at=draft.now)
        draft.put_slots(slot.request, slot.with_observed(notice=notice))


def _find_retirements(draft: Draft, slots: Sequence[Slot], lifetime: float | None) -> Iterator[Retirement]:
    """Yield a retirement for each machine that may retire. Such a machine is in an observed pool and has no notice of
    its end.

    If a machine already retires because of its age and its end is known, yield it again, so that it gets the notice of
    its end.
    """
    for slot in slots:
        if slot.ran_at is None or slot.observed.notice is not None or slot.pool not in draft.snapshots:
            continue
        aged_at = slot.ran_at + lifetime if lifetime is not None and slot.life.retiring_at is None else NEVER
        ends_at = draft.expiry(slot.pool, slot.observed.expires_at) or NEVER
        announce = draft.pool(slot.pool).announce_seconds
        last_call = announce if slot.life.retiring_at is not None else min(announce, LAST_CALL)
        retirement = Retirement(min(aged_at, ends_at - announce), ends_at - last_call, slot, ends_at)
        if retirement.due_at < NEVER:
            yield retirement


def _retiring_limit(draft: Draft, template: TemplateLimits, records: Sequence[RequestRecord]) -> int:
    """Return how many machines of a template may retire at a time: ``RETIRING_SHARE`` of its machines, but at least
    one.

    If no pool of the template can replace a machine, the limit is one. The limit is then 0 while an open request of the
    template lacks machines.
    """
    if not any(_is_replaceable(draft, pool, template.id) for pool in template.pools):
        open_ = [record for record in records if record.ended is None]
        return 0 if any(count_missing(record) > 0 or pending_slots(record) for record in open_) else 1
    running = sum(slot.is_with_hf for record in records for slot in record.slots.values())
    return max(1, int(RETIRING_SHARE * running))


def _is_replaceable(draft: Draft, pool: str, template: str) -> bool:
    """Return whether the pool can probably make another machine of the template to replace a returned machine."""
    return pool in draft.snapshots and not draft.pool(pool).is_paused and draft.window(pool, template).level == 0
