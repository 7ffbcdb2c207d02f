"""Records of requests and returns: which ones memory takes in from intent, and which ones leave the files.

To leave, memory first marks a record, then intent lacks it, then memory forgets it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from provisioner.model import DESIRED, BrakeReason, HfActivity, Intent, RequestRecord, ReturnRecord
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.core.slots import CANCELLED_MESSAGE


def ingest(draft: Draft, intent: Intent) -> None:
    """Take in new requests; notice an intent that went back in time."""
    memory, now, limits = draft.before, draft.now, draft.limits
    if intent.generation < memory.generation:
        draft.latch(
            BrakeReason.INTENT_OLDER,
            f"intent.json has generation {intent.generation}, but {memory.generation} was read before.",
        )
        return  # what it asks for may have been done, and forgotten, long ago
    if intent.generation > memory.generation:
        draft.generation = intent.generation
    for request in intent.requests.values():
        if request.id not in draft.requests:
            record = draft.requests[request.id] = RequestRecord(
                id=request.id,
                template=request.template,
                count=request.count,
                read=now,
                deadline=now + limits.request_deadline,
                rc_account=request.rc_account,
            )
            draft.asked.append(record)
    for back in intent.returns.values():
        if back.id not in draft.returns:
            given = draft.returns[back.id] = ReturnRecord(
                id=back.id, names=back.names, read=now, deadline=now + limits.return_deadline
            )
            draft.asked.append(given)
    lost = [id_ for id_, record in draft.requests.items() if id_ not in intent.requests and not record.trimmed]
    if lost:
        draft.latch(BrakeReason.REQUEST_LOST, f"intent.json lacks {len(lost)} known requests, e.g. {lost[0]}.")


def trim(draft: Draft, intent: Intent, activity: HfActivity) -> None:
    """Mark ended records that may leave, and forget those that intent lacks."""
    if intent.generation < draft.before.generation:
        return  # an old copy, which may lack what is still to leave
    # Answers to returns are rendered from the requests' slots: those stay as long.
    returned = frozenset[str]().union(*(back.names for back in draft.returns.values()))
    for record in draft.records():
        if record.trimmed and record.id not in intent.requests:
            draft.drop(record.id)
        elif record.trimmed or _may_go(draft, record, (activity.inventory, returned)):
            if not record.trimmed:
                draft.update(record.id, trimmed=True)
            draft.forget.append(record.id)
    for back in list(draft.returns.values()):
        if back.trimmed and back.id not in intent.returns:
            del draft.returns[back.id]
            draft.wake_at(draft.now + SOON)  # its machines' requests may go now
        elif back.trimmed or _old(draft, back):
            if not back.trimmed:
                draft.returns[back.id] = replace(back, trimmed=True)
            draft.forget.append(back.id)


def _old(draft: Draft, record: RequestRecord | ReturnRecord) -> bool:
    """Its terminal answer was seen by HF (or HF has forgotten it), and was kept for the retention time since."""
    cancelled = isinstance(record, RequestRecord) and record.message == CANCELLED_MESSAGE
    since = record.ended_at if cancelled else record.reported_at
    if since is None:
        return False
    draft.wake_at(since + draft.limits.retention)
    return draft.now >= since + draft.limits.retention


def _may_go(draft: Draft, record: RequestRecord, needed: Sequence[Set[str]]) -> bool:
    return _old(draft, record) and all(
        slot.deletion.gone and slot.verdict not in DESIRED and not any(slot.name in names for names in needed)
        for slot in record.slots.values()
    )
