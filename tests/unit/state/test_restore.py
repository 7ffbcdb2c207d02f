"""Restore of a dump: restored, kept and refused files, and interrupted restores that are run again."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from provisioner.hostfactory import Answer, Loss
from provisioner.model import Hold, HoldKind, Memory
from provisioner.state.directory import StateDir
from provisioner.state.dump import take_dump
from provisioner.state.dump_format import FORMAT, Manifest, Saved, pack, unpack
from provisioner.state.errors import Condition, LockTimeout, StateError, StateExists
from provisioner.state.holds import with_hold
from provisioner.state.locks import DataLock
from provisioner.state.loop_lock import LoopLock
from provisioner.state.restore import Restored, restore_dump
from tests.support.hostfactory.provider import GOLDEN
from tests.support.stores import add_request, altered, contents, outdate

SUCCEEDED, UNHEARD = "gacmtgfnyp", "ihsc3p23q5"
ALL_STOPPED = Hold(HoldKind.STOP_ALL, who="ann", reason="the cloud is ill")

pytestmark = pytest.mark.usefixtures("no_fsync")


class Site:
    """A state directory that has been in use, and a dump of it."""

    def __init__(self, state: StateDir) -> None:
        self.work = Path(state.path)
        self.state.announced.write({"T": 10})
        self.packed = b""

    @property
    def state(self) -> StateDir:
        return StateDir(self.work)

    def dump(self) -> None:
        self.packed = take_dump(self.state)[1]

    def lose(self) -> None:
        shutil.rmtree(self.work)
        self.work.mkdir()

    def restore(self, *, replaces: bool = False, instance: str = "demo") -> Restored:
        return restore_dump(self.state, unpack("dump", self.packed), instance, replaces=replaces)


@pytest.fixture
def site(golden: StateDir) -> Site:
    return Site(golden)


def but_locks(site: Site) -> dict[str, bytes]:
    return {name: content for name, content in contents(site.work).items() if ".lock" not in name}


# --- what comes back --------------------------------------------------------------------------------------------------


def test_what_comes_back_and_that_it_is_an_old_copy(site: Site) -> None:
    wanted, reported = site.state.intent.read(), site.state.terminal_answers.answers()
    written = (site.work / "intent.json").stat().st_mtime_ns
    site.dump()
    site.lose()
    done = site.restore()
    assert (done.requests, done.returns, done.reported, done.kept, done.left_out) == (3, 1, 3, "", ())
    state = site.state
    restored = state.intent.read()
    assert (restored.requests, restored.returns) == (wanted.requests, wanted.returns)
    assert (state.intent.condition(), state.memory.condition()) == (Condition.FINE, Condition.OLDER)
    assert state.terminal_answers.answers() == reported
    assert (site.work / "intent.json").stat().st_mtime_ns == written, (
        "the loop recognizes requests whose time is over by it"
    )
    assert state.announced.read() == {"T": 10}
    assert (state.seen.marks(), state.inventory.read()) == ({}, None)
    assert all(answer.ended for answer in state.status.read_all().values())
    assert state.loop_lock.epoch() > 3, "a loop that still runs somewhere is superseded"


def test_what_was_leaving_the_files_stays_away(site: Site) -> None:
    altered(site.work / "memory.json", lambda memory: memory["requests"][SUCCEEDED].update(is_trimmed=True))
    site.dump()
    site.lose()
    site.restore()
    assert SUCCEEDED not in site.state.intent.read().requests


def test_a_present_state_is_replaced_only_if_requested_and_kept_aside(site: Site) -> None:
    site.dump()
    later = add_request(site.state, "T", 1, created_wall=0.0)
    site.state.terminal_answers.settle_reported(later, "{}")
    entry = site.work / "seen" / f"{UNHEARD}.answer-0"
    entry.write_bytes(b"reported\nlater")
    before = but_locks(site)
    with pytest.raises(StateExists, match="With --yes"):
        site.restore()
    assert but_locks(site) == before
    (kept,) = {site.restore(replaces=True).kept, *map(str, site.work.glob("before-restore-*"))}
    assert set(os.listdir(kept)) == {"intent.json", "memory.json", "holds.json", "status.json", "announced.json"}
    assert later in json.loads(Path(kept, "intent.json").read_text())["requests"]
    state = site.state
    assert later not in state.intent.read().requests
    assert later in state.terminal_answers.ids(), "the answers that HF was given stay"
    assert entry.read_bytes() == b"reported\nlater", "a later answer wins over the dump"
    assert (state.intent.condition(), state.memory.condition()) == (Condition.FINE, Condition.OLDER)


def test_a_hold_that_is_held_stays_and_one_that_is_lost_comes_back(site: Site) -> None:
    before = site.state.holds.read().current
    site.state.holds.change(lambda holds: with_hold(holds, ALL_STOPPED))
    site.dump()
    site.lose()
    site.restore()
    assert site.state.holds.read().current == (*before, ALL_STOPPED)
    paused = Hold(HoldKind.PAUSE, "gke-main", "bob", 1.0, "it is full")
    site.state.holds.change(lambda holds: with_hold(holds, paused))
    site.restore(replaces=True)
    assert site.state.holds.read().current == (*before, ALL_STOPPED, paused)


def test_the_highest_number_that_hf_was_shown_stays(site: Site) -> None:
    site.dump()
    site.state.announced.write({"T": 40, "U": 3})
    site.restore(replaces=True)
    assert site.state.announced.read() == {"T": 40, "U": 3}


@pytest.mark.parametrize("there", [False, True], ids=["into an empty directory", "over a state"])
@pytest.mark.parametrize(("name", "content"), [("status.json", "{"), ("announced.json", "[]")])
def test_what_is_made_again_holds_up_no_restore_where_it_was_damaged(
    site: Site, name: str, content: str, there: bool
) -> None:
    wanted = site.state.intent.read().requests
    (site.work / name).write_text(content)
    site.dump()
    if there:
        site.state.status.write({"later": Answer("{}", ended=False)}, {"hf-later": Loss(0, "preempted")})
    else:
        site.lose()
    assert site.restore(replaces=True).left_out == (name,)
    assert site.state.intent.read().requests == wanted
    if name == "status.json":
        assert not (site.work / name).exists(), "its later content is no longer true"
    elif not there:
        assert site.state.announced.read() == {}


def test_it_takes_the_place_of_what_a_newer_version_wrote(site: Site) -> None:
    """A dump from before an upgrade must replace the files of the newer version: a rollback across a change of the
    format."""
    site.state.holds.change(lambda holds: with_hold(holds, ALL_STOPPED))
    site.dump()
    newer = {f"{kind}.json" for kind in ("intent", "memory", "status", "holds")}
    for name in newer:
        altered(site.work / name, outdate)
    before = contents(site.work)
    kept = contents(site.restore(replaces=True).kept)
    state = site.state
    reads = (state.intent.read, state.memory.read, state.status.read_all, state.holds.read)
    assert all(read() is not None for read in reads)
    assert all(kept[name] == before[name] for name in newer)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "directory"])
@pytest.mark.parametrize("name", ["intent.json", "status.json", "announced.json"])
def test_what_is_no_file_of_ours_is_named_before_anything_changes(site: Site, name: str, kind: str) -> None:
    site.dump()
    path = site.work / name
    path.unlink()
    if kind == "link":
        path.symlink_to(site.work / "memory.json")
    else:
        path.mkdir()
    before = but_locks(site)
    with pytest.raises(StateError, match=f"{path}: is no regular file; no file was changed."):
        site.restore(replaces=True)
    assert but_locks(site) == before
    assert [*site.work.glob("before-restore-*")] == []


def test_a_dump_of_another_instance_is_refused(site: Site) -> None:
    site.dump()
    site.lose()
    with pytest.raises(StateError, match="provider instance 'demo', not to 'other'"):
        site.restore(instance="other")
    assert contents(site.work) == {}


def test_a_loop_that_is_stopped_is_named_as_such(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.dump()
    monkeypatch.setattr(LoopLock, "stopped_message", lambda self: "process 7 is stopped")
    other = site.state.loop_lock
    assert other.acquire(0)
    with pytest.raises(LockTimeout, match=r"no record was changed\. process 7 is stopped, then try again\."):
        site.restore(replaces=True)


@pytest.mark.parametrize("replaces", [False, True])
def test_while_a_loop_or_another_restore_runs_or_a_script_writes_it_is_refused(site: Site, replaces: bool) -> None:
    site.dump()
    before = (site.work / "intent.json").read_bytes()
    other = site.state.loop_lock
    assert other.acquire(0)
    with pytest.raises(LockTimeout, match=r"a loop or a restore works on this state.*; no record was changed"):
        site.restore(replaces=replaces)
    other.release()
    with (
        DataLock(site.state.intent.lock_path),
        pytest.raises(LockTimeout, match="a script writes at this moment; no file was changed"),
    ):
        site.restore(replaces=replaces)
    assert (site.work / "intent.json").read_bytes() == before
    assert site.state.loop_lock.acquire(0), "a restore that is refused holds no lock"


# --- interrupted ------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of the process: no later call has an effect."""


