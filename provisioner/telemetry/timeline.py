"""What became of a request, a return request, a machine or a pool: journal and memory as dated sentences.

``timeline`` is pure: no I/O, no clock, no logger. What the journal lacks, memory tells as far as it can.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from enum import StrEnum
from typing import Any, NamedTuple

from provisioner.model import Memory, RequestRecord, RequestStatus, ReturnRecord, Slot, Verdict
from provisioner.names import prefix_of, request_of
from provisioner.state.journal import Line
from provisioner.telemetry.timeline_facts import Fact, facts_of_line, folded, is_readable, named_in
from provisioner.telemetry.timeline_sentences import Sentence, merged, milestones, sentence_of


class Kind(StrEnum):
    """The kinds of subjects that a timeline can have."""

    REQUEST = "request"
    RETURN = "return request"
    MACHINE = "machine"
    POOL = "pool"


class Subject(NamedTuple):
    """The subject of a timeline."""

    kind: Kind
    id: str
    """As the state files have it: a machine's short name."""

    @property
    def request(self) -> str:
        """The request that a machine belongs to by its name, or the request itself; empty of the others."""
        if self.kind is Kind.REQUEST:
            return self.id
        return request_of(prefix_of(self.id), self.id) if self.kind is Kind.MACHINE else ""


def needles(subject: Subject, memory: Memory | None, lines: Iterable[Line] = ()) -> tuple[str, ...]:
    """Texts of which each line of the journal that tells of the subject holds one.

    ``lines``: those that hold its id; a return request that memory has forgotten is known by them.
    """
    if subject.kind is Kind.POOL:
        return ('"text":', '"event":"window"', '"event":"paused"', '"event":"resumed"', '"who":')
    if subject.kind is Kind.MACHINE:
        return (subject.id, f'"request":"{subject.request}"')
    back = memory.returns.get(subject.id) if memory else None
    names = {*(back.names if back else ()), *_given(subject, lines)}
    return (subject.id, *sorted({request_of(prefix_of(name), name) for name in names} - {""}))


def _given(subject: Subject, lines: Iterable[Line]) -> Iterator[str]:
    """The machines that a return request names."""
    return (name for line in lines if line.get("return") == subject.id for name in named_in(line))


def timeline(subject: Subject, lines: Iterable[Line], memory: Memory | None) -> list[Sentence]:
    """The subject's timeline in order. ``lines``: at least those of the journal that hold one of its ``needles``."""
    kept = [line for line in folded(lines) if is_readable(line)]
    if subject.kind is Kind.POOL:
        facts = [fact for line in kept if line.get("pool") == subject.id for fact in _of_pool(line)]
    elif subject.kind is Kind.RETURN:
        facts = _of_return(subject, kept, memory)
    else:
        facts = _of_request(subject, kept, memory)
    return [sentence_of(fact) for fact in merged(facts)]


def _of_pool(line: Line) -> Iterator[Fact]:
    """The events of a pool: its troubles, its windows and the levers on it, not its successes."""
    quiet = line["event"] in ("create", "delete", "close", "deferred", "opened", "running", "gone")
    if not quiet or ("text" in line and line["event"] != "deferred"):
        yield from facts_of_line(line, lambda _: True)


def _of_return(subject: Subject, lines: Sequence[Line], memory: Memory | None) -> list[Fact]:
    back = memory.returns.get(subject.id) if memory else None
    names = {*(back.names if back else ()), *_given(subject, lines)}
    ends = [line for line in lines if line.get("return") == subject.id or line["event"] in ("close", "delete", "gone")]
    facts = [fact for line in ends for fact in facts_of_line(line, names.__contains__)]
    if back and memory and not any(fact.event == "back" for fact in facts):
        facts.append(Fact(memory.wall_of(back.read), "back", "", back.id, back.names, len(back.names)))
    return facts + _heard(memory, back)


def _of_request(subject: Subject, lines: Sequence[Line], memory: Memory | None) -> list[Fact]:
    """The events of a request, or of one of its machines."""
    machine, part = subject.id if subject.kind is Kind.MACHINE else None, f"-{subject.request}-"

    def ours(name: str) -> bool:
        return name == machine if machine else part in name

    about = [line for line in lines if line.get("request", subject.request) == subject.request]
    facts = [fact for line in about for fact in facts_of_line(line, ours)]
    record = memory.requests.get(subject.request) if memory else None
    if memory and record:
        slots = [slot for slot in record.slots.values() if ours(slot.name)]
        facts += _remembered(memory, record, slots, facts, whole=machine is None)
    facts = _since_asked(facts)
    return _of_machine(facts) if machine else _of_all(facts + _heard(memory, record), record)


