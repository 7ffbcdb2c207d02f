"""What became of a request, a return request, a machine or a pool: journal and memory as dated sentences.

``story`` is pure: no I/O, no clock, no logger. What the journal lacks, memory tells as far as it can.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from enum import StrEnum
from typing import Any, NamedTuple

from provisioner.model import Memory, PendingReason, RequestRecord, RequestStatus, ReturnRecord, Slot, Verdict
from provisioner.names import prefix_of, request_of
from provisioner.state.journal import Line, when

FEW = 3
"""Machines that a sentence names; of more it says how many."""

APART = 600.0
"""Equal events less than so many seconds apart are one sentence."""

OK = "ok"
"""The ``result`` of a create or delete that the cloud accepted."""


class Kind(StrEnum):
    """The kinds of subjects that a story can have."""

    REQUEST = "request"
    RETURN = "return request"
    MACHINE = "machine"
    POOL = "pool"


class Subject(NamedTuple):
    """Whose story is told."""

    kind: Kind
    id: str
    """As the state files have it: a machine's short name."""

    @property
    def request(self) -> str:
        """The request that a machine belongs to by its name, or the request itself; empty of the others."""
        if self.kind is Kind.REQUEST:
            return self.id
        return request_of(prefix_of(self.id), self.id) if self.kind is Kind.MACHINE else ""


class Sentence(NamedTuple):
    """What happened; times are epoch seconds."""

    at: float
    until: float
    """When it happened last, or was over; the same as ``at`` where it happened once."""
    event: str
    text: str


class _Fact(NamedTuple):
    """What a line of the journal, or a slot in memory, tells of the subject."""

    at: float
    event: str
    pool: str = ""
    about: str = ""
    """The fields that, with event and pool, make facts equal."""
    machines: tuple[str, ...] = ()
    number: int = 1
    """The number of machines, slots or calls."""
    words: str = ""
    """The failure in the cloud's words."""
    until: float = 0.0


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


def story(subject: Subject, lines: Iterable[Line], memory: Memory | None) -> list[Sentence]:
    """The subject's story in order. ``lines``: at least those of the journal that hold one of its ``needles``."""
    kept = [line for line in _folded(lines) if _is_readable(line)]
    if subject.kind is Kind.POOL:
        facts = [fact for line in kept if line.get("pool") == subject.id for fact in _of_pool(line)]
    elif subject.kind is Kind.RETURN:
        facts = _of_return(subject, kept, memory)
    else:
        facts = _of_request(subject, kept, memory)
    return [_sentence(fact) for fact in _merged(facts)]


def _folded(lines: Iterable[Line]) -> list[Line]:
    """With one line for all machines of which a cycle says the same: of ten thousand that is most of the work."""
    folded: list[Line] = []
    named: dict[tuple[object, ...], list[str]] = {}
    for line in lines:
        name, get = line.get("machine"), line.get
        if name is None:
            folded.append(line)
            continue
        key = line["at"], get("event"), get("pool"), get("result"), get("reason"), get("verdict"), get("cause")
        try:
            names = named.get((*key, get("text")))
        except TypeError:  # a list stands where a text has to be, so the line is not ours
            continue
        if names is None:
            names = named[*key, get("text")] = []
            folded.append({**line, "machines": names})
        names.append(name)
    return folded


_WORDS = ("pool", "template", "result", "reason", "verdict", "cause", "error", "text", "answer", "since", "who")
_NUMBERS = ("times", "count", "running")


def _is_readable(line: Line) -> bool:
    """Its facts have the types that the loop gives them."""
    return (
        isinstance(line.get("event"), str)
        and all(isinstance(line.get(word, ""), str) for word in _WORDS)
        and all(isinstance(line.get(number, 0), int) for number in _NUMBERS)
        and all(isinstance(name, str) for name in _listed(line))
    )


def _listed(line: Line) -> Sequence[Any]:
    names = line.get("machines", ())
    return names if isinstance(names, (list, tuple)) else (names,)


def named_in(line: Line) -> list[str]:
    """The machines that a line names."""
    return [name for name in (line.get("machine"), *_listed(line)) if isinstance(name, str)]


# --- facts ------------------------------------------------------------------------------------------------------------