KILLED = Killed()
CHANGES = ("rename", "link", "unlink", "pwrite", "utime", "mkdir")
"""Calls that change the directory.

An fsync is left out, because a process that ends before or after it leaves the same files.
"""


@pytest.mark.parametrize("there", [False, True], ids=["into an empty directory", "over a state"])
def test_interrupted_anywhere_it_is_refused_or_careful_and_can_be_run_again(site: Site, there: bool) -> None:
    """If the restore ends before any of its changes, the directory must not pass for a complete or a new state. A
    second restore must succeed."""
    site.state.memory.write(Memory("demo", epoch=5))
    wanted = site.state.intent.read().requests
    site.dump()
    step, ended = 0, False
    while not ended:
        site.lose()
        if there:
            shutil.copytree(GOLDEN / "state", site.work, dirs_exist_ok=True)
        step += 1
        ended = not _is_interrupted(site, step)
        state = site.state
        if not ended and state.intent.exists() and state.intent.read().generation > 4:
            assert state.memory.condition() is Condition.OLDER, f"step {step}: intent came back before memory was old"
        if not ended and state.memory.existed():
            assert state.intent.condition() is not Condition.NEW, f"step {step}: a script would begin anew"
        site.restore(replaces=True)
        assert site.state.intent.read().requests == wanted
        assert site.state.memory.condition() is Condition.OLDER
    assert step > 10


