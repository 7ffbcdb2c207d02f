"""Errors and conditions of the state, whatever it is kept in, and the texts for a state that is kept in files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from provisioner.files.safe_open import HARD_LINK, NoFileError

STALE = "Its NFS server has another file or directory there by now: mount it anew"


class StateError(Exception):
    """An error of the state directory. The message names the file, the problem and the next step."""


class StateMissing(StateError):
    """The file or the directory does not exist. Nothing was created."""


class StateUnreadable(StateError):
    """The file exists and cannot be understood. It was left as it is."""


class StateDenied(StateError):
    """The file may not be read by this user, which may be intended. It was left as it is."""


class StateLinked(StateError):
    """A link is in the place of a file of ours. The link was neither followed nor moved."""


class StateTooNew(StateError):
    """The file was written by a newer version of the provisioner. It was left as it is."""


class StateStale(StateError):
    """The file is older than a file that this or another process has already written."""


class StateExists(StateError):
    """The file exists already, or must not be created because another file exists."""


class StateUnwritable(StateError):
    """The operating system refused to write. The old content stays, or the new content if only the last sync failed."""


class Disturbed(StateUnwritable):
    """Another process asked in time that this content is not written. The old content stays."""


class LockTimeout(StateError):
    """Another process held the lock for the whole wait."""


def is_denied(error: OSError) -> bool:
    """Return True for an error that another user might not get."""
    return error.errno in (errno.EACCES, errno.EPERM)


def denied(path: str) -> StateDenied:
    """Return the error for a file that belongs to another user."""
    return StateDenied(f"{path}: cannot be read: {os.strerror(errno.EACCES)}. {denied_message(path)}")


def denied_message(path: str) -> str:
    """Return the owner of the file and our own user, as a sentence."""
    from provisioner.files import ownership

    return ownership.denied_message(path)


def missing(path: str, advice: str) -> StateMissing:
    """Return the error for a file that does not exist; it says so if the whole directory does not exist."""
    directory = os.path.dirname(path)
    if is_stale(directory):
        return StateMissing(f"{directory}: cannot be read: {os.strerror(errno.ESTALE)}. {STALE}; nothing was created.")
    if not os.path.isdir(directory):
        return StateMissing(
            f"{directory}: this state directory does not exist; nothing was created. "
            "Correct HF_PROVIDER_WORKDIR or --state-dir, or create the directory."
        )
    return StateMissing(f"{path}: the file does not exist; nothing was created. {advice}")


def is_stale(directory: str) -> bool:
    """Return True if the NFS server no longer has this directory, though it may have another directory of that name."""
    try:
        os.stat(directory)
    except OSError as error:
        return error.errno == errno.ESTALE
    return False


def unwritable(path: str, error: OSError, done: str = "written") -> StateUnwritable:
    """Return the error for a refused write, or for another refused action that ``done`` names."""
    if isinstance(error, NoFileError):
        return StateUnwritable(not_ours_message(path, str(error.strerror)))
    if error.errno == errno.EACCES:
        return StateUnwritable(f"{path}: cannot be written: {error.strerror}. {denied_message(path)}")
    return StateUnwritable(
        f"{path}: cannot be {done}: {error.strerror or error}. {advice_message(error)}, then try again."
    )


@contextmanager
def writing(path: str, done: str = "written") -> Iterator[None]:
    """Raise StateUnwritable if the operating system refuses a call inside.

    ``done`` names the action that was refused.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, done) from error


def not_ours_message(path: str, message: str) -> str:
    """Return the message for a link, or another object that is no file, in the place of a file of ours.

    ``message`` is the text of ``open_own``.
    """
    advice = (
        f"Remove the other name, which `find DIR -xdev -samefile {path}` lists if it is below DIR. "
        f"To keep both: `cp -p {path} COPY && mv COPY {path}`."
        if message == HARD_LINK
        else "Move it away. (A directory may be linked.)"
    )
    return f"{path}: {message}, and a file of ours belongs there; nothing was changed. {advice}"


def advice_message(error: OSError) -> str:
    """Return the operator's next step after the operating system refused a write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room on its disk, or raise the quota"
    if error.errno == errno.EROFS:
        return "Mount it for writing"
    if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
        return "Mount it with support for locks"
    if error.errno == errno.ESTALE:
        return STALE
    if error.errno == errno.EIO:
        return "The disk failed, or NFS lost a lock: the kernel's log (dmesg) says which"
    return "Check owner, group and mode of its directory"


class Condition(StrEnum):
    """Condition of a state file, from the file and the lock file beside it, and what follows.

    The lock file records the last generation that was written durably. It stays if the data file is removed. So a data
    file older than that record was put there from outside.

    * NEW: the file is absent, and no generation is recorded. Scripts make intent; a loop at its start makes memory.
    * MISSING: the file is absent, but a generation is recorded. Scripts and trim refuse; a loop at its start rebuilds
      memory and latches the brake. An absent intent beside a memory is MISSING whatever its lock file records.
    * UNREADABLE: the file does not parse. Scripts and trim refuse; a loop at its start stops planning.
    * OLDER: the file has an older generation than recorded. Scripts and trim refuse, once caches agree; a loop at its
      start rebuilds memory and latches the brake.
    * ALONE: there is a file without lock file. Scripts and trim write; a loop at its start takes memory and latches the
      brake.
    * FINE: the file has the recorded generation, or a newer one. Scripts and trim write; a loop goes on.

    `provisioner recover` writes intent again if it is MISSING, UNREADABLE or OLDER. It moves an UNREADABLE memory
    aside.
    """

    NEW = "new"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    OLDER = "older"
    """An old copy was put back: the lock file records a later write."""
    ALONE = "alone"
    """The lock file is missing, which every writer makes first.

    So the file was put there from outside and may be an old copy.
    """
    FINE = "fine"


def condition(generation: int | None, noted: int | None) -> Condition:
    """Return the condition of a readable file of that ``generation``, or of an absent file (None).

    ``noted``: the generation that the lock file records, 0 if that is unknown; None without a lock file.
    """
    if generation is None:
        return Condition.MISSING if noted else Condition.NEW
    if noted is None:
        return Condition.ALONE
    return Condition.OLDER if generation < noted else Condition.FINE
