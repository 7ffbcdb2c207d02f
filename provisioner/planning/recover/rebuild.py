"""A memory made again from what is left: intent, what HF was last told, and complete snapshots of all pools.

Nothing is created for a request whose time, by intent's own clock, is over; no slot number is used again; the brake
is latched (law: the brake).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from provisioner.hostfactory import Answer
from provisioner.model import (
    Brake,
    BrakeReason,
    DeleteReason,
    Deletion,
    Distrusted,
    DistrustReason,
    Failure,
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
    ReturnResult,
    Slot,
    Snapshot,
    UsageTotals,
    Verdict,
)
from provisioner.names import RETURN_ID_PREFIX, SLOT_BLOCK, SLOT_NUMBERS, request_of, split_name
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import CANCELLED_MESSAGE, tells_cancel
from provisioner.planning.finish.cancellation import cancel
from provisioner.planning.finish.returns import take_back
from provisioner.planning.observe.trust import apart, is_mass
from provisioner.planning.report.answers import HINDERED, NOT_OURS, RETURNED_EARLY, failure_of, request_answer

LIVES = SLOT_NUMBERS // SLOT_BLOCK - 1
"""So many memories in a row get slot numbers of their own: more than are lost while one request is open."""


def fresh(intent: Intent, limits: Limits, now: float, wall: float) -> Memory:
    """The first memory of a state directory that never had one."""
    return Memory(
        provisioner=intent.provisioner,
        written=Moment(now, wall),
        places=Places(unseen=tuple(sorted(limits.pools))),
        usage=UsageTotals(since_wall=wall),
    )


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a lost memory can be made of again."""

    intent: Intent
    told: Mapping[str, Answer]
    """What is settled, and what status.json last said of the others: it binds (law: a terminal answer stays)."""
    heard: Mapping[str, bool]
    """Of each id that HF polled, whether it has read the terminal answer. Any other id counts as read where its request
    ended, or a machine of it runs or was given back: what HF may have is kept."""
    snapshots: Mapping[str, Snapshot]
    """Every pool, as it was after the last action of the loop before."""
    asked: float
    """What the clock that intent's times are by shows now; this host's own may differ (law: time is an argument)."""
    life: int = 1
    """How often a memory was made again, this time included: each has slot numbers of its own."""


@dataclass(frozen=True, slots=True)
class _Traces:
    """The machines that are left, the names that HF gave back, and when slots are made of them."""

    seen: Mapping[str, tuple[str, Machine]]
    """By name: the pool that shows a machine, and the machine."""
    names: Mapping[str, Sequence[str]]
    """The names of the machines that are there, sorted, by request."""
    returned: Set[str]
    """Names that HF gave back."""
    prefix: str
    now: float


def distrusted(evidence: Evidence, limits: Limits, since: float) -> dict[str, Distrusted]:
    """Return the pools whose snapshot is no evidence yet, as too many machines that HF has are missing since then."""
    told = _succeeded(evidence.told) - _given_back(evidence)
    missing = told - {name for look in evidence.snapshots.values() for name in look.machines}
    if not is_mass(len(missing), len(told)):
        return {}
    waits = {name: apart(pool) for name, pool in limits.pools.items() if apart(pool)}
    return {
        name: Distrusted(DistrustReason.MASS_LOSS, since, since + seconds, len(missing), len(told))
        for name, seconds in waits.items()
        if evidence.snapshots[name].proves < since + seconds
    }