def _of_pool(line: Line) -> Iterator[_Fact]:
    """The events of a pool: its troubles, its windows and the levers on it, not its successes."""
    quiet = line["event"] in ("create", "delete", "close", "deferred", "opened", "running", "gone")
    if not quiet or ("text" in line and line["event"] != "deferred"):
        yield from _facts(line, lambda _: True)


def _of_return(subject: Subject, lines: Sequence[Line], memory: Memory | None) -> list[_Fact]:
    back = memory.returns.get(subject.id) if memory else None
    names = {*(back.names if back else ()), *_given(subject, lines)}
    ends = [line for line in lines if line.get("return") == subject.id or line["event"] in ("close", "delete", "gone")]
    facts = [fact for line in ends for fact in _facts(line, names.__contains__)]
    if back and memory and not any(fact.event == "back" for fact in facts):
        facts.append(_Fact(memory.wall_of(back.read), "back", "", back.id, back.names, len(back.names)))
    return facts + _heard(memory, back)


def _of_request(subject: Subject, lines: Sequence[Line], memory: Memory | None) -> list[_Fact]:
    """The events of a request, or of one of its machines."""
    machine, part = subject.id if subject.kind is Kind.MACHINE else None, f"-{subject.request}-"

    def ours(name: str) -> bool:
        return name == machine if machine else part in name

    about = [line for line in lines if line.get("request", subject.request) == subject.request]
    facts = [fact for line in about for fact in _facts(line, ours)]
    record = memory.requests.get(subject.request) if memory else None
    if memory and record:
        slots = [slot for slot in record.slots.values() if ours(slot.name)]
        facts += _remembered(memory, record, slots, facts, whole=machine is None)
    facts = _since_asked(facts)
    return _of_machine(facts) if machine else _of_all(facts + _heard(memory, record), record)


def _since_asked(facts: Sequence[_Fact]) -> list[_Fact]:
    """The facts in the order of events. A line has the time of its cycle's end, so none may be before the request."""
    begin = min((fact.at for fact in facts if fact.event == "asked"), default=-math.inf)
    return [fact if fact.at >= begin else fact._replace(at=begin) for fact in facts]


def _of_all(facts: list[_Fact], record: RequestRecord | None) -> list[_Fact]:
    """The events of a whole request, in which milestones tell that its machines run."""
    asked = [fact.number for fact in facts if fact.event == "asked"]
    running = [fact for fact in facts if fact.event == "running"]
    wanted = record.count if record else max(asked, default=0)
    return [fact for fact in facts if fact.event != "running"] + _milestones(running, wanted)


def _of_machine(facts: list[_Fact]) -> list[_Fact]:
    """The events of a request that a machine's story needs: how long it waited, when HF heard that it runs, and the
    end.
    """
    own = [fact for fact in facts if fact.machines]
    begin = min((fact.at for fact in own), default=math.inf)
    before = [fact for fact in facts if fact.event == "asked" or (fact.event == "deferred" and fact.at <= begin)]
    return [*before, *own, *_first_told(facts, own)]


def _first_told(facts: Sequence[_Fact], own: Sequence[_Fact]) -> list[_Fact]:
    """The first answer that tells the machine as running, and the first that is terminal."""
    ran = min((fact.at for fact in own if fact.event == "running"), default=math.inf)
    told = [fact for fact in facts if fact.event == "told" and not fact.machines]
    runs = [fact for fact in told if fact.number and fact.at >= ran][:1]
    ends = [fact for fact in told if fact.about != RequestStatus.RUNNING][:1]
    return runs if runs == ends else runs + ends


def _facts(line: Line, ours: Callable[[str], bool]) -> Iterator[_Fact]:
    """The facts in a line about the machines that are ``ours``; a line that names no machine tells of all."""
    named = line.get("machines", ())
    machines = tuple([name for name in named if ours(name)])
    if named and not machines:
        return
    at = line["at"]
    number = _number(line, machines, whole=len(machines) == len(named))
    event = line["event"]
    fact = _Fact(_since(line, at), event, line.get("pool", ""), "", machines, number, line.get("text", ""), at)
    yield _READERS.get(event, _other)(fact, line)


def _number(line: Line, machines: tuple[str, ...], *, whole: bool) -> int:
    """How many events a line counts. A line that names other machines, too, counts only those of ours."""
    if whole and "times" in line:
        return line["times"]  # type: ignore[no-any-return]  # _is_readable has seen to it
    return line.get("count", len(machines) or 1)  # type: ignore[no-any-return]


