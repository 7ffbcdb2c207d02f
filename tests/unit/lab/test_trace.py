"""Traces of HostFactory's calls: how they are read, and the errors that name the unreadable part."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from provisioner.lab.trace import TraceError, read_trace


def events(path: Path, *rows: tuple[object, ...]) -> Path:
    """Write a trace of these rows. A value keeps its type."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE events (category TEXT, id TEXT, timestamp REAL, type TEXT, value)")
        database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
    database.close()
    return path


def line(command: str, document: object, output: object = "", *, at: object = 1) -> str:
    """Return a call as ``--record`` writes it."""
    return json.dumps({"time": at, "command": command, "input": document, "output": output}) + "\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "line 1: not JSON"),
        (b"[]\n", "line 1: expected an object"),
        (b'{"time": 1, "command": "rm", "input": {}}\n', "line 1: expected time, command and input"),
        (line("requestMachines", {}, at=float("nan")).encode(), "line 1: expected the time as a finite number .* nan"),
        (line("requestMachines", {}, at=10**400).encode(), "line 1: expected the time as a finite number"),
        pytest.param(
            b'{"time": 1, "command": "requestMachines", "input": {"x": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}}",
            "line 1: not JSON: maximum recursion depth",
            id="nested too deeply",
        ),
        (b"SQLite format 3\0" + b"x" * 100, "file is not a database"),
    ],
)
def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    trace = tmp_path / "trace"
    trace.write_bytes(content)
    with pytest.raises(TraceError, match=words):
        read_trace(trace)


@pytest.mark.parametrize(
    ("when", "value", "words"),
    [
        (None, "{}", "expected the time as a finite number of seconds, got None"),
        ("2024-01-01", "{}", "expected the time as a finite number of seconds, got '2024-01-01'"),
        (1.0, 5, "expected a JSON text, got 5"),
        (1.0, 0, "expected a JSON text, got 0"),
        (1.0, b"\xff{", "not JSON"),
    ],
)
def test_a_row_that_cannot_be_understood_is_named(tmp_path: Path, when: object, value: object, words: str) -> None:
    trace = events(tmp_path / "events.db", ("request", "aaaa", when, "input", value))
    with pytest.raises(TraceError, match=f"events.db: request event aaaa: {words}"):
        read_trace(trace)


@pytest.mark.parametrize(
    ("requests", "machines"),
    [
        ({"requestId": "r", "machines": {"name": "m"}}, {"r": ("m",)}),
        ([None, {"requestId": ["r"]}], {}),
        ([{"requestId": "r", "machines": [{"status": "x"}, 5, {"name": "m"}]}], {"r": ("m",)}),
        ([{"requestId": "r", "machines": 5}], {"r": ()}),
        ("none", {}),
    ],
)
def test_machines_are_read_from_an_answer(tmp_path: Path, requests: object, machines: dict[str, tuple[str]]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(line("getRequestStatus", {"requests": []}, {"requests": requests}))
    assert read_trace(trace)[0].machines == machines


def test_rows_of_one_second_come_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    commands = [("return", "r"), ("request", "q"), ("template", "t"), ("request", "a"), ("return", "b")]
    trace = events(tmp_path / "events.db", *((name, id_, 7.0, "input", "{}") for name, id_ in commands))
    with closing(sqlite3.connect(trace)) as database:
        database.execute("CREATE INDEX by_category ON events (type, category, id, timestamp, value)")
        database.commit()
    assert [event.request for event in read_trace(trace)] == [id_ for _, id_ in commands]
