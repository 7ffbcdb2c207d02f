"""Answers to HF, rendered from memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from provisioner.hostfactory import Answer, Loss
from provisioner.model import (
    DAY,
    NO_HOLDS,
    DeleteReason,
    ErrorClass,
    Failure,
    HfActivity,
    Holds,
    Limits,
    LossCause,
    Memory,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    ReturnResult,
    Slot,
    Verdict,
)
from provisioner.planning.allocate.capacity import tightest_cap
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.holds import make_loss_finder
from provisioner.planning.core.slots import find_slot, format_wait

SUCCEEDED_ONCE = frozenset({Verdict.SUCCEEDED, Verdict.RETURNED, Verdict.LOST})
"""Verdicts of slots that are reported as succeeded for ever (law: a terminal answer stays)."""

CANCELLED = frozenset({Verdict.CANCELLED, Verdict.RETURNED, Verdict.LOST})
"""Verdicts of slots that are reported as cancelled if their delete reason is ``CANCELLED``. With this reason, HF had
not read the terminal answer when the slot was closed."""

NOT_OURS = "This machine exists but is not managed by this provisioner; it was left alone."
RETURNED_EARLY = "HostFactory returned the machine before the request ended."
STRAYED = "The machine had lost our identity, so its end was seen only by its name and uid."
STUCK = "The machine still existed at the deadline; the loop keeps trying to delete it."
STUCK_UNKNOWN_MACHINE = "The machine belongs to no request and still existed at the deadline; return the machine again."
"""Message for a returned name without a slot. After a return has ended, the loop sends further deletes only for
machines with a slot."""

HINDERED = " The place reports: "
"""Words at the end of the messages ``STUCK`` and ``STUCK_UNKNOWN_MACHINE``. The place's reason follows these words."""

CODE = " Error Code: "

AGED = Loss(3600, "aged")
"""The loss that is reported to HF for a machine that is older than its template allows. The machine runs on, so HF
gets an hour in which the machine's work can finish. The hour does not count down, because 0 would mean that the
machine is gone."""

UNLISTED_AFTER = DAY
"""Seconds after which a machine that HF's lists do not name is shown to operators."""

Rendered = dict[str, tuple[RequestRecord | ReturnRecord, Answer]]
"""Answers by id, each with the record from which it was rendered. An unchanged record is not rendered again."""


def render_answers(memory: Memory, before: Rendered, prefix: str) -> Rendered:
    """Return the answer to each request and return request. If an answer did not change, it is the same object as in
    ``before``."""
    answers: Rendered = {}
    for record in memory.requests.values():
        kept = before.get(record.id)
        answers[record.id] = kept if kept and kept[0] is record else (record, request_answer(record))
    for return_record in memory.returns.values():
        kept = before.get(return_record.id)
        if kept is None or kept[0] is not return_record or return_record.ended is None:
            answer = return_answer(return_record, memory, prefix)
            kept = kept if kept and kept[0] is return_record and kept[1] == answer else (return_record, answer)
        answers[return_record.id] = kept
    return answers


def request_answer(record: RequestRecord) -> Answer:
    """Return the answer to a request. The answer lists the machines that succeeded, are on their way or failed.

    Failed machines that were replaced are left out.
    """
    slots = [record.slots[number] for number in sorted(record.slots)]
    states = ((slot, _machine_state(slot, record)) for slot in slots)
    machines = [_entry(slot, *state, record.rc_account) for slot, state in states if state is not None]
    # While a cancel is announced the answer is not terminal, because HF has read no such answer and must poll again.
    status = RequestStatus.RUNNING if record.is_cancelling else record.ended or RequestStatus.RUNNING
    message = "cancelling: HostFactory has not polled for a long time." if record.is_cancelling else record.message
    return _answer(record.id, status, message, machines)


def find_revised(before: Memory, after: Draft) -> dict[str, Answer]:
    """Return the terminal answers that this plan has changed (law: a terminal answer stays).

    Scripts may be about to print the old form of these answers.
    """
    news = {}
    for record in after.requests.values():
        old = before.requests.get(record.id)
        if old is None or old is record or old.ended is None:
            continue
        answer = request_answer(record)
        if answer.ended and answer.text != request_answer(replace(old, is_cancelling=False)).text:
            news[record.id] = answer
    return news


def return_answer(record: ReturnRecord, memory: Memory, prefix: str) -> Answer:
    """Return the answer to a return request. The answer lists each named machine, with or without a slot."""
    machines = [_return_entry(name, record, find_slot(memory.requests, prefix, name)) for name in record.names]
    return _answer(record.id, record.ended or RequestStatus.RUNNING, record.message, machines)


def find_losses(memory: Memory, activity: HfActivity, now: float, holds: Holds = NO_HOLDS) -> Mapping[str, Loss]:
    """Return the loss of each machine that HF has to return, by name. Machines that HF has returned are left out.

    HF has to return a machine that is lost, has a notice of its end, is too old, or falls under a drain or a cancel. If
    a slot is closed and HF still lists its machine, the machine counts as lost.
    """
    find_loss = make_loss_finder(holds)
    lost = {name: Loss(0, LossCause.UNKNOWN) for name in memory.hosts.lost}
    for _, slot in memory.slots:
        if slot.verdict is Verdict.LOST or (slot.deletion.closed_at is not None and slot.name in activity.inventory):
            lost[slot.name] = Loss(0, slot.observed.cause or LossCause.UNKNOWN)
        elif slot.observed.notice is not None and slot.verdict is Verdict.SUCCEEDED:
            least = int(slot.observed.notice.cause is LossCause.EXPIRES)  # 0 would mean that the machine is gone
            lost[slot.name] = Loss(max(least, int(slot.observed.notice.ends_at - now)), slot.observed.notice.cause)
        elif (hold_loss := find_loss(slot)) is not None:
            lost[slot.name] = hold_loss
        elif slot.life.retiring_at is not None and slot.verdict is Verdict.SUCCEEDED:
            lost[slot.name] = AGED
    for name in lost.keys() & {name for return_record in memory.returns.values() for name in return_record.names}:
        del lost[name]
    return lost


