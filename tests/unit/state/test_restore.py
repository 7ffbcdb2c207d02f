"""`provisioner dump` and `provisioner restore`: what is saved, what is refused, and that nothing half is believed."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import shutil
import signal
import stat
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from provisioner.commands.cli import run
from provisioner.hostfactory.answer import Answer, Loss
from provisioner.model import Lever, LeverKind, Memory
from provisioner.state import archive
from provisioner.state.condition import Condition
from provisioner.state.directory import StateDir
from provisioner.state.levers import pulled
from provisioner.state.locks import DataLock
from tests.support.hostfactory.provider import GOLDEN
from tests.support.hostfactory.sites import example_site

SUCCEEDED, UNHEARD = "gacmtgfnyp", "ihsc3p23q5"
ALL_STOPPED = Lever(LeverKind.STOP_ALL, who="ann", reason="the cloud is ill")


class Site:
    """A provider instance whose state directory has been at work, and a dump of it."""

    def __init__(self, directory: Path) -> None:
        self.work = directory / "work"
        self.file = directory / "state.tar.gz"
        shutil.copytree(GOLDEN / "state", self.work, dirs_exist_ok=True)
        (self.work / "announced.json").write_text('{"T": 10}')

    @property
    def state(self) -> StateDir:
        return StateDir(self.work)

    def dump(self) -> Path:
        assert run(["dump", str(self.file)]) == 0
        return self.file

    def lose(self) -> None:
        shutil.rmtree(self.work)
        self.work.mkdir()

    def restore(self, *flags: str) -> int:
        return run(["restore", *flags, str(self.file)])

    def rewrite(self, files: dict[str, bytes], **facts: Any) -> None:
        """A dump with these files, whose manifest is right."""
        known = archive.Manifest(**{**asdict(archive.Manifest(archive.FORMAT, "1", "demo", "then")), **facts})
        saved = {name: archive.Saved(content, 0) for name, content in files.items()}
        self.file.write_bytes(archive.pack(known, saved))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    example_site(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_PROVIDER_NAME", "demo")
    for kind in ("config", "templates"):
        (tmp_path / "conf" / f"demoinstprov_{kind}.json").rename(tmp_path / "conf" / f"demoprov_{kind}.json")
    return Site(tmp_path)


def holding(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> bytes:
    """A .tar.gz with one member; a link leads to itself."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, name, len(content)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def every_byte(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


# --- dump -------------------------------------------------------------------------------------------------------------


def test_a_dump_holds_what_must_not_be_lost_and_nothing_that_would_lie_later(site: Site) -> None:
    with tarfile.open(site.dump()) as tar:
        names = tar.getnames()
    told = [f"seen/{id_}.told-0" for id_ in (SUCCEEDED, UNHEARD, "ret-dsjn6l56km")]
    databases = ["intent.json", "memory.json", "levers.json", "status.json", "announced.json"]
    assert names == ["manifest.json", *databases, *told, "journal.jsonl"]


def test_nobody_else_may_read_it_whatever_the_umask_and_whatever_was_there(site: Site) -> None:
    site.file.write_text("an earlier one")
    site.file.chmod(0o666)
    before = os.umask(0)
    try:
        site.dump()
    finally:
        os.umask(before)
    assert stat.S_IMODE(site.file.stat().st_mode) == 0o600
    assert [path.name for path in site.file.parent.glob("state.tar.gz*")] == [site.file.name]


def test_it_changes_no_file_of_the_state_but_the_locks(site: Site) -> None:
    before = every_byte(site.work)
    site.dump()
    after = every_byte(site.work)
    assert {name: content for name, content in after.items() if ".lock" not in name} == {
        name: content for name, content in before.items() if ".lock" not in name
    }


def test_while_a_script_or_the_loop_writes_a_dump_waits(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (site.state.intent, site.state.memory):
        with DataLock(file.lock_path), patch("provisioner.state.dump.DataLock", lambda path: DataLock(path, 0.0)):
            assert run(["dump", str(site.file)]) == 1
        assert "held this lock" in said(capsys)
        assert not site.file.exists()


@pytest.mark.parametrize("damage", ["cut", "lost", "old"])
@pytest.mark.parametrize("kind", ["intent", "memory"])
def test_files_that_are_not_the_newest_are_not_dumped(
    site: Site, capsys: pytest.CaptureFixture[str], kind: str, damage: str
) -> None:
    path = site.work / f"{kind}.json"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "lost":
        path.unlink()
    else:
        with DataLock(f"{path}.lock") as lock:
            lock.generation = 1000
    assert run(["dump", str(site.file)]) == 1
    assert f"{kind}.json" in said(capsys)
    assert not site.file.exists()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        pytest.param("no/such/dir/file", "its directory does not exist", id="a directory that is not there"),
        pytest.param(".", "is a directory", id="a directory"),
        pytest.param("fifo", "is no regular file", id="a FIFO, which a dump would replace, as it would a device"),
        pytest.param("work/intent.json", "is in the state directory", id="a file of the state"),
        pytest.param("link/state.tar.gz", "is in the state directory", id="the state directory by another name"),
    ],
)
def test_where_a_dump_cannot_go_it_is_said(
    site: Site, capsys: pytest.CaptureFixture[str], file: str, words: str
) -> None:
    os.mkfifo(site.file.parent / "fifo")
    (site.file.parent / "link").symlink_to(site.work)
    before = every_byte(site.file.parent)
    assert run(["dump", str(site.file.parent / file)]) == 2
    assert words in said(capsys)
    assert every_byte(site.file.parent) == before
    assert (site.file.parent / "fifo").is_fifo()


