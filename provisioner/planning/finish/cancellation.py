"""Cancellation: the end of requests that an operator cancels, and of requests that HF has forgotten.

HF has forgotten a request if HF makes other calls but no longer polls this request. The module also notes which
terminal answers HF knows.
"""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import (
    DeleteReason,
    ErrorClass,
    Failure,
    HfActivity,
    HoldKind,
    Limits,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    Verdict,
)
from provisioner.names import OPERATOR_ACCOUNT
from provisioner.planning.allocate.machine_requests import fail_missing
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.core.holds import format_hold
from provisioner.planning.core.slots import (
    CANCELLED_BY_OPERATOR,
    CANCELLED_MESSAGE,
    down_slots,
    find_missing_tries,
    pending_slots,
)
from provisioner.planning.finish.returns import report_unread_as_failed


def note_reported(draft: Draft, activity: HfActivity) -> None:
    """Note the terminal answers that HF knows, because a script has read the answer or HF lists a machine of the
    request. Answers to an operator count as known at once.

    The answer to a return request also counts if HF makes other calls for ``cancel_after_seconds`` without polling it.
    HF may lack the id, because HF killed the script.
    """
    for record in [record for record in draft.requests.values() if record.ended and record.reported_at is None]:
        is_read = record.id in activity.read_ids or record.rc_account == OPERATOR_ACCOUNT
        if is_read or any(slot.name in activity.inventory for slot in record.slots.values()):
            draft.update_record(record.id, reported_at=draft.now)
    for return_record in [one for one in draft.returns.values() if one.ended and one.reported_at is None]:
        if return_record.id in activity.read_ids or _is_unclaimed(draft, activity, return_record):
            draft.returns[return_record.id] = replace(return_record, reported_at=draft.now)


def _is_unclaimed(draft: Draft, activity: HfActivity, return_record: ReturnRecord) -> bool:
    silent_seconds = _silent_seconds(activity, return_record.id, return_record.ended_at or return_record.read_at)
    return silent_seconds >= draft.limits.cancel_after_seconds and draft.brake is None


def _silent_seconds(activity: HfActivity, id_: str, since: float) -> float:
    """Return the seconds since ``since`` in which HF has made other calls without polling this id."""
    return activity.last_call_at - max(activity.polled_at.get(id_, 0.0), activity.since, since)


def cancel_unpolled(draft: Draft, activity: HfActivity) -> None:
    """Cancel the requests that HF has forgotten. The first plan only announces the cancel; the next plan checks
    again and cancels."""
    for record in draft.records():
        silent_seconds = _silent_seconds(activity, record.id, record.read_at)
        # If the brake is latched, the request may be missing in our files, and HF may still know it.
        if draft.brake is not None or not is_forgotten(record, draft.limits, silent_seconds):
            if record.is_cancelling:
                draft.update_record(record.id, is_cancelling=False)
        elif not record.is_cancelling:
            draft.update_record(record.id, is_cancelling=True)
            draft.wake_at(draft.now + SOON)
        else:
            cancel(draft, record)


def is_forgotten(record: RequestRecord, limits: Limits, silence: float) -> bool:
    """Return whether HF has forgotten a request. A request is not forgotten if HF does not need to poll it: an
    operator's request, or a request that has ended and whose answer HF has read.

    ``silence``: seconds in which HF has made other calls but has not polled the request.
    """
    is_known = record.reported_at is not None or record.rc_account == OPERATOR_ACCOUNT
    return (
        not (is_known or record.message == CANCELLED_MESSAGE or record.is_trimmed)
        and silence >= limits.cancel_after_seconds
    )


def cancel(draft: Draft, record: RequestRecord) -> None:
    """End a request as cancelled. Close its open slots.

    Report its succeeded machines as failed, because HF has not read that they succeeded.
    """
    for slot in tuple(record.slots.values()):
        if slot.verdict is Verdict.OPEN:
            draft.close(slot, Verdict.CANCELLED, reason=DeleteReason.CANCELLED)
        elif slot.verdict in (Verdict.SUCCEEDED, Verdict.LOST):
            report_unread_as_failed(draft, slot)
    draft.update_record(
        record.id,
        ended=RequestStatus.COMPLETE_WITH_ERROR,
        ended_at=draft.now,
        is_cancelling=False,
        message=CANCELLED_MESSAGE,
    )


def cancel_asked(draft: Draft) -> None:
    """End the open requests that an operator has cancelled. Each request keeps its running machines and gives up the
    rest."""
    for id_, hold in draft.holds.of_kind(HoldKind.CANCEL).items():
        record = draft.requests.get(id_)
        if record is None or record.ended is not None:
            continue
        on_their_way = [*pending_slots(record), *down_slots(record)]
        failure = Failure(ErrorClass.OTHER, CANCELLED_BY_OPERATOR + format_hold(hold))
        for slot in on_their_way:
            draft.close(slot, Verdict.CANCELLED, reason=DeleteReason.CANCELLED, failure=failure)
        lacking = find_missing_tries(draft.requests[id_])
        fail_missing(draft, draft.requests[id_], lacking, failure)
        if on_their_way or lacking:
            draft.update_record(id_, message=failure.text)
