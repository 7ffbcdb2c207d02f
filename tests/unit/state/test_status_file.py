"""status.json: the last publication, and a damaged file that is made again."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.hostfactory import Answer, Loss
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateUnreadable
from tests.support.stores import altered, fill


def test_status_is_what_was_written_last(state: StateDir) -> None:
    state.status.write(
        {"r1": Answer('{"requestId":"r1"}', False), "r2": Answer("{}", True)}, {"host": Loss(30, "evicted")}, {"T": 7}
    )
    assert state.status.read_answers(["r1", "unknown"]) == {"r1": Answer('{"requestId":"r1"}', False)}
    assert state.status.read_answers(["unknown"]).get("unknown") is None
    assert state.status.read_lost() == {"host": Loss(30, "evicted")}
    assert state.status.read_available() == {"T": 7}
    StateDir(state.path).status.write({"r3": Answer("…", True)}, {})
    assert state.status.read_all() == {"r3": Answer("…", True)}
    assert state.status.read_lost() == {}
    assert state.status.read_available() == {}
    assert json.loads(Path(state.status.path).read_bytes())["meta"]["state"]["generation"] == 2


def test_an_unreadable_status_is_set_aside_because_it_can_be_made_again(state: StateDir) -> None:
    Path(state.status.path).write_bytes(b"damaged")
    state.status.write({"r1": Answer("{}", True)}, {})
    assert state.status.read_answers(["r1"]).get("r1") == Answer("{}", True)
    (aside,) = Path(state.path).glob("status.json.aside-*")
    assert aside.read_bytes() == b"damaged"


@pytest.mark.parametrize(
    ("table", "document"),
    [
        ("answers", {"answer": "{}"}),
        ("answers", {"answer": 1, "ended": True}),
        ("lost", {}),
        ("lost", {"grace": 1}),
        ("lost", {"grace": "1", "cause": "node"}),
        ("available", {"machines": None}),
    ],
)
def test_a_status_document_that_does_not_fit_is_named(state: StateDir, table: str, document: dict) -> None:
    fill(state)
    altered(state.status.path, lambda tables: tables[table].update(odd=document))
    read = {"lost": state.status.read_lost, "available": state.status.read_available}
    with pytest.raises(StateUnreadable, match=r"status\.json: 'odd' lacks (answer or ended|grace or cause|machines)\."):
        read.get(table, lambda: state.status.read_answers(["odd"]).get("odd"))()


ODD_NAMES = ["answers", ',"answers":{', '"},"answers":{', "é", "}}"]
"""Names of hosts that look like the place where the answers begin."""


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def publish(state: StateDir, lost: dict[str, Loss], answers: int = 3) -> None:
    texts = {f"r{number}": Answer(json.dumps({"machines": ["x" * 100]}), ended=True) for number in range(answers)}
    state.status.write(texts, lost, {"T": 7})


def test_what_is_lost_is_read_without_the_answers(state: StateDir) -> None:
    publish(state, {"a": Loss(3, "node")}, answers=20_000)
    tracemalloc.start()
    try:
        read = (state.status.read_lost(), state.status.read_available())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read == ({"a": Loss(3, "node")}, {"T": 7})
    assert peak < 500_000 < Path(state.status.path).stat().st_size / 5


@pytest.mark.parametrize(
    ("hosts", "answers"),
    [([], 0), ([], 1), (ODD_NAMES, 2000), ([f"h{n}" for n in range(5000)], 1), *(([name], 1) for name in ODD_NAMES)],
)
def test_what_is_lost_is_found_however_many_and_whatever_they_are_called(
    state: StateDir, hosts: list[str], answers: int
) -> None:
    lost = {name: Loss(number) for number, name in enumerate(hosts)}
    publish(state, lost, answers)
    assert state.status.read_lost() == lost
    assert state.status.read_available() == {"T": 7}


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda tables: json.dumps(tables, separators=(",", ":")), id="answers first, as it once was"),
        pytest.param(lambda tables: json.dumps(tables, indent=2), id="by hand"),
        pytest.param(lambda tables: json.dumps(tables) + "\n", id="with an empty line"),
    ],
)
def test_a_status_that_others_wrote_is_read_as_well(state: StateDir, write: Callable[[object], str]) -> None:
    publish(state, {"a": Loss(1)})
    tables = json.loads(Path(state.status.path).read_bytes())
    order = ("meta", "answers", "lost", "available")
    Path(state.status.path).write_text(write({name: tables[name] for name in order}))
    assert state.status.read_lost() == {"a": Loss(1)}
    assert state.status.read_available() == {"T": 7}


def test_a_status_that_was_cut_off_tells_of_no_loss(state: StateDir) -> None:
    publish(state, {"a": Loss(1)}, answers=1)
    content = Path(state.status.path).read_bytes()
    for at in range(len(content)):
        Path(state.status.path).write_bytes(content[:at])
        for read in (state.status.read_lost, state.status.read_available):
            with pytest.raises(StateUnreadable, match="not valid JSON"):
                read()
