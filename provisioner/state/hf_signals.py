"""The small files beside the databases: what HF polled, the hosts it listed, whether the loop lives, what ails pools.

Their modification times are by one clock, the file system's, and are compared with each other only (DESIGN law 11).
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from provisioner.files.atomic import (
    IRREGULAR,
    LINK,
    NoFileError,
    StateError,
    StateMissing,
    StateUnreadable,
    denied,
    discard,
    facts_of,
    is_denied,
    missing,
    modified_at,
    open_shared,
    parse,
    read_whole,
    replace,
    unwritable,
)

UNSEEN = "cannot be seen: "
"""So begins what is noted of a pool while no look at it is complete; then comes the reason."""

ID_PATTERN = r"[A-Za-z0-9-]{1,64}"
"""What may be the name of a file in ``seen/``: nothing that leads out of it."""

DIRECTORY_MODE = 0o770


def is_id(name: str) -> bool:
    """It may name a file in ``seen/``."""
    return re.fullmatch(ID_PATTERN, name) is not None  # compiled at the first use: not every script has one


def check_id(name: str) -> None:
    """Raises StateError for what must not name a file in ``seen/``."""
    if not is_id(name):
        raise StateError(f"{name[:80]!r} is no request id: expected 1 to 64 of A-Z, a-z, 0-9 and '-'.")


def touch(path: str) -> int:
    """Set the modification time to the file system's now, creating the file; returns it in ns. Raises OSError."""
    try:
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        descriptor = open_shared(path, os.O_WRONLY)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)
    facts = os.lstat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise NoFileError(errno.EINVAL, LINK if stat.S_ISLNK(facts.st_mode) else IRREGULAR)
    return facts.st_mtime_ns


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


class Seen:
    """``seen/<request id>``: touched by a script at each poll of that request, before it reads the answer."""

    def __init__(self, path: str) -> None:
        self.path = path

    def touch(self, request: str) -> int:
        """Note a poll; returns its time in ns. Raises StateError for an id that cannot be one, and StateUnwritable."""
        check_id(request)
        path = os.path.join(self.path, request)
        try:
            try:
                return touch(path)
            except FileNotFoundError:
                make_shared_directory(self.path)
                return touch(path)
        except OSError as error:
            raise unwritable(path, error) from error

    def marks(self) -> dict[str, int]:
        """When each request was polled last, in ns by the file system's clock."""
        return {name: facts.st_mtime_ns for name, facts in self._facts().items()}

    def _facts(self) -> dict[str, os.stat_result]:
        """Of every mark; one that goes while we look is left out."""
        facts = {}
        for name in filter(is_id, names_in(self.path)):
            if found := facts_of(os.path.join(self.path, name)):
                facts[name] = found
        return facts

    def forget(self, requests: Iterable[str]) -> None:
        """Remove the marks of requests that left the files. Raises StateUnwritable."""
        for request in filter(is_id, requests):
            path = os.path.join(self.path, request)
            try:
                discard(path)
            except OSError as error:
                raise unwritable(path, error) from error


