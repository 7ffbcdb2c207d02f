"""Recorded calls of HostFactory.

A trace is Morgan Stanley's sqlite file, or JSON lines that the scripts have written.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from provisioner.files.safe_open import open_own

SQLITE = b"SQLite format 3\0"
CATEGORIES = {
    "template": "getAvailableTemplates",
    "request": "requestMachines",
    "request-status": "getRequestStatus",
    "return": "requestReturnMachines",
    "return-request": "getReturnRequests",
}
"""The scripts, by their names in Morgan Stanley's traces. These traces have a table events(category, id, timestamp,
type, value)."""

Document = dict[str, Any]


class TraceError(Exception):
    """Raised if a trace cannot be read. The text is one line."""


class Event(NamedTuple):
    """A recorded call."""

    time: float
    """The time of the call in epoch seconds."""
    command: str
    document: Document
    request: str = ""
    """The id that the scripts gave to the request or return request; empty if the call was refused or made no
    request."""
    machines: Mapping[str, tuple[str, ...]] = {}
    """By request: its machines, if the call is a getRequestStatus; empty for other calls."""


def read_trace(path: Path) -> list[Event]:
    """Return the calls of a trace, ordered by time. Calls with the same time keep the order of the file.

    The file's first bytes show its format. Raises TraceError if the file is not a trace.
    """
    try:
        with os.fdopen(open_own(str(path), os.O_RDONLY), "rb") as file:
            begins = file.read(len(SQLITE))
            events = list(_rows(path) if begins == SQLITE else _lines(path, (begins + file.read()).decode()))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    if not events:
        raise TraceError(f"{path}: contains no call of HostFactory")
    return sorted(events, key=lambda event: event.time)


def _rows(path: Path) -> Iterator[Event]:
    """Yield the calls in Morgan Stanley's sqlite file. The id of a request is the id of its event."""
    marks = ", ".join("?" * len(CATEGORIES))
    which = f"type = 'input' AND category IN ({marks})"
    query = f"SELECT category, id, timestamp, value FROM events WHERE {which} ORDER BY rowid"
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        for category, id_, when, value in database.execute(query, list(CATEGORIES)):
            where = f"{category} event {id_}"
            document = {} if value in (None, "") else _parse(path, where, value)
            yield Event(_seconds(path, where, when), CATEGORIES[category], document, str(id_))


def _lines(path: Path, text: str) -> Iterator[Event]:
    """Yield the calls in JSON lines that the scripts wrote with ``--record``."""
    for number, line in enumerate(text.splitlines(), 1):
        where = f"line {number}"
        entry = _parse(path, where, line)
        match entry:
            case {"time": int() | float() as when, "command": str(command), "input": dict(document)} if (
                command in CATEGORIES.values()
            ):
                output = entry["output"] if isinstance(entry.get("output"), dict) else {}
                request = str(output.get("requestId") or "")
                yield Event(_seconds(path, where, when), command, document, request, machines_in(output))
            case _:
                raise TraceError(f"{path}: {where}: expected time, command and input of a call")


def _seconds(path: Path, where: str, when: Any) -> float:
    with suppress(TypeError, ValueError, OverflowError):
        if math.isfinite(seconds := float(when)):
            return seconds
    raise TraceError(f"{path}: {where}: expected the time as a finite number of seconds, got {reprlib.repr(when)}")


def _parse(path: Path, where: str, text: object) -> Document:
    if not isinstance(text, str | bytes):
        raise TraceError(f"{path}: {where}: expected a JSON text, got {reprlib.repr(text)}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: {where}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise TraceError(f"{path}: {where}: expected an object")
    return document


def machines_in(answer: Document) -> dict[str, tuple[str, ...]]:
    """Return the machines of each request in an answer of getRequestStatus, by request."""
    return {
        entry["requestId"]: tuple(
            machine["name"] for machine in listed(entry, "machines") if isinstance(machine.get("name"), str)
        )
        for entry in listed(answer, "requests")
        if isinstance(entry.get("requestId"), str)
    }


def listed(document: Document, key: str) -> list[Document]:
    """Return the objects in the list at ``key``. A single object counts as a list of one. Every other value gives an
    empty list."""
    value = document.get(key)
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if isinstance(entry, dict)]
