"""``provisioner replay``: a recorded run of HostFactory played again against the scripts.

Ids and names of the recording are not those of the replay: what the recorded requests are called now, and their
machines, is learnt from the answers and put in their place.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import hf_scripts

SCRIPTS = Path(hf_scripts.__file__).parent
SQLITE = b"SQLite format 3\0"
CATEGORIES = {
    "template": "getAvailableTemplates",
    "request": "requestMachines",
    "request-status": "getRequestStatus",
    "return": "requestReturnMachines",
    "return-request": "getReturnRequests",
}
"""What Morgan Stanley's traces call the commands, in the table events(category, id, timestamp, type, value)."""

Document = dict[str, Any]


class TraceError(Exception):
    """The trace cannot be read; the text is one line."""


class Event(NamedTuple):
    """One recorded call."""

    time: float
    """Epoch seconds."""
    command: str
    document: Document
    request: str = ""
    """For a request or return: the id it was given; empty when it was refused."""
    machines: Mapping[str, tuple[str, ...]] = {}
    """For getRequestStatus: the machines of each request, as they were listed."""


class Outcome(NamedTuple):
    """How a script ended."""

    code: int
    answer: Document
    """Empty when it refused."""


Call = Callable[[str, Document], Outcome]


# --- traces -----------------------------------------------------------------------------------------------------------


def read_trace(path: Path) -> list[Event]:
    """The calls of a trace in their order; raises TraceError. The format is told by the file's beginning."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(SQLITE))
        events = list(_rows(path) if begins == SQLITE else _lines(path))
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    return sorted(events, key=lambda event: event.time)


def _rows(path: Path) -> Iterator[Event]:
    """Morgan Stanley's format: a request's id is its event's id."""
    marks = ", ".join("?" * len(CATEGORIES))
    query = f"SELECT category, id, timestamp, value FROM events WHERE type = 'input' AND category IN ({marks})"
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        for category, id_, when, value in database.execute(query, list(CATEGORIES)):
            document = _parsed(path, f"event {id_}", value or "{}")
            yield Event(float(when), CATEGORIES[category], document, str(id_))


def _lines(path: Path) -> Iterator[Event]:
    """Our own format: what the scripts write with ``--record``."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"line {number}"
        entry = _parsed(path, where, line)
        match entry:
            case {"time": int() | float() as when, "command": str(command), "input": dict(document)} if (
                command in CATEGORIES.values()
            ):
                output = entry["output"] if isinstance(entry.get("output"), dict) else {}
                yield Event(float(when), command, document, str(output.get("requestId", "")), _machines(output))
            case _:
                raise TraceError(f"{path}: {where}: expected time, command and input of a call")


def _parsed(path: Path, where: str, text: str) -> Document:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{path}: {where}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise TraceError(f"{path}: {where}: expected an object")
    return document


def _machines(answer: Document) -> dict[str, tuple[str, ...]]:
    """The machines of each request in an answer of getRequestStatus."""
    return {
        entry["requestId"]: tuple(machine["name"] for machine in entry.get("machines") or ())
        for entry in answer.get("requests") or ()
        if "requestId" in entry
    }


# --- replaying --------------------------------------------------------------------------------------------------------


@dataclass
class Replay:
    """One replay: what was learnt and counted so far."""

    call: Call
    speed: float = 1.0
    """How many times faster than it was recorded."""
    longest_gap: float = float("inf")
    """Seconds that are waited at most between two calls."""
    wait: Callable[[float], None] = time.sleep
    calls: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    strangers: set[str] = field(default_factory=set)
    """Recorded names of machines for which the replay has none; they are sent as they are."""
    _ids: dict[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _made: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Machines of each request of the replay, as they were last listed."""
    _recorded: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Machines of each request of the recording, likewise."""

    def play(self, events: Iterable[Event]) -> None:
        """Every call, with the gaps between them."""
        before: float | None = None
        for event in events:
            if before is not None:
                self.wait(min((event.time - before) / self.speed, self.longest_gap))
            before = event.time
            self._play(event)

    def report(self) -> Document:
        """What was called, what was refused, what had no counterpart."""
        return {
            "calls": dict(sorted(self.calls.items())),
            "refused": dict(sorted(self.refused.items())),
            "unknown_machines": len(self.strangers),
        }

    def _play(self, event: Event) -> None:
        self._recorded |= {old: machines for old, machines in event.machines.items() if machines}
        answer = self._called(event.command, self._translated(event))
        if event.request and "requestId" in answer:
            self._ids[event.request] = answer["requestId"]
        self._made |= _machines(answer)

    def _called(self, command: str, document: Document) -> Document:
        self.calls[command] += 1
        outcome = self.call(command, document)
        self.refused[command] += outcome.code != 0
        return outcome.answer

    def _translated(self, event: Event) -> Document:
        document = dict(event.document)
        if event.command == "getRequestStatus":
            asked = _listed(document, "requests")
            document["requests"] = [one | {"requestId": self._id(one)} for one in asked]
        elif "machines" in document:
            listed = _listed(document, "machines")
            self._ask_for(listed)
            document["machines"] = [self._machine(one) for one in listed]
        return document

    def _id(self, entry: Document) -> str:
        return self._ids.get(str(entry.get("requestId")), str(entry.get("requestId")))

    def _machine(self, entry: Document) -> Document:
        own = self._own_name(entry)
        if own is None:
            self.strangers.add(str(entry.get("machineId") or entry.get("name")))
            return entry
        return entry | {"name": own, "machineId": own}

    def _own_name(self, entry: Document) -> str | None:
        """The replay's machine for a recorded one; Morgan Stanley's machineId is a pod's uid, which tells nothing."""
        known = (self._names.get(str(entry.get(key))) for key in ("machineId", "name"))
        return next((name for name in known if name is not None), None)

    def _ask_for(self, listed: Iterable[Document]) -> None:
        """Poll once for what is returned or listed before the replay has heard of it."""
        self._pair()
        if self._ids and any(self._own_name(one) is None for one in listed):
            requests = [{"requestId": new} for new in self._ids.values()]
            self._made |= _machines(self.call("getRequestStatus", {"requests": requests}).answer)
            self._pair()

    def _pair(self) -> None:
        """A recorded request's machines are the replay's, in the same order.

        Morgan Stanley's are called ``<request id>-<n>``, and its traces need not list them.
        """
        for old, new in self._ids.items():
            made = self._made.get(new, ())
            recorded = self._recorded.get(old) or [f"{old}-{number}" for number in range(len(made))]
            for name, own in zip(recorded, made, strict=False):
                self._names.setdefault(name, own)


def _listed(document: Document, key: str) -> list[Document]:
    value = document.get(key) or []
    return [value] if isinstance(value, dict) else [one for one in value if isinstance(one, dict)]


def run_script(command: str, document: Document) -> Outcome:
    """Call a script as HF does, in this process's environment."""
    with tempfile.NamedTemporaryFile("w", prefix="hf_in_", suffix=".json") as file:
        json.dump(document, file)
        file.flush()
        done = subprocess.run(
            [str(SCRIPTS / f"{command}.sh"), "-f", file.name], cwd="/", stdin=subprocess.DEVNULL, capture_output=True
        )
    return Outcome(done.returncode, json.loads(done.stdout) if done.returncode == 0 else {})
