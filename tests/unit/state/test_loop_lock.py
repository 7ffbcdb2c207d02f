"""The loop's lock: one loop at a time, and the epochs of successive loops."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from provisioner.state import locks
from provisioner.state.errors import StateMissing, StateUnreadable, StateUnwritable
from provisioner.state.loop_lock import LoopLock
from tests.support.stores import failing, forgotten

GONE = 2**22 + 1
"""Id that no process has, as Linux assigns none above 2**22."""


def test_a_second_loop_waits_and_takes_over_with_a_higher_epoch(tmp_path: Path) -> None:
    path = str(tmp_path / "loop.lock")
    first, second = LoopLock(path), LoopLock(path)
    assert first.acquire(0)
    assert first.epoch() == 0
    assert first.raise_epoch() == 1
    assert not second.acquire(0)
    assert second.holder() == {"epoch": 1, "host": os.uname().nodename, "pid": os.getpid(), "boot": locks.get_boot_id()}
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


def test_a_loop_whose_lock_file_is_gone_or_senseless_gets_an_error(tmp_path: Path) -> None:
    path = tmp_path / "loop.lock"
    loop = LoopLock(str(path))
    assert loop.acquire(0)
    loop.raise_epoch()
    path.write_bytes(b"x" * 256)
    with pytest.raises(StateUnreadable, match=r"loop\.lock: contains no epoch"):
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


# --- the fate of the last holder --------------------------------------------------------------------------------------

HERE = {"host": os.uname().nodename, "pid": GONE, "boot": locks.get_boot_id()}


@pytest.mark.parametrize(
    ("holder", "is_gone"),
    [
        pytest.param(HERE, True, id="its process on this host is gone"),
        pytest.param(HERE | {"pid": os.getpid()}, True, id="its process had the id of this one"),
        pytest.param(HERE | {"pid": os.getppid()}, False, id="its process runs on this host"),
        pytest.param(HERE | {"host": "elsewhere"}, False, id="it ran on another host"),
        pytest.param(HERE | {"boot": "another"}, False, id="this host or another of its name has booted since"),
        pytest.param(HERE | {"boot": ""}, False, id="its boot is unknown"),
        pytest.param(HERE | {"pid": "1"}, False, id="its process is unknown"),
    ],
)
def test_a_holder_is_proven_gone_only_on_its_own_host_and_boot(holder: dict[str, object], is_gone: bool) -> None:
    assert locks.is_gone(holder) is is_gone


def test_a_holder_is_not_proven_gone_if_the_boot_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "get_boot_id", lambda: "")
    assert not locks.is_gone(HERE | {"boot": ""})


def test_the_fate_of_the_last_holder_follows_from_lock_and_signature(tmp_path: Path) -> None:
    path = str(tmp_path / "loop.lock")
    loop, reader = LoopLock(path), LoopLock(path)
    assert reader.fate() == ""
    assert loop.acquire(0)
    loop.raise_epoch(1, wait_seconds=30.0)
    assert reader.fate() == "waits"
    epoch = loop.epoch()
    loop.end_wait()
    assert (reader.fate(), reader.epoch()) == ("holds", epoch)
    loop.sign({"epoch": 1, **HERE})
    loop.release()
    assert reader.fate() == "gone"
    for holder in (HERE | {"host": "elsewhere"}, HERE | {"pid": os.getpid()}):
        assert loop.acquire(0)
        loop.sign({"epoch": 1, **holder})
        loop.release()
        assert reader.fate() == "released"
    assert loop.acquire(0)
    loop.sign_off()
    assert reader.fate() == "ended"
