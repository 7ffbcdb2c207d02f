"""intent.json: its creation, the effects of adding and of trimming requests, and an old copy that was put back."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner import model
from provisioner.model import Memory
from provisioner.names import name_pattern
from provisioner.state import atomic, new_ids
from provisioner.state import intent_file as intent_file
from provisioner.state.directory import StateDir
from provisioner.state.errors import Condition, StateError, StateExists, StateMissing, StateStale, StateUnwritable
from provisioner.state.locks import DataLock
from tests.support.stores import add, add_request, add_return, contents, pauses
from tests.support.waiting import PATIENCE

# --- creating ---------------------------------------------------------------------------------------------------------


def test_the_first_request_creates_intent(state: StateDir) -> None:
    request = add(state)
    intent = state.intent.read()
    assert (intent.provisioner, intent.generation) == ("demo", 1)
    assert intent.requests == {request: model.Request(request, "T1", 2, 5.0)}


def test_init_creates_an_empty_intent_once(state: StateDir) -> None:
    state.intent.create("demo")
    assert state.intent.read() == model.Intent("demo", 1, {}, {})
    before = contents(Path(state.path))
    with pytest.raises(StateExists, match="exists already"):
        state.intent.create("other")
    assert contents(Path(state.path))["intent.json"] == before["intent.json"]


def test_intent_is_not_created_where_memory_shows_that_it_was_lost(state: StateDir) -> None:
    state.memory.write(Memory("demo"))
    for attempt in (lambda: add(state), lambda: state.intent.create("demo")):
        with pytest.raises(StateMissing, match=r"memory\.json exists, so it was lost.*provisioner recover"):
            attempt()
    assert not state.intent.exists()


@pytest.mark.usefixtures("no_pauses")
def test_intent_is_not_created_again_when_only_its_lock_file_remembers_it(state: StateDir) -> None:
    add(state)
    os.unlink(state.intent.path)
    with pytest.raises(StateMissing, match=r"is gone, although it was written 1 times.*provisioner recover"):
        add(state)
    assert not state.intent.exists()
    state.intent.create("demo")
    assert state.intent.read().generation == 2, "a loop that saw generation 1 must not take the new file for an old one"


# --- changes ----------------------------------------------------------------------------------------------------------


def test_additions_are_written_once_however_many_they_are(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    add(state)
    renames = []
    real = os.rename
    monkeypatch.setattr(atomic.os, "rename", lambda old, new: (renames.append(new), real(old, new)))
    asked = {f"asked{number}": {"template": "T", "count": 1, "created_wall": 1.0} for number in range(3)}
    state.intent.add({"requests": asked, "returns": {"ret-a": {"names": ["a", "b"], "created_wall": 2.0}}})
    assert renames == [state.intent.path]
    now = state.intent.read()
    assert now.generation == 2
    assert asked.keys() < now.requests.keys()
    assert now.returns == {"ret-a": model.ReturnRequest("ret-a", ("a", "b"), 2.0)}


def test_a_change_that_changes_nothing_writes_nothing(state: StateDir) -> None:
    add(state)
    before = state.intent.signature()
    state.intent.remove(["unknown", "ret-unknown"])
    assert state.intent.signature() == before


def test_a_writer_whose_lock_file_is_removed_meanwhile_changes_nothing(state: StateDir, monkeypatch) -> None:
    add(state)
    before = state.intent.signature()
    monkeypatch.setattr(intent_file, "find_waiting", lambda *_: os.unlink(state.intent.lock_path) or [])
    with pytest.raises(StateUnwritable, match="Never remove lock files"):
        add(state)
    assert state.intent.signature() == before


def test_requests_and_returns_are_found_by_id_and_trimmed(state: StateDir) -> None:
    request = add(state)
    return_id = add_return(state, ["a", "b"], created_wall=1.0)
    kept = add_request(state, "T2", 1, created_wall=1.0, rc_account="\ud800ä")
    assert {key: dict(value) for key, value in state.intent.find([request, return_id, "unknown"]).items()} == {
        request: {"template": "T1", "count": 2, "created_wall": 5.0},
        return_id: {"names": ["a", "b"], "created_wall": 1.0},
    }
    assert state.intent.returned_names() == {"a", "b"}
    assert state.intent.remove([request, return_id, "unknown"]) >= 0.0
    assert state.intent.read().requests == {kept: model.Request(kept, "T2", 1, 1.0, "\ud800ä")}
    assert state.intent.read().returns == {}


def test_ids_have_the_models_shape_and_none_is_given_twice(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_pattern("hf").fullmatch(f"hf-{new_ids.new_id()}-000001")
    many = {new_ids.new_id() for _ in range(2000)}
    assert len(many) == 2000
    assert set("".join(many)) == set(new_ids.ID_ALPHABET)
    draws = iter(["same", "same"])
    monkeypatch.setattr(new_ids, "new_id", lambda: next(draws))
    assert add(state) == "same"
    before = state.intent.signature()
    with pytest.raises(StateError, match="is taken already; no file was written"):
        add(state, "T2")
    assert state.intent.signature() == before


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "aaaaaaaaaa"), (36**10 - 1, "9999999999"), (36**10, "aaaaaaaaaa")]
)
def test_an_id_has_every_letter_at_every_place(monkeypatch: pytest.MonkeyPatch, number: int, expected: str) -> None:
    """An id is the remainder of a random number of 128 bits. So some ids are more frequent than others, but by less
    than one in 2**76."""
    monkeypatch.setattr(new_ids.os, "urandom", number.to_bytes)
    assert new_ids.new_id() == expected


# --- generations ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_pauses")
def test_a_generation_that_is_noted_makes_writers_refuse_an_older_intent(state: StateDir) -> None:
    add(state)
    Path(state.intent.lock_path).unlink()
    state.intent.note_newest(5)
    state.intent.note_newest(3)
    with pytest.raises(StateStale, match="generation 1 is older than 5"):
        add(state)


def test_a_file_that_no_writer_made_stands_alone(state: StateDir) -> None:
    assert state.intent.condition() is not Condition.ALONE, "nothing is there"
    add(state)
    assert state.intent.condition() is not Condition.ALONE
    Path(state.intent.lock_path).unlink()
    assert state.intent.condition() is Condition.ALONE


@pytest.mark.parametrize("content", [b"\0" * 256, b'{"host": "h', b"[]", b'{"generation": "x"}', b'{"generation": -4}'])
def test_a_lock_file_that_does_not_parse_is_tolerated_and_fixed(state: StateDir, content: bytes) -> None:
    add(state)
    Path(state.intent.lock_path).write_bytes(content)
    add(state)
    assert len(state.intent.read().requests) == 2
    assert json.loads(Path(state.intent.lock_path).read_bytes().partition(b"\n")[0]) == {"generation": 2}


# --- an older file is waited for without the lock ---------------------------------------------------------------------


def put_old_copy_back(state: StateDir) -> bytes:
    """Put the first of two generations back; return the second."""
    add(state)
    old = Path(state.intent.path).read_bytes()
    add(state)
    newest = Path(state.intent.path).read_bytes()
    Path(state.intent.path).write_bytes(old)
    return newest


class Pauses:
    """Calls of ``act`` in each pause between repeated reads of a file. Other sleeps are unchanged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
        self.taken: list[float] = []
        self._act = act
        self._sleep = time.sleep
        monkeypatch.setattr(time, "sleep", self._pause)

    def _pause(self, seconds: float) -> None:
        if seconds not in pauses():
            self._sleep(seconds)
            return
        self.taken.append(seconds)
        self._act()


