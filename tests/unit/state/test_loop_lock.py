"""The loop's lock: one loop at a time, and the epochs of those that follow each other."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from provisioner.state import locks
from provisioner.state.errors import StateMissing, StateUnreadable, StateUnwritable
from provisioner.state.loop_lock import LoopLock
from tests.support.stores import failing, forgotten


def test_a_second_loop_waits_and_takes_over_with_a_higher_epoch(tmp_path: Path) -> None:
    path = str(tmp_path / "loop.lock")
    first, second = LoopLock(path), LoopLock(path)
    assert first.acquire(0)
    assert first.epoch() == 0
    assert first.raise_epoch() == 1
    assert not second.acquire(0)
    assert second.holder() == {"epoch": 1, "host": os.uname().nodename, "pid": os.getpid()}
    first.release()
    assert second.acquire(0)
    assert second.raise_epoch(at_least=7) == 7
    assert second.raise_epoch(at_least=3) == 8
    assert first.epoch() == 8, "the one that was succeeded reads it from disk"


def test_a_loop_whose_lock_was_forgotten_takes_it_again_unless_another_has_it(tmp_path: Path) -> None:
    path = str(tmp_path / "loop.lock")
    loop, other = LoopLock(path), LoopLock(path)
    assert loop.acquire(0)
    assert loop.keep()
    forgotten(loop)
    assert loop.keep()
    assert not other.acquire(0)
    forgotten(loop)
    assert other.acquire(0)
    assert not loop.keep()


def test_a_lock_that_the_system_does_not_give_again_cannot_be_locked(tmp_path: Path, monkeypatch) -> None:
    loop = LoopLock(str(tmp_path / "loop.lock"))
    assert loop.acquire(0)
    monkeypatch.setattr(locks.fcntl, "flock", failing(locks.fcntl.flock, errno.ENOLCK))
    with pytest.raises(StateUnwritable, match=r"loop\.lock: cannot be locked: No locks available\."):
        loop.keep()


def test_a_loop_whose_lock_file_is_gone_or_senseless_hears_of_it(tmp_path: Path) -> None:
    path = tmp_path / "loop.lock"
    loop = LoopLock(str(path))
    assert loop.acquire(0)
    loop.raise_epoch()
    path.write_bytes(b"x" * 256)
    with pytest.raises(StateUnreadable, match=r"loop\.lock: holds no epoch"):
        loop.epoch()
    path.unlink()
    with pytest.raises(StateMissing):
        loop.epoch()
    with pytest.raises(StateUnwritable, match="removed"):
        loop.raise_epoch()


def test_an_epoch_is_durable_before_it_counts(tmp_path: Path, monkeypatch) -> None:
    loop = LoopLock(str(tmp_path / "loop.lock"))
    assert loop.acquire(0)
    monkeypatch.setattr(locks.os, "fsync", failing(os.fsync, errno.EIO))
    with pytest.raises(StateUnwritable):
        loop.raise_epoch()
