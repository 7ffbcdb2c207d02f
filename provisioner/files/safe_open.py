"""Opens and reads regular files alone: a FIFO or a device may keep a process waiting for ever.

The scripts import this module at each call: it imports nothing that costs time.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from contextvars import ContextVar

LOG_MODE = 0o640
"""Mode of a file that is created for people: the scripts' log, a trace."""


ASIDE_SUFFIX = ".new"
"""Ends the name of a file that is written aside, beside the file whose place it takes."""

CHANGES = 3
"""How often a file is opened and its names are counted while a writer of ours may give or remove one."""

READS_LINKED = ContextVar("reads_linked", default=False)
"""True while ``read_own`` reads a file that has other names, too: copies of a directory may share their files."""


class NoFileError(OSError):
    """The path is a link, or no regular file; ``strerror`` says which."""


LINK, HARD_LINK, IRREGULAR = "is a symbolic link", "has another name (a hard link)", "is no regular file"


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
    for _ in range(CHANGES):  # opened anew each time: NFS brings the link count at the open
        with ExitStack() as opened:
            opened.callback(os.close, descriptor := _open_unfollowed(path, flags, mode))
            if not _has_foreign_name(path, descriptor):
                opened.pop_all()
                return descriptor
    raise NoFileError(errno.EMLINK, HARD_LINK)


def _open_unfollowed(path: str, flags: int, mode: int = LOG_MODE) -> int:
    try:
        return open_regular(path, flags | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise NoFileError(errno.ELOOP, LINK) from error
        raise


def _has_foreign_name(path: str, descriptor: int) -> bool:
    """True if the open file has a name that no writer of ours gave it.

    A file that is made only if there is none has two names for an instant, and keeps both if its writer is killed.
    """
    directory, name = os.path.split(path)
    facts = os.fstat(descriptor)  # before the names: one that is removed meanwhile makes another turn
    if facts.st_nlink <= 1:
        return False
    with os.scandir(directory or ".") as entries:
        inodes = [entry.inode() for entry in entries if entry.name == name or is_aside(entry.name, name)]
    return inodes.count(facts.st_ino) < facts.st_nlink


def is_aside(entry: str, name: str) -> bool:
    """True for the name of a file that is written aside to take the place of ``name`` beside it."""
    return entry.startswith(name + ".") and entry.endswith(ASIDE_SUFFIX)


def refusal_message(path: str) -> str:
    """Why ``open_own`` refuses what is in the place of a file of ours; empty if it does not."""
    try:
        os.close(open_own(path, os.O_RDONLY))
    except OSError as error:  # others say that it is missing, or another user's
        return str(error.strerror) if isinstance(error, NoFileError) else ""
    return ""


def read_regular(path: str, *, most: int | None = None) -> bytes:
    """The content of a regular file, read from one inode; OSError as ``open_regular``, or for over ``most`` bytes."""
    return _content(open_regular(path, os.O_RDONLY), most)


def read_own(path: str) -> bytes:
    """The content of a file that only we make. Raises OSError as ``open_own``."""
    opened = _open_unfollowed if READS_LINKED.get() else open_own
    return _content(opened(path, os.O_RDONLY), None)


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
