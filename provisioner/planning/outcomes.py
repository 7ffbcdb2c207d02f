"""What the answers to our calls say of the slots. Pure: no I/O, no clock, no logger."""

from __future__ import annotations

from collections.abc import Sequence

from provisioner.model import (
    AMBIGUOUS_ERRORS,
    Action,
    Close,
    Create,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    Limits,
    Memory,
    Outcome,
    Slot,
    Verdict,
    evolve,
)
from provisioner.names import split_name
from provisioner.planning import window
from provisioner.planning.draft import Draft
from provisioner.planning.returns import DELETE_AGAIN, find_slot

RETRY_DELETE = 10.0
"""Seconds until a delete that failed is sent again."""


def remember(
    memory: Memory, outcomes: Sequence[Outcome], unsent: Sequence[Action], limits: Limits, now: float
) -> tuple[Memory, tuple[Close, ...]]:
    """The memory after a batch, and the slots it closed. ``unsent`` are actions for which no call was started."""
    draft = Draft(memory, {}, limits, now)
    for outcome in outcomes:
        slot = find_slot(draft, outcome.action.name)
        if slot is None:
            continue
        if isinstance(outcome.action, Delete):
            if outcome.failure is not None:
                wait = RETRY_DELETE if outcome.retry_after is None else outcome.retry_after
                _delete_at(draft, slot, now + wait - DELETE_AGAIN)
        elif outcome.failure is None:
            _created(draft, outcome.action, slot)
        else:
            _refused(draft, outcome.action, slot, outcome.failure, outcome.retry_after)
    for action in unsent:
        slot = find_slot(draft, action.name)
        if slot is not None and isinstance(action, Delete):
            _delete_at(draft, slot, None)
        elif slot is not None and isinstance(action, Create):
            _not_sent(draft, action, slot)
    return draft.memory(), tuple(draft.closes)


def _created(draft: Draft, create: Create, slot: Slot) -> None:
    draft.put(create.request, evolve(slot, accepted=True))
    learned = window.accepted(draft.pressure(create.pool, create.template), slot.submitted or slot.opened)
    draft.set_pressure(create.pool, create.template, learned)


def _refused(draft: Draft, create: Create, slot: Slot, failure: Failure, wait: float | None) -> None:
    known = draft.pressure(create.pool, create.template)
    if failure.error is ErrorClass.THROTTLED:
        _not_sent(draft, create, slot)
        if wait is None:
            learned = window.refused(known, failure, draft.now, draft.limits)
        else:
            learned = window.throttled(known, failure, wait, draft.now)
    elif failure.error in AMBIGUOUS_ERRORS:
        learned = window.refused(known, failure, draft.now, draft.limits)
    else:
        learned = window.failed(known, failure, slot.submitted or slot.opened, draft.now, draft.limits)
        if slot.verdict is Verdict.OPEN:
            record = draft.record(create.request)
            draft.close(record, slot, Verdict.FAILED, reason=DeleteReason.FAILED, failure=failure)
    draft.set_pressure(create.pool, create.template, learned)


def _not_sent(draft: Draft, create: Create, slot: Slot) -> None:
    """The place knows nothing of this create; of an earlier one of the same name it may."""
    if create.again or slot.seen or slot.accepted:
        return
    if slot.verdict is Verdict.OPEN:
        draft.put(create.request, evolve(slot, submitted=None))
    else:
        draft.put(create.request, evolve(slot, gone=True))


def _delete_at(draft: Draft, slot: Slot, sent: float | None) -> None:
    parts = split_name(draft.limits.prefix, slot.name)
    if parts is not None:
        draft.put(parts[0], evolve(slot, delete_sent=sent))
