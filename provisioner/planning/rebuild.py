"""A memory made again from what is left: intent, what HF was last told, and complete snapshots of all pools.

Nothing is created for a request whose time, by intent's own clock, is over; no slot number is used again; the brake
is latched (DESIGN §4). Pure: no I/O, no clock, no logger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from provisioner.hostfactory.answer import Answer
from provisioner.model import (
    Brake,
    BrakeReason,
    DeleteReason,
    Intent,
    Limits,
    Machine,
    Memory,
    Phase,
    Request,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    ReturnResult,
    Slot,
    Snapshot,
    Verdict,
    evolve,
)
from provisioner.names import RETURN_ID_PREFIX, SLOT_BLOCK, SLOT_DIGITS, split_name
from provisioner.planning.answers import NOT_OURS, RETURNED_EARLY, failure_of
from provisioner.planning.orphans import CANCELLED_MESSAGE

LIVES = 10**SLOT_DIGITS // SLOT_BLOCK - 1
"""So many memories in a row have slot numbers of their own; more than are lost while one request is still open."""


def fresh(intent: Intent, limits: Limits, now: float, wall: float) -> Memory:
    """The first memory of a state directory that never had one."""
    return Memory(provisioner=intent.provisioner, time=now, time_wall=wall, unseen_pools=tuple(sorted(limits.pools)))


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left when memory.json is not."""

    intent: Intent
    told: Mapping[str, Answer]
    """What is settled, and what status.json last said of the others: it binds, where it is there (law 8)."""
    heard: Mapping[str, bool]
    """Of each id that HF polled, whether it has read the terminal answer. Of what is not named here it counts as read
    where a request ended, or a machine of it runs or was given back: what HF may have is kept."""
    snapshots: Mapping[str, Snapshot]
    """Every pool, as it was after the last action of the loop before."""
    asked: float
    """What the clock that intent's times are by shows now; this host's own may differ (law 11)."""
    life: int = 1
    """How often a memory was made again, this time included: each has slot numbers of its own."""


def rebuild(
    remains: Remains, limits: Limits, now: float, wall: float, reason: BrakeReason = BrakeReason.MEMORY_LOST
) -> Memory:
    """What can be known again."""
    intent, told, heard, snapshots = remains.intent, remains.told, remains.heard, remains.snapshots
    first = SLOT_BLOCK * ((remains.life - 1) % LIVES + 1)
    returned = {name for back in intent.returns.values() for name in back.names} | _given_back(told)
    seen = {
        name: (pool, machine) for pool, snapshot in snapshots.items() for name, machine in snapshot.machines.items()
    }
    running = {name for name, (_, machine) in seen.items() if machine.phase is Phase.RUNNING}
    served = {_of(limits, name) for name in running | returned}
    requests = {}
    for request in intent.requests.values():
        answer = json.loads(told[request.id].text) if request.id in told else None
        if answer is None and heard.get(request.id, request.id in served):
            answer = _heard_answer(request, seen, limits)
        record = _request(request, answer, heard.get(request.id, True), seen, returned, limits, now, remains.asked)
        requests[request.id] = replace(record, next_slot=max(first, record.next_slot))
    word = "older than one written before" if reason is BrakeReason.MEMORY_OLDER else "lost"
    return replace(
        fresh(intent, limits, now, wall),
        requests=requests,
        returns={id_: _return(id_, intent, told, limits, now) for id_ in intent.returns},
        unseen_pools=(),
        brake=Brake(reason, now, f"memory.json was {word}; it was made again from {len(seen)} machines."),
    )


