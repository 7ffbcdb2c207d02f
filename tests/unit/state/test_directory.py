"""The directory as a whole: reading creates no file, and every file is shared with the group."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.model import Memory
from provisioner.state import marker_files
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateMissing, StateUnwritable
from tests.support.stores import add, contents, failing, fill


@pytest.fixture
def umask_077() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_full_disk_is_found_by_a_block_that_is_removed_again(state: StateDir, monkeypatch) -> None:
    assert state.find_write_error() is None
    monkeypatch.setattr(marker_files, "write_all", failing(marker_files.write_all, errno.ENOSPC))
    refusal = state.find_write_error()
    assert refusal is not None
    assert refusal.errno == errno.ENOSPC
    assert list(Path(state.path).iterdir()) == []


READS = {
    "intent": lambda state: state.intent.read(),
    "intent.find": lambda state: state.intent.find(["r1"]),
    "intent.returned_names": lambda state: state.intent.returned_names(),
    "intent.remove": lambda state: state.intent.remove(["r1"]),
    "memory": lambda state: state.memory.read(),
    "status.read_answers": lambda state: state.status.read_answers(["r1"]).get("r1"),
    "status.read_all": lambda state: state.status.read_all(),
    "status.read_lost": lambda state: state.status.read_lost(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reading_what_is_not_there_creates_nothing_and_names_the_file(state: StateDir, read) -> None:
    with pytest.raises(StateMissing, match=r"(intent|memory|status)\.json: (the file )?does not exist"):
        read(state)
    assert contents(Path(state.path)) == {}


def test_a_mistyped_directory_is_named_and_not_created(tmp_path: Path) -> None:
    mistyped = StateDir(tmp_path / "wrok")
    for attempt in (mistyped.intent.read, lambda: add(mistyped), lambda: mistyped.intent.create("demo")):
        with pytest.raises(StateMissing, match=r"wrok: this state directory does not exist.*HF_PROVIDER_WORKDIR"):
            attempt()
    with pytest.raises(StateUnwritable, match="wrok"):
        mistyped.memory.write(Memory("demo"))
    assert list(tmp_path.iterdir()) == []


def test_looking_at_signs_of_life_creates_nothing(state: StateDir) -> None:
    assert state.intent.signature() is None
    assert not state.memory.exists()
    assert not state.memory.existed()
    assert state.seen.marks() == {}
    assert state.terminal_answers.ids() == frozenset()
    assert state.inventory.read() is None
    assert state.heartbeat.silent_seconds_until(0) is None
    assert contents(Path(state.path)) == {}


@pytest.mark.usefixtures("umask_077")
def test_every_file_is_shared_with_the_group_whatever_the_umask(state: StateDir) -> None:
    fill(state)
    state.seen.touch("r1")
    state.inventory.write(["a"])
    state.heartbeat.touch()
    state.journal.append([{"a": 1}])
    assert state.loop_lock.acquire(0)
    state.loop_lock.raise_epoch()
    files = {path for path in Path(state.path).rglob("*") if path.is_file()}
    assert len(files) == 12
    assert {path.stat().st_mode & 0o777 for path in files} == {0o660}
    assert (Path(state.path) / "seen").stat().st_mode & 0o777 == 0o770
    add(state)
    assert Path(state.intent.path).stat().st_mode & 0o777 == 0o660
