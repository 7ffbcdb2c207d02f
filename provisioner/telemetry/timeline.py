"""The timeline of a request, a return request, a machine or a pool. A timeline has dated sentences made from journal
and memory.

The function ``timeline`` is pure. It adds events that memory has and the journal lacks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from enum import StrEnum
from typing import Any, NamedTuple

from provisioner.model import Memory, RequestRecord, RequestStatus, ReturnRecord, Slot, Verdict
from provisioner.names import get_prefix, get_request_id
from provisioner.state.journal import Line
from provisioner.telemetry.timeline_sentences import FEW, Fact, Sentence, format_order, read_facts, sentences


class Kind(StrEnum):
    """The sorts of subjects. Each timeline is about one subject."""

    REQUEST = "request"
    RETURN = "return request"
    MACHINE = "machine"
    POOL = "pool"


class Subject(NamedTuple):
    """The subject of a timeline."""

    kind: Kind
    id: str
    """The id of the subject, as in the state files. For a machine, its short host name."""

    @property
    def request(self) -> str:
        """Return the id of the request to which the subject belongs. The name of a machine contains this id. Return an
        empty text for other subjects."""
        if self.kind is Kind.REQUEST:
            return self.id
        return get_request_id(get_prefix(self.id), self.id) if self.kind is Kind.MACHINE else ""


def search_texts(subject: Subject, memory: Memory | None, lines: Iterable[Line] = ()) -> tuple[str, ...]:
    """Return texts by which to search the journal. Each line about the subject contains at least one of these texts.

    ``lines``: the journal lines that contain the subject's id. If memory no longer has a return request, these lines
    give the names of its machines.
    """
    if subject.kind is Kind.POOL:
        return ('"text":', '"event":"window"', '"event":"paused"', '"event":"resumed"', '"who":')
    if subject.kind is Kind.MACHINE:
        return (subject.id, f'"request":"{subject.request}"')
    names = _returned_names(subject, lines, memory)
    return (subject.id, *sorted({get_request_id(get_prefix(name), name) for name in names} - {""}))


def _returned_names(subject: Subject, lines: Iterable[Line], memory: Memory | None) -> set[str]:
    """Return the names of the machines of a return request, from memory and journal."""
    record = memory.returns.get(subject.id) if memory else None
    named = {name for line in lines if line.get("return") == subject.id for name in get_machine_names(line)}
    return named.union(record.names if record else ())


def timeline(subject: Subject, lines: Iterable[Line], memory: Memory | None) -> list[Sentence]:
    """Return the timeline as sentences in order. ``lines``: all journal lines that contain one of the ``search_texts``.
    Further lines are ignored."""
    kept = readable_lines(lines)
    if subject.kind is Kind.POOL:
        return sentences(read_facts(line for line in kept if line.get("pool") == subject.id and _is_of_pool(line)))
    if subject.kind is Kind.RETURN:
        return sentences(_return_facts(subject, kept, memory))
    return sentences(_request_facts(subject, kept, memory))


# --- lines ------------------------------------------------------------------------------------------------------------


_SHARED = ("at", "event", "pool", "result", "reason", "verdict", "cause", "text")


def readable_lines(lines: Iterable[Line]) -> list[Line]:
    """Return the lines whose fields have the types that the loop writes. Leave out the other lines.

    Lines of one cycle that differ only in their machine become one line. This saves most of the work for a request with
    ten thousand machines.
    """
    folded: list[Line] = []
    named: dict[tuple[object, ...], list[Any]] = {}
    for line in lines:
        if (name := line.get("machine")) is None:
            folded.append(line)
            continue
        key = tuple([line.get(field) for field in _SHARED])
        try:
            names = named.get(key)
        except TypeError:  # a field is a list where the loop writes a text, so another program wrote the line
            continue
        if names is None:
            names = named[key] = []
            folded.append({**line, "machines": names})
        names.append(name)
    return [line for line in folded if _is_readable(line)]


_WORDS = ("pool", "template", "result", "reason", "verdict", "cause", "error", "text", "answer", "since", "who")
_NUMBERS = ("times", "count", "running")


def _is_readable(line: Line) -> bool:
    return (
        isinstance(line.get("event"), str)
        and all(isinstance(line.get(word, ""), str) for word in _WORDS)
        and all(isinstance(line.get(number, 0), int) for number in _NUMBERS)
        and all(isinstance(name, str) for name in _listed(line))
    )


def _listed(line: Line) -> Sequence[Any]:
    names = line.get("machines", ())
    return names if isinstance(names, (list, tuple)) else (names,)


def get_machine_names(line: Line) -> list[str]:
    """Return the machines that a line names."""
    return [name for name in (line.get("machine"), *_listed(line)) if isinstance(name, str)]


# --- the events of a subject ------------------------------------------------------------------------------------------


def _is_of_pool(line: Line) -> bool:
    """Return True for a line about failures, windows or holds of a pool; False for a line about a success."""
    quiet = line["event"] in ("create", "delete", "close", "deferred", "opened", "running", "gone")
    return not quiet or ("text" in line and line["event"] != "deferred")


def _return_facts(subject: Subject, lines: Sequence[Line], memory: Memory | None) -> list[Fact]:
    record = memory.returns.get(subject.id) if memory else None
    names = _returned_names(subject, lines, memory)
    ends = (line for line in lines if line.get("return") == subject.id or line["event"] in ("close", "delete", "gone"))
    facts = read_facts(ends, names.__contains__)
    if record and memory and not any(fact.event == "return" for fact in facts):
        facts.append(Fact(memory.wall_of(record.read_at), "return", "", record.id, record.names, len(record.names)))
    return facts + _acknowledgement(memory, record)


def _request_facts(subject: Subject, lines: Sequence[Line], memory: Memory | None) -> list[Fact]:
    """Return the events of a request, or of one of its machines."""
    is_whole = subject.kind is Kind.REQUEST
    part = f"-{subject.id}-" if is_whole else subject.id

    def is_ours(name: str) -> bool:
        return part in name  # names have a fixed width, so no name is part of another

    facts = read_facts((line for line in lines if line.get("request", subject.request) == subject.request), is_ours)
    record = memory.requests.get(subject.request) if memory else None
    if memory and record:
        slots = [slot for slot in record.slots.values() if is_ours(slot.name)]
        facts += _facts_from_memory(memory, record, slots, facts, is_whole=is_whole)
    # A journal line has the time at which its cycle ended, and memory has the time of the event itself. So an event
    # from memory may seem to precede the request.
    begin = min((fact.at for fact in facts if fact.event == "asked"), default=-math.inf)
    facts = [fact._replace(at=max(fact.at, begin)) for fact in facts]
    if not is_whole:
        return _machine_facts(facts)
    return _with_milestones(facts, record) + _acknowledgement(memory, record)


def _with_milestones(facts: list[Fact], record: RequestRecord | None) -> list[Fact]:
    """Replace the starts of many machines by milestones: the times at which the first, half, 90 % and the last of them
    ran."""
    running = [fact for fact in facts if fact.event == "running"]
    total = sum(fact.number for fact in running)
    if total <= FEW:
        return facts
    asked = [fact.number for fact in facts if fact.event == "asked"]
    wanted = record.count if record else max(asked, default=0)
    steps = {1: "The first machine runs", math.ceil(wanted / 2): "Half run", math.ceil(0.9 * wanted): "90 % run"}
    steps |= {wanted: "All run", total: "The last so far runs"}
    steps[wanted] = "All run"
    reached: dict[float, Fact] = {}
    ran = 0
    for fact in sorted(running):
        before, ran = ran, ran + fact.number
        for step, words in steps.items():
            if before < step <= ran:
                reached[fact.at] = Fact(fact.at, "milestone", fact.pool, f"{step:,} of {wanted:,}", (), step, words)
    return [fact for fact in facts if fact.event != "running"] + list(reached.values())


def _machine_facts(facts: list[Fact]) -> list[Fact]:
    """Return those events of a request that belong to the timeline of one machine: HF's request, deferrals before the
    machine's first event, the machine's own events, and the first answers."""
    own = [fact for fact in facts if fact.machines]
    begin = min((fact.at for fact in own), default=math.inf)
    before = [fact for fact in facts if fact.event == "asked" or (fact.event == "deferred" and fact.at <= begin)]
    return [*before, *own, *_first_answers(facts, own)]


def _first_answers(facts: Sequence[Fact], own: Sequence[Fact]) -> list[Fact]:
    """Return at most two answers: the first answer after the machine's start that reports running machines, and the
    first terminal answer."""
    ran = min((fact.at for fact in own if fact.event == "running"), default=math.inf)
    answers = [fact for fact in facts if fact.event == "reported" and not fact.machines]
    runs = [fact for fact in answers if fact.number and fact.at >= ran][:1]
    ends = [fact for fact in answers if fact.about != RequestStatus.RUNNING][:1]
    return runs if runs == ends else runs + ends


_VERDICTS = frozenset({str(verdict) for verdict in Verdict} - {Verdict.OPEN, Verdict.SUCCEEDED})


def _facts_from_memory(
    memory: Memory, record: RequestRecord, slots: Sequence[Slot], facts: Sequence[Fact], *, is_whole: bool
) -> Iterator[Fact]:
    """Yield the facts that memory has and the journal lacks. The journal may lack facts because an earlier version
    wrote it, or because its old files were deleted."""
    journalled = defaultdict[str, set[str]](set)
    for fact in facts:
        journalled["ended" if fact.event in _VERDICTS else fact.event].update(fact.machines)
    if "asked" not in journalled:
        order = format_order(record.template, record.rc_account)
        yield Fact(memory.wall_of(record.read_at), "asked", about=order, number=record.count)
    opened = [slot for slot in slots if slot.submitted_at is not None]
    if not is_whole or sum(fact.number for fact in facts if fact.event == "opened") < len(opened):
        yield from (_slot_fact(memory, slot, "opened", slot.opened_at) for slot in opened)
    for slot in slots:
        yield from _slot_steps(memory, slot, {event for event, names in journalled.items() if slot.name in names})


def _slot_steps(memory: Memory, slot: Slot, journalled: Set[str]) -> Iterator[Fact]:
    """Yield the steps of a slot. Leave out the events in ``journalled``, because the journal has them."""
    if slot.ran_at is not None and "running" not in journalled:
        yield _slot_fact(memory, slot, "running", slot.ran_at)
    if slot.deletion.closed_at is not None and "ended" not in journalled:
        words = slot.failure.text if slot.failure else ""
        why = str(slot.observed.cause or (slot.failure.error if slot.failure else ""))
        yield _slot_fact(memory, slot, str(slot.verdict), slot.deletion.closed_at)._replace(about=why, words=words)
    if slot.deletion.is_gone and slot.observed.absent_since is not None and "gone" not in journalled:
        yield _slot_fact(memory, slot, "gone", slot.observed.absent_since)


def _slot_fact(memory: Memory, slot: Slot, event: str, at: float) -> Fact:
    return Fact(memory.wall_of(at), event, slot.pool, "", (slot.name,))


def _acknowledgement(memory: Memory | None, record: RequestRecord | ReturnRecord | None) -> list[Fact]:
    if memory is None or record is None or record.reported_at is None:
        return []
    return [Fact(memory.wall_of(record.reported_at), "heard", about=str(record.ended))]


def machine_documents(memory: Memory, request: str) -> list[dict[str, Any]]:
    """Return a document for each machine of a request.

    * ``verdict``: the verdict of the machine's slot.
    * ``ran``: True if the machine has ever run.
    * ``gone``: True if the machine no longer exists.
    * ``text``: the text of the machine's failure.
    """
    record = memory.requests.get(request)
    return [
        {
            "machine": slot.name,
            "pool": slot.pool,
            "verdict": str(slot.verdict),
            "ran": slot.ran_at is not None,
            "gone": slot.deletion.is_gone,
            "text": slot.failure.text if slot.failure else "",
        }
        for slot in (record.slots.values() if record else ())
    ]
