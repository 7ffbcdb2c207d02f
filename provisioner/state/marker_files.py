"""Marker files: files of which only the name and the modification time matter.

The heartbeat is the loop's marker. The other markers are called marks. They show which content of HF's files the
scripts and the loop have read. The file system's clock gives all modification times, which are compared only with each
other (law: time is an argument).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from provisioner.files.safe_open import closed_at_end
from provisioner.hostfactory import SILENT_SECONDS
from provisioner.hostfactory.provider_config import Digests
from provisioner.state.atomic import Located, discard, open_shared, remove, stat_file, write_all
from provisioner.state.errors import missing, unreadable, writing

DIRECTORY_MODE = 0o770


def touch(path: str, content: bytes = b"") -> int:
    """Set the file's modification time to the file system's present time. Return this time in ns. Create a missing
    file. Raises OSError.

    If ``content`` is given, writing it also sets the time.
    """
    with closed_at_end(open_shared(path, os.O_WRONLY)) as descriptor:
        if content:
            write_all(descriptor, content)
        else:
            os.utime(descriptor)
        return os.fstat(descriptor).st_mtime_ns


def probe_time(path: str, content: bytes = b"") -> int:
    """Return the file system's present time in ns. The function makes a file for this and removes it again. Raises
    OSError."""
    try:
        return touch(path, content)
    finally:
        with suppress(OSError):  # if the file cannot be made, there is no file to remove
            discard(path)


def touch_within(path: str) -> int:
    """Touch a file in a directory of markers. Make the directory if it is missing. Raises StateError."""
    with writing(path):
        try:
            return touch(path)
        except FileNotFoundError:
            make_shared_directory(os.path.dirname(path))
            return touch(path)


def make_shared_directory(path: str) -> None:
    """Create a directory inside the state directory. Do not create the state directory itself. The new directory keeps
    a setgid bit that it inherits, so that its files get the group of the state directory."""
    if not os.path.isdir(os.path.dirname(path)):
        raise missing(path, "")
    with writing(path), suppress(FileExistsError):
        os.mkdir(path, DIRECTORY_MODE)
        os.chmod(path, DIRECTORY_MODE | (os.stat(path).st_mode & 0o2000))


def names_in(path: str) -> list[str]:
    """Return the names in a directory of markers; empty if it does not exist. Raises StateUnreadable or StateDenied."""
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(path, error, "listed") from error


UNSEEN = "cannot be seen: "
"""Beginning of a pool's status text if no observation of the pool is complete. The reason follows."""


Fate = Literal["ended", "gone", "released", "holds", "waits", ""]
"""The fate of the loop that signed the lock last; empty if unknown. The loop signed off (ended), is proven gone, no
longer holds the lock (released), holds the lock, or holds the lock and waits for the previous loop."""

START = (
    "start `provisioner run`; no machine is made or deleted until then\n"
    "If a loop runs, it uses another state{}: compare its STATE, HF_PROVIDER_WORKDIR or --state-dir with this one"
)


class LifeSigns(NamedTuple):
    """The loop's signs of life, with times from the file system's clock alone (law: time is an argument)."""

    holder: Mapping[str, Any] = {}
    """The last holder of the loop's lock, as returned by ``LoopLock.holder``."""
    last_beat_at: float | None = None
    silent_seconds: float | None = None
    """Seconds since the last heartbeat; None if there is no heartbeat or its age is unknown."""
    fate: Fate = ""
    signed_at: float | None = None
    """The time of the holder's signature; None if unknown."""
    stopped_message: str = ""
    """The operator's next step if the holder is a stopped process of this host; else empty."""
    intent_lock: str = ""
    """Message, with the operator's next step, about a process that has held intent's lock for long or has kept other
    processes from trying to take the lock; empty if there is no such process."""
    later_directory: str = ""
    """The state directory on which a later loop of the same configuration began; empty if unknown."""

    @property
    def now(self) -> float | None:
        """Return the present time by the file system's clock; None if unknown."""
        return None if self.silent_seconds is None else (self.last_beat_at or 0.0) + self.silent_seconds

    @property
    def idle_seconds(self) -> float | None:
        """Return the seconds since the lock's holder last signed the lock or touched the heartbeat; None if unknown."""
        if self.silent_seconds is None or self.last_beat_at is None:
            return None
        later = self.signed_at - self.last_beat_at if self.signed_at and self.fate in ("holds", "waits") else 0.0
        return max(0.0, self.silent_seconds - max(0.0, later))

    @property
    def is_running(self) -> bool | None:
        """Return True while a loop runs or starts; None if this is unknown."""
        if self.last_beat_at is None or self.holder.get("ended") or self.fate == "gone":
            return False
        return None if self.idle_seconds is None else self.idle_seconds <= SILENT_SECONDS

    @property
    def advice(self) -> str:
        """Return why no loop runs, with the operator's next step. If the lock does not show why, return the next step
        alone."""
        process = f"process {self.holder.get('pid')} on {self.holder.get('host')}"
        if self.fate in ("holds", "waits"):
            is_first = self.idle_seconds is None
            idle = "has ended no cycle yet" if is_first else f"has done nothing for {self.idle_seconds:.0f} s"
            step = self.stopped_message or ("read its log" if is_first else "end it")
            return f"{process} holds the loop's lock and {idle}: {step}; another loop would only stand by"
        reason = {
            "ended": "the loop ended in order: ",
            "gone": f"{process} is gone without an orderly end: ",
            "released": f"{process} no longer holds the loop's lock and did not sign off: ",
        }.get(self.fate, "")
        later = f", and a later loop began on {self.later_directory}" if self.later_directory else ""
        return reason + START.format(later)


