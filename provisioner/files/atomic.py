"""Reading and replacing whole files in the state directory, and what can go wrong with them.

A reader sees the old or the new content, never a mixture, and needs no lock; what was replaced survives a power cut.
The scripts import this module at each call: it imports nothing that costs time.
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

FILE_MODE = 0o660
"""The scripts and the loop may run as two users of one group, whatever their umask."""

LOG_MODE = 0o640
"""Of a file that is created for people: the scripts' log, a trace."""

OPEN_AGAIN = 5
"""How often a file is opened again before an older content (NFS caches) or ESTALE is believed."""

FIRST_PAUSE = 0.02
"""Seconds before opening again; doubled each time, so that all tries together take 0.6 s."""

LEFTOVER_AGE = 600.0
"""Seconds after which a file written aside has no writer any more: replacing takes milliseconds."""

ASIDE_SUFFIX = ".new"


class StateError(Exception):
    """Something is wrong with the state directory. The message names the file, the problem and the next step."""


class StateMissing(StateError):
    """The file, or the directory, is not there. Nothing was created."""


class StateUnreadable(StateError):
    """The file is there and cannot be understood. It was left alone."""


class StateDenied(StateError):
    """This user may not read the file, which may well be right. It was left alone."""


class StateLinked(StateError):
    """A symbolic link is in the place of a file of ours. It was neither followed nor moved."""


class NoFileError(OSError):
    """What has the name of a file is none that may be opened; ``strerror`` says what it is."""


LINK, IRREGULAR = "is a symbolic link", "is no regular file"
MOVE_AWAY = ", and a file of ours belongs there; it was left alone. Move it away. (A directory may be linked.)"


class StateTooNew(StateError):
    """The file was written by a newer version of the provisioner. It was left alone."""


class StateStale(StateError):
    """The file is older than one that this or another process has already written."""


class StateExists(StateError):
    """The file is there already, or must not be created because another one is there."""


class StateUnwritable(StateError):
    """The operating system refused to write. The old content stands, or the new one if only the last sync failed."""


class Disturbed(StateUnwritable):
    """Another process asked, in time, not to write this content. The old one stands."""


class LockTimeout(StateError):
    """Another process held the lock all the time."""


def pauses() -> list[float]:
    """Seconds to wait before each further look at a file that may be served from a cache."""
    return [FIRST_PAUSE * 2**turn for turn in range(OPEN_AGAIN)]


def read_whole(path: str, advice: str) -> bytes:
    """The content of one inode, without a lock. ``advice``: what a person does when it is missing or unreadable.

    Raises StateMissing or StateUnreadable. A file that was replaced on the server meanwhile (ESTALE) is opened again.
    """
    for pause in [*pauses(), None]:
        try:
            return read_own(path)
        except FileNotFoundError as error:
            raise missing(path, advice) from error
        except OSError as error:
            if error.strerror == LINK:
                raise StateLinked(f"{path}: {LINK}{MOVE_AWAY}") from error
            if is_denied(error):
                raise denied(path) from error
            if error.errno != errno.ESTALE or pause is None:
                raise StateUnreadable(f"{path}: cannot be read: {error.strerror}. {advice}") from error
            time.sleep(pause)
    raise AssertionError("unreachable: the last turn returns or raises")


def is_denied(error: OSError) -> bool:
    """Another user might have succeeded."""
    return error.errno in (errno.EACCES, errno.EPERM)


def denied(path: str) -> StateDenied:
    """The error for a file that is another user's."""
    return StateDenied(f"{path}: cannot be read: {os.strerror(errno.EACCES)}. {why_denied(path)}")


def why_denied(path: str) -> str:
    """Whose the file is, and who we are."""
    from provisioner.files import owners

    return owners.why_denied(path)


def missing(path: str, advice: str) -> StateMissing:
    """The error for a file that is not there; says so when it is the whole directory."""
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return StateMissing(
            f"{directory}: this state directory does not exist; nothing was created. "
            "Correct HF_PROVIDER_WORKDIR or --state-dir, or create the directory."
        )
    return StateMissing(f"{path}: the file does not exist; nothing was created. {advice}")


