"""The events of a timeline: a line of the journal becomes a fact, facts that follow closely a sentence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from provisioner.model import PendingReason, RequestStatus
from provisioner.state.journal import Line, when

FEW = 3
"""Machines that a sentence names; of more it says how many."""

APART = 600.0
"""Equal events less than so many seconds apart are one sentence."""


class Fact(NamedTuple):
    """What a line of the journal, or a slot in memory, says of the subject."""

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


class Sentence(NamedTuple):
    """What happened; times are epoch seconds."""

    at: float
    until: float
    """When it happened last, or was over; the same as ``at`` where it happened once."""
    event: str
    text: str


# --- from lines to facts ----------------------------------------------------------------------------------------------


def facts_in(lines: Iterable[Line], ours: Callable[[str], bool] = lambda _: True) -> list[Fact]:
    """Return the facts about the machines that are ``ours``; a line that names no machine speaks of all."""
    return [fact for line in lines if (fact := _fact(line, ours))]


def _fact(line: Line, ours: Callable[[str], bool]) -> Fact | None:
    named, at, event = line.get("machines", ()), line["at"], line["event"]
    machines = tuple([name for name in named if ours(name)])
    if named and not machines:
        return None
    # A line that names other machines, too, counts only those of ours.
    number = line.get("times") if len(machines) == len(named) else None
    if number is None:
        number = line.get("count", len(machines) or 1)
    try:
        since = when({"time": line["since"]}) if "since" in line else at
    except ValueError:
        since = at
    fact = Fact(since, event, line.get("pool", ""), "", machines, number, line.get("text", ""), at)
    return _READERS.get(event, _done)(fact, line)


def _asked(fact: Fact, line: Line) -> Fact:
    return fact._replace(about=asked_for(line.get("template", "?"), line.get("account")))


def asked_for(template: str, account: object) -> str:
    """Return what a request asks for."""
    return f"of template {template}" + (f" for account {account}" if account else "")


def _called(fact: Fact, line: Line) -> Fact:
    result = line.get("result", "ok")
    if result == "ok":
        return fact._replace(about=line.get("reason", ""))
    return fact._replace(about=result, event=f"{fact.event} refused")


def _closed(fact: Fact, line: Line) -> Fact:
    return fact._replace(event=line.get("verdict", "closed"), about=line.get("cause") or line.get("error") or "")


def _waited(fact: Fact, line: Line) -> Fact:
    if line.get("over"):
        return fact._replace(about="over")
    bound = f" of {line['bound']}" if line.get("bound") is not None else ""
    error = f", {line['error']}" if "error" in line else ""
    reason = line.get("reason", "?")
    return fact._replace(about=f"{_REASONS.get(reason, reason)}{bound}{error}")


def _answered(fact: Fact, line: Line) -> Fact:
    answer = line.get("answer", "?")
    if answer != "lost":
        return fact._replace(about=answer, number=line.get("running", 0))
    ends = f"ends in {line['seconds']} s" if line.get("seconds") else "is gone"
    return fact._replace(event="told lost", about=f"{ends} ({line.get('cause', 'unknown')})")


def _learned(fact: Fact, line: Line) -> Fact:
    turned = ""
    if line.get("backing_off"):
        turned = f"; the pool backs off, {line.get('error', 'no reason known')}"
    elif "backing_off" in line:
        turned = "; the pool backs off no more"
    return fact._replace(about=f"{line.get('template', '?')} is {line.get('window', '?')}{turned}")


def _held(fact: Fact, line: Line) -> Fact:
    why = f": {line['text']}" if line.get("text") else ""
    about = f" {line.get('result', 'pulled')} by {line.get('who', '?')}{why}"
    return fact._replace(event=str(line.get("lever", "lever")), about=about, words="")


def _done(fact: Fact, line: Line) -> Fact:
    """Read what an operator did, and why, as a command writes it."""
    who = f" by {line['who']}" if line.get("who") else ""
    why = f": {line['reason']}" if line.get("reason") else ""
    return fact._replace(about=f"{who}{why}")


_READERS: Mapping[str, Callable[[Fact, Line], Fact]] = {
    "asked": _asked,
    "back": lambda fact, line: fact._replace(about=str(line.get("return", "?"))),
    "close": _closed,
    "create": _called,
    "deferred": _waited,
    "delete": _called,
    "lever": _held,
    "told": _answered,
    "troubled": lambda fact, line: fact._replace(about=line.get("error", "")),
    "window": _learned,
}

_REASONS: Mapping[str, str] = {
    PendingReason.WINDOW: "the window",
    PendingReason.CAP: "the cap",
    PendingReason.BACKOFF: "the pool backs off",
    PendingReason.PAUSED: "the pool is paused",
    PendingReason.BUDGET: "the budget",
}


# --- from facts to sentences ------------------------------------------------------------------------------------------


def sentences(facts: Iterable[Fact]) -> list[Sentence]:
    """Return the sentences in order. Equal facts that follow closely are one."""
    merged: list[Fact] = []
    names: list[list[str]] = []
    latest: dict[tuple[str, ...], int] = {}
    """The place of the newest fact of each kind."""
    for fact in sorted(facts, key=lambda fact: (fact.at, _ORDER.get(fact.event, len(_ORDER)))):
        until = max(fact.at, fact.until)
        if fact.event == "deferred" and fact.about == "over":  # the machines that waited wait no more
            for key in [key for key in latest if key[0] == "deferred"]:
                place = latest.pop(key)
                merged[place] = merged[place]._replace(until=fact.at)
            continue
        key = (fact.event, fact.pool, fact.about)
        if key in latest and fact.at - merged[latest[key]].until <= APART:
            place, before = latest[key], merged[latest[key]]
            names[place] += fact.machines
            number = fact.number if fact.event in ("told", "deferred") else before.number + fact.number
            merged[place] = before._replace(until=until, number=number, words=fact.words or before.words)
        else:
            latest[key] = len(merged)
            names.append(list(fact.machines))
            merged.append(fact._replace(until=until))
    whole = [fact._replace(machines=tuple(own)) for fact, own in zip(merged, names, strict=True)]
    return [Sentence(fact.at, fact.until, fact.event, _SENTENCES.get(fact.event, _any)(fact)) for fact in whole]


def _who(fact: Fact) -> str:
    if 0 < len(fact.machines) <= FEW and fact.number == len(fact.machines):
        return ", ".join(fact.machines)
    return _many(fact.number, "machine")


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _do(fact: Fact, one: str, many: str) -> str:
    return one if fact.number == 1 else many


def _in(fact: Fact) -> str:
    return f" in pool {fact.pool}" if fact.pool else ""


def _because(fact: Fact) -> str:
    """Class or cause, and the cloud's words."""
    return (f": {fact.about}" if fact.about else "") + _quoted(fact)


