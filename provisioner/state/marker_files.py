"""Files whose name and modification time are all that they say: the loop's heartbeat, and which content of HF's files
scripts and loop have read.

Modification times are by one clock, the file system's, and are compared with each other only
(law: time is an argument).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from provisioner.hostfactory.instance import Digests
from provisioner.state.atomic import discard, facts_of, open_shared, remove, write_all
from provisioner.state.errors import StateUnreadable, denied, is_denied, missing, writing

DIRECTORY_MODE = 0o770


def touch(path: str, content: bytes = b"") -> int:
    """Set the modification time to the file system's now, by the content if there is any; returns it in ns.

    Creates the file. Raises OSError.
    """
    descriptor = open_shared(path, os.O_WRONLY)
    try:
        if content:
            write_all(descriptor, content)
        else:
            os.utime(descriptor)
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)  # a server may refuse here what was written


def probe_time(path: str, content: bytes = b"") -> int:
    """Return the file system's now in ns, by a file that is there meanwhile. Raises OSError."""
    try:
        return touch(path, content)
    finally:
        with suppress(OSError):  # where nothing can be made, nothing has to be removed
            discard(path)


def touch_within(path: str) -> int:
    """Touch a file in a directory of markers, which is made if it is missing. Raises StateError."""
    with writing(path):
        try:
            return touch(path)
        except FileNotFoundError:
            make_shared_directory(os.path.dirname(path))
            return touch(path)


def make_shared_directory(path: str) -> None:
    """Create a directory in the state directory, never that itself; a setgid bit that it inherits stays.

    Raises StateMissing and StateUnwritable.
    """
    if not os.path.isdir(os.path.dirname(path)):
        raise missing(path, "")
    with writing(path), suppress(FileExistsError):
        os.mkdir(path, DIRECTORY_MODE)
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


SILENT_SECONDS = 60.0
"""Without a heartbeat for longer than this the loop is taken to be down: ``interval_seconds`` leaves it four beats."""

UNSEEN = "cannot be seen: "
"""Begins the note on a pool while no look at it is complete; the reason follows."""


class LifeSigns(NamedTuple):
    """The signs of life of the loop, by the file system's clock alone (law: time is an argument)."""

    holder: Mapping[str, Any] = {}
    """The ``epoch``, ``host`` and ``pid`` of the last heartbeat, and whether its loop has ``ended``."""
    last_beat: float | None = None
    silent: float | None = None
    """Seconds since the last heartbeat. None: there was none, or its age cannot be told."""

    @property
    def is_running(self) -> bool | None:
        """True while a loop runs; None if that cannot be told."""
        if self.last_beat is None or self.holder.get("ended"):
            return False
        return None if self.silent is None else self.silent <= SILENT_SECONDS


class Heartbeat:
    """``heartbeat``: touched by the loop at the end of each cycle."""

    def __init__(self, path: str) -> None:
        self.path = path

    def touch(self) -> None:
        """Note that the loop lives. Raises StateUnwritable."""
        with writing(self.path):
            touch(self.path)

    def loop_silent_for(self, reference_ns: int) -> float | None:
        """Seconds from the last heartbeat to the time stamp of another file that was just touched.

        None where no loop ever beat, or nobody can say (ESTALE on NFS): a hint must not fail a call that has recorded.
        """
        last = self.last()
        return None if last is None else max(reference_ns / 1e9 - last, 0.0)

    def silent_now(self) -> float | None:
        """Seconds since the last heartbeat, by the file system's clock; None: no heartbeat ever, or nobody can say."""
        try:
            return self.loop_silent_for(probe_time(f"{self.path}.{os.getpid()}"))
        except OSError:
            return None

    def last(self) -> float | None:
        """When it beat last, by the file system's clock: for people, never compared. None: never, or nobody can say."""
        try:
            return os.lstat(self.path).st_mtime
        except OSError:
            return None

    def age_against(self, path: str) -> float | None:
        """Seconds from the last heartbeat to the other file's modification; None when either cannot be looked at."""
        try:
            return self.loop_silent_for(os.lstat(path).st_mtime_ns)
        except OSError:
            return None


Side = Literal["scripts", "loop"]
SIDES: tuple[Side, ...] = ("scripts", "loop")
KEPT = 3
"""Contents of a side whose marks stay: who has changed is known by what both had read before."""
MARK = r"(scripts|loop)-([0-9a-f]{8})-([0-9a-f]{8})"


class ReadContent(NamedTuple):
    """What one side has read, and when it last did, in ns by the file system's clock."""

    at: int
    digests: Digests


class Difference(NamedTuple):
    """A file of which the scripts have read another content than the loop."""

    file: str
    """``config`` or ``templates``."""
    newer: Side | None
    """Whose content the other side has not read yet; None: nobody can say."""


class ConfigMarks:
    """The marks of one state directory."""

    def __init__(self, path: str) -> None:
        self.path = path

    def note(self, side: Side, digests: Digests) -> None:
        """A side has read this: one mark is touched. Raises StateError."""
        touch_within(os.path.join(self.path, "-".join((side, *digests))))

    def read(self) -> Mapping[Side, Sequence[ReadContent]]:
        """What each side has read, the newest first. Raises StateError."""
        contents_of: dict[Side, list[ReadContent]] = {side: [] for side in SIDES}
        for name in names_in(self.path):
            facts = facts_of(os.path.join(self.path, name))
            if facts is not None and (parts := re.fullmatch(MARK, name)):
                contents_of["loop" if parts[1] == "loop" else "scripts"].append(
                    ReadContent(facts.st_mtime_ns, Digests(parts[2], parts[3]))
                )
        return {side: sorted(contents, reverse=True) for side, contents in contents_of.items()}

    def note_in_force(self, digests: Digests) -> None:
        """The loop has this in force: what is new is marked, and what was replaced long ago forgotten."""
        noted = self.read()["loop"]
        if noted and noted[0].digests == digests:
            return
        self.note("loop", digests)
        for side, contents in self.read().items():
            for content in contents[KEPT:]:
                remove(os.path.join(self.path, "-".join((side, *content.digests))))


def differences(read: Mapping[Side, Sequence[ReadContent]]) -> list[Difference]:
    """The files of which the two sides have different contents. Pure.

    Only what the scripts have read since the loop read its own proves one: HF calls them seldom, and what they read
    before a change says nothing of what they would read now.
    """
    scripts, loop = read["scripts"], read["loop"]
    if not scripts or not loop or scripts[0].at <= loop[0].at:
        return []
    differences = []
    for index, file in enumerate(Digests._fields):
        theirs, ours = scripts[0].digests[index], loop[0].digests[index]
        if theirs == ours:
            continue
        scripts_knew = any(content.digests[index] == ours for content in scripts)
        loop_knew = any(content.digests[index] == theirs for content in loop)
        newer: Side | None = None if scripts_knew == loop_knew else "scripts" if scripts_knew else "loop"
        differences.append(Difference(file, newer))
    return differences
