"""Reading and replacing whole files in the state directory, with nothing that costs a script time to import.

A reader sees the old or the new content, never a mixture, and needs no lock; what was replaced survives a power cut.
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
    not_ours,
    writing,
)

FILE_MODE = 0o660
"""The scripts and the loop may run as two users of one group, whatever their umask."""

OPEN_AGAIN = 5
"""How often a file is opened again before an older content (NFS caches) or ESTALE is believed."""

FIRST_PAUSE = 0.02
"""Seconds before opening again; doubled each time, so that all tries together take 0.6 s."""

LEFTOVER_AGE = 600.0
"""Seconds after which a file written aside has no writer any more: replacing takes milliseconds."""


def tries() -> Iterator[bool]:
    """Yield for each look at a file that may be served from a cache, with pauses between: True for the last one."""
    for turn in range(OPEN_AGAIN):
        yield False
        time.sleep(FIRST_PAUSE * 2**turn)
    yield True


def read_whole(path: str, advice: str) -> bytes:
    """The content of one inode, without a lock. ``advice``: what a person does when it is missing or unreadable.

    Raises StateMissing or StateUnreadable.
    """
    if (content := read_if_present(path, advice)) is None:
        raise missing(path, advice)
    return content


def read_if_present(path: str, advice: str) -> bytes | None:
    """As ``read_whole``; None if the file is missing.

    A file that was replaced on the server meanwhile (ESTALE) is opened again, and so is one with another name: a cache
    may keep the name under which it was made.
    """
    for is_last in tries():
        try:
            return read_own(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.strerror == LINK or (error.strerror == HARD_LINK and is_last):
                raise StateLinked(not_ours(path, error.strerror)) from error
            if is_denied(error):
                raise denied(path) from error
            if error.errno not in (errno.ESTALE, errno.EMLINK) or is_last:
                hint = f"{STALE}." if error.errno == errno.ESTALE else advice
                raise StateUnreadable(f"{path}: cannot be read: {error.strerror}. {hint}") from error
    raise AssertionError("unreachable: the last try returns or raises")


def parse(path: str, content: bytes, advice: str) -> Any:
    """The JSON document in ``content``. Raises StateUnreadable, which says where it does not parse."""
    size, empty = len(content), not content.strip(b" \t\r\n\0")
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        del content  # as a text it is there once more, and may be the largest thing that a script holds
        return json.loads(text, parse_constant=_refused)
    except json.JSONDecodeError as error:
        byte = len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
        place = f"line {error.lineno} column {error.colno} (byte {byte} of {size}): {error.msg}"
    except UnicodeDecodeError as error:
        place = f"byte {error.start} of {size}: {error.reason}"
    except (ValueError, RecursionError) as error:
        place = str(error)
    if empty:
        place = f"it holds nothing ({size} bytes)"
    raise StateUnreadable(f"{path}: not valid JSON: {place}. The file was left as it is. {advice}")


def _refused(constant: str) -> None:
    """Raises ValueError for NaN and the infinities, which are no JSON."""
    raise ValueError(f"{constant} is no number")


def replace(
    path: str,
    content: bytes,
    *,
    durable: bool = True,
    check: Callable[[], None] = lambda: None,
    mode: int = FILE_MODE,
) -> None:
    """Put ``content`` in place of the file: written aside, fsynced, renamed, directory fsynced; group kept,
    and ``mode`` whatever the umask.

    ``durable``: False leaves out both fsyncs, for files that are made again soon.
    ``check``: called when all is ready but the rename, and may raise.

    Raises StateUnwritable, and Disturbed after ``stop_replacing``; before the rename the old content stands and what
    was written aside is removed.
    """
    with _written_aside(path, content, durable=durable, mode=mode) as aside:
        check()
        _rename(aside, path)
    with suppress(OSError):  # the content is in place; what cannot be removed now is tried again at the next write
        for leftover in _asides(path):
            # Ages are by the file system's own clock (law: time is an argument).
            if os.lstat(leftover).st_mtime < os.lstat(path).st_mtime - LEFTOVER_AGE:
                discard(leftover)


def create_whole(path: str, content: bytes) -> bool:
    """Make the file with this content, durably and whole, or find that it exists: False. Raises StateUnwritable."""
    with _written_aside(path, content, durable=True, mode=FILE_MODE) as aside:
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        finally:
            discard(aside)
    return True


@contextmanager
def _written_aside(path: str, content: bytes, *, durable: bool, mode: int) -> Iterator[str]:
    """The name under which the content stands inside, beside the file whose name it then gets, durably.

    Raises StateUnwritable.
    """
    aside = f"{path}.{os.getpid()}-{os.urandom(4).hex()}{ASIDE_SUFFIX}"  # no other writer uses it
    with writing(path), _directory_of(path) as directory:  # where that cannot be opened the old content stands
        try:
            _write_aside(aside, content, path, durable=durable, mode=mode)
            yield aside
        except BaseException:
            discard(aside)
            raise
        if durable:
            os.fsync(directory)


def _rename(aside: str, path: str) -> None:
    try:
        os.rename(aside, path)
    except FileNotFoundError as error:
        raise Disturbed(
            f"{path}: {aside} was removed before it took its place; nothing was written. Try again."
        ) from error


def stop_replacing(path: str) -> None:
    """Once this returns, nothing that was written aside before takes the file's place any more. Raises OSError."""
    for aside in _asides(path):
        discard(aside)


def _asides(path: str) -> Iterator[str]:
    """The files that are written aside to take the place of this one. Raises OSError."""
    directory, name = os.path.split(path)
    for entry in os.listdir(directory):
        if is_aside(entry, name):
            yield os.path.join(directory, entry)


def _write_aside(aside: str, content: bytes, path: str, *, durable: bool, mode: int) -> None:
    """Write the new content beside the old file."""
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        _keep_group(descriptor, path)
        write_all(descriptor, content)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep_group(descriptor: int, path: str) -> None:
    """Give the new file the old one's group: otherwise the other user would be locked out by the next write.

    A link is not replaced: whoever made it meant something by it.
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
    """Open a file, creating it if need be; its owner sees to it that the group may write whatever the umask was."""
    descriptor = open_own(path, flags | os.O_CREAT, FILE_MODE)
    facts = os.fstat(descriptor)
    if facts.st_mode & 0o777 != FILE_MODE and facts.st_uid == os.geteuid():
        os.fchmod(descriptor, FILE_MODE)
    return descriptor


def write_all(descriptor: int, content: bytes) -> None:
    """Write everything, however many calls that takes."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def settle(path: str) -> None:
    """What another process put in place of the file survives a power cut from now on. Raises StateUnwritable."""
    with writing(path), _directory_of(path) as directory:
        os.fsync(directory)


@contextmanager
def _directory_of(path: str) -> Iterator[int]:
    """The directory that holds the file, opened. Raises OSError."""
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        with suppress(OSError):  # nothing was written through it: what close() reports concerns no content
            os.close(descriptor)


def discard(path: str) -> None:
    """Remove a file that may be gone already. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def remove(path: str) -> None:
    """Remove a file that may be gone already. Raises StateUnwritable."""
    with writing(path):
        discard(path)


def facts_of(path: str) -> os.stat_result | None:
    """What the system says of a file; None when there is no such file. Raises StateUnreadable."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_denied(error):
            raise denied(path) from error
        raise StateUnreadable(f"{path}: {error.strerror}. Check the state directory's mount.") from error