def test_a_disk_that_refuses_a_change_is_named_and_the_restore_can_be_run_again(site: Site) -> None:
    site.dump()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for step in range(1, 16, 3):
        site.lose()
        with pytest.raises(StateError, match=r"No space left on device\. Make room"):
            _is_interrupted(site, step, full)
        site.restore(replaces=True)


def _is_interrupted(site: Site, step: int, error: BaseException = KILLED) -> bool:
    """Return True if the restore ended before the change of number ``step``; False if the restore has fewer changes."""
    turns, opened = itertools.count(1), set[int]()
    open_, close = os.open, os.close

    def until_killed(call: Any) -> Any:
        def before(*arguments: Any, **options: Any) -> Any:
            if next(turns) >= step:
                raise error
            return call(*arguments, **options)

        return before

    def opening(*arguments: Any, **options: Any) -> int:
        opened.add(descriptor := open_(*arguments, **options))
        return descriptor

    def closing(descriptor: int) -> None:
        opened.discard(descriptor)
        close(descriptor)

    calls = {name: until_killed(getattr(os, name)) for name in CHANGES}
    with patch.multiple(os, **calls, open=opening, close=closing):
        try:
            site.restore(replaces=True)
        except Killed:
            return True
        finally:
            for descriptor in [*opened]:  # as the kernel does when a process ends
                os.close(descriptor)
    return False


def test_a_dump_of_a_directory_in_which_no_loop_has_run_yet_comes_back(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "before")
    os.mkdir(state.path)
    id_ = add_request(state, "T", 3, created_wall=1.0, create_for="demo")
    files = {"intent.json": Saved(Path(state.intent.path).read_bytes(), 5)}
    new = StateDir(tmp_path / "after")
    os.mkdir(new.path)
    restore_dump(new, unpack("stdin", pack(Manifest(FORMAT, "1", "demo", "then"), files)), "demo", replaces=False)
    assert new.intent.read().requests[id_].count == 3


@pytest.mark.parametrize("name", ["requests", "returns"])
def test_a_dump_whose_intent_lacks_a_table_is_restored_without_records(tmp_path: Path, name: str) -> None:
    golden = shutil.copytree(GOLDEN / "state", tmp_path / "old")
    intent = json.loads((golden / "intent.json").read_text())
    del intent[name]
    (golden / "intent.json").write_text(json.dumps(intent))
    (tmp_path / "new").mkdir()
    new = StateDir(tmp_path / "new")
    restore_dump(new, unpack("dump", take_dump(StateDir(golden))[1]), "demo", replaces=False)
    assert not getattr(new.intent.read(), name)


def test_a_status_that_lacks_its_answers_stops_no_restore(tmp_path: Path) -> None:
    golden = shutil.copytree(GOLDEN / "state", tmp_path / "old")
    status = json.loads((golden / "status.json").read_text())
    del status["answers"]
    (golden / "status.json").write_text(json.dumps(status))
    (tmp_path / "new").mkdir()
    new = StateDir(tmp_path / "new")
    assert restore_dump(new, unpack("dump", take_dump(StateDir(golden))[1]), "demo", replaces=False).requests
