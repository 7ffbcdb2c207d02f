"""Files whose name or modification time is all that they say, in a directory of their own or beside the databases.

Modification times are by one clock, the file system's, and are compared with each other only
(law: time is an argument).
"""

from __future__ import annotations

import os
import re

from provisioner.state.atomic import open_shared
from provisioner.state.errors import StateError, StateUnreadable, denied, is_denied, missing

ID_PATTERN = r"[A-Za-z0-9-]{1,64}"
"""What may be the name of a file in ``seen/``: nothing that leads out of it."""

DIRECTORY_MODE = 0o770


def is_id(name: str) -> bool:
    """True for what may name a file in ``seen/``."""
    return re.fullmatch(ID_PATTERN, name) is not None  # compiled at the first use: not every script has one


def check_id(name: str) -> None:
    """Raises StateError for what must not name a file in ``seen/``."""
    if not is_id(name):
        raise StateError(f"{name[:80]!r} is no request id: expected 1 to 64 of A-Z, a-z, 0-9 and '-'.")


def touch(path: str) -> int:
    """Set the modification time to the file system's now, creating the file; returns it in ns. Raises OSError."""
    descriptor = open_shared(path, os.O_WRONLY)
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def make_shared_directory(path: str) -> None:
    """Create a directory in the state directory, never that itself; a setgid bit that it inherits stays.

    Raises StateMissing and OSError.
    """
    if not os.path.isdir(os.path.dirname(path)):
        raise missing(path, "")
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        return
    os.chmod(path, DIRECTORY_MODE | (os.stat(path).st_mode & 0o2000))


def names_in(path: str) -> list[str]:
    """What a directory of marks holds; nothing before there is one. Raises StateUnreadable or StateDenied."""
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        if is_denied(error):
            raise denied(path) from error
        raise StateUnreadable(f"{path}: cannot be listed: {error.strerror}. Check the mount.") from error
