"""Locks: their holders, their content, and the detection of a lost lock."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from provisioner.state import atomic, locks
from provisioner.state.directory import StateDir
from provisioner.state.errors import LockTimeout, StateUnwritable
from provisioner.state.locks import DataLock, LockFile, describe_holder, read_record, whole_number
from tests.support.hostfactory.in_process import Here, asking
from tests.support.hostfactory.provider import requesting
from tests.support.stores import add, add_request, failing, forgotten


def test_a_lock_admits_one_and_then_the_next(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first, second = LockFile(path), LockFile(path)
    assert first.acquire(0)
    assert not second.acquire(0.01)
    asked: list[None] = []

    def release_at_the_second_time() -> bool:
        asked.append(first.release() if asked else None)
        return False

    assert second.acquire(60, release_at_the_second_time), "who waits gets the lock when it is free"
    assert len(asked) == 2
    first.release()


def test_a_wait_without_end_ends_when_asked_to_stop(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    holder = LockFile(path)
    assert holder.acquire(0)
    asked = iter([False, False, True])
    assert not LockFile(path).acquire(None, lambda: next(asked))
    assert next(asked, "none left") == "none left"


def test_a_lock_taken_on_a_removed_file_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder, waiting = LockFile(str(path)), LockFile(str(path))
    assert holder.try_acquire()
    assert not waiting.try_acquire()
    path.unlink()
    newcomer = LockFile(str(path))
    assert newcomer.try_acquire()
    holder.release()
    assert not waiting.try_acquire(), "it locked the removed file"
    assert not waiting.try_acquire(), "the newcomer holds the real one"
    newcomer.release()
    assert waiting.try_acquire()


def test_a_writer_whose_lock_file_was_removed_does_not_write(tmp_path: Path) -> None:
    with DataLock(str(tmp_path / "lock")) as lock:
        (tmp_path / "lock").unlink()
        with pytest.raises(StateUnwritable, match="Never remove lock files"):
            lock.check()
    assert not (tmp_path / "lock").exists(), "leaving must not make the file again either"


def test_the_record_of_a_lock_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = LockFile(str(path))
    assert lock.record() == {}
    assert lock.try_acquire()
    assert lock.record() == {}
    for facts in ({"generation": 10**9, "host": "h" * 64}, {"generation": 1}):
        lock.sign(facts)
        assert lock.record() == facts
        assert path.stat().st_size == locks.RECORD_WIDTH
    lock.release()
    with pytest.raises(StateUnwritable):
        lock.sign({})


def test_a_lock_names_its_holder_only_while_it_is_held(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with DataLock(path) as lock:
        held = locks.read_record(path)
        lock.generation = 7
    assert (held["pid"], held["host"], held["generation"]) == (os.getpid(), os.uname().nodename, 0)
    assert locks.read_record(path) == {"generation": 7}


def test_a_process_that_waits_signs_the_turn(tmp_path: Path) -> None:
    path, turn = str(tmp_path / "lock"), []

    def stop() -> bool:
        turn.append(locks.read_record(f"{path}.turn"))
        return len(turn) == 2

    holder = DataLock(path)
    assert holder.try_acquire()
    with holder.released_at_end():
        assert not DataLock(path).acquire(stop)
    assert [one.get("pid") for one in turn] == [None, os.getpid()], "before the turn, and with it"


def test_the_turn_is_not_held_for_long_by_a_process_that_takes_it_for_a_moment(tmp_path: Path) -> None:
    """Waiting processes queue for a lock file, the turn. A process that takes the turn only for a moment does not sign
    it. So the time of an earlier signature must not count as the time of this process."""
    path = str(tmp_path / "lock")
    turn = LockFile(f"{path}.turn")
    assert turn.acquire(0)
    os.utime(turn.path, (0, 0))

    def clock() -> float:
        turn.release()
        return 100.0

    assert locks.find_lasting_holder(path, clock) == ""


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({}, "The holder has not signed; `lsof .*lock` names it"),
        ({"host": "elsewhere", "pid": 7}, r"process 7 on host elsewhere, which only that host can check \(`ps -p 7`\)"),
        ({"host": os.uname().nodename, "pid": 1}, "process 1 on host .*, which runs on this host"),
        (
            {"host": os.uname().nodename, "pid": 2**22 + 1},
            "which no longer runs: its child, or a process",
        ),
        ({"host": "h", "pid": 7, "since": "2030-01-02T03:04:05Z"}, "since 2030-01-02T03:04:05Z"),
    ],
    ids=["unsigned", "another host", "alive here", "dead here", "since"],
)
def test_the_holder_of_a_lock_is_described(tmp_path: Path, facts: dict[str, object], message: str) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(facts))
    text = describe_holder(str(path), 20.0)
    assert text.startswith(f"{path}: another process held this lock for 20 s; no file was written. ")
    assert re.search(message, text)
    assert "ry again" in text


@pytest.mark.parametrize(
    ("letter", "is_stopped"), [("T", True), ("S", False), ("t", False)], ids=["stopped", "asleep", "traced"]
)
def test_a_holder_that_is_stopped_is_described_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letter: str, is_stopped: bool
) -> None:
    """A holder must be described as stopped if it is stopped, and only then. Its process name in /proc may resemble a
    state, because a name may contain anything."""
    stat = tmp_path / "stat"
    stat.write_text(f"1 (a) T (b) {letter} 0 1 1 0 -1")
    monkeypatch.setattr(locks, "open", lambda path, mode: {"/proc/1/stat": stat}[path].open(mode), raising=False)
    lock = tmp_path / "lock"
    lock.write_text(json.dumps({"host": os.uname().nodename, "pid": 1}))
    advice = "process 1 is stopped (SIGSTOP): continue it (kill -CONT 1) or end it."
    assert (advice in describe_holder(str(lock), 20.0)) is is_stopped
    assert locks.stopped_message({"host": "elsewhere", "pid": 1}) == ""
    assert locks.stopped_message({}) == ""


def test_a_writer_that_waits_too_long_names_the_holder_and_writes_nothing(state: StateDir) -> None:
    add(state)
    before = state.intent.signature()
    with (
        DataLock(state.intent.lock_path),
        pytest.raises(LockTimeout) as caught,
    ):
        add_request(StateDir(state.path), "T", 1, created_wall=0.0, wait=0.05)
    said, host = str(caught.value), os.uname().nodename
    assert said.startswith(f"{state.intent.lock_path}: another process held this lock for 0.05 s; no file was written.")
    assert f"Signed by process {os.getpid()} on host {host}" in said
    assert "which runs on this host" in said
    assert state.intent.signature() == before


def test_no_script_that_reads_asks_for_the_lock(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Here(tmp_path, capfd)
    request = hf.answer("requestMachines", requesting("T1", 1))["requestId"]
    monkeypatch.setattr(LockFile, "try_acquire", lambda self: pytest.fail(f"{self.path} is asked for"))
    assert hf.answer("getAvailableTemplates", {})["templates"]
    assert hf.answer("getRequestStatus", asking(request))["requests"]
    assert hf.answer("getReturnRequests", {"machines": [{"name": "a"}]})["requests"] == []


def test_a_directory_that_may_not_be_written_and_a_mount_without_locks_are_named(tmp_path: Path, monkeypatch) -> None:
    path = str(tmp_path / "lock")
    with monkeypatch.context() as patched:
        patched.setattr(atomic.os, "open", failing(os.open, errno.EROFS))
        with pytest.raises(StateUnwritable, match=r"lock\.turn: cannot be locked: Read-only file system\."):
            DataLock(path).__enter__()
    monkeypatch.setattr(locks.fcntl, "flock", failing(locks.fcntl.flock, errno.ENOLCK))
    with pytest.raises(StateUnwritable, match="Mount it with support for locks"):
        DataLock(path).__enter__()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO, errno.ESTALE, errno.EINTR])
def test_a_lock_that_the_system_refuses_cannot_be_locked(tmp_path: Path, monkeypatch, code: int) -> None:
    lock = LockFile(str(tmp_path / "lock"))
    monkeypatch.setattr(locks.fcntl, "flock", failing(locks.fcntl.flock, code))
    with pytest.raises(StateUnwritable, match=rf"lock: cannot be locked: {re.escape(os.strerror(code))}\."):
        lock.try_acquire()


@pytest.mark.parametrize("call", ["pread", "pwrite", "lstat"])
def test_a_lock_that_cannot_be_signed_or_looked_at_is_let_go(tmp_path: Path, monkeypatch, call: str) -> None:
    path = str(tmp_path / "lock")
    lock = DataLock(path)
    monkeypatch.setattr(locks.os, call, failing(getattr(os, call), errno.EIO))
    with pytest.raises(StateUnwritable, match=r"lock(\.turn)?: cannot be written"):
        lock.__enter__()
    assert LockFile(path).acquire(0)


def test_a_generation_that_cannot_be_noted_does_not_undo_what_is_durable(tmp_path: Path, monkeypatch) -> None:
    path = str(tmp_path / "lock")
    with DataLock(path) as lock:
        lock.generation = 5
        monkeypatch.setattr(locks.os, "pwrite", failing(os.pwrite, errno.ENOSPC))
    with DataLock(path) as lock:
        assert lock.generation == 0, "behind is allowed, ahead is not"


def test_whoever_lost_his_lock_writes_nothing_over_what_another_has_written_meanwhile(
    tmp_path: Path, monkeypatch
) -> None:
    path = str(tmp_path / "lock")
    with DataLock(path) as lost:
        lost.check()
        forgotten(lost._file)
        monkeypatch.setattr(locks, "identity", lambda: {"host": "another", "pid": 7})
        with DataLock(path) as other:
            other.generation = 5
            with pytest.raises(StateUnwritable, match="lock was lost while it was held"):
                lost.check()
        lost.generation = 4
    assert whole_number(read_record(path), "generation") == 5


def test_a_lock_that_the_server_says_is_lost_is_none(tmp_path: Path, monkeypatch) -> None:
    with DataLock(str(tmp_path / "lock")) as lock:
        monkeypatch.setattr(locks.os, "pread", failing(os.pread, errno.EIO))
        with pytest.raises(StateUnwritable, match="or NFS lost a lock"):
            lock.check()