def lock_is_free(state: StateDir) -> None:
    lock = DataLock(state.intent.lock_path, 0.0)
    assert lock.try_acquire(), "the lock is held during a pause"
    lock.release()


WRITERS = {"a script adds": add, "the loop trims": lambda state: state.intent.remove(["aaaaaaaaaa"])}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_the_lock_is_free_in_every_pause_and_an_older_file_is_not_written(
    state: StateDir, monkeypatch: pytest.MonkeyPatch, write: Callable[[StateDir], object]
) -> None:
    put_old_copy_back(state)
    old = Path(state.intent.path).read_bytes()
    waited = Pauses(monkeypatch, lambda: lock_is_free(state))
    assert state.intent.condition() is Condition.OLDER
    with pytest.raises(StateStale, match=r"intent\.json: generation 1 is older than 2.*lookupcache"):
        write(state)
    assert waited.taken == pauses()
    assert Path(state.intent.path).read_bytes() == old
    lock_is_free(state)


def test_a_file_that_is_gone_is_waited_for_without_the_lock(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    put_old_copy_back(state)
    Path(state.intent.path).unlink()
    waited = Pauses(monkeypatch, lambda: lock_is_free(state))
    with pytest.raises(StateMissing, match="was written 2 times"):
        add(state)
    assert waited.taken == pauses()


def test_what_was_written_in_a_pause_is_added_to(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = put_old_copy_back(state)
    others: list[str] = []

    def catch_up() -> None:
        Path(state.intent.path).write_bytes(newest)
        others.append(add(StateDir(state.path)))

    waited = Pauses(monkeypatch, catch_up)
    ours = add(state)
    assert len(waited.taken) == 1
    intent = state.intent.read()
    assert intent.generation == 4
    assert {ours, *others} < set(intent.requests)
    assert len(intent.requests) == 4


def test_a_file_that_falls_behind_again_is_waited_for_again(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a cache has caught up with one write and then lags behind the next, the script must wait again."""
    newest = put_old_copy_back(state)

    def lag() -> None:
        if len(waited.taken) == 1:
            Path(state.intent.path).write_bytes(newest)
            add(StateDir(state.path))
            newer.append(Path(state.intent.path).read_bytes())
            Path(state.intent.path).write_bytes(newest)
        elif len(waited.taken) == 2:
            Path(state.intent.path).write_bytes(newer[0])

    newer: list[bytes] = []
    waited = Pauses(monkeypatch, lag)
    add(state)
    assert (state.intent.read().generation, len(state.intent.read().requests)) == (4, 4)


def test_callers_spend_their_pauses_at_the_same_time(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers that wait for a cache must pause at the same time. No caller may wait for another's pause."""
    put_old_copy_back(state)
    callers = 4
    together = threading.Barrier(callers, timeout=60 * PATIENCE)
    waited = Pauses(monkeypatch, together.wait)
    refused: list[str] = []

    def call() -> None:
        try:
            add(StateDir(state.path))
        except StateStale as error:
            refused.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == callers
    assert len(waited.taken) == callers * len(pauses())