def _since(line: Line, at: float) -> float:
    """When the first of the events that a line counts was met."""
    try:
        return when({"time": line["since"]}) if "since" in line else at
    except ValueError:
        return at


def _called(fact: _Fact, line: Line) -> _Fact:
    result = line.get("result", OK)
    if result == OK:
        return fact._replace(about=str(line.get("reason", "")))
    return fact._replace(about=result, event=f"{fact.event} refused")


def _closed(fact: _Fact, line: Line) -> _Fact:
    why = line.get("cause") or line.get("error") or ""
    return fact._replace(event=str(line.get("verdict", "closed")), about=str(why))


def _asked(fact: _Fact, line: Line) -> _Fact:
    account = f" for account {line['account']}" if line.get("account") else ""
    return fact._replace(about=f"of template {line.get('template', '?')}{account}")


def _waited(fact: _Fact, line: Line) -> _Fact:
    if line.get("over"):
        return fact._replace(about="over")
    bound = f" of {line['bound']}" if line.get("bound") is not None else ""
    error = f", {line['error']}" if "error" in line else ""
    return fact._replace(about=f"{_REASONS.get(line.get('reason', ''), line.get('reason', '?'))}{bound}{error}")


def _told(fact: _Fact, line: Line) -> _Fact:
    if line.get("answer") != "lost":
        return fact._replace(about=str(line.get("answer", "?")), number=line.get("running", 0))
    ends = f"ends in {line['seconds']} s" if line.get("seconds") else "is gone"
    return fact._replace(event="told lost", about=f"{ends} ({line.get('cause', 'unknown')})")


def _window(fact: _Fact, line: Line) -> _Fact:
    turned = ""
    if line.get("backing_off"):
        turned = f"; the pool backs off, {line.get('error', 'no reason known')}"
    elif "backing_off" in line:
        turned = "; the pool backs off no more"
    return fact._replace(about=f"{line.get('template', '?')} is {line.get('window', '?')}{turned}")


def _levered(fact: _Fact, line: Line) -> _Fact:
    why = f": {line['text']}" if line.get("text") else ""
    about = f" {line.get('result', 'pulled')} by {line.get('who', '?')}{why}"
    return fact._replace(event=str(line.get("lever", "lever")), about=about, words="")


def _other(fact: _Fact, line: Line) -> _Fact:
    """What somebody did, and why, as a command tells it."""
    who = f" by {line['who']}" if line.get("who") else ""
    why = f": {line['reason']}" if line.get("reason") else ""
    return fact._replace(about=f"{who}{why}")


_READERS: Mapping[str, Callable[[_Fact, Line], _Fact]] = {
    "asked": _asked,
    "back": lambda fact, line: fact._replace(about=str(line.get("return", "?"))),
    "close": _closed,
    "create": _called,
    "deferred": _waited,
    "delete": _called,
    "gone": lambda fact, _: fact,
    "lever": _levered,
    "opened": lambda fact, _: fact,
    "running": lambda fact, _: fact,
    "told": _told,
    "troubled": lambda fact, line: fact._replace(about=line.get("error", "")),
    "window": _window,
}

_REASONS: Mapping[str, str] = {
    PendingReason.WINDOW: "the window",
    PendingReason.CAP: "the cap",
    PendingReason.BACKOFF: "the pool backs off",
    PendingReason.PAUSED: "the pool is paused",
    PendingReason.BUDGET: "the budget",
}

_VERDICTS = frozenset({str(verdict) for verdict in Verdict} - {Verdict.OPEN, Verdict.SUCCEEDED})


def _remembered(
    memory: Memory, record: RequestRecord, slots: Sequence[Slot], facts: Sequence[_Fact], *, whole: bool
) -> Iterator[_Fact]:
    """What memory knows of slots and the journal does not tell: it is of an earlier version, or was rotated away."""
    told = defaultdict[str, set[str]](set)
    for fact in facts:
        told["ended" if fact.event in _VERDICTS else fact.event].update(fact.machines)
    if "asked" not in told:
        account = f" for account {record.rc_account}" if record.rc_account else ""
        of = f"of template {record.template}{account}"
        yield _Fact(memory.wall_of(record.read), "asked", about=of, number=record.count)
    opened = [slot for slot in slots if slot.submitted is not None]
    if not whole or sum(fact.number for fact in facts if fact.event == "opened") < len(opened):
        yield from (_of_slot(memory, slot, "opened", slot.opened) for slot in opened)
    yield from _steps(memory, _others(slots, told["running"]), "running")
    yield from _steps(memory, _others(slots, told["ended"]), "ended")
    yield from _steps(memory, _others(slots, told["gone"]), "gone")