def count_available(memory: Memory, limits: Limits) -> dict[str, int]:
    """Return how many further machines each template may have by its caps. Templates without a cap are left out.

    Back-offs are ignored because they soon end, but HF asks only once, at its start, and keeps the number.
    """
    owned: Counter[str] = Counter()
    occupied: Counter[tuple[str, str]] = Counter()
    there: Counter[str] = Counter()
    for record, slot in memory.slots:
        if not slot.deletion.is_gone:
            occupied[slot.pool, record.template] += 1
            there[slot.pool] += 1
            owned[record.template] += slot.deletion.closed_at is None
    free = {}
    for template in limits.templates.values():
        caps = [] if template.max_machines is None else [template.max_machines - owned[template.id]]
        pools = [limits.pools[name] for name in template.pools if name in limits.pools]
        of_pools = [tightest_cap(pool, occupied[pool.name, template.id], there[pool.name]) for pool in pools]
        if of_pools and None not in of_pools:
            caps.append(sum(max(0, cap.left) for cap in of_pools if cap is not None))
        if caps:
            free[template.id] = max(0, min(caps))
    return free


def find_unlisted(memory: Memory, prefix: str, now: float) -> list[Slot]:
    """Return the slots of machines that were reported to HF but that HF's lists have not named for a day."""
    names = [name for name, since in memory.hosts.unlisted.items() if now - since >= UNLISTED_AFTER]
    return [slot for name in names if (slot := find_slot(memory.requests, prefix, name)) is not None]


def _answer(id_: str, status: RequestStatus, message: str, machines: list[dict[str, Any]]) -> Answer:
    if not message and status is RequestStatus.COMPLETE_WITH_ERROR:
        message = next((machine["message"] for machine in machines if machine["result"] == "fail"), "")
    entry = {"requestId": id_, "status": str(status), "message": message, "machines": machines}
    return Answer(json.dumps(entry, separators=(",", ":"), ensure_ascii=False), status is not RequestStatus.RUNNING)


def _machine_state(slot: Slot, record: RequestRecord) -> tuple[str, str, str] | None:
    """Return result, status and message of a slot's machine; None if the answer does not list the machine."""
    if _is_cancelled(slot):
        return "fail", "terminated", record.message or RETURNED_EARLY
    if is_reported_running(slot):
        return "succeed", "running", ""
    if slot.verdict is Verdict.OPEN:
        return "executing", "pending", _format_failure(slot.trouble) or format_wait(slot)
    if slot.verdict is Verdict.FAILED and slot.submitted_at is None:
        return "fail", "terminated", _format_failure(slot.failure) or "The machine failed."
    return None


def is_reported_running(slot: Slot) -> bool:
    """Return whether an answer reports, or has reported, the slot's machine as running."""
    runs = slot.verdict in SUCCEEDED_ONCE or (slot.verdict is Verdict.OPEN and slot.ran_at is not None)
    return runs and not _is_cancelled(slot)


def _is_cancelled(slot: Slot) -> bool:
    return slot.verdict in CANCELLED and slot.deletion.reason is DeleteReason.CANCELLED


def _entry(slot: Slot, result: str, status: str, message: str, rc_account: str = "") -> dict[str, Any]:
    entry: dict[str, Any] = {
        "machineId": slot.name,
        "name": slot.name,
        "result": result,
        "status": status,
        "privateIpAddress": slot.observed.ip,
        "publicIpAddress": slot.observed.public_ip,
        "launchtime": slot.observed.launched,
        "message": message,
    }
    return entry | {"rcAccount": rc_account} if rc_account else entry


def _return_entry(name: str, record: ReturnRecord, slot: Slot | None) -> dict[str, Any]:
    result = record.results.get(name)
    why = _format_failure(record.hindered.get(name) or (slot.deletion.hindrance if slot and result is None else None))
    stuck = STUCK if slot else STUCK_UNKNOWN_MACHINE
    texts = {
        None: ("executing", "shutting-down", why),
        ReturnResult.GONE: ("succeed", "terminated", STRAYED if slot and slot.observed.is_strayed else ""),
        ReturnResult.NOT_OURS: ("fail", "running", NOT_OURS),
        ReturnResult.STUCK: ("fail", "stopping", stuck + (HINDERED + why if why else "")),
    }
    shown = slot or Slot(name, "", Verdict.OPEN, 0.0)
    return _entry(shown, *texts[result])


def _format_failure(failure: Failure | None) -> str:
    if failure is None:
        return ""
    code = failure.error.lsf_code
    return f"{failure.error}: {failure.text}" + (f"{CODE}{code}" if code else "")


def parse_failure(message: str) -> Failure | None:
    """Return the failure from which a machine's message was made; None if the message does not come from a failure."""
    word, _, text = message.partition(": ")
    if word not in set(ErrorClass):
        return None
    error = ErrorClass(word)
    return Failure(error, text.removesuffix(CODE + error.lsf_code) if error.lsf_code else text)
