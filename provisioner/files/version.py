"""The version of the program with the commit of its source."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from provisioner import __version__


def full_version() -> str:
    """Return the version with its commit.

    In a clone of the repository, this is the checked-out commit. The function finds this commit without running git.
    """
    return __version__ if "+" in __version__ else __version__ + cloned_commit(Path(__file__).parents[2] / ".git")


def cloned_commit(git: Path) -> str:
    """Return ``+g`` and the first digits of the commit that is checked out; empty if ``git`` is not a git directory."""
    with suppress(OSError, IndexError):
        if git.is_file():  # a work tree that shares the clone of another directory
            git = git.parent / git.read_text().removeprefix("gitdir: ").strip()
        newest = (git / "logs" / "HEAD").read_text(errors="replace").splitlines()[-1]
        return f"+g{newest.split()[1][:12]}"
    return ""
