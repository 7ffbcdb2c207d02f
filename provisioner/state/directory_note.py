"""The note beside a configuration. It lists the state directories on which loops with this configuration have started,
the newest last.

The note is only a hint for operators. If the note cannot be written or read, no directory is known.
"""

from __future__ import annotations

import os
from contextlib import suppress

from provisioner.files.safe_open import read_own
from provisioner.state.atomic import replace
from provisioner.state.errors import StateError

SUFFIX = ".state-directories"
"""End of a note's file name. A path with another end is not read, because the path itself comes from a file that every
member of the group may write."""

KEPT = 5
"""Maximum number of directories that a note keeps besides the newest."""


def read_note(path: str, directory: str) -> list[str]:
    """Return the directories in the note at ``path``, the newest last; empty if the note cannot be read. An empty text
    stands for ``directory`` itself."""
    with suppress(OSError, ValueError):
        own, noted = os.path.realpath(directory), read_own(path) if path.endswith(SUFFIX) else b""
        return ["" if one == own else one for one in noted.decode().splitlines()]
    return []


def add_to_note(path: str, directory: str) -> None:
    """Put a directory at the end of the note at ``path``. Do nothing if the note cannot be written."""
    others = [one for one in read_note(path, directory) if one][-KEPT:]
    with suppress(StateError):
        replace(path, "\n".join([*others, os.path.realpath(directory)]).encode(), durable=False)


def find_former(path: str, directory: str) -> str:
    """Return a directory that the note at ``path`` lists and that contains ``intent.json``. If there are several,
    return the newest; empty if there is none. ``directory`` itself is not considered."""
    others = reversed(read_note(path, directory))
    return next((one for one in others if one and os.path.exists(os.path.join(one, "intent.json"))), "")