class Heartbeat(Located):
    """``heartbeat``: the loop touches this file at the end of each cycle."""

    def touch(self) -> None:
        """Record that the loop is alive. Raises StateUnwritable."""
        with writing(self.path):
            touch(self.path)

    def silent_seconds_until(self, reference_ns: int) -> float | None:
        """Return the seconds from the last heartbeat to ``reference_ns``, the time at which another file was touched.

        Return None if there is no heartbeat, or if its time is unknown (ESTALE on NFS). No error is raised, because the
        caller has recorded its request already and must not fail.
        """
        last = self.last_beat()
        return None if last is None else max(reference_ns / 1e9 - last, 0.0)

    def silent_now(self) -> float | None:
        """Return the seconds since the last heartbeat by the file system's clock; None if there is no heartbeat or
        its age is unknown."""
        with suppress(OSError):
            return self.silent_seconds_until(probe_time(f"{self.path}.{os.getpid()}"))
        return None

    def last_beat(self) -> float | None:
        """Return the time of the last heartbeat by the file system's clock. Return None if there is no heartbeat or its
        time is unknown."""
        with suppress(OSError):
            return os.lstat(self.path).st_mtime
        return None

    def age_against(self, path: str) -> float | None:
        """Return the seconds from the last heartbeat to the modification of the file ``path``; None if a time is
        unknown."""
        with suppress(OSError):
            return self.silent_seconds_until(os.lstat(path).st_mtime_ns)
        return None


Side = Literal["scripts", "loop"]
SIDES: tuple[Side, ...] = ("scripts", "loop")
KEPT = 3
"""Number of contents of HF's two files for which each side, scripts and loop, keeps a mark. The marks of earlier
contents show which side has read the newer content."""
MARK = r"(scripts|loop)-([0-9a-f]{8})-([0-9a-f]{8})"


class ConfigMark(NamedTuple):
    """A mark: the digests of HF's two files as the scripts or the loop read these files."""

    at: int
    """Moment of the last read, in ns by the file system's clock."""
    digests: Digests


class Difference(NamedTuple):
    """A file of HF of which scripts and loop have read different contents."""

    file: str
    """``config`` or ``templates``."""
    newer: Side | None
    """The side with the newer content, which the other side has not read yet; None if unknown."""


class ConfigMarks(Located):
    """The marks in one state directory. Each content that scripts or loop have read in HF's two files has a mark."""

    def note(self, side: Side, digests: Digests) -> None:
        """Record that a side (scripts or loop) has read HF's two files with these digests. The method touches a mark
        for this. Raises StateError."""
        touch_within(os.path.join(self.path, "-".join((side, *digests))))

    def read(self) -> Mapping[Side, Sequence[ConfigMark]]:
        """Return the contents that each side has read, the newest first. Raises StateError."""
        contents_of: dict[Side, list[ConfigMark]] = {side: [] for side in SIDES}
        for name in names_in(self.path):
            facts = stat_file(os.path.join(self.path, name))
            if facts is not None and (parts := re.fullmatch(MARK, name)):
                contents_of["loop" if parts[1] == "loop" else "scripts"].append(
                    ConfigMark(facts.st_mtime_ns, Digests(parts[2], parts[3]))
                )
        return {side: sorted(contents, reverse=True) for side, contents in contents_of.items()}

    def note_in_force(self, digests: Digests) -> None:
        """Record that the loop now uses HF's two files with these digests. If the digests differ from the last record,
        touch their mark and remove old marks.

        Raises StateError.
        """
        noted = self.read()["loop"]
        if noted and noted[0].digests == digests:
            return
        self.note("loop", digests)
        for side, contents in self.read().items():
            for content in contents[KEPT:]:
                remove(os.path.join(self.path, "-".join((side, *content.digests))))


def differences(read: Mapping[Side, Sequence[ConfigMark]]) -> list[Difference]:
    """Return each of HF's two files that the two sides have read with different contents. The function is pure.

    If the loop has read the files later than the scripts, return no file, because the scripts' next read may show the
    same contents.
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
