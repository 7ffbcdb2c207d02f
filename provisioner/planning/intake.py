"""Intake: the requests and returns that intent has and memory does not know yet."""

from __future__ import annotations

from provisioner.model import BrakeReason, Intent, RequestRecord, ReturnRecord
from provisioner.planning.draft import Draft


def take_in(draft: Draft, intent: Intent) -> None:
    """Take in new requests; notice an intent that went back in time."""
    memory, now, limits = draft.before, draft.now, draft.limits
    if intent.generation < memory.generation:
        draft.latch(
            BrakeReason.INTENT_OLDER,
            f"intent.json has generation {intent.generation}, but {memory.generation} was read before.",
        )
        return  # what it asks for may have been done, and forgotten, long ago
    if intent.generation > memory.generation:
        draft.changes["generation"] = intent.generation
    for request in intent.requests.values():
        if request.id not in draft.requests:
            draft.requests[request.id] = RequestRecord(
                id=request.id,
                template=request.template,
                count=request.count,
                read=now,
                deadline=now + limits.request_deadline,
                rc_account=request.rc_account,
            )
    for back in intent.returns.values():
        if back.id not in draft.returns:
            draft.returns[back.id] = ReturnRecord(
                id=back.id, names=back.names, read=now, deadline=now + limits.return_deadline
            )
    lost = [id_ for id_, record in draft.requests.items() if id_ not in intent.requests and not record.trimmed]
    if lost:
        draft.latch(BrakeReason.REQUEST_LOST, f"intent.json lacks {len(lost)} known requests, e.g. {lost[0]}.")