def _others(slots: Sequence[Slot], names: Set[str]) -> list[Slot]:
    return [slot for slot in slots if slot.name not in names]


def _steps(memory: Memory, slots: Sequence[Slot], step: str) -> Iterator[_Fact]:
    """The step of those slots that have made it."""
    for slot in slots:
        if step == "running" and slot.ran is not None:
            yield _of_slot(memory, slot, "running", slot.ran)
        elif step == "gone" and slot.gone and slot.absent is not None:
            yield _of_slot(memory, slot, "gone", slot.absent)
        elif step == "ended" and slot.closed is not None:
            words = slot.failure.text if slot.failure else ""
            why = str(slot.cause or (slot.failure.error if slot.failure else ""))
            yield _of_slot(memory, slot, str(slot.verdict), slot.closed)._replace(about=why, words=words)


def _of_slot(memory: Memory, slot: Slot, event: str, at: float) -> _Fact:
    return _Fact(memory.wall_of(at), event, slot.pool, "", (slot.name,))


def _heard(memory: Memory | None, record: RequestRecord | ReturnRecord | None) -> list[_Fact]:
    if memory is None or record is None or record.told_at is None:
        return []
    return [_Fact(memory.wall_of(record.told_at), "heard", about=str(record.ended))]


# --- from facts to sentences ------------------------------------------------------------------------------------------


def _milestones(running: list[_Fact], wanted: int) -> list[_Fact]:
    """When the first machine ran, half of them, 90 % and the last: of a few each is told."""
    total = sum(fact.number for fact in running)
    if total <= FEW:
        return running
    steps = {1: "first", math.ceil(wanted / 2): "half", math.ceil(0.9 * wanted): "90 %", wanted: "all", total: "last"}
    told: dict[float, _Fact] = {}
    ran = 0
    for fact in sorted(running):
        before, ran = ran, ran + fact.number
        for step, word in steps.items():
            if before < step <= ran:
                last = "all" if step == wanted else word
                told[fact.at] = _Fact(fact.at, "milestone", fact.pool, f"{step:,} of {wanted:,}", (), step, last)
    return list(told.values())


def _merged(facts: Iterable[_Fact]) -> list[_Fact]:
    """Facts in order; equal ones that follow closely are one."""
    merged: list[_Fact | None] = []
    names: dict[int, list[str]] = {}
    latest: dict[tuple[str, ...], int] = {}
    for fact in sorted(facts, key=lambda fact: (fact.at, _ORDER.get(fact.event, len(_ORDER)))):
        fact = fact._replace(until=max(fact.at, fact.until))
        if fact.event == "deferred" and fact.about == "over":
            _end(merged, latest, fact.at)
            continue
        key = (fact.event, fact.pool, fact.about)
        place = latest.get(key)
        before = merged[place] if place is not None else None
        if place is None or before is None or fact.at - before.until > APART:
            latest[key] = len(merged)
            names[len(merged)] = list(fact.machines)
            merged.append(fact)
            continue
        names[place] += fact.machines
        number = fact.number if fact.event in ("told", "deferred") else before.number + fact.number
        merged[place] = before._replace(until=fact.until, number=number, words=fact.words or before.words)
    return [fact._replace(machines=tuple(names[place])) for place, fact in enumerate(merged) if fact]


def _end(merged: list[_Fact | None], latest: dict[tuple[str, ...], int], at: float) -> None:
    """The machines that waited wait no more."""
    for key in [key for key in latest if key[0] == "deferred"]:
        place = latest.pop(key)
        if fact := merged[place]:
            merged[place] = fact._replace(until=at)


def _sentence(fact: _Fact) -> Sentence:
    text = _SENTENCES.get(fact.event, _any)(fact)
    return Sentence(fact.at, fact.until, fact.event, text)


def _who(fact: _Fact) -> str:
    if 0 < len(fact.machines) <= FEW and fact.number == len(fact.machines):
        return ", ".join(fact.machines)
    return _many(fact.number, "machine")


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _in(fact: _Fact) -> str:
    return f" in pool {fact.pool}" if fact.pool else ""


