"""Rebuild a lost memory from intent, the last answers to HF, and complete snapshots of all pools.

A request gets no creates if its deadline is over by the clock that wrote its creation time into intent. New slots get
numbers that were never used. The brake is latched (law: the brake).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from provisioner.hostfactory import Answer
from provisioner.model import (
    Brake,
    BrakeReason,
    DeleteReason,
    Deletion,
    Distrusted,
    DistrustReason,
    Intent,
    Limits,
    Machine,
    Memory,
    Moment,
    Observed,
    Phase,
    Places,
    Request,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    ReturnRequest,
    ReturnResult,
    Slot,
    Snapshot,
    UsageTotals,
    Verdict,
)
from provisioner.names import RETURN_ID_PREFIX, SLOT_BLOCK, SLOT_NUMBERS, get_request_id, group_by, split_name
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import CANCELLED_MESSAGE, is_cancel_message
from provisioner.planning.finish.cancellation import cancel
from provisioner.planning.finish.returns import fail_returned_early
from provisioner.planning.observe.trust import confirm_seconds, is_mass_loss
from provisioner.planning.report.answers import HINDERED, NOT_OURS, RETURNED_EARLY, parse_failure, request_answer

Json = Mapping[str, Any]
"""An answer to HF, or the entry of a machine in an answer."""

MOST_LIVES = SLOT_NUMBERS // SLOT_BLOCK - 1
"""Number of times that memory can be rebuilt before a rebuilt memory uses the slot numbers of an earlier one. A request
does not stay open long enough for so many losses of memory."""


def make_first_memory(intent: Intent, limits: Limits, now: float, wall: float) -> Memory:
    """Return the first memory of a new state directory."""
    return Memory(
        provisioner=intent.provisioner,
        written=Moment(now, wall),
        places=Places(unseen=tuple(sorted(limits.pools))),
        usage=UsageTotals(since_wall=wall),
    )


@dataclass(frozen=True, slots=True)
class RecoveryInputs:
    """Inputs from which a lost memory is rebuilt."""

    intent: Intent
    answers: Mapping[str, Answer]
    """Answers by id: the settled answer or, if there is none, the answer in the last status.json. These answers are
    binding (law: a terminal answer stays)."""
    read: Mapping[str, bool]
    """For each id that HF polled, True if HF has read the terminal answer.

    An id without an entry counts as read if its request ended, or if one of its machines runs or was returned. So the
    loop keeps each machine that HF may have.
    """
    snapshots: Mapping[str, Snapshot]
    """For each pool, a snapshot that began after the last action of the earlier loop."""
    intent_now: float
    """Present time by the clock that wrote intent, which may differ from this host's clock (law: time is an
    argument)."""
    life: int = 1
    """Number of times that memory was rebuilt so far, including this time. Each rebuilt memory has a block of slot
    numbers of its own."""


def find_distrusted(inputs: RecoveryInputs, limits: Limits, since: float) -> dict[str, Distrusted]:
    """If the snapshots of all pools together lack too many of HF's machines, return, by pool, why a snapshot is not
    trusted yet. In any other case, return an empty dict.

    A snapshot is trusted again if its list began long enough after ``since``, the moment at which the loss of memory
    was found.
    """
    succeeded = _get_succeeded(inputs.answers) - _get_returned(inputs)
    missing = succeeded - {name for observation in inputs.snapshots.values() for name in observation.machines}
    if not is_mass_loss(len(missing), len(succeeded)):
        return {}
    wait_seconds = {name: confirm_seconds(pool) for name, pool in limits.pools.items() if confirm_seconds(pool)}
    return {
        name: Distrusted(DistrustReason.MASS_LOSS, since, since + seconds, len(missing), len(succeeded))
        for name, seconds in wait_seconds.items()
        if inputs.snapshots[name].confirmed_at < since + seconds
    }


def rebuild_memory(
    inputs: RecoveryInputs, limits: Limits, now: float, wall: float, reason: BrakeReason = BrakeReason.MEMORY_LOST
) -> Memory:
    """Return a memory that is rebuilt from ``inputs``, with the brake latched for ``reason``. ``wall``: epoch seconds
    at ``now``."""
    intent, answers, read = inputs.intent, inputs.answers, inputs.read
    first = SLOT_BLOCK * ((inputs.life - 1) % MOST_LIVES + 1)
    rebuilt = _Requests(inputs, limits.prefix, now)
    requests = {}
    for request in intent.requests.values():
        answer = json.loads(answers[request.id].text) if request.id in answers else None
        if answer is None and read.get(request.id, request.id in rebuilt.served):
            answer = rebuilt.make_answer(request)
        left_seconds = request.created_wall + limits.request_deadline_seconds - inputs.intent_now
        record = rebuilt.rebuild(request, answer, read.get(request.id, True))
        requests[request.id] = replace(
            record,
            deadline_at=now + max(0.0, min(left_seconds, limits.request_deadline_seconds)),
            next_slot=min(max(first, record.next_slot), SLOT_NUMBERS),
        )
    word = "older than one written before" if reason is BrakeReason.MEMORY_OLDER else "lost"
    return replace(
        make_first_memory(intent, limits, now, wall),
        requests=requests,
        returns={id_: _rebuild_return(asked, answers, limits, now) for id_, asked in intent.returns.items()},
        places=Places(),
        brake=Brake(reason, now, f"memory.json was {word} and was rebuilt; machines found: {len(rebuilt.seen)}."),
    )


class _Requests:
    """Maker of the requests of a rebuilt memory, with their slots."""

    def __init__(self, inputs: RecoveryInputs, prefix: str, now: float) -> None:
        self._prefix = prefix
        self._now = now
        self.seen = {
            name: (pool, one) for pool, shown in inputs.snapshots.items() for name, one in shown.machines.items()
        }
        """The pool and the machine of each name in the snapshots."""
        self._returned = _get_returned(inputs)
        """Names that HF returned."""
        self._names = group_by(partial(get_request_id, prefix), sorted(self.seen))
        """The sorted names of existing machines, by request."""
        running = {name for name, (_, machine) in self.seen.items() if machine.phase is Phase.RUNNING}
        self.served = {get_request_id(prefix, name) for name in running | self._returned}
        """Ids of the requests with a machine that runs or was returned."""

    def rebuild(self, request: Request, answer: Json | None, is_read: bool) -> RequestRecord:
        """Return the record of a request, rebuilt from its machines and its answer, if any. The caller sets the
        deadline."""
        now = self._now
        ended = RequestStatus(answer["status"]) if answer and answer["status"] != RequestStatus.RUNNING else None
        slots = self._rebuild_slots(request, answer, is_read, ended is not None)
        block = max(slots, default=-1) // SLOT_BLOCK + 1
        return RequestRecord(
            id=request.id,
            template=request.template,
            count=request.count,
            read_at=now,
            deadline_at=now,
            slots=slots,
            next_slot=block * SLOT_BLOCK,
            ended=ended,
            ended_at=now if ended else None,
            message=answer["message"] if answer and is_cancel_message(answer["message"]) else "",
            rc_account=request.rc_account,
            reported_at=now if ended and is_read else None,
        )

    def _rebuild_slots(self, request: Request, answer: Json | None, is_read: bool, is_ended: bool) -> dict[int, Slot]:
        # HF knows only those machines of an ended request that its answer lists.
        # The orphan rule decides about the rest.
        unlisted = () if is_ended else self._names.get(request.id, ())
        entries = {name: _entry(self.seen[name][1]) for name in unlisted}
        entries |= {entry["name"]: entry for entry in answer["machines"]} if answer else {}
        slots = {}
        for name, entry in sorted(entries.items(), key=lambda one: one[0]):
            parts = split_name(self._prefix, name)
            if parts is not None:
                # If HF returned the machine before HF read the terminal answer, the next plan changes this answer.
                is_returned = name in self._returned and (is_read or not is_ended)
                slots[parts[1]] = self._set_verdict(self._open_slot(entry), entry, is_ended, is_returned)
        return slots

    def make_answer(self, request: Request) -> Json:
        """Return a substitute for a lost terminal answer that HF has read.

        The substitute lists every running machine of the request, because HF may have each of these machines.
        """
        there = [self.seen[name][1] for name in self._names.get(request.id, ())]
        running = [machine for machine in there if machine.phase is Phase.RUNNING]
        is_complete = len(running) >= request.count
        return {
            "status": RequestStatus.COMPLETE if is_complete else RequestStatus.COMPLETE_WITH_ERROR,
            "message": "",
            "machines": [_entry(machine) for machine in running],
        }

    def _open_slot(self, entry: Json) -> Slot:
        """Return an open slot that is made from its machine's entry in an answer."""
        name, now = entry["name"], self._now
        pool = self.seen[name][0] if name in self.seen else ""
        observed = Observed(
            is_accepted=True,
            was_seen=True,
            ip=entry["privateIpAddress"],
            public_ip=entry["publicIpAddress"],
            launched=entry["launchtime"],
        )
        return Slot(name, pool, Verdict.OPEN, now, now, now if entry["result"] == "succeed" else None, observed)

    def _set_verdict(self, slot: Slot, entry: Json, is_ended: bool, is_returned: bool) -> Slot:
        """Return the slot with the verdict that it had before memory was lost.

        The verdict is concluded from the slot's entry in the answer, from HF's returns and from the existing machines.
        """
        is_gone, now = slot.name not in self.seen, self._now
        if entry["result"] == "fail":
            if entry["message"] == RETURNED_EARLY or is_cancel_message(entry["message"]):
                return slot._replace(verdict=Verdict.CANCELLED, deletion=Deletion(now, DeleteReason.CANCELLED, is_gone))
            deletion = Deletion(now, DeleteReason.FAILED, is_gone)
            failure = parse_failure(entry["message"])
            return slot._replace(submitted_at=None, verdict=Verdict.FAILED, failure=failure, deletion=deletion)
        if is_returned:
            verdict = Verdict.RETURNED if is_ended else Verdict.CANCELLED
            reason = DeleteReason.RETURNED if is_ended else DeleteReason.CANCELLED
            return slot._replace(verdict=verdict, deletion=Deletion(now, reason, is_gone=is_gone))
        if is_gone:
            verdict = Verdict.LOST if is_ended else Verdict.FAILED
            return slot._replace(verdict=verdict, deletion=Deletion(now, DeleteReason.LOST, is_gone=True))
        return slot._replace(verdict=Verdict.SUCCEEDED) if is_ended else slot


