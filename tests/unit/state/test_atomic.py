"""Reading and replacing whole files."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.state import atomic
from provisioner.state.atomic import read_whole, replace, stat_file
from provisioner.state.errors import StateError, StateMissing, StateUnreadable, StateUnwritable
from provisioner.state.marker_files import names_in
from tests.support.stores import failing


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("call", ["open", "fstat", "read"])
def test_a_file_replaced_on_the_server_meanwhile_is_opened_again(tmp_path: Path, monkeypatch, call: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"content")
    monkeypatch.setattr(atomic.os, call, failing(getattr(os, call), errno.ESTALE, 3))
    assert read_whole(str(path), "") == b"content"


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    ("call", "error"),
    [pytest.param("stat", StateMissing, id="its directory"), pytest.param("open", StateUnreadable, id="the file")],
)
def test_what_stays_stale_is_to_be_mounted_anew_and_not_to_be_made(tmp_path: Path, monkeypatch, call, error) -> None:
    monkeypatch.setattr(atomic.os, call, failing(getattr(os, call), errno.ESTALE, 1 if call == "stat" else 10_000))
    with pytest.raises(error, match="mount the file system") as raised:
        read_whole(str(tmp_path / "f"), "Make it.")
    assert "Make it" not in str(raised.value)
    assert "does not exist" not in str(raised.value)


@pytest.mark.parametrize(("call", "ask"), [("lstat", stat_file), ("listdir", names_in)])
@pytest.mark.parametrize(
    ("code", "words"), [(errno.ESTALE, "mount the file system"), (errno.EIO, "dmesg"), (errno.EACCES, "belongs to")]
)
def test_a_refused_question_about_a_file_names_the_next_step(
    tmp_path: Path, monkeypatch, call: str, ask: Callable[[str], object], code: int, words: str
) -> None:
    monkeypatch.setattr(os, call, failing(getattr(os, call), code))
    with pytest.raises(StateError, match=words):
        ask(str(tmp_path))


def test_another_error_of_reading_is_not_tried_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("tried again"))
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


def test_leftovers_of_killed_writers_go_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    leftover, running, other = (tmp_path / f"{name}.new" for name in ("f.json.1-aa", "f.json.2-bb", "g.json.1-a"))
    for file in (leftover, running, other):
        file.write_bytes(b"half")
    for file in (leftover, other):
        os.utime(file, (time.time() - 700, time.time() - 700))
    replace(str(tmp_path / "f.json"), b"whole")
    assert {file.name for file in tmp_path.iterdir()} == {"f.json", running.name, other.name}


def test_a_leftover_that_cannot_be_removed_does_not_fail_the_write(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(atomic.os, "listdir", failing(os.listdir, errno.EACCES))
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
    monkeypatch.setattr(atomic.os, "fchown", failing(os.fchown, errno.EPERM))
    with pytest.raises(StateUnwritable, match=r"its group 4242 cannot be kept; join that group or set the dir"):
        replace(str(path), b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["f"]
    assert path.read_bytes() == b"old"


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch) -> None:
    real = os.write
    monkeypatch.setattr(atomic.os, "write", lambda descriptor, content: real(descriptor, content[:7]))
    replace(str(tmp_path / "f"), b"0123456789" * 3)
    assert (tmp_path / "f").read_bytes() == b"0123456789" * 3
