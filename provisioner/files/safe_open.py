"""Functions that open and read only regular files. A FIFO or a device may block a process for ever.

The scripts import this module at each call, so it imports only modules that load fast.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

LOG_MODE = 0o640
"""Mode of a file that operators read, such as the scripts' log or a trace."""


ASIDE_SUFFIX = ".new"
"""Suffix of a temporary file. The file is in the same directory as the file that it will replace."""

CHANGES = 3
"""Number of tries to open a file and to count its hard links. A try fails if another of our writers adds or removes a
hard link in between."""

READS_LINKED = ContextVar("reads_linked", default=False)
"""True while ``read_own`` accepts a file with hard links. A dump sets the value, because the files of a copied state
directory may be hard links to the original's files."""


class NoFileError(OSError):
    """Raised if the path is a link or not a regular file. ``strerror`` says which."""


LINK, HARD_LINK, IRREGULAR = "is a symbolic link", "has another name (a hard link)", "is no regular file"


def open_regular(path: str, flags: int, mode: int = LOG_MODE) -> int:
    """Open a regular file.

    Raises OSError. Raises NoFileError for a FIFO or a device, because either may block a process for ever.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a FIFO without a reader
            raise NoFileError(errno.EINVAL, IRREGULAR) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NoFileError(errno.EINVAL, IRREGULAR)
    return descriptor


@contextmanager
def closed_at_end(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end of the block.

    Raises OSError if the close fails, because a file server may report a failed write only at the close.
    """
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_own(path: str, flags: int, mode: int = LOG_MODE) -> int:
    """Open a file that only this program makes.

    Raises OSError like ``open_regular``. Raises NoFileError for a link, because a link leads to a file of another
    program.
    """
    for _ in range(CHANGES):  # open it each time: an NFS client gets the link count when it opens a file
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
    """Return True if the open file has a name that our writers did not give.

    A writer that must not replace an existing file gives the new file two names: a temporary name, then the final name.
    If the writer is killed before it removes the temporary name, the file keeps both. Both count as names of ours.
    """
    directory, name = os.path.split(path)
    facts = os.fstat(descriptor)  # before the names: a name that is removed meanwhile only leads to another try
    if facts.st_nlink <= 1:
        return False
    with os.scandir(directory or ".") as entries:
        inodes = [entry.inode() for entry in entries if entry.name == name or is_aside(entry.name, name)]
    return inodes.count(facts.st_ino) < facts.st_nlink


def is_aside(entry: str, name: str) -> bool:
    """Return True if ``entry`` names a temporary file that will replace the file ``name`` in the same directory."""
    return entry.startswith(name + ".") and entry.endswith(ASIDE_SUFFIX)


def refusal_message(path: str) -> str:
    """Return why ``open_own`` refuses the file at ``path``; empty if it accepts the file."""
    try:
        os.close(open_own(path, os.O_RDONLY))
    except OSError as error:  # other errors mean that the file is missing or belongs to another user
        return str(error.strerror) if isinstance(error, NoFileError) else ""
    return ""


def read_regular(path: str, *, most: int | None = None) -> bytes:
    """Return the content of a regular file. If another file replaces the file during the read, the content is still
    that of one file.

    Raises OSError if the file cannot be read or is not regular. Raises OSError if the file has more than ``most``
    bytes.
    """
    with closed_at_end(open_regular(path, os.O_RDONLY)) as descriptor:
        if most is not None and os.fstat(descriptor).st_size > most:
            raise OSError(errno.EFBIG, f"has more than {most} bytes")
        return read_descriptor(descriptor)


def read_own(path: str) -> bytes:
    """Return the content of a file that only this program makes. Raises OSError, and NoFileError for a link."""
    opened = _open_unfollowed if READS_LINKED.get() else open_own
    with closed_at_end(opened(path, os.O_RDONLY)) as descriptor:
        return read_descriptor(descriptor)


def read_descriptor(descriptor: int) -> bytes:
    """Read an open file from its present position to the end. Raises OSError."""
    blocks = []
    while block := os.read(descriptor, max(os.fstat(descriptor).st_size + 1, 4096)):
        blocks.append(block)
    return b"".join(blocks) if len(blocks) != 1 else blocks[0]