def rebuild(
    evidence: Evidence, limits: Limits, now: float, wall: float, reason: BrakeReason = BrakeReason.MEMORY_LOST
) -> Memory:
    """What can be known again."""
    intent, told, heard = evidence.intent, evidence.told, evidence.heard
    first = SLOT_BLOCK * ((evidence.life - 1) % LIVES + 1)
    seen = {name: (pool, one) for pool, look in evidence.snapshots.items() for name, one in look.machines.items()}
    returned = _given_back(evidence)
    running = {name for name, (_, machine) in seen.items() if machine.phase is Phase.RUNNING}
    served = {request_of(limits.prefix, name) for name in running | returned}
    names = defaultdict[str, list[str]](list)
    for name in sorted(seen):
        names[request_of(limits.prefix, name)].append(name)
    traces = _Traces(seen, names, returned, limits.prefix, now)
    requests = {}
    for request in intent.requests.values():
        answer = json.loads(told[request.id].text) if request.id in told else None
        if answer is None and heard.get(request.id, request.id in served):
            answer = _heard_answer(request, traces)
        left = request.created_wall + limits.request_deadline - evidence.asked
        record = _request(request, answer, heard.get(request.id, True), traces)
        requests[request.id] = replace(
            record,
            deadline=now + max(0.0, min(left, limits.request_deadline)),
            next_slot=min(max(first, record.next_slot), SLOT_NUMBERS),
        )
    word = "older than one written before" if reason is BrakeReason.MEMORY_OLDER else "lost"
    return replace(
        fresh(intent, limits, now, wall),
        requests=requests,
        returns={id_: _return(id_, intent, told, limits, now) for id_ in intent.returns},
        places=Places(),
        brake=Brake(reason, now, f"memory.json was {word}; it was made again from {len(seen)} machines."),
    )


def _request(request: Request, answer: Mapping[str, Any] | None, heard: bool, traces: _Traces) -> RequestRecord:
    """A request by its answer, if there is one, and by its machines; the caller knows its deadline."""
    now = traces.now
    ended = RequestStatus(answer["status"]) if answer and answer["status"] != RequestStatus.RUNNING else None
    slots = _slots(request, answer, ended, heard, traces)
    block = max(slots, default=-1) // SLOT_BLOCK + 1
    return RequestRecord(
        id=request.id,
        template=request.template,
        count=request.count,
        read=now,
        deadline=now,
        slots=slots,
        next_slot=block * SLOT_BLOCK,
        ended=ended,
        ended_at=now if ended else None,
        message=answer["message"] if answer and tells_cancel(answer["message"]) else "",
        rc_account=request.rc_account,
        told_at=now if ended and heard else None,
    )


def _slots(
    request: Request, answer: Mapping[str, Any] | None, ended: RequestStatus | None, heard: bool, traces: _Traces
) -> dict[int, Slot]:
    # Of an ended request HF knows the listed machines alone; any other is for the orphan rule to judge.
    unlisted = () if ended else traces.names.get(request.id, ())
    entries = {name: _entry(traces.seen[name][1]) for name in unlisted}
    entries |= {entry["name"]: entry for entry in answer["machines"]} if answer else {}
    slots = {}
    for name, entry in sorted(entries.items(), key=lambda one: one[0]):
        parts = split_name(traces.prefix, name)
        if parts is not None:
            # What HF gave back before it read a terminal answer is left to the plan, which takes it from the answer.
            returned = name in traces.returned and (heard or not ended)
            slots[parts[1]] = _judged(_told(entry, traces), entry, ended is not None, returned, traces)
    return slots


def _heard_answer(request: Request, traces: _Traces) -> Mapping[str, Any]:
    """Of a terminal answer that HF has read and that is lost: HF may have every machine of the request that runs."""
    there = [traces.seen[name][1] for name in traces.names.get(request.id, ())]
    running = [machine for machine in there if machine.phase is Phase.RUNNING]
    whole = len(running) >= request.count
    return {
        "status": RequestStatus.COMPLETE if whole else RequestStatus.COMPLETE_WITH_ERROR,
        "message": "",
        "machines": [_entry(machine) for machine in running],
    }


def _entry(machine: Machine) -> Mapping[str, Any]:
    """Return the entry that an answer has for a machine as its pool shows it."""
    return {
        "name": machine.name,
        "result": "succeed" if machine.phase is Phase.RUNNING else "executing",
        "privateIpAddress": machine.ip,
        "publicIpAddress": machine.public_ip,
        "launchtime": machine.launched,
        "message": "",
    }


def _given_back(evidence: Evidence) -> Set[str]:
    """Return the machines of all returns in intent, and of those that HF was told of, whatever intent has lost."""
    backs = (json.loads(answer.text) for id_, answer in evidence.told.items() if id_.startswith(RETURN_ID_PREFIX))
    told = {entry["name"] for back in backs for entry in back["machines"]}
    return told | {name for back in evidence.intent.returns.values() for name in back.names}


