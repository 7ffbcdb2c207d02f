"""The facts of a timeline: what a line of the journal says of the machines that are asked for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from provisioner.model import PendingReason
from provisioner.state.journal import Line, when

OK = "ok"
"""The ``result`` of a create or delete that the cloud accepted."""


class Fact(NamedTuple):
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


# --- lines -----------------------------------------------------------------------------------------------------------


def folded(lines: Iterable[Line]) -> list[Line]:
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


def is_readable(line: Line) -> bool:
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


# --- from lines to facts ----------------------------------------------------------------------------------------------


def facts_of_line(line: Line, ours: Callable[[str], bool]) -> Iterator[Fact]:
    """The facts in a line about the machines that are ``ours``; a line that names no machine tells of all."""
    named = line.get("machines", ())
    machines = tuple([name for name in named if ours(name)])
    if named and not machines:
        return
    at = line["at"]
    number = _number(line, machines, whole=len(machines) == len(named))
    event = line["event"]
    fact = Fact(_since(line, at), event, line.get("pool", ""), "", machines, number, line.get("text", ""), at)
    yield _READERS.get(event, _other)(fact, line)


def _number(line: Line, machines: tuple[str, ...], *, whole: bool) -> int:
    """How many events a line counts. A line that names other machines, too, counts only those of ours."""
    if whole and "times" in line:
        return line["times"]  # type: ignore[no-any-return]  # is_readable has seen to it
    return line.get("count", len(machines) or 1)  # type: ignore[no-any-return]


def _since(line: Line, at: float) -> float:
    """When the first of the events that a line counts was met."""
    try:
        return when({"time": line["since"]}) if "since" in line else at
    except ValueError:
        return at


def _called(fact: Fact, line: Line) -> Fact:
    result = line.get("result", OK)
    if result == OK:
        return fact._replace(about=str(line.get("reason", "")))
    return fact._replace(about=result, event=f"{fact.event} refused")


def _closed(fact: Fact, line: Line) -> Fact:
    why = line.get("cause") or line.get("error") or ""
    return fact._replace(event=str(line.get("verdict", "closed")), about=str(why))


def _asked(fact: Fact, line: Line) -> Fact:
    account = f" for account {line['account']}" if line.get("account") else ""
    return fact._replace(about=f"of template {line.get('template', '?')}{account}")


def _waited(fact: Fact, line: Line) -> Fact:
    if line.get("over"):
        return fact._replace(about="over")
    bound = f" of {line['bound']}" if line.get("bound") is not None else ""
    error = f", {line['error']}" if "error" in line else ""
    return fact._replace(about=f"{_REASONS.get(line.get('reason', ''), line.get('reason', '?'))}{bound}{error}")


def _told(fact: Fact, line: Line) -> Fact:
    if line.get("answer") != "lost":
        return fact._replace(about=str(line.get("answer", "?")), number=line.get("running", 0))
    ends = f"ends in {line['seconds']} s" if line.get("seconds") else "is gone"
    return fact._replace(event="told lost", about=f"{ends} ({line.get('cause', 'unknown')})")


def _window(fact: Fact, line: Line) -> Fact:
    turned = ""
    if line.get("backing_off"):
        turned = f"; the pool backs off, {line.get('error', 'no reason known')}"
    elif "backing_off" in line:
        turned = "; the pool backs off no more"
    return fact._replace(about=f"{line.get('template', '?')} is {line.get('window', '?')}{turned}")


def _levered(fact: Fact, line: Line) -> Fact:
    why = f": {line['text']}" if line.get("text") else ""
    about = f" {line.get('result', 'pulled')} by {line.get('who', '?')}{why}"
    return fact._replace(event=str(line.get("lever", "lever")), about=about, words="")


def _other(fact: Fact, line: Line) -> Fact:
    """What somebody did, and why, as a command tells it."""
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
    "lever": _levered,
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
