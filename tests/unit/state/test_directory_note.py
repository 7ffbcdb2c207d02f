"""The note that lists the state directories on which loops with a configuration have started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioner.state.directory_note import KEPT, SUFFIX, add_to_note, find_former, read_note


@pytest.fixture
def note(tmp_path: Path) -> str:
    return str(tmp_path / f".demo{SUFFIX}")


def used(tmp_path: Path, name: str, *, requests: bool = True) -> str:
    """Make a state directory; return its path."""
    (tmp_path / name).mkdir()
    if requests:
        (tmp_path / name / "intent.json").touch()
    return os.path.realpath(tmp_path / name)


def test_a_note_names_the_newest_other_directory_that_has_requests(tmp_path: Path, note: str) -> None:
    first, second, empty = used(tmp_path, "a"), used(tmp_path, "b"), used(tmp_path, "c", requests=False)
    assert find_former(note, first) == "", "no loop has begun yet"
    for directory in (first, second, first, empty):
        add_to_note(note, directory)
    assert read_note(note, empty) == [second, first, ""], "each directory once"
    assert (find_former(note, empty), find_former(note, first)) == (first, second)


def test_a_link_to_a_directory_is_the_same_directory(tmp_path: Path, note: str) -> None:
    directory, link = used(tmp_path, "a"), tmp_path / "link"
    link.symlink_to(directory)
    add_to_note(note, str(link))
    assert read_note(note, directory) == [""]
    assert find_former(note, directory) == ""


def test_a_note_keeps_the_newest_directories(tmp_path: Path, note: str) -> None:
    for number in range(KEPT + 3):
        add_to_note(note, str(tmp_path / str(number)))
    names = [os.path.basename(one) for one in read_note(note, "/other")]
    assert names == [str(number) for number in range(2, KEPT + 3)]


@pytest.mark.parametrize("content", [b"", b"\xff\n"], ids=["empty", "no text"])
def test_a_note_that_cannot_be_used_names_no_directory(tmp_path: Path, note: str, content: bytes) -> None:
    Path(note).write_bytes(content)
    assert (read_note(note, "/a"), find_former(note, "/a")) == ([], "")
    nowhere = str(tmp_path / "missing" / f".demo{SUFFIX}")
    add_to_note(nowhere, "/a")
    assert read_note(nowhere, "/a") == []


def test_no_other_file_is_read_as_a_note(tmp_path: Path, note: str) -> None:
    secret = tmp_path / "shadow"
    secret.write_text("root:secret\n")
    os.symlink(secret, note)
    assert [read_note(path, "/a") for path in (str(secret), note)] == [[], []]
