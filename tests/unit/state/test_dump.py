"""The files that a dump saves, and the conditions in which it is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from provisioner.state.directory import StateDir
from provisioner.state.dump import take_dump
from provisioner.state.dump_format import unpack
from provisioner.state.errors import LockTimeout, StateError, StateLinked, StateMissing, StateUnreadable
from provisioner.state.locks import DataLock
from tests.support.stores import contents


def test_a_dump_holds_what_must_not_be_lost_and_nothing_that_would_lie_later(golden: StateDir) -> None:
    golden.announced.write({"T": 10})
    before = contents(golden.path)
    manifest, packed = take_dump(golden)
    dump = unpack("dump", packed)
    reported = [f"seen/{id_}.answer-0" for id_ in ("gacmtgfnyp", "ihsc3p23q5", "ret-dsjn6l56km")]
    databases = ["intent.json", "memory.json", "holds.json", "status.json", "announced.json"]
    assert list(dump.files) == [*databases, *reported, "journal.jsonl"]
    assert (manifest, manifest.instance) == (dump.manifest, "demo")
    assert {name: saved.content for name, saved in dump.files.items()}.items() <= before.items()
    after = contents(golden.path)
    assert {name for name in after if after[name] != before.get(name)} <= {name for name in after if ".lock" in name}


def test_while_a_script_or_the_loop_writes_a_dump_waits(golden: StateDir) -> None:
    for file in (golden.intent, golden.memory):
        with (
            DataLock(file.lock_path),
            patch("provisioner.state.dump.DataLock", lambda path: DataLock(path, 0.0)),
            pytest.raises(LockTimeout, match="held this lock"),
        ):
            take_dump(golden)


@pytest.mark.parametrize("damage", ["cut", "lost", "old"])
@pytest.mark.parametrize("kind", ["intent", "memory"])
def test_files_that_are_not_the_newest_are_not_dumped(golden: StateDir, kind: str, damage: str) -> None:
    path = Path(golden.path, f"{kind}.json")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "lost":
        path.unlink()
    else:
        with DataLock(f"{path}.lock") as lock:
            lock.generation = 1000
    with pytest.raises((StateMissing, StateUnreadable), match=f"{kind}.json"):
        take_dump(golden)


def test_holds_that_cannot_be_read_are_not_dumped_and_what_to_do_is_said(golden: StateDir) -> None:
    Path(golden.holds.path).write_text("{")
    with pytest.raises(StateUnreadable, match="`provisioner stop-all` or `start-all` starts a new file"):
        take_dump(golden)
    golden.holds.change(lambda held: held, replace_unusable=True)
    take_dump(golden)


@pytest.fixture
def linked_copy(golden: StateDir) -> StateDir:
    """A copy of the state directory with hard links to its files, as `cp -al` makes it."""
    take_dump(golden)  # makes the lock files
    copy = f"{golden.path}.copy"
    shutil.copytree(golden.path, copy, copy_function=os.link)
    return StateDir(copy)


def test_a_copy_whose_files_have_other_names_is_dumped_and_not_written(linked_copy: StateDir) -> None:
    def facts() -> dict[str, tuple[int, int]]:
        files = (path for path in Path(linked_copy.path).rglob("*") if path.is_file())
        return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}

    before, held = facts(), contents(linked_copy.path)
    dump = unpack("dump", take_dump(linked_copy)[1])
    assert {name: saved.content for name, saved in dump.files.items()}.items() <= held.items()
    assert {"intent.json", "memory.json", "journal.jsonl", "seen/gacmtgfnyp.answer-0"} <= {*dump.files}
    assert (facts(), contents(linked_copy.path)) == (before, held)


@pytest.mark.parametrize("suffix", [".lock", ".lock.turn"])
def test_the_locks_of_a_copy_are_taken_unless_they_have_another_name(golden: StateDir, suffix: str) -> None:
    take_dump(golden)
    path = Path(golden.intent.path + suffix)
    with patch("provisioner.state.dump.DataLock", wraps=DataLock) as locks:
        take_dump(golden)
        assert [call.args[0] for call in locks.call_args_list].count(golden.intent.lock_path) == 1
        locks.reset_mock()
        os.link(path, path.with_name("backup"))
        take_dump(golden)
        assert [call.args[0] for call in locks.call_args_list].count(golden.intent.lock_path) == 0


@pytest.mark.usefixtures("no_pauses")
def test_scripts_and_loop_refuse_files_with_other_names_after_a_dump_too(
    golden: StateDir, linked_copy: StateDir
) -> None:
    take_dump(golden)
    with pytest.raises(StateError, match="has another name"):
        golden.record_request("demo", "T1", 1, created_wall=0.0, rc_account="")
    for read in (golden.intent.read, golden.memory.read):
        with pytest.raises(StateLinked):
            read()


def test_a_link_to_a_file_elsewhere_is_not_dumped(golden: StateDir) -> None:
    path = Path(golden.intent.path)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    with pytest.raises(StateLinked):
        take_dump(golden)