def test_levers_that_nobody_can_read_are_not_dumped_and_what_to_do_is_said(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    (site.work / "levers.json").write_text("{")
    assert run(["dump", str(site.file)]) == 1
    assert "`provisioner stop-all` or `start-all` begins anew" in said(capsys)
    assert run(["start-all"]) == 0
    assert run(["dump", str(site.file)]) == 0


def test_a_dump_goes_through_a_pipe(site: Site, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["dump", "-"]) == 0
    packed = capfdbinary.readouterr().out
    site.lose()
    with patch("sys.stdin", io.TextIOWrapper(io.BytesIO(packed))):
        assert run(["restore", "-"]) == 0
    assert set(site.state.intent.read().requests) > {SUCCEEDED, UNHEARD}


# --- restore ----------------------------------------------------------------------------------------------------------


def test_what_comes_back_and_that_it_is_an_old_copy(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, told = site.state.intent.read(), site.state.told.answers()
    written = (site.work / "intent.json").stat().st_mtime_ns
    site.dump()
    site.lose()
    capsys.readouterr()
    assert site.restore() == 0
    out = capsys.readouterr().out
    assert all(words in out for words in ("3 requests, 1 returns, 3 answers", "provisioner recover --release-brake"))
    state = site.state
    restored = state.intent.read()
    assert (restored.requests, restored.returns) == (wanted.requests, wanted.returns)
    assert (state.intent.condition(), state.memory.condition()) == (Condition.FINE, Condition.OLDER)
    assert state.told.answers() == told
    assert (site.work / "intent.json").stat().st_mtime_ns == written, "by that requests are known whose time is over"
    assert state.announced.read() == {"T": 10}
    assert (state.seen.marks(), state.inventory.read()) == ({}, None)
    assert all(answer.ended for answer in state.status.read_all().values())
    assert state.loop_lock.epoch() > 3, "a loop that still runs somewhere is superseded"


def test_what_was_leaving_the_files_stays_away(site: Site) -> None:
    memory = json.loads((site.work / "memory.json").read_text())
    memory["requests"][SUCCEEDED]["trimmed"] = True
    (site.work / "memory.json").write_text(json.dumps(memory))
    site.dump()
    site.lose()
    assert site.restore() == 0
    assert SUCCEEDED not in site.state.intent.read().requests


def test_a_state_that_is_there_is_replaced_only_when_told_to_and_kept_aside(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.dump()
    with site.state.intent.additions() as intent:
        later = intent.add_request("T", 1, created_wall=0.0)
    site.state.told.tell(later, "{}")
    before = every_byte(site.work)
    assert site.restore() == 1
    assert "With --yes" in said(capsys)
    assert {name for name, content in every_byte(site.work).items() if before.get(name) != content} <= {
        str(site.work / name) for name in ("intent.json.lock", "intent.json.lock.turn", "loop.lock")
    }
    assert site.restore("--yes") == 0
    (kept,) = site.work.glob("before-restore-*")
    assert {path.name for path in kept.iterdir()} == {
        "intent.json",
        "memory.json",
        "levers.json",
        "status.json",
        "announced.json",
    }
    assert later in json.loads((kept / "intent.json").read_text())["requests"]
    state = site.state
    assert later not in state.intent.read().requests
    assert later in state.told.ids(), "what HF was told stays"
    assert (state.intent.condition(), state.memory.condition()) == (Condition.FINE, Condition.OLDER)


def test_what_hf_was_told_since_wins_over_the_dump(site: Site) -> None:
    site.dump()
    entry = site.work / "seen" / f"{UNHEARD}.told-0"
    entry.write_bytes(b"told\nlater")
    assert site.restore("--yes") == 0
    assert entry.read_bytes() == b"told\nlater"


def test_a_lever_that_is_held_stays_and_one_that_is_lost_comes_back(site: Site) -> None:
    before = site.state.levers.read().held
    site.state.levers.change(lambda levers: pulled(levers, ALL_STOPPED))
    site.dump()
    site.lose()
    assert site.restore() == 0
    assert site.state.levers.read().held == (*before, ALL_STOPPED)
    paused = Lever(LeverKind.PAUSE, "gke-main", "bob", 1.0, "it is full")
    site.state.levers.change(lambda levers: pulled(levers, paused))
    assert site.restore("--yes") == 0
    assert site.state.levers.read().held == (*before, ALL_STOPPED, paused)


def test_the_highest_number_that_hf_was_shown_stays(site: Site) -> None:
    site.dump()
    site.state.announced.write({"T": 40, "U": 3})
    assert site.restore("--yes") == 0
    assert site.state.announced.read() == {"T": 40, "U": 3}


@pytest.mark.parametrize("there", [False, True], ids=["into an empty directory", "over a state"])
@pytest.mark.parametrize("content", ["", "{", "[]"])
@pytest.mark.parametrize("name", ["status.json", "announced.json"])
def test_what_is_made_again_holds_up_no_restore_where_it_was_damaged(
    site: Site, capsys: pytest.CaptureFixture[str], name: str, content: str, there: bool
) -> None:
    wanted = site.state.intent.read().requests
    (site.work / name).write_text(content)
    site.dump()
    if there:
        site.state.status.write({"later": Answer("{}", ended=False)}, {"hf-later": Loss(0, "preempted")})
    else:
        site.lose()
    capsys.readouterr()
    assert site.restore("--yes") == 0
    assert f"Left out, as it was damaged when it was saved: {name}\n" in capsys.readouterr().out
    assert site.state.intent.read().requests == wanted
    if name == "status.json":
        assert not (site.work / name).exists(), "what it said of later is no longer so"
    elif not there:
        assert site.state.announced.read() == {}


@pytest.mark.parametrize("kind", ["link", "directory"])
@pytest.mark.parametrize("name", ["intent.json", "memory.json", "status.json", "levers.json", "announced.json"])
def test_what_is_no_file_of_ours_is_named_before_anything_changes(
    site: Site, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    site.dump()
    path = site.work / name
    path.unlink()
    if kind == "link":
        path.symlink_to(site.file)
    else:
        path.mkdir()
    before = every_byte(site.work)
    assert site.restore("--yes") == 1
    assert f"{path}: is no regular file; nothing was changed." in said(capsys)
    after = every_byte(site.work)
    assert {one: content for one, content in after.items() if ".lock" not in one} == {
        one: content for one, content in before.items() if ".lock" not in one
    }
    assert [*site.work.glob("before-restore-*")] == []


def test_of_two_restores_at_once_one_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The other has signed nothing: it is no loop."""
    site.dump()
    site.lose()
    other = site.state.loop_lock
    assert other.acquire(0)
    assert site.restore() == 1
    assert "a loop works on this directory, or another restore; nothing was changed" in said(capsys)
    other.release()


def test_a_dump_of_another_instance_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.rewrite({"intent.json": (site.work / "intent.json").read_bytes()}, instance="other")
    site.lose()
    assert site.restore() == 1
    assert "provider instance 'other', not of 'demo'" in said(capsys)
    assert every_byte(site.work) == {}


@pytest.mark.parametrize("flags", [(), ("--yes",)])
def test_while_a_loop_runs_or_a_script_writes_it_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    site.dump()
    before = (site.work / "intent.json").read_bytes()
    other = site.state.loop_lock
    assert other.acquire(0)
    assert site.restore(*flags) == 1
    assert "a loop works on this directory" in said(capsys)
    other.release()
    with DataLock(site.state.intent.lock_path):
        assert site.restore(*flags) == 1
    assert "a script writes at this moment" in said(capsys)
    assert (site.work / "intent.json").read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda packed: packed[:-1], "is cut off", id="one byte short"),
        pytest.param(lambda packed: packed[: len(packed) // 2], "is cut off", id="half of it"),
        pytest.param(lambda packed: b"", "is cut off", id="empty"),
        pytest.param(lambda packed: b"not a dump", "no dump of ours", id="another file"),
        pytest.param(
            lambda packed: gzip.compress(gzip.decompress(packed).replace(b'"count":4', b'"count":9')),
            "intent.json is not as it was",
            id="a number changed",
        ),
        pytest.param(
            lambda packed: gzip.compress(gzip.decompress(packed).replace(b'"instance": "demo"', b'"instants": "demo"')),
            "lacks 'instance'",
            id="manifest",
        ),
        pytest.param(
            lambda packed: gzip.compress(gzip.decompress(packed).replace(b'"mtime_ns": ', b'"mtime_ns":-')),
            "is no time",
            id="a time that no file can have",
        ),
        pytest.param(lambda packed: holding("manifest.json", b"[" * 100_000), "is none of ours", id="no end of lists"),
        pytest.param(
            lambda packed: holding("intent.json", kind=tarfile.SYMTYPE), "intent.json is no file", id="a link to itself"
        ),
        pytest.param(
            lambda packed: holding("intent.json", kind=tarfile.LNKTYPE),
            "intent.json is no file",
            id="a second name of itself",
        ),
        pytest.param(
            lambda packed: holding("intent.json", kind=tarfile.CHRTYPE), "intent.json is no file", id="a device"
        ),
    ],
)
def test_a_dump_that_is_cut_or_altered_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str], spoil: Any, words: str
) -> None:
    packed = site.dump().read_bytes()
    site.file.write_bytes(spoil(packed))
    site.lose()
    assert site.restore() == 1
    assert words in said(capsys)
    assert every_byte(site.work) == {}


def test_it_takes_the_place_of_what_a_newer_version_wrote(site: Site) -> None:
    """Rollback across a format: the dump is of before the upgrade."""
    site.state.levers.change(lambda levers: pulled(levers, ALL_STOPPED))
    site.dump()
    newer = {}
    for kind in ("intent", "memory", "status", "levers"):
        path = site.work / f"{kind}.json"
        tables = json.loads(path.read_text())
        tables["meta"]["state"]["schema"] += 1
        newer[path.name] = json.dumps(tables)
        path.write_text(newer[path.name])
    assert site.restore("--yes") == 0
    state = site.state
    reads = (state.intent.read, state.memory.read, state.status.read_all, state.levers.read)
    assert all(read() is not None for read in reads)
    (kept,) = site.work.glob("before-restore-*")
    assert {name: (kept / name).read_text() for name in newer} == newer


@pytest.mark.parametrize("name", ["../intent.json", "seen/../x.told-0", "/etc/cron.d/x", "provisioner.yaml"])
def test_nothing_is_written_that_is_no_state(site: Site, capsys: pytest.CaptureFixture[str], name: str) -> None:
    site.rewrite({"intent.json": (site.work / "intent.json").read_bytes(), name: b"x"})
    site.lose()
    assert site.restore() == 1
    assert "no file of a state directory" in said(capsys)
    assert every_byte(site.work) == {}


def test_what_a_newer_version_wrote_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    intent = json.loads((site.work / "intent.json").read_text())
    site.rewrite({"intent.json": json.dumps(intent).encode()}, format=archive.FORMAT + 1, version="9.9")
    site.lose()
    assert site.restore() == 1
    assert "written by provisioner 9.9; this one knows up to 1. Nothing was changed." in said(capsys)
    intent["meta"]["state"]["schema"] = 2
    site.rewrite({"intent.json": json.dumps(intent).encode()})
    assert site.restore() == 1
    assert "intent.json: has schema version 2" in said(capsys)
    assert every_byte(site.work) == {}


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(False, id="into an empty directory"),
        pytest.param(True, id="over a state", marks=pytest.mark.slow),
    ],
)
def test_interrupted_anywhere_it_is_refused_or_careful_and_can_be_run_again(site: Site, there: bool) -> None:
    """The process ends before the n-th change of the directory, for every n."""
    site.state.memory.write(Memory("demo", epoch=5))
    wanted = site.state.intent.read().requests
    site.dump()
    step, ended = 0, False
    while not ended:
        site.lose()
        if there:
            shutil.copytree(GOLDEN / "state", site.work, dirs_exist_ok=True)
        step += 1
        ended = not _interrupted(site, step)
        state = site.state
        if not ended and state.intent.exists() and state.intent.read().generation > 4:
            assert state.memory.condition() is Condition.OLDER, f"step {step}: intent came back before memory was old"
        if not ended and state.memory.existed():
            assert state.intent.condition() is not Condition.NEW, f"step {step}: a script would begin anew"
        assert site.restore("--yes") == 0
        assert site.state.intent.read().requests == wanted
        assert site.state.memory.condition() is Condition.OLDER
    assert step > 10


def _interrupted(site: Site, step: int) -> bool:
    """True where a process was killed before that change; False where it was done before."""
    process = os.fork()
    if not process:
        left = itertools.count(1)

        def guarded(call: Any) -> Any:
            def before(*arguments: Any, **options: Any) -> Any:
                if next(left) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return before

        calls = ("rename", "link", "fsync", "pwrite", "utime", "mkdir")
        with patch.multiple(os, **{name: guarded(getattr(os, name)) for name in calls}):
            os._exit(site.restore("--yes"))
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