def open_regular(path: str, flags: int, mode: int = LOG_MODE) -> int:
    """Open a regular file. Raises OSError, also for a FIFO or a device: those may keep a process waiting for ever."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a FIFO that nobody reads
            raise NoFileError(errno.EINVAL, IRREGULAR) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NoFileError(errno.EINVAL, IRREGULAR)
    return descriptor


def open_own(path: str, flags: int, mode: int = LOG_MODE) -> int:
    """As ``open_regular`` a file that only we make, which is no link: what one leads to is somebody else's."""
    try:
        return open_regular(path, flags | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise NoFileError(errno.ELOOP, LINK) from error
        raise


def read_regular(path: str, *, most: int | None = None) -> bytes:
    """The content of a regular file, read from one inode; OSError as ``open_regular``, or for over ``most`` bytes."""
    return _content(open_regular(path, os.O_RDONLY), most)


def read_own(path: str) -> bytes:
    """The same of a file that only we make. Raises OSError as ``open_own``."""
    return _content(open_own(path, os.O_RDONLY), None)


def _content(descriptor: int, most: int | None) -> bytes:
    try:
        if most is not None and os.fstat(descriptor).st_size > most:
            raise OSError(errno.EFBIG, f"has more than {most} bytes")
        return read_descriptor(descriptor)
    finally:
        os.close(descriptor)


def read_descriptor(descriptor: int) -> bytes:
    """All that is left to read. Raises OSError."""
    blocks = []
    while block := os.read(descriptor, max(os.fstat(descriptor).st_size + 1, 4096)):
        blocks.append(block)
    return b"".join(blocks) if len(blocks) != 1 else blocks[0]


def parse(path: str, content: bytes, advice: str) -> Any:
    """The JSON document in ``content``. Raises StateUnreadable, which says where it does not parse."""
    size, empty = len(content), not content.strip(b" \t\r\n\0")
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        del content  # as a text it is there once more, and may be the largest thing that a script holds
        return json.loads(text)
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

    ``durable=False`` leaves out both fsyncs, for files that are made again soon. ``check`` is called when all is ready
    but the rename, and may raise. Raises StateUnwritable, and Disturbed after ``stop_replacing``; before the rename the
    old content stands and what was written aside is removed.
    """
    aside = _aside(path)
    try:
        with _directory_of(path) as directory:  # before the rename: where it cannot be opened the old content stands
            try:
                written = _write_aside(aside, content, path, durable=durable, mode=mode)
                check()
                _rename(aside, path)
            except BaseException:
                discard(aside)
                raise
            if durable:
                sync_directory(directory)
    except OSError as error:
        raise unwritable(path, error) from error
    with suppress(OSError):  # the content is in place; what cannot be removed now is tried again at the next write
        _remove_leftovers(path, before=written - LEFTOVER_AGE)


def create_whole(path: str, content: bytes) -> bool:
    """Make the file with this content, durably and whole, or find that it exists: False. Raises StateUnwritable."""
    aside = _aside(path)
    try:
        with _directory_of(path) as directory:
            try:
                _write_aside(aside, content, path, durable=True, mode=FILE_MODE)
                os.link(aside, path)
            except FileExistsError:
                return False
            finally:
                discard(aside)
            sync_directory(directory)
    except OSError as error:
        raise unwritable(path, error) from error
    return True


def _aside(path: str) -> str:
    """A name that no other writer of the file uses."""
    return f"{path}.{os.getpid()}-{os.urandom(4).hex()}{ASIDE_SUFFIX}"


def _rename(aside: str, path: str) -> None:
    try:
        os.rename(aside, path)
    except FileNotFoundError as error:
        raise Disturbed(
            f"{path}: {aside} was removed before it took its place; nothing was written. Try again."
        ) from error


def stop_replacing(path: str) -> None:
    """Once this returns, nothing that was written aside before takes the file's place any more. Raises OSError."""
    directory, name = os.path.split(path)
    for entry in os.listdir(directory):
        if _is_aside(entry, name):
            discard(os.path.join(directory, entry))


def unwritable(path: str, error: OSError) -> StateUnwritable:
    """The error for a refused write."""
    if isinstance(error, NoFileError):
        return StateUnwritable(f"{path}: {error.strerror}{MOVE_AWAY}")
    if error.errno == errno.EACCES:
        return StateUnwritable(f"{path}: cannot be written: {error.strerror}. {why_denied(path)}")
    return StateUnwritable(
        f"{path}: cannot be written: {error.strerror or error}. "
        "Check free space, quota, owner, group and mode of the state directory, then try again."
    )


def _write_aside(aside: str, content: bytes, path: str, *, durable: bool, mode: int) -> float:
    """Write the new content beside the old file; returns its modification time by the file system's clock."""
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        _keep_group(descriptor, path)
        write_all(descriptor, content)
        if durable:
            os.fsync(descriptor)
        return os.fstat(descriptor).st_mtime
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
    try:
        with _directory_of(path) as directory:
            sync_directory(directory)
    except OSError as error:
        raise unwritable(path, error) from error


@contextmanager
def _directory_of(path: str) -> Iterator[int]:
    """The directory that holds the file, opened. Raises OSError."""
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        with suppress(OSError):  # nothing was written through it: what close() reports concerns no content
            os.close(descriptor)


def sync_directory(descriptor: int) -> None:
    """Make the names in an opened directory durable. Raises OSError."""
    os.fsync(descriptor)


def discard(path: str) -> bool:
    """Remove a file; False when it is not there (any more)."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def remove(path: str) -> None:
    """Remove a file that may be gone already. Raises StateUnwritable."""
    try:
        discard(path)
    except OSError as error:
        raise unwritable(path, error) from error


def _remove_leftovers(path: str, *, before: float) -> None:
    """Remove what killed writers left aside. Ages are by the file system's own clock (law: time is an argument)."""
    directory, name = os.path.split(path)
    for entry in os.listdir(directory):
        if _is_aside(entry, name):
            leftover = os.path.join(directory, entry)
            if (modified := modified_at(leftover)) is not None and modified < before:
                discard(leftover)


def _is_aside(entry: str, name: str) -> bool:
    return entry.startswith(name + ".") and entry.endswith(ASIDE_SUFFIX)


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


def modified_at(path: str) -> float | None:
    """Modification time by the file system's clock; None when there is no such file."""
    try:
        return os.lstat(path).st_mtime
    except FileNotFoundError:
        return None
