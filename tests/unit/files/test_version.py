"""The version with the commit of its source, however a clone stores the commit."""

from __future__ import annotations

from pathlib import Path

import pytest

import provisioner
from provisioner.files import version

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOG = f"""{"0" * 40} {"f" * 40} A <a@example.com> 1700000000 +0000\tclone: from example
{"f" * 40} {COMMIT} A <a@example.com> 1700000001 +0000\tcommit: second
"""
"""Commits that git has checked out, the newest last."""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_commit_is_the_one_that_was_checked_out_last(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "logs" / "HEAD", LOG)
    assert version.cloned_commit(tmp_path / ".git") == "+g0123456789ab"


def test_a_work_tree_of_its_own_has_a_commit_of_its_own(tmp_path: Path) -> None:
    own = write(tmp_path / "clone" / "worktrees" / "w" / "logs" / "HEAD", LOG).parents[1]
    link = write(tmp_path / "w" / ".git", f"gitdir: {own}\n")
    assert version.cloned_commit(link) == "+g0123456789ab"


@pytest.mark.parametrize("text", ["", "<html>"])
def test_without_a_commit_the_version_stands_alone(tmp_path: Path, text: str) -> None:
    assert version.cloned_commit(tmp_path / ".git") == ""
    write(tmp_path / ".git" / "logs" / "HEAD", text)
    assert version.cloned_commit(tmp_path / ".git") == ""


def test_a_version_that_names_its_commit_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert version.full_version().startswith(provisioner.__version__)
    monkeypatch.setattr(version, "__version__", "1.0.0+g0123")
    assert version.full_version() == "1.0.0+g0123"
