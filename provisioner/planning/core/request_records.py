"""Records of requests and returns: how they enter memory from intent, and how they leave the files.

A record leaves in three steps. A plan marks the record in memory. The loop removes the record from intent. A later plan
removes it from memory.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from provisioner.model import DESIRED, BrakeReason, HfActivity, Intent, RequestRecord, ReturnRecord
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.core.slots import CANCELLED_MESSAGE


def ingest_requests(draft: Draft, intent: Intent) -> None:
    """Add new requests and returns to memory. Latch the brake if intent is an old copy or lacks requests that memory
    has."""
    memory, now, limits = draft.before, draft.now, draft.limits
    if intent.generation < memory.generation:
        draft.latch(
            BrakeReason.INTENT_OLDER,
            f"intent.json has generation {intent.generation}, but {memory.generation} was read before.",
        )
        return  # an old intent may contain requests that were served and forgotten long ago
    if intent.generation > memory.generation:
        draft.generation = intent.generation
    for request in intent.requests.values():
        if request.id not in draft.requests:
            record = draft.requests[request.id] = RequestRecord(
                id=request.id,
                template=request.template,
                count=request.count,
                read_at=now,
                deadline_at=now + limits.request_deadline_seconds,
                rc_account=request.rc_account,
            )
            draft.newly_read.append(record)
    for return_request in intent.returns.values():
        if return_request.id not in draft.returns:
            return_record = draft.returns[return_request.id] = ReturnRecord(
                id=return_request.id,
                names=return_request.names,
                read_at=now,
                deadline_at=now + limits.return_deadline_seconds,
            )
            draft.newly_read.append(return_record)
    lost = [id_ for id_, record in draft.requests.items() if id_ not in intent.requests and not record.is_trimmed]
    if lost:
        draft.latch(BrakeReason.REQUEST_LOST, f"intent.json lacks {len(lost)} known requests, e.g. {lost[0]}.")


def trim_records(draft: Draft, intent: Intent, activity: HfActivity) -> None:
    """Mark in memory those ended records that may leave the files. Forget each marked record that intent no longer
    has."""
    if intent.generation < draft.before.generation:
        return  # an old intent may lack records that have not left yet
    # An answer to a return is rendered from slots, so a request stays in memory as long as any return of its machines.
    returned = frozenset[str]().union(*(return_record.names for return_record in draft.returns.values()))
    for record in draft.records():
        if record.is_trimmed and record.id not in intent.requests:
            draft.forget_request(record.id)
        elif record.is_trimmed or _may_leave(draft, record, (activity.inventory, returned)):
            if not record.is_trimmed:
                draft.update_record(record.id, is_trimmed=True)
            draft.forget.append(record.id)
    for return_record in list(draft.returns.values()):
        if return_record.is_trimmed and return_record.id not in intent.returns:
            del draft.returns[return_record.id]
            draft.wake_at(draft.now + SOON)  # the requests of the returned machines may leave now
        elif return_record.is_trimmed or _is_expired(draft, return_record):
            if not return_record.is_trimmed:
                draft.returns[return_record.id] = replace(return_record, is_trimmed=True)
            draft.forget.append(return_record.id)


def _is_expired(draft: Draft, record: RequestRecord | ReturnRecord) -> bool:
    """Return whether the retention time of a record is over.

    The retention time begins when HF has read the terminal answer. If a request was cancelled because HF had forgotten
    it, the time begins at the cancel.
    """
    cancelled = isinstance(record, RequestRecord) and record.message == CANCELLED_MESSAGE
    since = record.ended_at if cancelled else record.reported_at
    return since is not None and draft.is_due(since + draft.limits.retention_seconds)


def _may_leave(draft: Draft, record: RequestRecord, needed: Sequence[Set[str]]) -> bool:
    return _is_expired(draft, record) and all(
        slot.deletion.is_gone and slot.verdict not in DESIRED and not any(slot.name in names for names in needed)
        for slot in record.slots.values()
    )