class Inventory:
    """``hf-inventory.json``: the hosts HF listed in its last getReturnRequests; the last one wins."""

    advice = "HF's next getReturnRequests writes it again."

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, names: Iterable[str]) -> None:
        """Replace the list. Not fsynced: HF lists its hosts again within a minute."""
        replace(self.path, _listing(names), durable=False)

    def note(self, names: Mapping[str, object]) -> None:
        """Replace the list, or add to it: one that shares no host with it is a further part of what HF lists.

        Such parts come faster than the loop looks. A list that cannot be read makes room. Raises StateUnwritable.
        """
        content, before = _listing(names), b""
        with suppress(StateError):
            before = self._content()
        if names and before != content:  # mostly HF lists what it did before, and fifty thousand names need no look
            with suppress(StateError):
                known = self._names(before)
                if names.keys().isdisjoint(known):
                    content = _listing([*known, *names])
        replace(self.path, content, durable=False)

    def read(self) -> tuple[tuple[str, ...], int] | None:
        """The names and when they were written (ns); None before HF's first call. Raises StateUnreadable."""
        facts = facts_of(self.path)  # before the content: what is written meanwhile has a mark of its own
        if facts is None:
            return None
        try:
            return tuple(self._names(self._content())), facts.st_mtime_ns
        except StateMissing:
            return None

    def _content(self) -> bytes:
        return read_whole(self.path, self.advice)

    def _names(self, content: bytes) -> list[str]:
        document = parse(self.path, content, self.advice)
        names = document.get("names") if isinstance(document, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise StateUnreadable(f"{self.path}: expected {{'names': [...]}}. {self.advice}")
        return names


def _listing(names: Iterable[str]) -> bytes:
    return json.dumps({"names": list(names)}).encode()


class PoolNotes:
    """``pools.json``: what people should know of loop and pools' places; the loop writes it when that changes.

    What its sections mean: ``Notes`` in notes.py. Before there were others it held only what is now under ``pools``.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, notes: Mapping[str, Any]) -> None:
        """Replace them. Not fsynced: a new loop writes them again."""
        replace(self.path, json.dumps(notes).encode(), durable=False)

    def read(self) -> dict[str, Any]:
        """The sections by name; none before a loop ran. Raises StateUnreadable."""
        advice = "The loop writes it again when it starts."
        try:
            document = parse(self.path, read_whole(self.path, advice), advice)
        except StateMissing:
            return {}
        if isinstance(document, dict) and all(isinstance(notes, list) for notes in document.values()):
            document = {"pools": document}
        if not isinstance(document, dict) or not isinstance(document.get("pools"), dict):
            raise StateUnreadable(f"{self.path}: expected lists of sentences by pool. {advice}")
        return document


class Announced:
    """``announced.json``: the highest maxNumber that HF was shown of each template.

    HF hangs when it is shown a lower one while it runs (interface §1.1).
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> dict[str, int]:
        """maxNumber by templateId; nothing before the first call. Raises StateMissing without a state directory, and
        StateUnreadable."""
        advice = "Remove it while HostFactory is stopped: it is made again."
        if not os.path.isdir(os.path.dirname(self.path)):
            raise missing(self.path, "")
        try:
            document = parse(self.path, read_whole(self.path, advice), advice)
        except StateMissing:
            return {}
        if not isinstance(document, dict) or not all(type(value) is int for value in document.values()):
            raise StateUnreadable(f"{self.path}: expected {{TEMPLATE: NUMBER}}. {advice}")
        return document

    def write(self, numbers: Mapping[str, int]) -> None:
        """Replace them, durably. Raises StateUnwritable."""
        replace(self.path, json.dumps(numbers).encode())


class Heartbeat:
    """``heartbeat``: touched by the loop at the end of each cycle."""

    def __init__(self, path: str) -> None:
        self.path = path

    def touch(self) -> None:
        """The loop lives. Raises StateUnwritable."""
        try:
            touch(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def loop_silent_for(self, reference_ns: int) -> float | None:
        """Seconds from the last heartbeat to a time stamp of another file just touched; None: no heartbeat ever, or it
        cannot be looked at (ESTALE on NFS): it is only a hint, and a script may have recorded something already."""
        try:
            last = modified_at(self.path)
        except OSError:
            return None
        return None if last is None else max(reference_ns / 1e9 - last, 0.0)

    def silent_now(self) -> float | None:
        """Seconds since the last heartbeat, by the file system's clock; None: no heartbeat ever, or nobody can say."""
        probe = f"{self.path}.{os.getpid()}"
        try:
            return self.loop_silent_for(touch(probe))
        except OSError:
            return None
        finally:
            with suppress(OSError):  # where nothing can be made, nothing has to be removed
                discard(probe)

    def last(self) -> float | None:
        """When it beat last, by the file system's clock: for people, never compared. None: never, or nobody can say."""
        try:
            return modified_at(self.path)
        except OSError:
            return None

    def age_against(self, path: str) -> float | None:
        """Seconds from the last heartbeat to the other file's modification; None when either cannot be looked at."""
        try:
            reference = os.lstat(path).st_mtime_ns
        except OSError:
            return None
        return self.loop_silent_for(reference)
