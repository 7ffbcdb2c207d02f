"""The sentences of a timeline: facts that follow closely are one, and each becomes a sentence for people. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from provisioner.model import RequestStatus
from provisioner.telemetry.timeline_facts import Fact

FEW = 3
"""Machines that a sentence names; of more it says how many."""

APART = 600.0
"""Equal events less than so many seconds apart are one sentence."""


class Sentence(NamedTuple):
    """What happened; times are epoch seconds."""

    at: float
    until: float
    """When it happened last, or was over; the same as ``at`` where it happened once."""
    event: str
    text: str


def milestones(running: list[Fact], wanted: int) -> list[Fact]:
    """When the first machine ran, half of them, 90 % and the last: of a few each is told."""
    total = sum(fact.number for fact in running)
    if total <= FEW:
        return running
    steps = {1: "first", math.ceil(wanted / 2): "half", math.ceil(0.9 * wanted): "90 %", wanted: "all", total: "last"}
    told: dict[float, Fact] = {}
    ran = 0
    for fact in sorted(running):
        before, ran = ran, ran + fact.number
        for step, word in steps.items():
            if before < step <= ran:
                last = "all" if step == wanted else word
                told[fact.at] = Fact(fact.at, "milestone", fact.pool, f"{step:,} of {wanted:,}", (), step, last)
    return list(told.values())


def merged(facts: Iterable[Fact]) -> list[Fact]:
    """Facts in order; equal ones that follow closely are one."""
    merged: list[Fact | None] = []
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


def _end(merged: list[Fact | None], latest: dict[tuple[str, ...], int], at: float) -> None:
    """The machines that waited wait no more."""
    for key in [key for key in latest if key[0] == "deferred"]:
        place = latest.pop(key)
        if fact := merged[place]:
            merged[place] = fact._replace(until=at)


def sentence_of(fact: Fact) -> Sentence:
    text = _SENTENCES.get(fact.event, _any)(fact)
    return Sentence(fact.at, fact.until, fact.event, text)


def _who(fact: Fact) -> str:
    if 0 < len(fact.machines) <= FEW and fact.number == len(fact.machines):
        return ", ".join(fact.machines)
    return _many(fact.number, "machine")


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


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
    return f"Pool {fact.pool} took the {word} of {_who(fact)}{why}."


def _ended(fact: Fact) -> str:
    return f"{_who(fact)} {'was' if fact.number == 1 else 'were'} {fact.event}{_in(fact)}{_because(fact)}."


def _run(fact: Fact) -> str:
    return f"{_who(fact)} {'runs' if fact.number == 1 else 'run'}{_in(fact)}."


def _milestone(fact: Fact) -> str:
    words = {"first": "The first machine runs", "half": "Half run", "90 %": "90 % run", "all": "All run"}
    return f"{words.get(fact.words, 'The last so far runs')}: {fact.about}."


def _waits(fact: Fact) -> str:
    return f"{_many(fact.number, 'machine')} {'waits' if fact.number == 1 else 'wait'}{_in(fact)}{_because(fact)}."


def _answer(fact: Fact) -> str:
    run = f"{_many(fact.number, 'machine')} {'runs' if fact.number == 1 else 'run'}"
    if fact.about == RequestStatus.RUNNING:
        return f"HostFactory is told that {run}."
    return f"HostFactory is told the end: {fact.about}{f'; {run}' if fact.number else ''}."


_SENTENCES: Mapping[str, Callable[[Fact], str]] = {
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


def _any(fact: Fact) -> str:
    who = f" {_who(fact)}" if fact.machines else ""
    return f"{fact.event.replace('_', ' ').capitalize()}{who}{_in(fact)}{fact.about}."
