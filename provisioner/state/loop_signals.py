"""What the loop leaves for scripts and people beside the databases: that it lives, and what ails loop and pools."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from provisioner.state.atomic import discard, modified_at, parse, read_whole, replace
from provisioner.state.errors import StateMissing, StateUnreadable, unwritable
from provisioner.state.marks import touch

SILENT_SECONDS = 60.0
"""Without a heartbeat for longer than this the loop is taken to be down: ``interval_seconds`` leaves it four beats."""

UNSEEN = "cannot be seen: "
"""Begins the note on a pool while no look at it is complete; the reason follows."""


def loop_runs(holder: Mapping[str, Any], last: float | None, silent: float | None) -> bool | None:
    """Whether a loop runs, by who signed last, the last heartbeat and its age; None: nobody can say."""
    if last is None or holder.get("ended"):
        return False
    return None if silent is None else silent <= SILENT_SECONDS


class Heartbeat:
    """``heartbeat``: touched by the loop at the end of each cycle."""

    def __init__(self, path: str) -> None:
        self.path = path

    def touch(self) -> None:
        """Note that the loop lives. Raises StateUnwritable."""
        try:
            touch(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def loop_silent_for(self, reference_ns: int) -> float | None:
        """Seconds from the last heartbeat to the time stamp of another file that was just touched.

        None where no loop ever beat, or nobody can say (ESTALE on NFS): a hint must not fail a call that has recorded.
        """
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


class PoolNotes:
    """``pools.json``: what people should know of loop and pools' places; the loop writes it when that changes.

    What its sections mean: ``Notes`` in notes.py.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, notes: Mapping[str, Any]) -> None:
        """Replace the notes. Not fsynced: a new loop writes them again."""
        replace(self.path, json.dumps(notes).encode(), durable=False)

    def read(self) -> dict[str, Any]:
        """The sections by name; none before a loop ran. Raises StateUnreadable."""
        advice = "The loop writes it again when it starts."
        try:
            document = parse(self.path, read_whole(self.path, advice), advice)
        except StateMissing:
            return {}
        if not isinstance(document, dict):
            raise StateUnreadable(f"{self.path}: expected an object. {advice}")
        return document
