"""The databases as files. An unusable file stays unchanged, and the message names it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tinydb import TinyDB

from provisioner.model import Memory
from provisioner.state.database import SCHEMA
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateTooNew, StateUnreadable
from tests.support.stores import add, altered, contents, fill, outdate

READS: dict[str, Callable[[StateDir], object]] = {
    "intent": lambda state: state.intent.read(),
    "memory": lambda state: state.memory.read(),
    "status": lambda state: state.status.read_all(),
}
WRITES: dict[str, Callable[[StateDir], object]] = {
    "intent": add,
    "memory": lambda state: state.memory.write(Memory("demo")),
    "status": lambda state: state.status.write({}, {}),
}

DAMAGE = {
    "empty": (b"", r"is empty \(0 bytes\)"),
    "zeros": (b"\0" * 9, r"is empty \(9 bytes\)"),
    "cut off": (b'{"meta": {"state": {"sch', r"line 1 column 21 \(byte 20 of 24\)"),
    "second line": (b'{"a": {},\n"b": oops}', r"line 2 column 6 \(byte 15 of 20\)"),
    "umlaut before": ('{"ä": oops}'.encode(), r"line 1 column 7 \(byte 7 of 12\)"),
    "not UTF-8": (b'{"a": "\xff"}', "byte 7 of 10: invalid start byte"),
    "endless nesting": (b"[" * 100_000, "not valid JSON"),
    "a list": (b"[1]", "not a database of tables"),
    "a table of numbers": (b'{"a": {"1": 2}}', "not a database of tables"),
    "another program's": (b'{"_default": {"1": {}}}', "not written by the provisioner"),
    "no generation": (b'{"meta": {"state": {"schema": 1, "kind": "intent", "provisioner": ""}}}', "lacks one of"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_an_unusable_file_is_reported_with_its_place_and_left_as_it_is(
    state: StateDir, content: bytes, message: str
) -> None:
    fill(state)
    for name in READS:
        Path(state.path, f"{name}.json").write_bytes(content)
    attempts = {**READS, "intent ": add, "status lost": lambda state: state.status.read_lost()}
    for name, attempt in attempts.items():
        with pytest.raises(StateUnreadable, match=message) as caught:
            attempt(state)
        assert f"{name.partition(' ')[0]}.json" in str(caught.value)
        assert "The file was left as it is." in str(caught.value)
        assert "provisioner r" in str(caught.value), "the message ends with the next step"
    assert {contents(state.path)[f"{name}.json"] for name in READS} == {content}


@pytest.mark.parametrize("name", WRITES)
def test_a_newer_schema_is_refused_for_reading_and_writing(state: StateDir, name: str) -> None:
    fill(state)
    path = Path(state.path, f"{name}.json")
    altered(path, outdate)
    before = path.read_bytes()
    fresh = StateDir(state.path)
    for attempt in (lambda: READS[name](fresh), lambda: WRITES[name](fresh)):
        words = rf"{name}\.json: has schema version {SCHEMA + 1}, this provisioner knows up to {SCHEMA}"
        with pytest.raises(StateTooNew, match=words):
            attempt()
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", WRITES)
def test_a_file_of_an_older_schema_is_written_in_ours_whoever_changes_it(state: StateDir, name: str) -> None:
    """A write must raise the schema number of an old file to ours. After a rollback, the older program would otherwise
    report the file as damaged, and not as newer."""
    WRITES[name](state)
    path = Path(state.path, f"{name}.json")
    altered(path, lambda tables: outdate(tables, -1))
    WRITES[name](StateDir(state.path))
    assert json.loads(path.read_bytes())["meta"]["state"]["schema"] == SCHEMA


def test_a_file_under_another_files_name_is_refused(state: StateDir) -> None:
    fill(state)
    os.replace(state.memory.path, state.intent.path)
    with pytest.raises(StateUnreadable, match=r"intent\.json: holds 'memory', not 'intent'"):
        state.intent.read()


@pytest.mark.parametrize(
    ("table", "document", "message"),
    [
        ("requests", {"template": "T", "count": 1}, r"requests\.x: .*created_wall"),
        ("requests", {"template": "T", "count": "1", "created_wall": 1}, r"requests\.x: count: expected int, got '1'"),
        ("requests", {"template": "T", "count": 1, "created_wall": 1, "new": 1}, "unknown field 'new'"),
        ("returns", {"names": "a", "created_wall": 1}, "names: expected a list"),
    ],
)
def test_a_document_that_does_not_fit_the_model_is_named(state: StateDir, table, document, message) -> None:
    add(state)
    altered(state.intent.path, lambda tables: tables[table].update(x=document))
    with pytest.raises(StateUnreadable, match=message):
        state.intent.read()


def test_what_is_written_is_a_tinydb_database_with_our_ids(state: StateDir) -> None:
    request = add(state)
    with TinyDB(state.intent.path, access_mode="r") as database:
        assert database.tables() == {"meta", "requests", "returns"}
        assert database.storage.read()["requests"].keys() == {request}
