"""Files made for HostFactory, put in its directories: shown as a difference first, what was there kept aside.

Reads and writes files; no network, no clock, no logger.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from provisioner.files.owners import group_name, user_name
from provisioner.state import atomic

NEW_MODE = 0o644
"""Mode of new files, which HostFactory, its scripts and the loop may read as different users. A copy keeps its mode."""
NEW_DIRECTORY_MODE = 0o2775
"""What a new directory may take of the mode of the one above it: the bits of owner and group, and who may look in."""
KEPT = "before-render-hf"
"""Directory of the files that were replaced, below HostFactory's configuration: one below it for each time."""
PRIVATE = stat.S_IRWXG | stat.S_IRWXO
"""The bits of a mode that a file has which others may read."""


class Rendered(NamedTuple):
    """A file's content and its mode. None keeps the mode of the file that is there."""

    content: bytes
    mode: int | None = None


def changed(files: Mapping[Path, Rendered]) -> dict[Path, Rendered]:
    """The files that are not there yet, or differ in content or mode. Raises OSError."""
    return {
        path: rendered
        for path, rendered in files.items()
        if _present(path) != (rendered.content, _mode(rendered, path))
    }


def difference(files: Mapping[Path, Rendered]) -> Iterator[str]:
    """The changes as lines of a unified diff; a private file is named without its content. Raises OSError."""
    for path, rendered in changed(files).items():
        before, mode = _present(path) or (b"", None)
        after = _mode(rendered, path)
        if mode is not None and mode != after:
            yield f"mode of {path}: {mode:o} to {after:o}"
        if mode is None or before != rendered.content:
            yield from _lines(path, before, rendered.content, new=mode is None, private=not after & PRIVATE)


def put(files: Mapping[Path, Rendered], conf: Path, moment: str) -> Path | None:
    """Put the files below ``conf`` that differ in place, each in one step; returns where replaced files are kept, None
    when there were none. A file keeps its owner and group, a new one gets those of its directory.

    Raises OSError before anything is replaced, and StateUnwritable.
    """
    due = changed(files)
    for directory in dict.fromkeys(path.parent for path in due):
        _make(directory)
    for path in due:
        _may_replace(path)
    kept = conf / KEPT / moment
    replaced = {path: _present(path) for path in due if os.path.lexists(path)}
    for path, present in replaced.items():
        if present is not None:
            _place(kept / path.relative_to(conf), Rendered(*present))
    for path, rendered in due.items():
        _place(path, rendered)
    return kept if replaced else None


def _place(path: Path, rendered: Rendered) -> None:
    _make(path.parent)
    real = Path(os.path.realpath(path))
    owner = (real if real.exists() else real.parent).stat()
    atomic.replace(str(real), rendered.content, mode=_mode(rendered, real))
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


def _present(path: Path) -> tuple[bytes, int] | None:
    """Content and mode of the file that is there."""
    try:
        return path.read_bytes(), path.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


def _mode(rendered: Rendered, path: Path) -> int:
    if rendered.mode is not None:
        return rendered.mode
    present = _present(path)
    return NEW_MODE if present is None else present[1]


def _lines(path: Path, before: bytes, after: bytes, *, new: bool, private: bool) -> Iterator[str]:
    if private:
        yield f"{path}: {'new' if new else 'differs'}; it is not shown, as only its owner may read it"
        return
    old, made = (text.decode(errors="backslashreplace").splitlines() for text in (before, after))
    yield from difflib.unified_diff(old, made, "/dev/null" if new else str(path), str(path), lineterm="")
