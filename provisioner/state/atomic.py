"""Functions that read and replace whole files in the state directory. The module imports little, so that a script
starts fast.

A reader needs no lock. It sees either the old content or the new content, never a mixture. A replaced file survives a
power cut.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from provisioner.files.safe_open import ASIDE_SUFFIX, HARD_LINK, LINK, NoFileError, is_aside, open_own, read_own
from provisioner.state.errors import (
    STALE,
    Disturbed,
    StateLinked,
    StateUnreadable,
    denied,
    is_denied,
    missing,
    not_ours_message,
    unreadable,
    writing,
)

FILE_MODE = 0o660
"""Mode of state files. The group may write, whatever the umask is, because the scripts and the loop may run as two
users of one group."""

OPEN_AGAIN = 5
"""Number of times that a file is opened again if its content is too old or if NFS reports ESTALE. An NFS cache may be
the cause, so only the result of the last try counts."""

FIRST_PAUSE = 0.02
"""Seconds before a file is opened again for the first time. Each later pause is twice as long, so that all pauses
together take 0.6 s."""

LEFTOVER_AGE = 600.0
"""Age in seconds above which a temporary file is removed. Replacing a file takes milliseconds, so the writer of an
older temporary file must be dead."""


class Located:
    """Base class of files and directories that are known by their path."""

    def __init__(self, path: str) -> None:
        self.path = path


def tries() -> Iterator[bool]:
    """Yield once for each try to read a file that may come from a cache. Pause between two tries. The yielded value is
    True only for the last try."""
    for turn in range(OPEN_AGAIN):
        yield False
        time.sleep(FIRST_PAUSE * 2**turn)
    yield True


def read_whole(path: str, advice: str) -> bytes:
    """Return the content of the file, all from one inode, without a lock. Raises StateMissing or StateUnreadable.

    ``advice``: the operator's next step if the file is missing or unreadable.
    """
    if (content := read_if_present(path, advice)) is None:
        raise missing(path, advice)
    return content


def read_if_present(path: str, advice: str) -> bytes | None:
    """Return the file's content as ``read_whole`` does; None if the file is missing.

    On NFS, two errors may be temporary, so the function then tries again. ESTALE: the server has replaced the file.
    EMLINK: the file has two names (hard links), perhaps because a cache still shows the name of a temporary file.
    """
    for is_last in tries():
        try:
            return read_own(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.strerror == LINK or (error.strerror == HARD_LINK and is_last):
                raise StateLinked(not_ours_message(path, error.strerror)) from error
            if is_denied(error):
                raise denied(path) from error
            if error.errno not in (errno.ESTALE, errno.EMLINK) or is_last:
                hint = f"{STALE}." if error.errno == errno.ESTALE else advice
                raise StateUnreadable(f"{path}: cannot be read: {error.strerror}. {hint}") from error
    raise AssertionError("unreachable: the last try returns or raises")


def parse(path: str, content: bytes, advice: str) -> Any:
    """Return the JSON document in ``content``. Raises StateUnreadable with line and column of the error."""
    size, is_empty = len(content), not content.strip(b" \t\r\n\0")
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        del content  # the text is a copy of the content, which may be a script's largest object
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        byte = len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
        place = f"line {error.lineno} column {error.colno} (byte {byte} of {size}): {error.msg}"
    except UnicodeDecodeError as error:
        place = f"byte {error.start} of {size}: {error.reason}"
    except (ValueError, RecursionError) as error:
        place = str(error)
    if is_empty:
        place = f"it is empty ({size} bytes)"
    raise StateUnreadable(f"{path}: not valid JSON: {place}. The file was left as it is. {advice}")


def _refuse_constant(constant: str) -> None:
    """Raise ValueError for NaN and the infinities, which are not JSON."""
    raise ValueError(f"{constant} is no number")


def replace(
    path: str, content: bytes, *, durable: bool = True, check: Callable[[], None] = lambda: None, mode: int = FILE_MODE
) -> None:
    """Replace the file's content: write a temporary file beside it, fsync, rename, fsync the directory.

    The new file keeps the old file's group and gets exactly ``mode``. ``durable``: False omits both fsyncs. ``check``:
    called just before the rename; its error stops the write.

    Raises StateUnwritable, or Disturbed after ``stop_replacing``. After an error before the rename, the old content
    stays.
    """
    with _written_aside(path, content, durable=durable, mode=mode) as aside_path:
        check()
        _rename(aside_path, path)
    with suppress(OSError):  # the content is in place, and the next write removes the temporary file
        for leftover in _asides(path):
            # The file system's own clock gives both times (law: time is an argument).
            if os.lstat(leftover).st_mtime < os.lstat(path).st_mtime - LEFTOVER_AGE:
                discard(leftover)


def create_whole(path: str, content: bytes) -> bool:
    """Create the file with this content, whole and durable. Return False if the file exists. Raises StateUnwritable."""
    with _written_aside(path, content, durable=True, mode=FILE_MODE) as aside_path:
        try:
            os.link(aside_path, path)
        except FileExistsError:
            return False
        finally:
            discard(aside_path)
    return True


@contextmanager
def _written_aside(path: str, content: bytes, *, durable: bool, mode: int) -> Iterator[str]:
    """Yield the path of a temporary file with the new content. The caller gives the file its final name.

    On exit, the function syncs the directory if the write is ``durable``. Raises StateUnwritable.
    """
    aside_path = f"{path}.{os.getpid()}-{os.urandom(4).hex()}{ASIDE_SUFFIX}"  # no other writer uses this name
    with writing(path), _directory_of(path) as directory:  # if the directory cannot be opened, the old content stays
        try:
            _write_aside(aside_path, content, path, durable=durable, mode=mode)
            yield aside_path
        except BaseException:
            discard(aside_path)
            raise
        if durable:
            os.fsync(directory)


def _rename(aside_path: str, path: str) -> None:
    try:
        os.rename(aside_path, path)
    except FileNotFoundError as error:
        raise Disturbed(
            f"{path}: {aside_path} was removed before it replaced the file; no file was written. Try again."
        ) from error


def stop_replacing(path: str) -> None:
    """Remove all temporary files that were written to replace ``path``. Their writers then fail to replace ``path``.
    Raises OSError."""
    for aside_path in _asides(path):
        discard(aside_path)


def _asides(path: str) -> Iterator[str]:
    """Yield the paths of the temporary files that were written to replace this file. Raises OSError."""
    directory, name = os.path.split(path)
    yield from (os.path.join(directory, entry) for entry in os.listdir(directory) if is_aside(entry, name))


def _write_aside(aside_path: str, content: bytes, path: str, *, durable: bool, mode: int) -> None:
    """Write the new content to a temporary file beside the old file."""
    descriptor = os.open(aside_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        _keep_group(descriptor, path)
        write_all(descriptor, content)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep_group(descriptor: int, path: str) -> None:
    """Give the new file the group of the old file. Scripts and loop may run as two users of this group.

    Refuse to replace a link, because an operator may have made the link on purpose. Raises OSError.
    """
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(facts.st_mode):
        raise NoFileError(errno.ELOOP, LINK)
    group = facts.st_gid
    if group == os.fstat(descriptor).st_gid:
        return
    try:
        os.fchown(descriptor, -1, group)
    except PermissionError as error:
        hint = f"its group {group} cannot be kept; join that group or set the directory's setgid bit"
        raise PermissionError(error.errno, hint) from error


def open_shared(path: str, flags: int) -> int:
    """Open a file, and create a missing file. If this user owns the file, make the file writable for the group,
    whatever the umask is."""
    descriptor = open_own(path, flags | os.O_CREAT, FILE_MODE)
    facts = os.fstat(descriptor)
    if facts.st_mode & 0o777 != FILE_MODE and facts.st_uid == os.geteuid():
        os.fchmod(descriptor, FILE_MODE)
    return descriptor


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of the content, with as many calls as necessary."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_directory(path: str) -> None:
    """Sync the directory, so that a file that another process put in place is durable. Raises StateUnwritable."""
    with writing(path), _directory_of(path) as directory:
        os.fsync(directory)


@contextmanager
def _directory_of(path: str) -> Iterator[int]:
    """Yield a descriptor of the directory that contains the file, and close it at the end. Raises OSError."""
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        with suppress(OSError):  # no content was written through this descriptor, so an error of close() is harmless
            os.close(descriptor)


def discard(path: str) -> None:
    """Remove a file that may be gone already. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def remove(path: str) -> None:
    """Remove a file that may be gone already. Raises StateUnwritable."""
    with writing(path):
        discard(path)


def stat_file(path: str) -> os.stat_result | None:
    """Return the file's ``lstat``; None if the file does not exist. Raises StateUnreadable or StateDenied."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error, "examined") from error
