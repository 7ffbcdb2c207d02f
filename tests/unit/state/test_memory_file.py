"""memory.json: an old copy, a lost or damaged file, and encoding of changed records only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.model import Memory, RequestRecord
from provisioner.state.directory import StateDir
from provisioner.state.errors import Condition, StateMissing, StateUnreadable


def test_an_older_memory_put_back_is_noticed_until_the_loop_has_written_again(state: StateDir) -> None:
    state.memory.write(Memory("demo", epoch=1))
    old = Path(state.memory.path).read_bytes()
    state.memory.write(Memory("demo", epoch=2))
    state.memory.write(Memory("demo", epoch=2))
    assert state.memory.condition() is not Condition.OLDER
    Path(state.memory.path).write_bytes(old)
    assert state.memory.condition() is Condition.OLDER
    successor = StateDir(state.path)
    successor.memory.write(Memory("demo", epoch=3))
    assert successor.memory.condition() is not Condition.OLDER
    assert successor.memory.read().epoch == 3
    assert json.loads(Path(state.memory.path).read_bytes())["meta"]["state"]["generation"] == 4, "never one used before"


def test_the_loop_does_not_overwrite_an_unreadable_memory_before_it_was_set_aside(state: StateDir) -> None:
    Path(state.memory.path).write_bytes(b"precious")
    with pytest.raises(StateUnreadable):
        state.memory.write(Memory("demo"))
    assert Path(state.memory.path).read_bytes() == b"precious"
    aside = state.memory.set_aside()
    state.memory.write(Memory("demo"))
    assert Path(aside).read_bytes() == b"precious"
    assert state.memory.read() == Memory("demo")


def test_setting_aside_what_is_not_there_says_so_and_a_lost_file_is_known_to_have_existed(state: StateDir) -> None:
    assert not state.memory.existed()
    state.memory.write(Memory("demo"))
    state.memory.set_aside()
    assert (state.memory.exists(), state.memory.existed()) == (False, True)
    with pytest.raises(StateMissing, match=r"memory\.json"):
        state.memory.set_aside()


def test_only_changed_records_are_encoded_again(state: StateDir) -> None:
    same, other = RequestRecord("a", "T", 1, 0.0, 9.0), RequestRecord("b", "T", 1, 0.0, 9.0)
    state.memory.write(Memory("demo", requests={"a": same, "b": other}))
    before = state.memory._codec._requests
    changed = RequestRecord("b", "T", 1, 0.0, 9.0, reported_at=3.0)
    state.memory.write(Memory("demo", requests={"a": same, "b": changed}))
    after = state.memory._codec._requests
    assert after["a"][1] is before["a"][1]
    assert after["b"][1] != before["b"][1]
    assert state.memory.read().requests == {"a": same, "b": changed}
