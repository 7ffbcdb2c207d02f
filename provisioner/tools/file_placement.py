"""Files made for HostFactory, put in its directories: shown as a difference first, what was there kept aside.

Reads and writes files; no network, no clock, no logger.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from provisioner.files.ownership import group_name, user_name
from provisioner.state import atomic

NEW_MODE = 0o644
"""Mode of new files, which HostFactory, its scripts and the loop may read as different users. A copy keeps its mode."""
NEW_DIRECTORY_MODE = 0o2775
"""Bits that a new directory takes of the mode of the one above it: those of owner and group, and who may look in."""
KEPT = "before-render-hf"
"""Directory of the files that were replaced, below HostFactory's configuration: one below it for each time."""
PRIVATE = stat.S_IRWXG | stat.S_IRWXO
"""The bits of a mode that a file has which others may read."""


class Rendered(NamedTuple):
    """A file's content and its mode. None keeps the mode of the file that is there."""

    content: bytes
    mode: int | None = None


class Change(NamedTuple):
    """A file that is not there yet, or differs in content or mode."""

    path: Path
    before: bytes | None
    """Content of the file that is there; None if there is no file."""
    mode_before: int
    content: bytes
    mode: int


def changes(files: Mapping[Path, Rendered]) -> list[Change]:
    """The changes that put ``files`` in place. Raises OSError."""
    found = []
    for path, (content, mode) in files.items():
        before = path.read_bytes() if path.exists() else None
        mode_before = NEW_MODE if before is None else path.stat().st_mode & 0o777
        change = Change(path, before, mode_before, content, mode_before if mode is None else mode)
        if (before, mode_before) != (content, change.mode):
            found.append(change)
    return found


def difference(due: Iterable[Change]) -> Iterator[str]:
    """The changes as lines of a unified diff; a private file is named without its content."""
    for path, before, mode_before, content, mode in due:
        if before is not None and mode_before != mode:
            yield f"mode of {path}: {mode_before:o} to {mode:o}"
        if before != content and not mode & PRIVATE:
            word = "new" if before is None else "differs"
            yield f"{path}: {word}; it is not shown, as only its owner may read it"
        elif before != content:
            old, new = (text.decode(errors="backslashreplace").splitlines() for text in (before or b"", content))
            name = "/dev/null" if before is None else str(path)
            yield from difflib.unified_diff(old, new, name, str(path), lineterm="")


def put(due: Sequence[Change], conf: Path, moment: str) -> Path | None:
    """Put the files below ``conf`` in place, each in one step; returns where replaced files are kept, None when there
    were none. A file keeps its owner and group, a new one gets those of its directory.

    Raises OSError before anything is replaced, and StateUnwritable.
    """
    for directory in dict.fromkeys(change.path.parent for change in due):
        _make(directory)
    for change in due:
        _may_replace(change.path)
    kept = conf / KEPT / moment
    replaced = [(change, change.before) for change in due if change.before is not None]
    for change, before in replaced:
        _place(kept / change.path.relative_to(conf), before, change.mode_before)
    for change in due:
        _place(change.path, change.content, change.mode)
    return kept if replaced else None


def _place(path: Path, content: bytes, mode: int) -> None:
    _make(path.parent)
    real = path.resolve()
    owner = (real if real.exists() else real.parent).stat()
    atomic.replace(str(real), content, mode=mode)
    if os.geteuid() == 0:
        os.chown(real, owner.st_uid, owner.st_gid)


def _make(directory: Path) -> None:
    """Make a directory with the owner and mode of the one above it. Raises OSError where it may not be written."""
    if not directory.is_dir():
        _make(directory.parent)
        above = directory.parent.stat()
        directory.mkdir()
        directory.chmod(stat.S_IMODE(above.st_mode) & NEW_DIRECTORY_MODE)
        if os.geteuid() == 0:
            os.chown(directory, above.st_uid, above.st_gid)
    if not os.access(directory, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))


def _may_replace(path: Path) -> None:
    """Raises PermissionError for a file that would change hands."""
    real = os.path.realpath(path)
    if os.path.exists(real) and os.geteuid() not in (0, owner := os.stat(real).st_uid):
        words = f"belongs to user {user_name(owner)} (group {group_name(os.stat(real).st_gid)}): run it as that user"
        raise PermissionError(errno.EPERM, words, real)
