"""Outcomes of creates and deletes: how they change slots and windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

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
from provisioner.planning.core import window_and_backoff
from provisioner.planning.core.draft import DELETE_AGAIN, Draft

RETRY_DELETE = 10.0
"""Seconds after which a failed delete is sent again."""


def apply_outcomes(
    memory: Memory, outcomes: Sequence[Outcome], unsent: Sequence[Action], limits: Limits, now: float
) -> Plan:
    """Return a plan without actions. The plan contains the memory after the outcomes of batches, and the changes of
    slots and windows.

    ``unsent``: actions that were planned but not sent. Memory records them as sent, so the plan corrects these records.
    """
    draft = Draft(memory, {}, limits, now)
    for outcome in outcomes:
        slot = draft.find_slot(outcome.action.name)
        if _is_double(outcome.action):
            if outcome.failure is not None:
                draft.doubles[outcome.action.uid] = now + RETRY_DELETE - DELETE_AGAIN
        elif isinstance(outcome.action, Delete):
            _note_delete(draft, outcome.action.name, slot, outcome.failure, outcome.retry_after)
        elif slot is None:
            continue
        elif outcome.failure is None:
            _note_created(draft, outcome.action, slot)
        else:
            _note_refused(draft, outcome.action, slot, outcome.failure, outcome.retry_after)
    for action in unsent:
        slot = draft.find_slot(action.name)
        if _is_double(action):
            draft.doubles.pop(action.uid, None)
        elif slot is not None and isinstance(action, Delete):
            first_sent = None if slot.deletion.first_sent_at == slot.deletion.sent_at else slot.deletion.first_sent_at
            draft.put_slots(slot.request, slot.with_deletion(sent_at=None, first_sent_at=first_sent))
        elif slot is not None and isinstance(action, Create):
            _undo_submission(draft, action, slot)
    return Plan(draft.memory(), transitions=draft.transitions, windows=draft.window_changes)


def _is_double(action: Action) -> TypeGuard[Delete]:
    """Return whether an action deletes a double: another object with the machine's name. The outcome of such a delete
    does not change the slot."""
    return isinstance(action, Delete) and action.reason is DeleteReason.DOUBLED


def _note_created(draft: Draft, create: Create, slot: Slot) -> None:
    draft.put_slots(create.request, slot.with_observed(is_accepted=True))
    key = create.pool, create.template
    draft.set_window(*key, window_and_backoff.after_create(draft.window(*key), slot.asked_at))


def _note_refused(draft: Draft, create: Create, slot: Slot, failure: Failure, wait: float | None) -> None:
    throttled = failure.error is ErrorClass.THROTTLED
    if throttled:
        _undo_submission(draft, create, slot)
    elif not failure.error.is_ambiguous and slot.verdict is Verdict.OPEN:
        draft.close(slot, Verdict.FAILED, reason=DeleteReason.FAILED, failure=failure)
    before = draft.window(create.pool, create.template)
    if throttled and wait is not None:
        changed = window_and_backoff.back_off_for(before, failure, wait, draft.now)
    elif throttled or failure.error.is_ambiguous:
        changed = window_and_backoff.back_off(before, failure, draft.now, draft.limits)
    else:
        changed = window_and_backoff.after_failure(before, failure, slot.asked_at, draft.now, draft.limits)
    draft.set_window(create.pool, create.template, changed)


def _undo_submission(draft: Draft, create: Create, slot: Slot) -> None:
    """Undo the submission of a slot, because its create never reached the place.

    If an earlier create of the same name may have reached the place, the slot stays submitted.
    """
    if create.is_repeated or slot.observed.was_seen or slot.observed.is_accepted:
        return
    if slot.verdict is Verdict.OPEN:
        draft.put_slots(create.request, slot._replace(submitted_at=None))
    else:
        draft.put_slots(create.request, slot.with_deletion(is_gone=True))


def _note_delete(draft: Draft, name: str, slot: Slot | None, failure: Failure | None, wait: float | None) -> None:
    """Record the outcome of a delete. A failed delete is sent again soon.

    Until a delete of the machine is accepted, answers to HF contain the failure.
    """
    if slot is not None:
        changed = slot.with_deletion(hindrance=failure)
        if failure is not None:
            changed = changed.with_deletion(sent_at=draft.now + (RETRY_DELETE if wait is None else wait) - DELETE_AGAIN)
        if changed != slot:
            draft.put_slots(slot.request, changed)
        return
    for return_record in list(draft.returns.values()):
        if return_record.ended is None and name in return_record.names and (failure or name in return_record.hindered):
            hindered = {key: value for key, value in return_record.hindered.items() if key != name}
            draft.returns[return_record.id] = replace(
                return_record, hindered=hindered | ({name: failure} if failure else {})
            )
