"""The sentences of a timeline. Each journal line becomes a fact. Equal facts become one sentence if they follow each
other soon. The functions are pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from provisioner.model import PendingReason, RequestStatus
from provisioner.state.journal import Line, parse_time

FEW = 3
"""Maximum number of machines that a sentence names. If there are more machines, the sentence gives only their
number."""

APART = 600.0
"""Maximum seconds between two equal events that become one sentence."""


class Fact(NamedTuple):
    """An event of the subject, from a journal line or from a slot in memory. Times are epoch seconds."""

    at: float
    event: str
    pool: str = ""
    about: str = ""
    """A detail of the event. Facts are equal if event, pool and this detail are equal."""
    machines: tuple[str, ...] = ()
    number: int = 1
    """Number of machines, slots or calls."""
    words: str = ""
    """The failure in the cloud's words; empty if there is no failure."""
    until: float = 0.0


class Sentence(NamedTuple):
    """An event as text. Times are epoch seconds."""

    at: float
    until: float
    """The time at which the last event in the sentence ended. For a single event without a duration, this time is
    ``at``."""
    event: str
    text: str


# --- from lines to facts ----------------------------------------------------------------------------------------------


def read_facts(lines: Iterable[Line], is_ours: Callable[[str], bool] = lambda _: True) -> list[Fact]:
    """Return a fact for each line. Of the machines that a line names, keep those for which ``is_ours`` is true. Leave
    out a line that names only other machines."""
    return [fact for line in lines if (fact := _read_line(line, is_ours))]


def _read_line(line: Line, is_ours: Callable[[str], bool]) -> Fact | None:
    named, at, event = line.get("machines", ()), line["at"], line["event"]
    machines = tuple([name for name in named if is_ours(name)])
    if named and not machines:
        return None
    # if the line also names other machines, count only those that are ours
    number = line.get("times") if len(machines) == len(named) else None
    if number is None:
        number = line.get("count", len(machines) or 1)
    try:
        since = parse_time({"time": line["since"]}) if "since" in line else at
    except ValueError:
        since = at
    fact = Fact(since, event, line.get("pool", ""), "", machines, number, line.get("text", ""), at)
    return fact._replace(**_READERS.get(event, _read_command)(line))


def format_order(template: str, account: object) -> str:
    """Return the last words of a sentence about a request: the request's template and account."""
    return f"of template {template}" + (f" for account {account}" if account else "")


def _read_close(line: Line) -> dict[str, Any]:
    return {"about": line.get("cause") or line.get("error") or "", "event": line.get("verdict", "closed")}


def _read_call(line: Line) -> dict[str, Any]:
    result = line.get("result", "ok")
    if result == "ok":
        return {"about": line.get("reason", "")}
    return {"about": result, "event": f"{line['event']} refused"}


def _read_deferral(line: Line) -> dict[str, Any]:
    if line.get("over"):
        return {"about": "over"}
    bound = f" of {line['bound']}" if line.get("bound") is not None else ""
    error = f", {line['error']}" if "error" in line else ""
    reason = line.get("reason", "?")
    return {"about": f"{_REASONS.get(reason, reason)}{bound}{error}"}


def _read_answer(line: Line) -> dict[str, Any]:
    answer = line.get("answer", "?")
    if answer != "lost":
        return {"about": answer, "number": line.get("running", 0)}
    cause, seconds = line.get("cause", "unknown"), line.get("seconds")
    if cause in ("drained", "cancelled", "aged"):  # the machine runs until HostFactory returns it
        return {"about": cause, "event": "asked back"}
    if seconds:
        return {"about": f"in {seconds} s ({cause})", "event": "ending"}
    return {"about": cause, "event": "reported lost"}


def _read_window(line: Line) -> dict[str, Any]:
    turned = ""
    if line.get("backing_off"):
        turned = f"; the pool backs off, {line.get('error', 'no reason known')}"
    elif "backing_off" in line:
        turned = "; the pool backs off no more"
    return {"about": f"{line.get('template', '?')} is {line.get('window', '?')}{turned}"}


def _read_hold(line: Line) -> dict[str, Any]:
    why = f": {line['text']}" if line.get("text") else ""
    about = f" {line.get('result', 'set')} by {line.get('who') or '?'}{why}"
    return {"about": about, "event": str(line.get("hold", "hold")), "words": ""}


def _read_command(line: Line) -> dict[str, Any]:
    """Return the operator and the reason from a line that a command wrote."""
    who = f" by {line['who']}" if line.get("who") else ""
    why = f": {line['reason']}" if line.get("reason") else ""
    return {"about": f"{who}{why}"}


_READERS: Mapping[str, Callable[[Line], dict[str, Any]]] = {
    "asked": lambda line: {"about": format_order(line.get("template", "?"), line.get("account"))},
    "return": lambda line: {"about": str(line.get("return", "?"))},
    "close": _read_close,
    "create": _read_call,
    "deferred": _read_deferral,
    "delete": _read_call,
    "hold": _read_hold,
    "reported": _read_answer,
    "troubled": lambda line: {"about": line.get("error", "")},
    "window": _read_window,
}
"""The fields of a ``Fact`` that depend on the event: a function for each event, which reads these fields from a journal
line. Lines of other events are read by ``_read_command``."""