def _entry(machine: Machine) -> Json:
    """Return the entry of a machine in an answer, with the data from the snapshot."""
    return {
        "name": machine.name,
        "result": "succeed" if machine.phase is Phase.RUNNING else "executing",
        "privateIpAddress": machine.ip,
        "publicIpAddress": machine.public_ip,
        "launchtime": machine.launched,
        "message": "",
    }


def _get_returned(inputs: RecoveryInputs) -> Set[str]:
    """Return the names of the machines in all return requests. Intent may have lost a return request. Its names then
    come from its answer, if this answer was reported to HF."""
    answers = (json.loads(answer.text) for id_, answer in inputs.answers.items() if id_.startswith(RETURN_ID_PREFIX))
    reported = {entry["name"] for answer in answers for entry in answer["machines"]}
    return reported | {name for request in inputs.intent.returns.values() for name in request.names}


def _get_succeeded(answers_by_id: Mapping[str, Answer]) -> Set[str]:
    """Return the names of the machines that were reported to HF as succeeded."""
    answers = (json.loads(answer.text) for id_, answer in answers_by_id.items() if not id_.startswith(RETURN_ID_PREFIX))
    return {entry["name"] for answer in answers for entry in answer["machines"] if entry["result"] == "succeed"}


def _get_result(entry: Json) -> ReturnResult:
    if entry["result"] == "succeed":
        return ReturnResult.GONE
    return ReturnResult.NOT_OURS if entry["message"] == NOT_OURS else ReturnResult.STUCK