def _quoted(fact: Fact) -> str:
    said = " ".join(fact.words.split())
    return f": “{said}”" if said else ""


def _refused(fact: Fact, word: str) -> str:
    who = f" of {fact.machines[0]}" if fact.number == len(fact.machines) == 1 else ""
    return f"Pool {fact.pool} refused {_many(fact.number, word)}{who}{_because(fact)}."


def _taken(fact: Fact, word: str) -> str:
    why = f" ({fact.about})" if fact.about else ""
    return f"Pool {fact.pool} took the {_do(fact, word, f'{word}s')} of {_who(fact)}{why}."


def _ended(fact: Fact) -> str:
    return f"{_who(fact)} {_do(fact, 'was', 'were')} {fact.event}{_in(fact)}{_because(fact)}."


def _waits(fact: Fact) -> str:
    return f"{_many(fact.number, 'machine')} {_do(fact, 'waits', 'wait')}{_in(fact)}{_because(fact)}."


def _answer(fact: Fact) -> str:
    run = f"{_many(fact.number, 'machine')} {_do(fact, 'runs', 'run')}"
    if fact.about == RequestStatus.RUNNING:
        return f"HostFactory is told that {run}."
    return f"HostFactory is told the end: {fact.about}{f'; {run}' if fact.number else ''}."


def _any(fact: Fact) -> str:
    who = f" {_who(fact)}" if fact.machines else ""
    return f"{fact.event.replace('_', ' ').capitalize()}{who}{_in(fact)}{fact.about}."


_SENTENCES: Mapping[str, Callable[[Fact], str]] = {
    "asked": lambda fact: f"HostFactory asked for {_many(fact.number, 'machine')} {fact.about}.",
    "deferred": _waits,
    "opened": lambda fact: f"{_many(fact.number, 'slot')} opened{_in(fact)}.",
    "create": lambda fact: _taken(fact, "create"),
    "create refused": lambda fact: _refused(fact, "create"),
    "troubled": lambda fact: f"The cloud says of {_who(fact)}{_in(fact)}{_because(fact)}.",
    "running": lambda fact: f"{_who(fact)} {_do(fact, 'runs', 'run')}{_in(fact)}.",
    "milestone": lambda fact: f"{fact.words}: {fact.about}.",
    "told": _answer,
    "heard": lambda fact: f"HostFactory has heard the end: {fact.about}.",
    "lost": _ended,
    "told lost": lambda fact: f"HostFactory is told that {_who(fact)} {fact.about}.",
    "back": lambda fact: f"HostFactory gave back {_who(fact)} (return request {fact.about}).",
    "failed": lambda fact: f"{_who(fact)} failed{_in(fact)}{_because(fact)}.",
    "withdrawn": _ended,
    "returned": _ended,
    "cancelled": _ended,
    "delete": lambda fact: _taken(fact, "delete"),
    "delete refused": lambda fact: _refused(fact, "delete"),
    "gone": lambda fact: f"Nothing is left of {_who(fact)}.",
    "window": lambda fact: f"The window of template {fact.about}{_quoted(fact)}.",
}
"""The order is that in which events of one moment are told."""

_ORDER = {event: place for place, event in enumerate(_SENTENCES)}