_REASONS: Mapping[str, str] = {
    PendingReason.WINDOW: "the window",
    PendingReason.CAP: "the cap",
    PendingReason.BACKOFF: "the pool backs off",
    PendingReason.PAUSED: "the pool is paused",
    PendingReason.STOPPED: "all is stopped",
    PendingReason.BUDGET: "the budget",
}


# --- from facts to sentences ------------------------------------------------------------------------------------------


def sentences(facts: Iterable[Fact]) -> list[Sentence]:
    """Return the sentences in order. Equal facts become one sentence if they follow each other soon."""
    merged: list[Fact] = []
    names: list[list[str]] = []
    latest: dict[tuple[str, ...], int] = {}
    """Index in ``merged`` of the newest fact of each event, pool and detail."""
    for fact in sorted(facts, key=lambda fact: (fact.at, _ORDER.get(fact.event, len(_ORDER)))):
        until = max(fact.at, fact.until)
        if fact.event == "deferred" and fact.about == "over":  # no machine is deferred any more
            for key in [key for key in latest if key[0] == "deferred"]:
                place = latest.pop(key)
                merged[place] = merged[place]._replace(until=fact.at)
            continue
        key = (fact.event, fact.pool, fact.about)
        if key in latest and fact.at - merged[latest[key]].until <= APART:
            place, before = latest[key], merged[latest[key]]
            names[place] += fact.machines
            number = fact.number if fact.event in ("reported", "deferred") else before.number + fact.number
            merged[place] = before._replace(until=until, number=number, words=fact.words or before.words)
        else:
            latest[key] = len(merged)
            names.append(list(fact.machines))
            merged.append(fact._replace(until=until))
    complete = [fact._replace(machines=tuple(own)) for fact, own in zip(merged, names, strict=True)]
    return [Sentence(fact.at, fact.until, fact.event, _format_sentence(fact)) for fact in complete]


_SENTENCES: Mapping[str, str] = {
    "asked": "HostFactory asked for {n} machine{s} {about}.",
    "deferred": "{n} machine{s} wait{es}{in_pool}{because}.",
    "opened": "{n} slot{s} opened{in_pool}.",
    "create": "Pool {pool} accepted the create{s} of {who}{in_brackets}.",
    "create refused": "Pool {pool} refused {n} create{s}{of_one}{because}.",
    "troubled": "The cloud says of {who}{in_pool}{because}.",
    "running": "{who} run{es}{in_pool}.",
    "milestone": "{words}: {about}.",
    "reported": "The loop reports the end to HostFactory: {about}{and_run}.",
    "reported running": "The loop reports to HostFactory that {n} machine{s} run{es}.",
    "heard": "HostFactory has read the end: {about}.",
    "lost": "{who} {were} lost{in_pool}{because}.",
    "reported lost": "The loop reports to HostFactory that {who} {are} gone{in_brackets}.",
    "ending": "The loop reports to HostFactory that {who} end{es} {about}.",
    "asked back": "The loop asks HostFactory to return {who}{in_brackets}.",
    "return": "HostFactory returned {who} (return request {about}).",
    "failed": "{who} failed{in_pool}{because}.",
    "withdrawn": "{who} {were} withdrawn{in_pool}{because}.",
    "returned": "{who} {were} returned{in_pool}{because}.",
    "cancelled": "{who} {were} cancelled{in_pool}{because}.",
    "delete": "Pool {pool} accepted the delete{s} of {who}{in_brackets}.",
    "delete refused": "Pool {pool} refused {n} delete{s}{of_one}{because}.",
    "gone": "{who} {are} gone.",
    "window": "The window of template {about}{quoted}.",
}
"""The sentence of each event. Events at the same time are sorted in the order of this table."""

_ORDER = {event: place for place, event in enumerate(_SENTENCES)}


def _format_sentence(fact: Fact) -> str:
    names, about, quote = fact.machines, fact.about, " ".join(fact.words.split())
    s, es, were, are = ("", "s", "was", "is") if fact.number == 1 else ("s", "", "were", "are")
    n = f"{fact.number:,}"
    who = ", ".join(names) if 0 < len(names) <= FEW and fact.number == len(names) else f"{n} machine{s}"
    quoted = f": “{quote}”" if quote else ""
    is_running = (fact.event, about) == ("reported", RequestStatus.RUNNING)
    form = _SENTENCES.get("reported running" if is_running else fact.event, "{event}{of_who}{in_pool}{about}.")
    return form.format(
        n=n,
        s=s,
        es=es,
        were=were,
        are=are,
        who=who,
        quoted=quoted,
        about=about,
        pool=fact.pool,
        words=fact.words,
        event=fact.event.replace("_", " ").capitalize(),
        in_pool=f" in pool {fact.pool}" if fact.pool else "",
        in_brackets=f" ({about})" if about else "",
        because=(f": {about}" if about else "") + quoted,
        of_who=f" {who}" if names else "",
        of_one=f" of {names[0]}" if fact.number == len(names) == 1 else "",
        and_run=f"; {n} machine{s} run{es}" if fact.number else "",
    )
