"""Outcomes: what became of creates and deletes, and what that says of slots and windows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

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
    Window,
    evolve,
)
from provisioner.planning import window
from provisioner.planning.draft import Draft
from provisioner.planning.returns import DELETE_AGAIN

RETRY_DELETE = 10.0
"""Seconds until a delete that failed is sent again."""


def remember(
    memory: Memory, outcomes: Sequence[Outcome], unsent: Sequence[Action], limits: Limits, now: float
) -> tuple[Memory, tuple[Close, ...]]:
    """The memory after a batch, and the slots it closed. ``unsent`` are actions for which no call was started."""
    draft = Draft(memory, {}, limits, now)
    for outcome in outcomes:
        slot = draft.named(outcome.action.name)
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
        slot = draft.named(action.name)
        if slot is not None and isinstance(action, Delete):
            _delete_at(draft, slot, None)
        elif slot is not None and isinstance(action, Create):
            _not_sent(draft, action, slot)
    return draft.memory(), tuple(draft.closes)


def _created(draft: Draft, create: Create, slot: Slot) -> None:
    draft.put(create.request, evolve(slot, accepted=True))
    draft.learn(create.pool, create.template, partial(window.accepted, submitted=slot.asked_at))


def _refused(draft: Draft, create: Create, slot: Slot, failure: Failure, wait: float | None) -> None:
    throttled = failure.error is ErrorClass.THROTTLED
    if throttled:
        _not_sent(draft, create, slot)
    elif failure.error not in AMBIGUOUS_ERRORS and slot.verdict is Verdict.OPEN:
        draft.close(slot, Verdict.FAILED, reason=DeleteReason.FAILED, failure=failure)

    def lesson(learned: Window) -> Window:
        if throttled and wait is not None:
            return window.throttled(learned, failure, wait, draft.now)
        if throttled or failure.error in AMBIGUOUS_ERRORS:
            return window.refused(learned, failure, draft.now, draft.limits)
        return window.failed(learned, failure, slot.asked_at, draft.now, draft.limits)

    draft.learn(create.pool, create.template, lesson)


def _not_sent(draft: Draft, create: Create, slot: Slot) -> None:
    """No call of this create reached its place; an earlier one of the same name may have."""
    if create.again or slot.seen or slot.accepted:
        return
    if slot.verdict is Verdict.OPEN:
        draft.put(create.request, evolve(slot, submitted=None))
    else:
        draft.put(create.request, evolve(slot, gone=True))


def _delete_at(draft: Draft, slot: Slot, sent: float | None) -> None:
    draft.put(slot.request, evolve(slot, delete_sent=sent))
