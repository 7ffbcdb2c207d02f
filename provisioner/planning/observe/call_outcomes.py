"""Outcomes: what became of creates and deletes, and what that says of slots and windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from provisioner.model import (
    Action,
    Create,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    Limits,
    Memory,
    Outcome,
    Plan,
    Slot,
    Verdict,
)
from provisioner.planning.core import window
from provisioner.planning.core.draft import DELETE_AGAIN, Draft

RETRY_DELETE = 10.0
"""Seconds until a delete that failed is sent again."""


def remember(memory: Memory, outcomes: Sequence[Outcome], unsent: Sequence[Action], limits: Limits, now: float) -> Plan:
    """Return the memory after a batch with what changed in it, as a plan without actions.

    ``unsent``: actions for which no call was started.
    """
    draft = Draft(memory, {}, limits, now)
    for outcome in outcomes:
        slot = draft.named(outcome.action.name)
        if isinstance(outcome.action, Delete):
            _deleted(draft, outcome.action.name, slot, outcome.failure, outcome.retry_after)
        elif slot is None:
            continue
        elif outcome.failure is None:
            _created(draft, outcome.action, slot)
        else:
            _refused(draft, outcome.action, slot, outcome.failure, outcome.retry_after)
    for action in unsent:
        slot = draft.named(action.name)
        if slot is not None and isinstance(action, Delete):
            begun = None if slot.deletion.begun == slot.deletion.sent else slot.deletion.begun
            draft.put(slot.request, slot.with_deletion(sent=None, begun=begun))
        elif slot is not None and isinstance(action, Create):
            _not_sent(draft, action, slot)
    return Plan(draft.memory(), transitions=draft.transitions, windows=draft.window_changes)


def _created(draft: Draft, create: Create, slot: Slot) -> None:
    draft.put(create.request, slot.with_observed(accepted=True))
    key = create.pool, create.template
    draft.set_window(*key, window.accepted(draft.window(*key), slot.asked_at))


def _refused(draft: Draft, create: Create, slot: Slot, failure: Failure, wait: float | None) -> None:
    throttled = failure.error is ErrorClass.THROTTLED
    if throttled:
        _not_sent(draft, create, slot)
    elif not failure.error.is_ambiguous and slot.verdict is Verdict.OPEN:
        draft.close(slot, Verdict.FAILED, reason=DeleteReason.FAILED, failure=failure)
    before = draft.window(create.pool, create.template)
    if throttled and wait is not None:
        changed = window.throttled(before, failure, wait, draft.now)
    elif throttled or failure.error.is_ambiguous:
        changed = window.refused(before, failure, draft.now, draft.limits)
    else:
        changed = window.failed(before, failure, slot.asked_at, draft.now, draft.limits)
    draft.set_window(create.pool, create.template, changed)


def _not_sent(draft: Draft, create: Create, slot: Slot) -> None:
    """No call of this create reached its place; an earlier one of the same name may have."""
    if create.again or slot.observed.seen or slot.observed.accepted:
        return
    if slot.verdict is Verdict.OPEN:
        draft.put(create.request, slot._replace(submitted=None))
    else:
        draft.put(create.request, slot.with_deletion(gone=True))


def _deleted(draft: Draft, name: str, slot: Slot | None, failure: Failure | None, wait: float | None) -> None:
    """Keep the reason of a failed delete, which is reported to HF until a delete is taken, and send it again soon."""
    if slot is not None:
        changed = slot.with_deletion(hindrance=failure)
        if failure is not None:
            changed = changed.with_deletion(sent=draft.now + (RETRY_DELETE if wait is None else wait) - DELETE_AGAIN)
        if changed != slot:
            draft.put(slot.request, changed)
        return
    for back in list(draft.returns.values()):
        if back.ended is None and name in back.names and (failure or name in back.hindered):
            told = {other: why for other, why in back.hindered.items() if other != name}
            draft.returns[back.id] = replace(back, hindered=told | ({name: failure} if failure else {}))