def _request(
    request: Request,
    answer: Mapping[str, Any] | None,
    heard: bool,
    seen: Mapping[str, tuple[str, Machine]],
    returned: Set[str],
    limits: Limits,
    now: float,
    asked: float,
) -> RequestRecord:
    ended = RequestStatus(answer["status"]) if answer and answer["status"] != RequestStatus.RUNNING else None
    left = request.created_wall + limits.request_deadline - asked
    entries = {entry["name"]: entry for entry in answer["machines"]} if answer else {}
    slots: dict[int, Slot] = {}
    # Of an ended request HF knows the listed machines alone; any other is for the orphan rule to judge.
    unlisted = () if ended else (name for name in seen if _of(limits, name) == request.id)
    for name in sorted({*entries, *unlisted}):
        parts = split_name(limits.prefix, name)
        if parts is not None:
            # What HF gave back before it read a terminal answer is left to the plan, which takes it from the answer.
            back = name in returned and (heard or not ended)
            slot = _slot(name, parts[1], seen.get(name), entries.get(name), ended, back, now)
            slots[parts[1]] = slot
    block = max(slots, default=-1) // SLOT_BLOCK + 1
    return RequestRecord(
        id=request.id,
        template=request.template,
        count=request.count,
        read=now,
        deadline=now + max(0.0, min(left, limits.request_deadline)),
        slots=slots,
        next_slot=block * SLOT_BLOCK,
        ended=ended,
        ended_at=now if ended else None,
        message=CANCELLED_MESSAGE if answer and answer["message"] == CANCELLED_MESSAGE else "",
        rc_account=request.rc_account,
        told_at=now if ended and heard else None,
    )


def _heard_answer(request: Request, seen: Mapping[str, tuple[str, Machine]], limits: Limits) -> Mapping[str, Any]:
    """Of a terminal answer that HF has read and that is lost: HF may have every machine of the request that runs."""
    running = [
        machine
        for name, (_, machine) in sorted(seen.items())
        if _of(limits, name) == request.id and machine.phase is Phase.RUNNING
    ]
    whole = len(running) >= request.count
    return {
        "status": RequestStatus.COMPLETE if whole else RequestStatus.COMPLETE_WITH_ERROR,
        "message": "",
        "machines": [
            {
                "name": machine.name,
                "result": "succeed",
                "privateIpAddress": machine.ip,
                "publicIpAddress": machine.public_ip,
                "launchtime": machine.launched,
                "message": "",
            }
            for machine in running
        ],
    }


def _given_back(told: Mapping[str, Answer]) -> Set[str]:
    """The machines of the returns that HF was told of: it has given them back, whatever intent has lost."""
    backs = (json.loads(answer.text) for id_, answer in told.items() if id_.startswith(RETURN_ID_PREFIX))
    return {entry["name"] for back in backs for entry in back["machines"]}


def _of(limits: Limits, name: str) -> str:
    parts = split_name(limits.prefix, name)
    return parts[0] if parts else ""


def _slot(
    name: str,
    number: int,
    seen: tuple[str, Machine] | None,
    entry: Mapping[str, Any] | None,
    ended: RequestStatus | None,
    returned: bool,
    now: float,
) -> Slot:
    """A slot as HF was told of it, or as its machine shows."""
    pool, machine = seen if seen else ("", None)
    runs = machine is not None and machine.phase is Phase.RUNNING
    told = entry["result"] if entry else ("succeed" if runs else "executing")
    slot = Slot(
        name=name,
        number=number,
        pool=pool,
        verdict=Verdict.OPEN,
        opened=now,
        submitted=now,
        accepted=True,
        seen=True,
        ran=now if told == "succeed" else None,
        ip=entry["privateIpAddress"] if entry else (machine.ip if machine else ""),
        public_ip=entry["publicIpAddress"] if entry else (machine.public_ip if machine else ""),
        launched=entry["launchtime"] if entry else (machine.launched if machine else 0),
    )
    if entry is not None and told == "fail":
        closed = evolve(slot, closed=now, delete=DeleteReason.FAILED, gone=machine is None)
        if entry["message"] in (CANCELLED_MESSAGE, RETURNED_EARLY):
            return evolve(closed, verdict=Verdict.CANCELLED, delete=DeleteReason.CANCELLED)
        return evolve(closed, submitted=None, verdict=Verdict.FAILED, failure=failure_of(entry["message"]))
    if returned:
        verdict = Verdict.RETURNED if ended else Verdict.CANCELLED
        reason = DeleteReason.RETURNED if ended else DeleteReason.CANCELLED
        return evolve(slot, verdict=verdict, closed=now, delete=reason, gone=machine is None)
    if machine is None:
        verdict = Verdict.LOST if ended else Verdict.FAILED
        return evolve(slot, verdict=verdict, closed=now, delete=DeleteReason.LOST, gone=True)
    return evolve(slot, verdict=Verdict.SUCCEEDED) if ended else slot


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
        ended=RequestStatus(answer["status"]),
        ended_at=now,
        told_at=now,
    )
