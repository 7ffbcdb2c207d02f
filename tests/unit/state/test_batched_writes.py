"""Batched writes: the promises to a waiting script, whatever the writer does and wherever either process ends."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from provisioner.files import safe_open
from provisioner.state import atomic, batched_writes
from provisioner.state.batched_writes import BatchedWrite
from provisioner.state.database import SCHEMA
from provisioner.state.directory import StateDir
from provisioner.state.errors import LockTimeout, StateUnwritable
from provisioner.state.locks import DataLock, LockFile
from provisioner.state.new_ids import new_id
from tests.support.stores import add_request, add_return

TERMS = {"schema": SCHEMA}
MINE = {"requests": {"mine000000": {"template": "M", "count": 1, "created_wall": 1.0}}}


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path)
    state.intent.create("demo")
    return state


def add(state: StateDir, template: str = "T", wait: float = 5.0) -> str:
    return add_request(state, template, 1, created_wall=0.0, wait=wait)


def recorded(state: StateDir) -> set[str]:
    return set(state.intent.read().requests)


def left(state: StateDir) -> list[str]:
    return [path.name for path in Path(state.path).iterdir() if "batch" in path.name or path.name.endswith(".new")]


def write(state: StateDir, id_: str, template: str = "O") -> BatchedWrite:
    document = {"template": template, "count": 9, "created_wall": 9.0}
    return BatchedWrite(state.intent.path, {"requests": {id_: document}})


def mine(state: StateDir) -> BatchedWrite:
    return BatchedWrite(state.intent.path, MINE)


# --- the writer -------------------------------------------------------------------------------------------------------


def test_a_writer_writes_all_who_wait_at_once(state: StateDir) -> None:
    ids = {f"r{number}" for number in range(5)}
    with ExitStack() as waiters:
        posted = [write(state, id_) for id_ in ids]
        for one in posted:
            waiters.enter_context(one.posted(TERMS))
        own = add(state)
        assert all(one.is_gone() for one in posted)
    assert recorded(state) == {own, *ids}
    assert state.intent.read().generation == 2
    assert left(state) == []


def test_a_trim_serves_those_who_wait_too(state: StateDir) -> None:
    old = add(state)
    with mine(state).posted(TERMS):
        state.intent.remove([old])
    assert recorded(state) == {"mine000000"}


def test_what_a_dead_process_posted_is_removed_and_never_written(state: StateDir) -> None:
    names = ["intent.batch-0", f"intent.batch-1{batched_writes.UNFINISHED}"]
    for name in names:
        Path(state.path, name).write_text(json.dumps({"terms": TERMS, "tables": MINE}))
    own = add(state)
    assert recorded(state) == {own}
    assert left(state) == []


def test_one_who_dies_while_others_are_written_is_not_written(state: StateDir, monkeypatch) -> None:
    """If a script posts its write and dies while another process prepares the file, the write must be left out. Just
    before the rename, that process checks again that the script still waits."""
    owner = os.open(Path(state.path, "intent.batch-0"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(owner, fcntl.LOCK_EX)
    os.write(owner, json.dumps({"terms": TERMS, "tables": MINE}).encode())
    real = atomic._write_aside
    dead: list[int] = []

    def die(*arguments: Any, **keywords: Any) -> float:
        if not dead:
            os.close(owner)
            dead.append(owner)
        return real(*arguments, **keywords)

    monkeypatch.setattr(atomic, "_write_aside", die)
    own = add(state)
    assert dead
    assert recorded(state) == {own}
    assert left(state) == []


STRANGE = {
    "another schema": {"terms": {"schema": SCHEMA + 1}, "tables": MINE},
    "another provisioner": {"terms": TERMS | {"provisioner": "other"}, "tables": MINE},
    "no terms": {"terms": {}, "tables": MINE},
    "no documents": {"terms": TERMS, "tables": {"requests": {"r1": 5}}},
    "no tables": {"terms": TERMS, "tables": [1]},
    "no posted write": [],
}


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_what_a_writer_does_not_understand_is_left_to_its_owner(state: StateDir, monkeypatch, content: object) -> None:
    real = json.dumps
    other = mine(state)
    with monkeypatch.context() as patch:
        patch.setattr(batched_writes.json, "dumps", lambda *_, **__: real(content))
        posted = other.posted(TERMS)
        posted.__enter__()
    own = add(state)
    assert recorded(state) == {own}
    assert not other.is_gone()
    posted.__exit__(None, None, None)


def test_an_id_that_is_taken_is_not_written_over(state: StateDir) -> None:
    own = add(state)
    other = write(state, own)
    with other.posted(TERMS), mine(state).posted(TERMS), write(state, "mine000000").posted(TERMS):
        add(state)
        assert not other.is_gone()
        assert len(left(state)) == 2, "nor do two who add the same id overwrite one another"
    assert state.intent.read().requests[own].template == "T"
    assert "mine000000" in recorded(state)


# --- a waiting script -------------------------------------------------------------------------------------------------


def held_until(monkeypatch, event: Callable[[], None]) -> None:
    """Make the lock appear taken at first.

    ``event`` happens while the caller waits. The caller then tries once more.
    """
    real = DataLock.acquire

    def acquire(self: DataLock, stop: Callable[[], bool] = lambda: False) -> bool:
        events, pending[:] = list(pending), []
        for happen in events:
            happen()
        return False if stop() else real(self, stop)

    pending = [event]
    monkeypatch.setattr(DataLock, "try_acquire", lambda self: False)
    monkeypatch.setattr(DataLock, "acquire", acquire)


def serve(state: StateDir) -> None:
    """Write as another writer that gets the lock at once."""
    with DataLock(state.intent.lock_path) as lock:
        tables = state.intent._current(lock, None)
        state.intent._write(tables, lock)


def test_a_script_whose_posted_write_was_written_writes_nothing(state: StateDir, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        held_until(patch, lambda: serve(StateDir(state.path)))
        request = add(state)
    assert recorded(state) == {request}
    assert state.intent.read().generation == 2, "one write"
    assert left(state) == []


def test_a_posted_write_that_vanishes_unwritten_is_written_by_its_owner(state: StateDir, monkeypatch) -> None:
    def vanish() -> None:
        for name in left(state):
            Path(state.path, name).unlink()

    with monkeypatch.context() as patch:
        held_until(patch, vanish)
        request = add(state)
    assert recorded(state) == {request}


directory_of = atomic._directory_of
"""The real function. A directory is opened in order to sync it."""


def test_a_posted_write_whose_writer_died_at_once_is_not_written_twice(state: StateDir, monkeypatch) -> None:
    synced: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(BatchedWrite, "confirm_written", lambda self: None)
        held_until(patch, lambda: serve(StateDir(state.path)))
        patch.setattr(atomic, "_directory_of", lambda path: synced.append(path) or directory_of(path))
        request = add(state)
    assert recorded(state) == {request}
    assert state.intent.read().generation == 2
    assert len(synced) == 2, (
        "the writer's sync at the rename, and ours before the answer, in case the writer ended early"
    )
    assert left(state) == []


@pytest.mark.parametrize("refused", [False, True], ids=["time is up", "the lock cannot be asked for"])
def test_one_who_waits_no_longer_and_is_written_answers_once_it_is_durable(
    state: StateDir, monkeypatch, refused: bool
) -> None:
    def time_is_up(_: DataLock, stop: Callable[[], bool] = lambda: False) -> bool:
        patch.undo()
        patch.setattr(BatchedWrite, "confirm_written", lambda self: None)
        serve(StateDir(state.path))
        patch.setattr(atomic, "_directory_of", lambda path: synced.append(path) or directory_of(path))
        if refused:
            raise StateUnwritable("Input/output error")
        return False

    synced: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(DataLock, "try_acquire", lambda self: False)
        patch.setattr(DataLock, "acquire", time_is_up)
        request = add(state)
    assert recorded(state) == {request}
    assert len(synced) == 1, "the writer may be gone or slow, so its own sync is uncertain"


def test_without_a_posted_write_the_script_only_waits(state: StateDir, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(batched_writes, "write_all", _refuse)
        patch.setattr(DataLock, "try_acquire", lambda self: False)
        request = add(state)
    assert recorded(state) == {request}
    assert left(state) == []


def _refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_script_that_is_stopped_in_its_turn_blocks_no_other_from_a_free_lock(state: StateDir) -> None:
    stopped = LockFile(f"{state.intent.lock_path}.turn")
    assert stopped.try_acquire()
    own = add(state, wait=0.05)
    assert recorded(state) == {own}
    stopped.release()


STRANGE_TEXT = '"it\'s": {"\\ \u00e9 \ud83d\ude00 \udc80'


def test_a_posted_write_is_found_in_the_file_as_long_as_it_is_there(state: StateDir) -> None:
    asked = {"template": STRANGE_TEXT, "count": 1, "created_wall": 1 / 3, "rc_account": STRANGE_TEXT}
    return_document = {"names": [STRANGE_TEXT, "b"], "created_wall": 1e300}
    added = {"requests": {"asked00000": asked}, "returns": {"ret-back000000": return_document}}
    state.intent.add(added)
    written = BatchedWrite(state.intent.path, added)
    for _ in range(2):
        assert state.intent._has_written(written)
        add(state)
    document = json.dumps(asked, separators=(",", ":"))
    add_return(state, [f'"other00000":{document}'], created_wall=0.0)
    other = BatchedWrite(state.intent.path, {"requests": {"other00000": asked}})
    assert not state.intent._has_written(other)
    state.intent.remove(["asked00000"])
    assert not state.intent._has_written(written)


def test_one_who_gives_up_has_recorded_nothing_and_leaves_nothing(state: StateDir) -> None:
    with DataLock(state.intent.lock_path), pytest.raises(LockTimeout, match="no file was written"):
        add(StateDir(state.path), wait=0.05)
    assert left(state) == []
    own = add(state)
    assert recorded(state) == {own}


# --- a script that gives up, and the writer that has its posted write -------------------------------------------------


class Steps:
    """A replacement of ``os`` in the modules that write. Another process acts before some of the calls."""

    CALLS = ("listdir", "open", "rename", "unlink")

    def __init__(self, events: dict[int, list[Callable[[], None]]]) -> None:
        self.calls = 0
        self._events = events

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return (lambda *arguments: self._call(real, *arguments)) if name in self.CALLS else real

    def _call(self, real: Callable[..., Any], *arguments: Any) -> Any:
        events = self._events.pop(self.calls, [])
        self.calls += 1
        for event in events:
            event()
        return real(*arguments)


def withdrawal_beside_a_write(directory: Path, at: tuple[int, int, int]) -> int:
    """Let a waiting script give up in three steps, and return the number of the writer's calls.

    ``at``: the number of the call before which each step happens. Raises AssertionError if the script is wrong about
    whether its write was done.
    """
    for path in directory.iterdir():
        path.unlink()
    state = StateDir(directory)
    state.intent.create("demo")
    believed: list[bool] = []
    id_ = new_id()
    waits = write(state, id_)
    give_up = [
        lambda: atomic.discard(waits._path),
        lambda: atomic.stop_replacing(state.intent.path),
        lambda: believed.append(id_ in recorded(state)),
    ]
    events: dict[int, list[Callable[[], None]]] = {}
    for step, when in zip(give_up, at, strict=True):
        events.setdefault(when, []).append(step)
    with waits.posted(TERMS):
        steps = Steps(events)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(atomic, "os", steps)
            patch.setattr(safe_open, "os", steps)
            patch.setattr(batched_writes, "os", steps)
            own = add(StateDir(directory))
        for step in [step for steps_left in events.values() for step in steps_left]:
            step()
    assert own in recorded(state)
    assert believed == [id_ in recorded(state)], at
    return steps.calls


Ways = Iterable[tuple[int, int, int]]


def all_ways(calls: int) -> Ways:
    """Return all ways to make three steps before, between or after ``calls`` calls."""
    return itertools.combinations_with_replacement(range(calls + 1), 3)


def ways_in_two(calls: int) -> Ways:
    """Return those ways of ``all_ways`` in which no call comes between the last two steps."""
    return [at for at in all_ways(calls) if at[1] == at[2]]


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("ways", [ways_in_two, pytest.param(all_ways, marks=pytest.mark.slow)])
def test_a_script_that_gives_up_knows_whether_its_write_was_done(tmp_path: Path, ways: Callable[[int], Ways]) -> None:
    """If a script gives up while another process writes, the script must know whether its own write was done. It gives
    up in three steps, each of which may fall between any two calls of the writer."""
    counts = set()
    for at in ways(withdrawal_beside_a_write(tmp_path, (1000, 1000, 1000))):
        withdrawal_beside_a_write(tmp_path, at)
        counts.add(len(recorded(StateDir(tmp_path))))
    assert counts == {1, 2}, "written in time, and withdrawn in time"


@pytest.mark.usefixtures("no_fsync")
def test_a_write_that_is_disturbed_without_end_is_refused(state: StateDir, monkeypatch) -> None:
    def remove_first(aside: str, path: str) -> None:
        os.unlink(aside)
        real(aside, path)

    real = atomic._rename
    monkeypatch.setattr(atomic, "_rename", remove_first)
    with pytest.raises(atomic.Disturbed, match="was removed before it replaced the file; no file was written"):
        add(state)
    assert recorded(state) == set()


def test_a_lock_that_is_of_no_use_any_more_is_not_taken(state: StateDir) -> None:
    """A script whose write was done must not take the lock. With the lock, it would read all data while others wait."""
    assert not DataLock(state.intent.lock_path).acquire(stop=lambda: True)
