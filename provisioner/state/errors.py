"""What can be wrong with the state, whatever it is kept in; and the texts for those who keep it in files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from provisioner.files.regular import HARD_LINK, NoFileError

STALE = "Its NFS server has another file or directory there by now: mount it anew"


class StateError(Exception):
    """Something is wrong with the state directory. The message names the file, the problem and the next step."""


class StateMissing(StateError):
    """The file, or the directory, is not there. Nothing was created."""


class StateUnreadable(StateError):
    """The file is there and cannot be understood. It was left alone."""


class StateDenied(StateError):
    """This user may not read the file, which may well be right. It was left alone."""


class StateLinked(StateError):
    """A link is in the place of a file of ours. It was neither followed nor moved."""


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


def is_denied(error: OSError) -> bool:
    """True for an error that another user might not have met."""
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
    if is_stale(directory):
        return StateMissing(f"{directory}: cannot be read: {os.strerror(errno.ESTALE)}. {STALE}; nothing was created.")
    if not os.path.isdir(directory):
        return StateMissing(
            f"{directory}: this state directory does not exist; nothing was created. "
            "Correct HF_PROVIDER_WORKDIR or --state-dir, or create the directory."
        )
    return StateMissing(f"{path}: the file does not exist; nothing was created. {advice}")


def is_stale(directory: str) -> bool:
    """True where an NFS server has no such directory any more, though it may have another of that name."""
    try:
        os.stat(directory)
    except OSError as error:
        return error.errno == errno.ESTALE
    return False


def unwritable(path: str, error: OSError, done: str = "written") -> StateUnwritable:
    """Return the error for a refused write, or for what else could not be ``done``."""
    if isinstance(error, NoFileError):
        return StateUnwritable(not_ours(path, str(error.strerror)))
    if error.errno == errno.EACCES:
        return StateUnwritable(f"{path}: cannot be written: {error.strerror}. {why_denied(path)}")
    return StateUnwritable(f"{path}: cannot be {done}: {error.strerror or error}. {what_to_do(error)}, then try again.")


@contextmanager
def writing(path: str, done: str = "written") -> Iterator[None]:
    """Raise StateUnwritable for what the operating system refuses inside; ``done``: what the path cannot be then."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, done) from error


def not_ours(path: str, message: str) -> str:
    """The text for a link, or for what is no file, in the place of a file of ours; ``message`` is `open_own`'s."""
    advice = (
        f"Remove the other name, which `find DIR -xdev -samefile {path}` lists if it is below DIR. "
        f"To keep both: `cp -p {path} COPY && mv COPY {path}`."
        if message == HARD_LINK
        else "Move it away. (A directory may be linked.)"
    )
    return f"{path}: {message}, and a file of ours belongs there; it was left alone. {advice}"


def what_to_do(error: OSError) -> str:
    """How a write comes to succeed that the operating system refused."""
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
    """What a state file and the lock file beside it say together, and what follows.

    The lock file notes the last generation that was written durably, and stays when the data file is removed: a data
    file that is older than the note was put there by somebody.

    | data file           | lock file notes       | condition  | scripts and trim          | loop at its start       |
    |---------------------|-----------------------|------------|---------------------------|-------------------------|
    | absent              | no generation         | NEW        | make intent               | makes memory            |
    | absent              | a generation          | MISSING    | refuse                    | rebuilds memory, brakes |
    | does not parse      | whatever              | UNREADABLE | refuse                    | stops planning          |
    | an older generation | a newer generation    | OLDER      | refuse, once caches agree | rebuilds memory, brakes |
    | any generation      | there is no lock file | ALONE      | write                     | takes memory, brakes    |
    | this generation     | this one, or an older | FINE       | write                     | goes on                 |

    * `provisioner recover` writes intent again where it is MISSING, UNREADABLE or OLDER, and makes room for an
      UNREADABLE memory.
    * An absent intent beside a memory is MISSING whatever its lock file notes.
    """

    NEW = "new"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    OLDER = "older"
    """An old copy was put back: a later one had been written."""
    ALONE = "alone"
    """Somebody put it there without its lock file, which every writer makes first: it may be an old copy."""
    FINE = "fine"


def condition(generation: int | None, noted: int | None) -> Condition:
    """Of a file that can be read, of that ``generation``, or of one that is absent (None).

    ``noted``: what the lock file notes, 0 where that is unknown; None where there is no lock file.
    """
    if generation is None:
        return Condition.MISSING if noted else Condition.NEW
    if noted is None:
        return Condition.ALONE
    return Condition.OLDER if generation < noted else Condition.FINE