def _succeeded(told: Mapping[str, Answer]) -> Set[str]:
    """The machines that HF was told of as its own."""
    answers = (json.loads(answer.text) for id_, answer in told.items() if not id_.startswith(RETURN_ID_PREFIX))
    return {entry["name"] for answer in answers for entry in answer["machines"] if entry["result"] == "succeed"}


def _told(entry: Mapping[str, Any], traces: _Traces) -> Slot:
    """Return an open slot by its machine's entry in an answer."""
    name, now = entry["name"], traces.now
    pool = traces.seen[name][0] if name in traces.seen else ""
    observed = Observed(
        accepted=True,
        seen=True,
        ip=entry["privateIpAddress"],
        public_ip=entry["publicIpAddress"],
        launched=entry["launchtime"],
    )
    return Slot(name, pool, Verdict.OPEN, now, now, now if entry["result"] == "succeed" else None, observed)


def _judged(slot: Slot, entry: Mapping[str, Any], ended: bool, returned: bool, traces: _Traces) -> Slot:
    """The slot with the verdict that it must have had: by what HF was told, gave back, and by what is there."""
    gone, now = slot.name not in traces.seen, traces.now
    if entry["result"] == "fail":
        if entry["message"] == RETURNED_EARLY or tells_cancel(entry["message"]):
            return slot._replace(verdict=Verdict.CANCELLED, deletion=Deletion(now, DeleteReason.CANCELLED, gone))
        deletion = Deletion(now, DeleteReason.FAILED, gone)
        failure = failure_of(entry["message"])
        return slot._replace(submitted=None, verdict=Verdict.FAILED, failure=failure, deletion=deletion)
    if returned:
        verdict = Verdict.RETURNED if ended else Verdict.CANCELLED
        reason = DeleteReason.RETURNED if ended else DeleteReason.CANCELLED
        return slot._replace(verdict=verdict, deletion=Deletion(now, reason, gone=gone))
    if gone:
        verdict = Verdict.LOST if ended else Verdict.FAILED
        return slot._replace(verdict=verdict, deletion=Deletion(now, DeleteReason.LOST, gone=True))
    return slot._replace(verdict=Verdict.SUCCEEDED) if ended else slot


def _hindered(entries: Iterable[Mapping[str, Any]]) -> dict[str, Failure]:
    """Return the reasons of deletes without effect, by machine, from the messages of an answer."""
    said = {entry["name"]: failure_of(entry["message"].partition(HINDERED)[2]) for entry in entries}
    return {name: failure for name, failure in said.items() if failure is not None}


def _result(entry: Mapping[str, Any]) -> ReturnResult:
    if entry["result"] == "succeed":
        return ReturnResult.GONE
    return ReturnResult.NOT_OURS if entry["message"] == NOT_OURS else ReturnResult.STUCK


def _return(id_: str, intent: Intent, told: Mapping[str, Answer], limits: Limits, now: float) -> ReturnRecord:
    names = intent.returns[id_].names
    record = ReturnRecord(id=id_, names=names, read=now, deadline=now + limits.return_deadline)
    answer = json.loads(told[id_].text) if id_ in told else None
    if answer is None or answer["status"] == RequestStatus.RUNNING:
        return record
    return replace(
        record,
        results={entry["name"]: _result(entry) for entry in answer["machines"]},
        hindered=_hindered(answer["machines"]),
        ended=RequestStatus(answer["status"]),
        ended_at=now,
        told_at=now,
    )


def recover_answers(memory: Memory, settled: Mapping[str, Answer], limits: Limits, now: float) -> Memory:
    """Return the memory after answers of ended requests that were settled and not recorded; the same if they agree."""
    draft = Draft(memory, {}, limits, now)
    for id_, answer in settled.items():
        record = draft.requests[id_]
        if request_answer(record).text != answer.text:
            _keep(draft, record, answer)
    return draft.memory()


def _keep(draft: Draft, record: RequestRecord, answer: Answer) -> None:
    entry = json.loads(answer.text)
    if entry["message"] == CANCELLED_MESSAGE:
        cancel(draft, record)
    for machine in entry["machines"]:
        slot = draft.named(machine["name"])
        if slot is not None and machine["message"] == RETURNED_EARLY:
            take_back(draft, slot)
