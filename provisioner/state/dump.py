"""Dumps of a state directory. Scripts and loop keep running while a dump is taken.

A dump omits poll markers, HF's list of hosts, the pool status and locks. After a restore, old copies of these files
would be wrong.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from contextvars import copy_context

from provisioner.files.safe_open import HARD_LINK, READS_LINKED, refusal_message
from provisioner.files.version import full_version
from provisioner.state.atomic import read_if_present, stat_file
from provisioner.state.directory import ANNOUNCED_FILE, StateDir
from provisioner.state.dump_format import FORMAT, REPORTED, Manifest, Saved, pack
from provisioner.state.errors import Condition, StateUnreadable
from provisioner.state.locks import DataLock
from provisioner.state.marker_files import names_in
from provisioner.state.poll_markers import ENTRY
from provisioner.state.state_file import StateFile
from provisioner.utc import format_utc

USABLE = frozenset({Condition.FINE, Condition.ALONE, Condition.NEW})


def take_dump(state: StateDir) -> tuple[Manifest, bytes]:
    """Return the manifest and the packed dump. Intent, memory and holds in the dump are as of one moment.

    The function reads these files under their writers' locks, so that intent contains every request in memory. Raises
    StateError, for example if a file is lost, old or damaged.
    """
    return copy_context().run(_take_dump, state)


def _take_dump(state: StateDir) -> tuple[Manifest, bytes]:
    READS_LINKED.set(True)
    intent = state.intent.read()
    files: tuple[StateFile, ...] = (state.intent, state.memory, state.holds)
    with ExitStack() as locks:
        for file in files:
            # Writers refuse a lock file that has a second name, because signing it would change another file.
            linked = map(refusal_message, (file.lock_path, f"{file.lock_path}.turn"))
            if file.existed() and HARD_LINK not in linked:
                locks.enter_context(DataLock(file.lock_path))
        for file in files:
            _check(file)
        # Read terminal answers last, because an answer is published before it is settled.
        saved = dict(_read(state, ["intent.json", "memory.json", "holds.json", "status.json", ANNOUNCED_FILE]))
        reported = [REPORTED + name for name in sorted(names_in(state.seen.path)) if re.fullmatch(ENTRY, name)]
        saved |= _read(state, reported)
    facts = Manifest(FORMAT, full_version(), intent.provisioner, format_utc(time.time()))
    return facts, pack(facts, saved | dict(_read(state, state.journal.files())))


def _check(file: StateFile) -> None:
    """Raise StateUnreadable if the file is lost, old or damaged, because a restore of this file would not help."""
    if (condition := file.condition()) not in USABLE:
        raise StateUnreadable(f"{file.path}: is {condition}; no dump was written. {file.advice} Then try again.")


def _read(state: StateDir, names: Iterable[str]) -> Iterator[tuple[str, Saved]]:
    """Yield the name and the saved form of each file in ``names`` that exists."""
    for name in names:
        path = os.path.join(state.path, name)
        facts = stat_file(path)
        if facts and (content := read_if_present(path, "")) is not None:  # a trim or a rotation may remove the file
            yield name, Saved(content, facts.st_mtime_ns)