def _since_asked(facts: Sequence[Fact]) -> list[Fact]:
    """The facts in the order of events. A line has the time of its cycle's end, so none may be before the request."""
    begin = min((fact.at for fact in facts if fact.event == "asked"), default=-math.inf)
    return [fact if fact.at >= begin else fact._replace(at=begin) for fact in facts]


def _of_all(facts: list[Fact], record: RequestRecord | None) -> list[Fact]:
    """The events of a whole request, in which milestones tell that its machines run."""
    asked = [fact.number for fact in facts if fact.event == "asked"]
    running = [fact for fact in facts if fact.event == "running"]
    wanted = record.count if record else max(asked, default=0)
    return [fact for fact in facts if fact.event != "running"] + milestones(running, wanted)


def _of_machine(facts: list[Fact]) -> list[Fact]:
    """The events of a request that a machine's timeline needs: how long it waited, when HF heard that it runs, and the
    end.
    """
    own = [fact for fact in facts if fact.machines]
    begin = min((fact.at for fact in own), default=math.inf)
    before = [fact for fact in facts if fact.event == "asked" or (fact.event == "deferred" and fact.at <= begin)]
    return [*before, *own, *_first_told(facts, own)]


def _first_told(facts: Sequence[Fact], own: Sequence[Fact]) -> list[Fact]:
    """The first answer that tells the machine as running, and the first that is terminal."""
    ran = min((fact.at for fact in own if fact.event == "running"), default=math.inf)
    told = [fact for fact in facts if fact.event == "told" and not fact.machines]
    runs = [fact for fact in told if fact.number and fact.at >= ran][:1]
    ends = [fact for fact in told if fact.about != RequestStatus.RUNNING][:1]
    return runs if runs == ends else runs + ends


_VERDICTS = frozenset({str(verdict) for verdict in Verdict} - {Verdict.OPEN, Verdict.SUCCEEDED})


def _remembered(
    memory: Memory, record: RequestRecord, slots: Sequence[Slot], facts: Sequence[Fact], *, whole: bool
) -> Iterator[Fact]:
    """What memory knows of slots and the journal does not tell: it is of an earlier version, or was rotated away."""
    told = defaultdict[str, set[str]](set)
    for fact in facts:
        told["ended" if fact.event in _VERDICTS else fact.event].update(fact.machines)
    if "asked" not in told:
        account = f" for account {record.rc_account}" if record.rc_account else ""
        of = f"of template {record.template}{account}"
        yield Fact(memory.wall_of(record.read), "asked", about=of, number=record.count)
    opened = [slot for slot in slots if slot.submitted is not None]
    if not whole or sum(fact.number for fact in facts if fact.event == "opened") < len(opened):
        yield from (_of_slot(memory, slot, "opened", slot.opened) for slot in opened)
    for slot in slots:
        yield from _steps(memory, slot, {event for event, names in told.items() if slot.name in names})


def _steps(memory: Memory, slot: Slot, told: Set[str]) -> Iterator[Fact]:
    """The steps that a slot has made, but for those that were ``told``."""
    if slot.ran is not None and "running" not in told:
        yield _of_slot(memory, slot, "running", slot.ran)
    if slot.deletion.closed is not None and "ended" not in told:
        words = slot.failure.text if slot.failure else ""
        why = str(slot.observed.cause or (slot.failure.error if slot.failure else ""))
        yield _of_slot(memory, slot, str(slot.verdict), slot.deletion.closed)._replace(about=why, words=words)
    if slot.deletion.gone and slot.observed.absent is not None and "gone" not in told:
        yield _of_slot(memory, slot, "gone", slot.observed.absent)


def _of_slot(memory: Memory, slot: Slot, event: str, at: float) -> Fact:
    return Fact(memory.wall_of(at), event, slot.pool, "", (slot.name,))


def _heard(memory: Memory | None, record: RequestRecord | ReturnRecord | None) -> list[Fact]:
    if memory is None or record is None or record.told_at is None:
        return []
    return [Fact(memory.wall_of(record.told_at), "heard", about=str(record.ended))]


def machines_of(memory: Memory, request: str) -> list[dict[str, Any]]:
    """Each machine of a request: its ``pool``, its slot's ``verdict``, whether it ``ran``, and is ``gone``."""
    record = memory.requests.get(request)
    return [
        {
            "machine": slot.name,
            "pool": slot.pool,
            "verdict": str(slot.verdict),
            "ran": slot.ran is not None,
            "gone": slot.deletion.gone,
            "text": slot.failure.text if slot.failure else "",
        }
        for slot in (record.slots.values() if record else ())
    ]
