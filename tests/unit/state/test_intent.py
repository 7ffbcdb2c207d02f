"""Who waits for a cache to catch up with an older intent.json does so without the lock: nobody waits for his pauses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.state.atomic import pauses
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateMissing, StateStale
from provisioner.state.locks import DataLock

CALLERS = 8
WAIT = 60.0
"""Seconds that a test waits for what has to come."""


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def add(state: StateDir) -> str:
    with state.intent.additions(create_for="demo") as intent:
        return intent.add_request("T1", 2, created_wall=5.0)


def put_old_copy_back(state: StateDir) -> bytes:
    """Put the first of two generations back; returns the second."""
    add(state)
    old = Path(state.intent.path).read_bytes()
    add(state)
    newest = Path(state.intent.path).read_bytes()
    Path(state.intent.path).write_bytes(old)
    return newest


class Pauses:
    """What happens in each pause of a look at a cached file; other sleeps are as ever."""

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
    with pytest.raises(StateStale, match="generation 1 is older than 2"):
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
    """A cache that has caught up with one write lags behind the next."""
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


def test_eight_callers_spend_their_pauses_at_the_same_time(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """All eight meet in each pause: none waits for another's."""
    put_old_copy_back(state)
    together = threading.Barrier(CALLERS, timeout=WAIT)
    waited = Pauses(monkeypatch, together.wait)
    refused: list[str] = []

    def call() -> None:
        try:
            add(StateDir(state.path))
        except StateStale as error:
            refused.append(str(error))

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(WAIT)
    assert len(refused) == CALLERS
    assert len(waited.taken) == CALLERS * len(pauses())
