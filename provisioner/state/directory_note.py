"""The note of a configuration: the state directories on which its loops began, the newest last.

It is a hint for operators, and nothing depends on it. If it cannot be written or read, no directory is known.
"""

from __future__ import annotations

import os
from contextlib import suppress

from provisioner.files.safe_open import read_own
from provisioner.state.atomic import replace
from provisioner.state.errors import StateError

SUFFIX = ".state-directories"
"""End of a note's name. No other file is read, because any member of the group may write the file that names it."""

KEPT = 5
"""Most other directories that a note keeps."""


def read_note(path: str, directory: str) -> list[str]:
    """Return the other directories in a note, and at its place this directory as an empty text. The newest is last."""
    with suppress(OSError, ValueError):
        own, noted = os.path.realpath(directory), read_own(path) if path.endswith(SUFFIX) else b""
        return ["" if one == own else one for one in noted.decode().splitlines()]
    return []


def add_to_note(path: str, directory: str) -> None:
    """Put a directory at the end of a note, if the note can be written."""
    others = [one for one in read_note(path, directory) if one][-KEPT:]
    with suppress(StateError):
        replace(path, "\n".join([*others, os.path.realpath(directory)]).encode(), durable=False)


def find_former(path: str, directory: str) -> str:
    """Return the newest other directory of a note that has requests of HostFactory; empty if none is known."""
    others = reversed(read_note(path, directory))
    return next((one for one in others if one and os.path.exists(os.path.join(one, "intent.json"))), "")