def _because(fact: _Fact) -> str:
    """Class or cause, and the cloud's words."""
    return (f": {fact.about}" if fact.about else "") + _quoted(fact)


def _quoted(fact: _Fact) -> str:
    said = " ".join(fact.words.split())
    return f": “{said}”" if said else ""


def _refused(fact: _Fact, word: str) -> str:
    who = f" of {fact.machines[0]}" if fact.number == len(fact.machines) == 1 else ""
    return f"Pool {fact.pool} refused {_many(fact.number, word)}{who}{_because(fact)}."


def _taken(fact: _Fact, word: str) -> str:
    why = f" ({fact.about})" if fact.about else ""
    return f"Pool {fact.pool} took the {word} of {_who(fact)}{why}."


def _ended(fact: _Fact) -> str:
    return f"{_who(fact)} {'was' if fact.number == 1 else 'were'} {fact.event}{_in(fact)}{_because(fact)}."


def _run(fact: _Fact) -> str:
    return f"{_who(fact)} {'runs' if fact.number == 1 else 'run'}{_in(fact)}."


def _milestone(fact: _Fact) -> str:
    words = {"first": "The first machine runs", "half": "Half run", "90 %": "90 % run", "all": "All run"}
    return f"{words.get(fact.words, 'The last so far runs')}: {fact.about}."


def _waits(fact: _Fact) -> str:
    return f"{_many(fact.number, 'machine')} {'waits' if fact.number == 1 else 'wait'}{_in(fact)}{_because(fact)}."


def _answer(fact: _Fact) -> str:
    run = f"{_many(fact.number, 'machine')} {'runs' if fact.number == 1 else 'run'}"
    if fact.about == RequestStatus.RUNNING:
        return f"HostFactory is told that {run}."
    return f"HostFactory is told the end: {fact.about}{f'; {run}' if fact.number else ''}."


_SENTENCES: Mapping[str, Callable[[_Fact], str]] = {
    "asked": lambda fact: f"HostFactory asked for {_many(fact.number, 'machine')} {fact.about}.",
    "deferred": _waits,
    "opened": lambda fact: f"{_many(fact.number, 'slot')} opened{_in(fact)}.",
    "create": lambda fact: _taken(fact, "create" if fact.number == 1 else "creates"),
    "create refused": lambda fact: _refused(fact, "create"),
    "troubled": lambda fact: f"The cloud says of {_who(fact)}{_in(fact)}{_because(fact)}.",
    "running": _run,
    "milestone": _milestone,
    "told": _answer,
    "heard": lambda fact: f"HostFactory has heard the end: {fact.about}.",
    "lost": _ended,
    "told lost": lambda fact: f"HostFactory is told that {_who(fact)} {fact.about}.",
    "back": lambda fact: f"HostFactory gave back {_who(fact)} (return request {fact.about}).",
    "failed": lambda fact: f"{_who(fact)} failed{_in(fact)}{_because(fact)}.",
    "withdrawn": _ended,
    "returned": _ended,
    "cancelled": _ended,
    "delete": lambda fact: _taken(fact, "delete" if fact.number == 1 else "deletes"),
    "delete refused": lambda fact: _refused(fact, "delete"),
    "gone": lambda fact: f"Nothing is left of {_who(fact)}.",
    "window": lambda fact: f"The window of template {fact.about}{_quoted(fact)}.",
}
"""The order is that in which events of one moment are told."""

_ORDER = {event: place for place, event in enumerate(_SENTENCES)}


def _any(fact: _Fact) -> str:
    who = f" {_who(fact)}" if fact.machines else ""
    return f"{fact.event.replace('_', ' ').capitalize()}{who}{_in(fact)}{fact.about}."


def machines_of(memory: Memory, request: str) -> list[dict[str, Any]]:
    """Each machine of a request: its ``pool``, its slot's ``verdict``, whether it ``ran``, and is ``gone``."""
    record = memory.requests.get(request)
    return [
        {
            "machine": slot.name,
            "pool": slot.pool,
            "verdict": str(slot.verdict),
            "ran": slot.ran is not None,
            "gone": slot.gone,
            "text": slot.failure.text if slot.failure else "",
        }
        for slot in (record.slots.values() if record else ())
    ]
