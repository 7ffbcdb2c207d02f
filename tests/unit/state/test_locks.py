"""Replacing files, locks, marks, heartbeat and journal: the plain files under the databases."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.state import atomic, locks
from provisioner.state.atomic import read_whole, replace
from provisioner.state.errors import (
    LockTimeout,
    StateDenied,
    StateError,
    StateMissing,
    StateUnreadable,
    StateUnwritable,
)
from provisioner.state.hf_signals import Inventory, Seen
from provisioner.state.journal import Journal
from provisioner.state.locks import DataLock, LockFile, LoopLock, describe_holder, read_record, whole_number
from provisioner.state.loop_signals import Heartbeat, PoolNotes
from provisioner.state.terminal_answers import Told
from tests.support.waiting import until


@pytest.mark.parametrize("what", ["directory", "file"])
def test_what_a_server_has_replaced_is_to_be_mounted_anew_and_not_to_be_made(
    tmp_path: Path, monkeypatch, what: str
) -> None:
    path = str(tmp_path / "f")
    monkeypatch.setattr(atomic, "FIRST_PAUSE", 0.0)
    if what == "directory":
        monkeypatch.setattr(os, "stat", failing(os.stat, errno.ESTALE, 1))
    else:
        monkeypatch.setattr(atomic.os, "open", failing(os.open, errno.ESTALE, 10_000))
    with pytest.raises(StateMissing if what == "directory" else StateUnreadable, match="mount it anew") as raised:
        read_whole(path, "Make it.")
    assert "Make it" not in str(raised.value)
    assert "does not exist" not in str(raised.value)


# --- reading ----------------------------------------------------------------------------------------------------------


def failing(real: Callable[..., object], error: int, times: int) -> Callable[..., object]:
    """``real``, after it failed so many times."""
    left = [times]

    def call(*arguments: object, **options: object) -> object:
        if left[0]:
            left[0] -= 1
            raise OSError(error, os.strerror(error))
        return real(*arguments, **options)

    return call


@pytest.mark.parametrize("call", ["open", "fstat", "read"])
def test_a_file_replaced_on_the_server_meanwhile_is_opened_again(tmp_path: Path, monkeypatch, call: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"content")
    monkeypatch.setattr(atomic, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(atomic.os, call, failing(getattr(os, call), errno.ESTALE, 3))
    assert read_whole(str(path), "") == b"content"


def test_a_file_that_stays_stale_is_unreadable_after_a_bounded_time(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(atomic, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(atomic.os, "open", failing(os.open, errno.ESTALE, 10_000))
    with pytest.raises(StateUnreadable, match=r"f: cannot be read: .*[Ss]tale"):
        read_whole(str(tmp_path / "f"), "Ask.")


def test_another_error_of_reading_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(StateUnreadable, match="is no regular file"):
        read_whole(str(tmp_path), "Ask.")


def test_a_reader_keeps_the_inode_it_opened(tmp_path: Path, monkeypatch) -> None:
    path = str(tmp_path / "f")
    replace(path, b"old" * 5000)
    real = os.open

    def open_then_replaced(name: str, *arguments: int) -> int:
        descriptor = real(name, *arguments)
        monkeypatch.setattr(atomic.os, "open", real)
        replace(path, b"new")
        return descriptor

    monkeypatch.setattr(atomic.os, "open", open_then_replaced)
    assert read_whole(path, "") == b"old" * 5000
    assert read_whole(path, "") == b"new"


# --- replacing --------------------------------------------------------------------------------------------------------


def test_leftovers_of_killed_writers_go_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    leftover, running, other = tmp_path / "f.json.1-aa.new", tmp_path / "f.json.2-bb.new", tmp_path / "g.json.1-a.new"
    for file in (leftover, running, other):
        file.write_bytes(b"half")
    for file in (leftover, other):
        os.utime(file, (time.time() - 700, time.time() - 700))
    replace(str(path), b"whole")
    assert {file.name for file in tmp_path.iterdir()} == {"f.json", running.name, other.name}


def test_a_leftover_that_cannot_be_removed_does_not_fail_the_write(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(atomic.os, "listdir", failing(os.listdir, errno.EACCES, 1))
    replace(str(tmp_path / "f"), b"new")
    assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.skipif(os.geteuid() != 0, reason="root: only root can make a file of a foreign group")
def test_the_group_of_the_old_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "f"
    replace(str(path), b"old")
    os.chown(path, -1, 4242)
    replace(str(path), b"new")
    assert (path.read_bytes(), path.stat().st_gid) == (b"new", 4242)


def test_a_group_that_cannot_be_kept_stops_the_write(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "f"
    replace(str(path), b"old")
    real = os.lstat
    facts = list(real(path))
    facts[5] = 4242
    monkeypatch.setattr(atomic.os, "lstat", lambda name: os.stat_result(facts) if name == str(path) else real(name))
    monkeypatch.setattr(atomic.os, "fchown", failing(os.fchown, errno.EPERM, 1))
    with pytest.raises(StateUnwritable, match=r"its group 4242 cannot be kept; join that group or set the dir"):
        replace(str(path), b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["f"]
    assert path.read_bytes() == b"old"


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch) -> None:
    real = os.write
    monkeypatch.setattr(atomic.os, "write", lambda descriptor, content: real(descriptor, content[:7]))
    replace(str(tmp_path / "f"), b"0123456789" * 3)
    assert (tmp_path / "f").read_bytes() == b"0123456789" * 3


# --- locks ------------------------------------------------------------------------------------------------------------


def test_a_lock_admits_one_and_then_the_next(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first, second = LockFile(path), LockFile(path)
    assert first.acquire(0)
    assert not second.acquire(0.01)
    first.release()
    first.release()
    assert second.acquire(0)


def test_those_who_wait_get_the_lock_when_it_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first, second = LockFile(path), LockFile(path)
    assert first.acquire(0)
    got: list[bool] = []
    waiting = threading.Thread(target=lambda: got.append(second.acquire(20)))
    waiting.start()
    first.release()
    waiting.join(20)
    assert got == [True]


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


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({}, "The holder has not signed; `lsof .*lock` names it"),
        ({"host": "elsewhere", "pid": 7}, r"process 7 on host elsewhere, which only that host can check \(`ps -p 7`\)"),
        ({"host": os.uname().nodename, "pid": 1}, "process 1 on host .*, which runs on this host"),
        (
            {"host": os.uname().nodename, "pid": 2**22 + 1},
            "which no longer runs: a child of it or a process",
        ),
        ({"host": "h", "pid": 7, "since": "2030-01-02T03:04:05Z"}, "since 2030-01-02T03:04:05Z"),
    ],
    ids=["unsigned", "another host", "alive here", "dead here", "since"],
)
def test_the_holder_of_a_lock_is_described(tmp_path: Path, facts: dict[str, object], message: str) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(facts))
    text = describe_holder(str(path), 20.0)
    assert text.startswith(f"{path}: another process held this lock for 20 s; nothing was written. ")
    assert re.search(message, text)
    assert "ry again" in text


def test_a_kill_frees_the_lock_and_its_name_stays_harmless(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"from provisioner.state.locks import DataLock\nwith DataLock({str(path)!r}): print(1, flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        with pytest.raises(LockTimeout, match=f"process {holder.pid} on host .*which runs on this host"):
            DataLock(str(path), 0.05).__enter__()
        holder.kill()
    with DataLock(str(path), 5):
        assert locks.read_record(str(path))["pid"] == os.getpid()


def test_a_directory_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(atomic.os, "open", failing(os.open, errno.EROFS, 1))
    with pytest.raises(StateUnwritable, match=r"lock\.turn: cannot be locked: Read-only file system\."):
        DataLock(str(tmp_path / "lock")).__enter__()


@pytest.mark.parametrize("call", ["pread", "pwrite"])
def test_a_lock_that_cannot_be_signed_is_let_go(tmp_path: Path, monkeypatch, call: str) -> None:
    path = str(tmp_path / "lock")
    lock = DataLock(path)
    monkeypatch.setattr(locks.os, call, failing(getattr(os, call), errno.EIO, 1))
    with pytest.raises(StateUnwritable, match="lock: cannot be written"):
        lock.__enter__()
    assert LockFile(path).acquire(0)


def test_a_lock_that_cannot_be_looked_at_is_let_go(tmp_path: Path, monkeypatch) -> None:
    path = str(tmp_path / "lock")
    lock = LockFile(path)
    monkeypatch.setattr(locks.os, "lstat", failing(os.lstat, errno.EIO, 1))
    with pytest.raises(StateUnwritable, match="lock: cannot be written"):
        lock.try_acquire()
    assert LockFile(path).acquire(0)


def test_a_generation_that_cannot_be_noted_does_not_undo_what_is_durable(tmp_path: Path, monkeypatch) -> None:
    path = str(tmp_path / "lock")
    with DataLock(path) as lock:
        lock.generation = 5
        monkeypatch.setattr(locks.os, "pwrite", failing(os.pwrite, errno.ENOSPC, 1))
    with DataLock(path) as lock:
        assert lock.generation == 0, "behind is allowed, ahead is not"


def forgotten(lock: DataLock | LoopLock) -> None:
    """The file server forgets the lock; its holder is not told."""
    fcntl.flock(lock._file._descriptor, fcntl.LOCK_UN)


def test_whoever_lost_his_lock_writes_nothing_over_what_another_has_written_meanwhile(
    tmp_path: Path, monkeypatch
) -> None:
    path = str(tmp_path / "lock")
    with DataLock(path) as lost:
        lost.check()
        forgotten(lost)
        monkeypatch.setattr(locks, "identity", lambda: {"host": "another", "pid": 7})
        with DataLock(path) as other:
            other.generation = 5
            with pytest.raises(StateUnwritable, match="lock was lost while it was held"):
                lost.check()
        lost.generation = 4
    assert whole_number(read_record(path), "generation") == 5


def test_a_lock_that_the_server_says_is_lost_is_none(tmp_path: Path, monkeypatch) -> None:
    with DataLock(str(tmp_path / "lock")) as lock:
        monkeypatch.setattr(locks.os, "pread", failing(os.pread, errno.EIO, 1))
        with pytest.raises(StateUnwritable, match="or NFS lost a lock"):
            lock.check()


def test_a_mount_without_locks_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(locks.fcntl, "flock", failing(locks.fcntl.flock, errno.ENOLCK, 1))
    with pytest.raises(StateUnwritable, match="that its mount supports locks"):
        DataLock(str(tmp_path / "lock")).__enter__()


# --- the loop's lock --------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(locks.os, "fsync", failing(os.fsync, errno.EIO, 1))
    with pytest.raises(StateUnwritable):
        loop.raise_epoch()


def test_a_standby_loop_ends_when_asked(tmp_path: Path) -> None:
    path = str(tmp_path / "loop.lock")
    first = LoopLock(path)
    assert first.acquire(0)
    stop = threading.Event()
    ended: list[bool] = []
    standby = threading.Thread(target=lambda: ended.append(LoopLock(path).acquire(None, stop.is_set)))
    standby.start()
    stop.set()
    standby.join(10)
    assert ended == [False]
    first.release()


# --- marks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(str(tmp_path / "seen"))


def test_a_poll_leaves_a_mark_and_the_next_one_a_later_one(seen: Seen) -> None:
    first = seen.touch("abc")
    os.utime(os.path.join(seen.path, "abc"), ns=(1, 1))
    assert seen.marks() == {"abc": 1}
    assert seen.touch("abc") >= first
    assert seen.marks()["abc"] >= first


def test_forgetting_removes_marks_and_skips_what_is_gone(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    seen.touch("abc")
    seen.touch("kept")
    seen.forget(["abc", "never", "../precious"])
    assert set(seen.marks()) == {"kept"}
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("request_id", ["", ".", "..", "../intent.json", "a/b", "a.new", "ä", "a" * 65, "a\n", "a\0"])
def test_an_id_that_could_lead_elsewhere_is_refused(seen: Seen, tmp_path: Path, request_id: str) -> None:
    told = Told(seen.path)
    settles = (told.settled, told.presume, lambda id_: told.tell(id_, "{}"), lambda id_: told.claim(id_, "{}"))
    for note in (seen.touch, *settles):
        with pytest.raises(StateError, match="is no request id"):
            note(request_id)
    assert list(tmp_path.iterdir()) == []


def test_marks_that_are_no_ids_are_not_reported(seen: Seen) -> None:
    seen.touch("abc")
    Path(seen.path, ".nfs000123").touch()
    assert set(seen.marks()) == {"abc"}


def test_marks_are_made_only_in_a_state_directory(tmp_path: Path) -> None:
    with pytest.raises(StateMissing, match="does not exist"):
        Seen(str(tmp_path / "wrok" / "seen")).touch("abc")
    assert list(tmp_path.iterdir()) == []


def test_refused_marks_are_reported(seen: Seen, monkeypatch) -> None:
    seen.touch("abc")
    monkeypatch.setattr("provisioner.state.marks.os.utime", failing(os.utime, errno.EROFS, 1))
    with pytest.raises(StateUnwritable, match="abc: cannot be written: Read-only"):
        seen.touch("abc")
    monkeypatch.setattr("provisioner.state.marks.os.listdir", failing(os.listdir, errno.EACCES, 1))
    with pytest.raises(StateDenied, match="seen: cannot be read: Permission denied"):
        seen.marks()
    monkeypatch.setattr("provisioner.state.atomic.os.unlink", failing(os.unlink, errno.EACCES, 1))
    with pytest.raises(StateUnwritable, match="abc"):
        seen.forget(["abc"])


def test_the_last_inventory_wins(tmp_path: Path) -> None:
    inventory = Inventory(str(tmp_path / "hf-inventory.json"))
    inventory.write(["a", "b"])
    inventory.write(iter(["c"]))
    names, mark = inventory.read() or ((), 0)
    assert names == ("c",)
    assert mark == (tmp_path / "hf-inventory.json").stat().st_mtime_ns


def test_notes_on_pools_are_read_as_written(tmp_path: Path) -> None:
    notes = PoolNotes(str(tmp_path / "pools.json"))
    assert notes.read() == {}
    notes.write({"pools": {"a": ("one", "two")}, "paused": ("b",)})
    assert notes.read() == {"pools": {"a": ["one", "two"]}, "paused": ["b"]}


@pytest.mark.parametrize(
    "before", [{}, {"a": ["one", "two"]}, {"pools": ["one"]}], ids=["none", "one pool", "its name"]
)
def test_notes_that_are_only_sentences_by_pool_are_read_as_such(tmp_path: Path, before: dict[str, list[str]]) -> None:
    notes = PoolNotes(str(tmp_path / "pools.json"))
    (tmp_path / "pools.json").write_text(json.dumps(before))
    assert notes.read() == {"pools": before}


@pytest.mark.parametrize("content", ['{"a": 3}', "[]", '{"pools": 3}'])
def test_damaged_notes_are_no_notes(tmp_path: Path, content: str) -> None:
    (tmp_path / "pools.json").write_text(content)
    with pytest.raises(StateUnreadable, match="sentences by pool"):
        PoolNotes(str(tmp_path / "pools.json")).read()


def test_the_same_list_again_is_noted_as_a_new_one(tmp_path: Path) -> None:
    inventory = Inventory(str(tmp_path / "hf-inventory.json"))
    inventory.note({"a": None, "b": None})
    os.utime(inventory.path, ns=(1, 1))
    inventory.note({"a": None, "b": None})
    names, mark = inventory.read() or ((), 0)
    assert (names, mark > 1) == (("a", "b"), True)


@pytest.mark.parametrize("content", ["", "[]", '{"names": "a"}', '{"names": [1]}'])
def test_a_damaged_inventory_is_not_an_empty_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "i.json").write_text(content)
    with pytest.raises(StateUnreadable, match=r"i\.json: .*HF's next getReturnRequests writes it again"):
        Inventory(str(tmp_path / "i.json")).read()


def test_the_loops_silence_until_now_leaves_no_file_behind(tmp_path: Path) -> None:
    heartbeat = Heartbeat(str(tmp_path / "heartbeat"))
    assert heartbeat.silent_now() is None
    heartbeat.touch()
    os.utime(heartbeat.path, ns=(0, os.stat(heartbeat.path).st_mtime_ns - 90_000_000_000))
    assert heartbeat.silent_now() == pytest.approx(90, abs=5)
    assert [entry.name for entry in tmp_path.iterdir()] == ["heartbeat"]


def test_the_loops_silence_is_the_gap_between_two_files_times(tmp_path: Path) -> None:
    heartbeat, other = Heartbeat(str(tmp_path / "heartbeat")), tmp_path / "seen"
    assert heartbeat.age_against(str(other)) is None
    heartbeat.touch()
    assert heartbeat.age_against(str(other)) is None
    other.touch()
    last = os.stat(heartbeat.path).st_mtime_ns
    os.utime(other, ns=(0, last + 90_000_000_000))
    assert heartbeat.age_against(str(other)) == pytest.approx(90, abs=0.001)
    os.utime(other, ns=(0, last - 1_000_000_000))
    assert heartbeat.age_against(str(other)) == 0.0
    assert heartbeat.loop_silent_for(last + 5_000_000_000) == pytest.approx(5, abs=0.001)
    os.utime(heartbeat.path, ns=(0, 0))
    heartbeat.touch()
    assert os.stat(heartbeat.path).st_mtime_ns >= last


# --- journal ----------------------------------------------------------------------------------------------------------


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_journal_holds_one_line_per_entry_in_order(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"))
    journal.append([])
    assert not (tmp_path / "journal.jsonl").exists()
    journal.append([{"n": 1, "text": "two\nlines"}, {"n": 2}])
    journal.append([{"n": 3}])
    assert [entry["n"] for entry in lines(tmp_path / "journal.jsonl")] == [1, 2, 3]


def test_half_a_line_of_a_crash_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"n": 1}\n{"n"')
    Journal(str(path)).append([{"n": 3}])
    assert path.read_text().splitlines() == ['{"n": 1}', '{"n"', '{"n":3}']


def test_the_journal_is_rotated_by_size_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(str(path), max_bytes=40, keep=2)
    for number in range(40):
        journal.append([{"n": number}])
    kept = [tmp_path / "journal.jsonl.2", tmp_path / "journal.jsonl.1"]
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    numbers = [entry["n"] for file in kept for entry in lines(file)]
    assert numbers == list(range(40 - len(numbers), 40))
    assert all(40 <= file.stat().st_size < 60 for file in kept)


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(StateUnwritable, match="journal"):
        Journal(str(tmp_path / "missing" / "journal.jsonl")).append([{"n": 1}])


def test_fifty_threads_get_their_turn(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    turns: list[int] = []

    def take(number: int) -> None:
        with DataLock(path, 20):
            turns.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    until(lambda: len(turns) == 50, 20, what="fifty turns")
    for thread in threads:
        thread.join()
    assert sorted(turns) == list(range(50))
