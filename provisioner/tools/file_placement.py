"""Placement of rendered files in HostFactory's directories. The module shows the difference from the present files, and
copies each file that it replaces.

The module reads and writes files. It uses neither network, clock nor log.
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
"""Mode of new files. HostFactory, its scripts and the loop may read them as different users. The copy of a replaced
file keeps the file's mode."""
NEW_DIRECTORY_MODE = 0o2775
"""Mode bits that a new directory takes from its parent: all bits of owner and group, and read access for others."""
KEPT = "before-render-hf"
"""Directory for the copies of replaced files, below HostFactory's configuration. Each call makes a subdirectory in
it."""
PRIVATE = stat.S_IRWXG | stat.S_IRWXO
"""Mode bits of group and others. A file that has none of these bits is private."""


class Rendered(NamedTuple):
    """The content and the mode of a rendered file. If the mode is None, an existing file keeps its mode."""

    content: bytes
    mode: int | None = None


class Change(NamedTuple):
    """A file that must be created, or must be replaced because its content or mode differs."""

    path: Path
    before: bytes | None
    """Content of the existing file; None if the file does not exist."""
    mode_before: int
    content: bytes
    mode: int


def changes(files: Mapping[Path, Rendered]) -> list[Change]:
    """Return the changes that put ``files`` in place. Files that are in place already are left out. Raises OSError."""
    found = []
    for path, (content, mode) in files.items():
        before = path.read_bytes() if path.exists() else None
        mode_before = NEW_MODE if before is None else path.stat().st_mode & 0o777
        change = Change(path, before, mode_before, content, mode_before if mode is None else mode)
        if (before, mode_before) != (content, change.mode):
            found.append(change)
    return found


def difference(due: Iterable[Change]) -> Iterator[str]:
    """Yield the changes as lines of a unified diff. The content of a private file is not shown."""
    for path, before, mode_before, content, mode in due:
        if before is not None and mode_before != mode:
            yield f"mode of {path}: {mode_before:o} to {mode:o}"
        if before != content and not mode & PRIVATE:
            word = "new" if before is None else "differs"
            yield f"{path}: {word}; not shown, because only its owner may read it"
        elif before != content:
            old, new = (text.decode(errors="backslashreplace").splitlines() for text in (before or b"", content))
            name = "/dev/null" if before is None else str(path)
            yield from difflib.unified_diff(old, new, name, str(path), lineterm="")


def put(due: Sequence[Change], conf: Path, moment: str) -> Path | None:
    """Put the files below ``conf`` in place, each in one step. Copy each replaced file to a directory that has the name
    ``moment``. Return this directory; None if no file was replaced.

    A replaced file keeps its owner and group. A new file gets them from its directory. Raises OSError before any
    replacement if a change is not permitted. Raises StateUnwritable if a write fails.
    """
    for directory in dict.fromkeys(change.path.parent for change in due):
        _make_directory(directory)
    for change in due:
        _check_owner(change.path)
    kept = conf / KEPT / moment
    replaced = [(change, change.before) for change in due if change.before is not None]
    for change, before in replaced:
        _write_file(kept / change.path.relative_to(conf), before, change.mode_before)
    for change in due:
        _write_file(change.path, change.content, change.mode)
    return kept if replaced else None


def _write_file(path: Path, content: bytes, mode: int) -> None:
    _make_directory(path.parent)
    real = path.resolve()
    owner = (real if real.exists() else real.parent).stat()
    atomic.replace(str(real), content, mode=mode)
    if os.geteuid() == 0:
        os.chown(real, owner.st_uid, owner.st_gid)


def _make_directory(directory: Path) -> None:
    """Make a directory with the owner and mode of its parent. Raises OSError if the directory is not writable."""
    if not directory.is_dir():
        _make_directory(directory.parent)
        above = directory.parent.stat()
        directory.mkdir()
        directory.chmod(stat.S_IMODE(above.st_mode) & NEW_DIRECTORY_MODE)
        if os.geteuid() == 0:
            os.chown(directory, above.st_uid, above.st_gid)
    if not os.access(directory, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))


def _check_owner(path: Path) -> None:
    """Raise PermissionError if the file would get another owner when it is replaced."""
    real = os.path.realpath(path)
    if os.path.exists(real) and os.geteuid() not in (0, owner := os.stat(real).st_uid):
        words = f"belongs to user {user_name(owner)} (group {group_name(os.stat(real).st_gid)}): run it as that user"
        raise PermissionError(errno.EPERM, words, real)
