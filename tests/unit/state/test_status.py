"""status.json: what was published last, and that a damaged one is made again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.hostfactory.answer import Answer, Loss
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateUnreadable
from tests.support.stores import altered, fill


def test_status_is_what_was_written_last(state: StateDir) -> None:
    state.status.write(
        {"r1": Answer('{"requestId":"r1"}', False), "r2": Answer("{}", True)}, {"host": Loss(30, "evicted")}, {"T": 7}
    )
    assert state.status.read_answers(["r1", "nobody"]) == {"r1": Answer('{"requestId":"r1"}', False)}
    assert state.status.read_answers(["nobody"]).get("nobody") is None
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
    with pytest.raises(StateUnreadable, match=r"status\.json: (the answer|the loss|what is available) of odd"):
        read.get(table, lambda: state.status.read_answers(["odd"]).get("odd"))()
