"""`provisioner dump` and `provisioner restore` as commands: path and mode of a dump, and the messages."""

from __future__ import annotations

import io
import os
import shutil
import stat
from pathlib import Path
from unittest.mock import patch

import pytest

from provisioner.commands.cli import run
from provisioner.state.directory import StateDir
from tests.support.hostfactory.provider import GOLDEN
from tests.support.hostfactory.sites import example_site
from tests.support.stores import contents


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a provider instance with requests and returns."""
    example_site(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_PROVIDER_NAME", "demo")
    for kind in ("config", "templates"):
        (tmp_path / "conf" / f"demoinstprov_{kind}.json").rename(tmp_path / "conf" / f"demoprov_{kind}.json")
    shutil.copytree(GOLDEN / "state", tmp_path / "work", dirs_exist_ok=True)
    return tmp_path / "work"


@pytest.fixture
def file(work: Path) -> Path:
    return work.parent / "state.tar.gz"


def test_a_dump_is_for_its_owner_alone_whatever_the_umask_and_whatever_was_there(file: Path) -> None:
    file.write_text("an earlier one")
    file.chmod(0o666)
    before = os.umask(0)
    try:
        assert run(["dump", str(file)]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.glob("state.tar.gz*")] == [file.name]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("no/such/dir/file", "its directory does not exist", id="a directory that is not there"),
        pytest.param(".", "is a directory", id="a directory"),
        pytest.param("fifo", "is not a regular file", id="a FIFO, which a dump would replace, as it would a device"),
        pytest.param("work/intent.json", "is in the state directory", id="a file of the state"),
        pytest.param("link/state.tar.gz", "is in the state directory", id="the state directory by another name"),
    ],
)
def test_where_a_dump_cannot_go_it_is_said(
    file: Path, work: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    os.mkfifo(file.with_name("fifo"))
    file.with_name("link").symlink_to(work)
    before = contents(file.parent)
    assert run(["dump", str(file.parent / name)]) == 2
    assert words in capsys.readouterr().err
    assert contents(file.parent) == before
    assert file.with_name("fifo").is_fifo()


def test_a_dump_that_is_refused_leaves_no_file(file: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "memory.json").unlink()
    assert run(["dump", str(file)]) == 1
    assert "memory.json" in capsys.readouterr().err
    assert not file.exists()


def test_a_dump_goes_through_a_pipe(work: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["dump", "-"]) == 0
    packed = capfdbinary.readouterr().out
    wanted = StateDir(work).intent.read().requests
    shutil.rmtree(work)
    work.mkdir()
    with patch("sys.stdin", io.TextIOWrapper(io.BytesIO(packed))):
        assert run(["restore", "-"]) == 0
    assert StateDir(work).intent.read().requests == wanted


def test_a_restore_says_what_it_did_and_what_comes_next(
    file: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "status.json").write_text("{")
    assert run(["dump", str(file)]) == 0
    assert run(["restore", str(file)]) == 1
    assert "With --yes" in capsys.readouterr().err
    assert run(["restore", "--yes", str(file)]) == 0
    out = capsys.readouterr().out
    (kept,) = work.glob("before-restore-*")
    assert "requests 3, returns 1, final answers to HostFactory 0" in out
    assert f"The files that were there before: {kept}\n" in out
    assert "Left out, because the file was damaged when it was saved: status.json\n" in out
    assert "provisioner recover --release-brake" in out
    assert run(["restore", str(file.with_name("none"))]) == 2
    assert "name a file that `provisioner dump` wrote" in capsys.readouterr().err
