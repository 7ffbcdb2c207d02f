"""status.json as the scripts read it: what is lost, without the answers before it."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.hostfactory.answer import Answer, Loss
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateUnreadable

ODD_NAMES = ["answers", ',"answers":{', '"},"answers":{', "é", "}}"]
"""Hosts that look like the place where the answers begin."""


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
