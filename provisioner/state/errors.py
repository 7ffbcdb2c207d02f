"""Errors and conditions of the state. The texts here are for a state that is kept in files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from provisioner.files.safe_open import HARD_LINK, NoFileError

STALE = "The NFS server has another file or directory there by now: mount the file system again"


class StateError(Exception):
    """An error of the state. The message names the file or server, the problem and the next step."""


class StateMissing(StateError):
    """The file, directory or object does not exist, and was not created."""


class StateUnreadable(StateError):
    """The file or object exists, but its content is invalid. The content was left as it is."""


class StateDenied(StateError):
    """This user may not read the file, or the server refuses the login or the call. This may be intended. The content
    was left as it is."""


class StateLinked(StateError):
    """A link has the name of one of our files. The link was neither followed nor moved."""


class StateTooNew(StateError):
    """A newer version of the provisioner wrote the file. The file was left as it is."""


class StateStale(StateError):
    """Another process has written a newer file or object, or keeps writing at this moment."""


class StateExists(StateError):
    """The file or object exists already, or must not be created because another file or object exists."""


class StateUnwritable(StateError):
    """The operating system or the server refused to write. The old content stays; if only the last sync of a file
    failed, the new content is in place."""


class StateUnreachable(StateError):
    """The server that keeps the state gave no usable response in time. A write may have happened, or may not."""


class Disturbed(StateUnwritable):
    """Another process has prevented this write (``stop_replacing``). The old content stays."""


class LockTimeout(StateError):
    """Another process held the lock during the whole wait."""


def is_denied(error: OSError) -> bool:
    """Return True if the call failed for lack of rights, so that another user might succeed."""
    return error.errno in (errno.EACCES, errno.EPERM)


def denied(path: str) -> StateDenied:
    """Return the error for a file that belongs to another user."""
    return StateDenied(f"{path}: cannot be read: {os.strerror(errno.EACCES)}. {denied_message(path)}")


def unreadable(path: str, error: OSError, done: str = "read") -> StateError:
    """Return the error for a read that the operating system refused. ``done``: the participle for the message, for
    example "listed"."""
    if is_denied(error):
        return denied(path)
    return StateUnreadable(f"{path}: cannot be {done}: {error.strerror}. {advice_message(error)}.")


def denied_message(path: str) -> str:
    """Return a sentence that names the owner of the file and our own user."""
    from provisioner.files import ownership

    return ownership.denied_message(path)


def missing(path: str, advice: str) -> StateMissing:
    """Return the error for a file that does not exist. The message says whether the whole directory is missing."""
    directory = os.path.dirname(path)
    if is_stale(directory):
        return StateMissing(f"{directory}: cannot be read: {os.strerror(errno.ESTALE)}. {STALE}; no file was created.")
    if not os.path.isdir(directory):
        return StateMissing(
            f"{directory}: this state directory does not exist; no file was created. "
            "Correct HF_PROVIDER_WORKDIR or --state-dir, or create the directory."
        )
    return StateMissing(f"{path}: the file does not exist; no file was created. {advice}")


def is_stale(directory: str) -> bool:
    """Return True if the NFS server no longer has this directory. The server may have a new directory with the same
    name."""
    try:
        os.stat(directory)
    except OSError as error:
        return error.errno == errno.ESTALE
    return False


def unwritable(path: str, error: OSError, done: str = "written") -> StateUnwritable:
    """Return the error for a write that the operating system refused. ``done``: the participle for the message, for
    example "locked"."""
    if isinstance(error, NoFileError):
        return StateUnwritable(not_ours_message(path, str(error.strerror)))
    if error.errno == errno.EACCES:
        return StateUnwritable(f"{path}: cannot be written: {error.strerror}. {denied_message(path)}")
    reason = error.strerror or error
    return StateUnwritable(f"{path}: cannot be {done}: {reason}. {advice_message(error)}, then try again.")


@contextmanager
def writing(path: str, done: str = "written") -> Iterator[None]:
    """Raise StateUnwritable if the operating system refuses a call inside the block.

    ``done``: the participle for the message, for example "locked".
    """
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, done) from error


def not_ours_message(path: str, message: str) -> str:
    """Return the message about a link, or another irregular file, at a path of ours.

    ``message``: the text of the error from ``open_own``.
    """
    advice = (
        f"Remove the other name, which `find DIR -xdev -samefile {path}` lists if it is below DIR. "
        f"To keep both: `cp -p {path} COPY && mv COPY {path}`."
        if message == HARD_LINK
        else "Move that file away. (A link to a directory is allowed.)"
    )
    return f"{path}: {message}, and a file of ours belongs there; no file was changed. {advice}"


ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room on its disk, or raise the quota"),
    **dict.fromkeys((errno.ENOLCK, errno.EOPNOTSUPP), "Mount it with support for locks"),
    errno.EROFS: "Mount it for writing",
    errno.ESTALE: STALE,
    errno.EIO: "The disk failed, or NFS lost a lock: the kernel's log (dmesg) says which",
    errno.ENETRESET: "Check that the API server runs and that the loop reaches it with the Role `provisioner-state`",
}
"""An operator's next step by the number of the operating system's error. ENETRESET stands for an error of a Kubernetes
API, because no file system reports ENETRESET."""


def advice_message(error: OSError) -> str:
    """Return the operator's next step after the operating system refused a write."""
    return ADVICE.get(error.errno or 0, "Check owner, group and mode of its directory")


class Condition(StrEnum):
    """The condition of a state file. The data file and the lock file beside it show the condition.

    The lock file records the last generation that was written durably. The lock file stays if the data file is removed.
    So a data file that is older than the record was put there from outside. *Trim* is the loop's removal of old
    requests from intent.

    * NEW: the file is absent, and no generation is recorded. Scripts make intent. A loop at its start makes memory.
    * MISSING: the file is absent, but a generation is recorded. Scripts and trim refuse to write. A loop at its start
      rebuilds memory and latches the brake. An absent intent is also MISSING if memory exists.
    * UNREADABLE: the file does not parse. Scripts and trim refuse to write. A loop at its start does not plan.
    * OLDER: the file has an older generation than the record. Scripts and trim read the file again, because an NFS
      cache may be late. If the file stays old, they refuse to write. A loop at its start rebuilds memory and latches
      the brake.
    * ALONE: the file has no lock file. Scripts and trim write. A loop at its start uses the memory and latches the
      brake.
    * FINE: the file has the recorded generation or a newer generation. Scripts and trim write. A loop goes on.

    `provisioner recover` rewrites an intent that is MISSING, UNREADABLE or OLDER. It moves an UNREADABLE memory
    aside.
    """

    NEW = "new"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    OLDER = "older"
    """An old copy was put back. The lock file records a later write."""
    ALONE = "alone"
    """The lock file is missing. Every writer makes the lock file first, so the data file was put there from outside and
    may be an old copy."""
    FINE = "fine"


def condition(generation: int | None, noted: int | None) -> Condition:
    """Return the condition of a readable file with this ``generation``. For an absent file, ``generation`` is None.

    ``noted``: the generation that the lock file records; 0 if the record is unknown; None if there is no lock file.
    """
    if generation is None:
        return Condition.MISSING if noted else Condition.NEW
    if noted is None:
        return Condition.ALONE
    return Condition.OLDER if generation < noted else Condition.FINE