def _rebuild_return(asked: ReturnRequest, answers: Mapping[str, Answer], limits: Limits, now: float) -> ReturnRecord:
    record = ReturnRecord(asked.id, asked.names, read_at=now, deadline_at=now + limits.return_deadline_seconds)
    answer = json.loads(answers[asked.id].text) if asked.id in answers else None
    if answer is None or answer["status"] == RequestStatus.RUNNING:
        return record
    # The messages say why a delete had no effect.
    reasons = {one["name"]: parse_failure(one["message"].partition(HINDERED)[2]) for one in answer["machines"]}
    return replace(
        record,
        results={entry["name"]: _get_result(entry) for entry in answer["machines"]},
        hindered={name: failure for name, failure in reasons.items() if failure is not None},
        ended=RequestStatus(answer["status"]),
        ended_at=now,
        reported_at=now,
    )


def recover_answers(memory: Memory, settled: Mapping[str, Answer], limits: Limits, now: float) -> Memory:
    """Return the memory, corrected by the settled answers that differ from it. If all agree, return the same memory."""
    draft = Draft(memory, {}, limits, now)
    for id_, answer in settled.items():
        record = draft.requests[id_]
        if request_answer(record).text != answer.text:
            _apply_answer(draft, record, answer)
    return draft.memory()


def _apply_answer(draft: Draft, record: RequestRecord, answer: Answer) -> None:
    entry = json.loads(answer.text)
    if entry["message"] == CANCELLED_MESSAGE:
        cancel(draft, record)
    for machine in entry["machines"]:
        slot = draft.find_slot(machine["name"])
        if slot is not None and machine["message"] == RETURNED_EARLY:
            fail_returned_early(draft, slot)
