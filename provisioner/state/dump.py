"""What has to be saved of a state directory, taken while scripts and loop go on.

Poll marks, HF's list of hosts, the loop's notes and locks are left out: an old one would say what is no longer so.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from contextvars import copy_context

from provisioner import __version__
from provisioner.files.safe_open import HARD_LINK, READS_LINKED, refusal_message
from provisioner.state.archive import FORMAT, REPORTED, Manifest, Saved, pack
from provisioner.state.atomic import facts_of, read_if_present
from provisioner.state.directory import ANNOUNCED_FILE, StateDir
from provisioner.state.errors import Condition, StateUnreadable
from provisioner.state.hf_activity import ENTRY
from provisioner.state.locks import DataLock
from provisioner.state.marker_files import names_in
from provisioner.state.state_file import StateFile
from provisioner.utc import format_utc

USABLE = frozenset({Condition.FINE, Condition.ALONE, Condition.NEW})


def take(state: StateDir) -> tuple[Manifest, bytes]:
    """All that has to be saved, as of one moment, packed. Raises StateError, also where a file is lost, old or damaged.

    The databases are read under the locks of those who write them: what memory knows, intent has.
    """
    return copy_context().run(_take, state)


def _take(state: StateDir) -> tuple[Manifest, bytes]:
    READS_LINKED.set(True)
    intent = state.intent.read()
    files: tuple[StateFile, ...] = (state.intent, state.memory, state.holds)
    with ExitStack() as locks:
        for file in files:
            # Every writer refuses a lock that has another name, and to sign it would alter another file.
            linked = map(refusal_message, (file.lock_path, f"{file.lock_path}.turn"))
            if file.existed() and HARD_LINK not in linked:
                locks.enter_context(DataLock(file.lock_path))
        for file in files:
            _check(file)
        # What HF was told comes last: an answer is published before it is settled.
        held = dict(_read(state, ["intent.json", "memory.json", "holds.json", "status.json", ANNOUNCED_FILE]))
        held |= _read(
            state, [REPORTED + name for name in sorted(names_in(state.seen.path)) if re.fullmatch(ENTRY, name)]
        )
    facts = Manifest(FORMAT, __version__, intent.provisioner, format_utc(time.time()))
    return facts, pack(facts, held | dict(_read(state, state.journal.files())))


def _check(file: StateFile) -> None:
    """Raises StateUnreadable for a file that is not what was written last: to restore it would bring nothing back."""
    if (condition := file.condition()) not in USABLE:
        raise StateUnreadable(f"{file.path}: is {condition}; nothing was dumped. {file.advice} Then try again.")


def _read(state: StateDir, names: Iterable[str]) -> Iterator[tuple[str, Saved]]:
    """Those files that are there."""
    for name in names:
        path = os.path.join(state.path, name)
        facts = facts_of(path)
        if facts and (content := read_if_present(path, "")) is not None:  # it may leave, by a trim or a rotation
            yield name, Saved(content, facts.st_mtime_ns)
