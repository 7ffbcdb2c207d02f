"""Whether HF knows how its requests ended, and the end of those that are cancelled: by a person, or because HF does not
ask for them while it makes other calls.
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
from provisioner.planning.allocate.scheduling import give_up
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.core.holds import told
from provisioner.planning.core.slots import BY_A_PERSON, CANCELLED_MESSAGE, down, gaps, pending
from provisioner.planning.finish.returns import revoke


def note_reported(draft: Draft, activity: HfActivity) -> None:
    """HF knows the terminal answer: a script read it, or HF lists a machine of the request.

    Or it will never ask for it: a script that was killed before it printed a return's id leaves one that nobody knows.
    """
    for record in list(draft.requests.values()):
        if (
            record.ended
            and record.reported_at is None
            and (record.id in activity.reported or _is_listed(record, activity))
        ):
            draft.update(record.id, reported_at=draft.now)
    for back in list(draft.returns.values()):
        if (
            back.ended
            and back.reported_at is None
            and (back.id in activity.reported or _forgotten(draft, activity, back))
        ):
            draft.returns[back.id] = replace(back, reported_at=draft.now)


def _is_listed(record: RequestRecord, activity: HfActivity) -> bool:
    return any(slot.name in activity.inventory for slot in record.slots.values())


def _forgotten(draft: Draft, activity: HfActivity, back: ReturnRecord) -> bool:
    silent = _silence(activity, back.id, back.ended_at or back.read)
    return silent >= draft.limits.cancel_after and draft.brake is None


def _silence(activity: HfActivity, id_: str, since: float) -> float:
    """Seconds for which HF has made other calls and not asked for this."""
    return activity.active - max(activity.polled.get(id_, 0.0), activity.since, since)


def cancel_unpolled(draft: Draft, activity: HfActivity) -> None:
    """Cancel requests that HF does not poll while it makes other calls: first say so, then look again."""
    for record in draft.records():
        silent = _silence(activity, record.id, record.read)
        # Under the brake it may be our files that have forgotten.
        if draft.brake is not None or not is_forgotten(record, draft.limits, silent):
            if record.cancelling:
                draft.update(record.id, cancelling=False)
        elif not record.cancelling:
            draft.update(record.id, cancelling=True)
            draft.wake_at(draft.now + SOON)
        else:
            cancel(draft, record)


def is_forgotten(record: RequestRecord, limits: Limits, silence: float) -> bool:
    """Return whether HF does not know how a request ended and has not asked for ``silence`` seconds of other calls."""
    ours = record.reported_at is not None or record.message == CANCELLED_MESSAGE or record.trimmed
    return not ours and silence >= limits.cancel_after


def cancel(draft: Draft, record: RequestRecord) -> None:
    """End it, and close all that HF was never told of for good."""
    for slot in tuple(record.slots.values()):
        if slot.verdict is Verdict.OPEN:
            draft.close(slot, Verdict.CANCELLED, reason=DeleteReason.CANCELLED)
        elif slot.verdict in (Verdict.SUCCEEDED, Verdict.LOST):
            revoke(draft, slot)
    draft.update(
        record.id,
        ended=RequestStatus.COMPLETE_WITH_ERROR,
        ended_at=draft.now,
        cancelling=False,
        message=CANCELLED_MESSAGE,
    )


def cancel_asked(draft: Draft) -> None:
    """Give up what an open request still lacks that a person has cancelled: it ends with the machines that run."""
    for id_, hold in draft.holds.of(HoldKind.CANCEL).items():
        record = draft.requests.get(id_)
        if record is None or record.ended is not None:
            continue
        on_their_way = [*pending(record), *down(record)]
        failure = Failure(ErrorClass.OTHER, BY_A_PERSON + told(hold))
        for slot in on_their_way:
            draft.close(slot, Verdict.CANCELLED, reason=DeleteReason.CANCELLED, failure=failure)
        lacking = gaps(draft.requests[id_])
        give_up(draft, draft.requests[id_], lacking, failure)
        if on_their_way or lacking:
            draft.update(id_, message=failure.text)
