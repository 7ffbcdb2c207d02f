"""A dump put back into a state directory, so that the next loop begins as with an old copy.

Interrupted anywhere, scripts and loop find a directory that they refuse or are careful with, and the restore can be run
again. Each step is durable, in this order:

* The present files are copied.
* Memory becomes an old one, which the loop makes again, with the brake latched.
* What HF was told is there.
* Intent comes last.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from provisioner.hostfactory.templates import higher
from provisioner.state.archive import ADVICE, Dump
from provisioner.state.atomic import create_whole, facts_of, read_whole, remove, replace, settle
from provisioner.state.codec import RecordError, intent_of
from provisioner.state.database import Tables, encoded, generation_of
from provisioner.state.directory import ANNOUNCED_FILE, StateDir
from provisioner.state.errors import (
    LockTimeout,
    StateError,
    StateExists,
    StateMissing,
    StateTooNew,
    StateUnreadable,
    writing,
)
from provisioner.state.hf_activity import numbers_in
from provisioner.state.locks import DataLock
from provisioner.state.marker_files import make_shared_directory
from provisioner.state.memory import MemoryCodec
from provisioner.state.state_file import StateFile
from provisioner.utc import format_utc

DATABASES = ("intent.json", "memory.json", "status.json", "holds.json")


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore has put back."""

    requests: int
    returns: int
    told: int
    """Entries of what HF was told that the directory lacked."""
    kept: str
    """The directory in which the files from before are; empty where there were none."""
    left_out: tuple[str, ...]
    """Files of the dump that were damaged when it was taken, and are made again without it."""


def restore(state: StateDir, dump: Dump, instance: str, *, replaces: bool) -> Restored:
    """Put it back. ``replaces``: what is there may be moved aside; what HF was told always stays.

    Raises StateExists where something is there and may not be moved, LockTimeout while a loop or a script works on the
    directory, StateError.
    """
    if dump.manifest.instance != instance:
        raise StateError(
            f"{dump.source}: is of HF's provider instance {dump.manifest.instance!r}, not of {instance!r}; nothing was "
            "changed. Give a dump of this instance, or correct HF_PROVIDER_NAME or --config."
        )
    saved = _Saved.of(dump)
    loop, lock = state.loop_lock, DataLock(state.intent.lock_path)
    if not loop.acquire(0):
        holder = loop.holder()
        whose = f" (process {holder['pid']} on host {holder.get('host')})" if "pid" in holder else ""
        raise LockTimeout(
            f"{loop.path}: a loop works on this directory{whose}, or another restore; nothing was changed. "
            f"{loop.stopped() or 'Stop it, and any that stands by'}, then try again."
        )
    try:
        if not lock.try_acquire():
            raise LockTimeout(
                f"{state.intent.lock_path}: a script writes at this moment; nothing was changed. Stop HostFactory, or "
                "try again."
            )
        with lock.held():
            kept = _set_aside(state, replaces=replaces)
            lock.generation = max(lock.generation, generation_of(saved.intent))
            lock.note()  # scripts no longer begin anew where intent is missing
            _outdate(state, saved.memory)
            told = _restore_told(state, dump)
            _restore_signs(state, dump, saved)
            _restore_intent(state, saved, lock, dump.files["intent.json"].mtime_ns)
    finally:
        loop.release()
    return Restored(len(saved.intent["requests"]), len(saved.intent["returns"]), told, kept, saved.left_out)


@dataclass(frozen=True, slots=True)
class _Saved:
    """The databases of a dump, without what must not come back."""

    intent: Tables
    memory: Tables | None
    status: Tables | None
    holds: Tables | None
    announced: Mapping[str, int] | None
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, dump: Dump) -> _Saved:
        intent, memory, holds = map(dump.tables, ("intent", "memory", "holds"))
        status, announced = _status(dump), _announced(dump)  # both are made again, so nothing is lost with them
        signs = {"status.json": status, ANNOUNCED_FILE: announced}
        left_out = tuple(name for name, sound in signs.items() if sound is None and name in dump.files)
        if intent is None:
            raise StateUnreadable(f"{dump.source}: holds no intent.json. Nothing was changed.")
        try:
            intent_of(intent)
            if memory is not None:
                MemoryCodec().decode(memory)
        except RecordError as error:
            raise StateUnreadable(f"{dump.source}: {error}. {ADVICE}") from error
        for name in ("requests", "returns"):  # what was leaving the files stays away: what was told of it may be gone
            records = (memory or {}).get(name, {})
            intent[name] = {
                id_: one for id_, one in intent.get(name, {}).items() if not records.get(id_, {}).get("trimmed")
            }
        if status is not None:
            # Of a request that went on HF may have had more: without an answer it counts as told of all that runs.
            answers = {id_: answer for id_, answer in status.get("answers", {}).items() if answer.get("ended")}
            status = {**status, "answers": answers, "lost": {}, "available": {}}
        return cls(intent, memory, status, holds, announced, left_out)


def _status(dump: Dump) -> Tables | None:
    """What was published; None where it was not, or where the file was damaged."""
    with suppress(StateUnreadable):
        return dump.tables("status")
    return None


def _announced(dump: Dump) -> dict[str, int] | None:
    """The maxNumbers that HF was shown; None where it was shown none, or where the file was damaged."""
    with suppress(KeyError, StateUnreadable):
        return numbers_in(ANNOUNCED_FILE, dump.files[ANNOUNCED_FILE].content, "")
    return None


def _present(state: StateDir) -> Iterator[str]:
    """The files that will be replaced, as far as they are there. Raises StateError for a link or a directory."""
    for name in (*DATABASES, ANNOUNCED_FILE):
        path = os.path.join(state.path, name)
        if (facts := facts_of(path)) is not None:
            if not stat.S_ISREG(facts.st_mode):
                raise StateError(f"{path}: is no regular file; nothing was changed. Move it away, then try again.")
            yield name


def _set_aside(state: StateDir, *, replaces: bool) -> str:
    """Copy the files that will be replaced; returns the directory of the copies."""
    present = list(_present(state))
    if not replaces and (present or state.terminal_answers.ids() or state.intent.existed()):
        what = ", ".join(present) or "what HF was told, or locks of files that are lost"
        raise StateExists(
            f"{state.path}: is not empty ({what}); nothing was changed. With --yes the files are moved aside, and what "
            "HF was told stays."
        )
    if not present:
        return ""
    now = "".join(filter(str.isalnum, format_utc(time.time())))
    kept = os.path.join(state.path, f"before-restore-{now}")
    make_shared_directory(kept)
    for name in present:  # one is there already where a restore of this second was interrupted
        create_whole(os.path.join(kept, name), read_whole(os.path.join(state.path, name), ADVICE))
    settle(kept)
    return kept


def _outdate(state: StateDir, memory: Tables | None) -> None:
    """The memory of the dump is there, and known to be an old copy; an earlier loop must not go on."""
    file = state.memory
    with DataLock(file.lock_path) as lock:
        written = [generation_of(tables) for tables in (memory, _readable(file)) if tables is not None]
        lock.generation = max([lock.generation, *written]) + 1
        lock.note()
        if memory is not None:
            replace(file.path, encoded(memory))
        elif file.exists():
            file.set_aside()
    epoch = int(memory["memory"]["memory"].get("epoch", 0)) if memory else 0
    state.loop_lock.raise_epoch(epoch + 1)
    state.loop_lock.sign_off()


def _readable(file: StateFile) -> Tables | None:
    """What stands in a file, if this version can read it."""
    try:
        return file.load()
    except (StateMissing, StateUnreadable, StateTooNew):
        return None


def _restore_told(state: StateDir, dump: Dump) -> int:
    """Put back the entries that are missing; one that is there, or another in its place, HF was told later."""
    make_shared_directory(state.terminal_answers.path)
    return sum([create_whole(os.path.join(state.path, name), saved.content) for name, saved in dump.told().items()])


def _restore_signs(state: StateDir, dump: Dump, saved: _Saved) -> None:
    """What HF was shown, what people hold, what was published, and the journal; of the first two the present counts."""
    if saved.status is None:
        remove(state.status.path)  # it tells of requests that intent will not know
    else:
        replace(state.status.path, encoded(saved.status))
    if saved.announced is not None:
        numbers = dict(saved.announced)
        with suppress(StateUnreadable):
            present = state.announced.read()
            numbers |= {name: higher(most, numbers.get(name, most)) for name, most in present.items()}
        state.announced.write(numbers)
    with DataLock(state.holds.lock_path) as lock:
        if saved.holds is not None and _readable(state.holds) is None:
            state.holds.put_back(saved.holds, lock)
    if not state.journal.files():
        for name, one in dump.files.items():
            if name.startswith("journal"):
                replace(os.path.join(state.path, name), one.content)


def _restore_intent(state: StateDir, saved: _Saved, lock: DataLock, modified: int) -> None:
    """Newer than all that writers know of, and as old as it is: by that requests are known whose time is over."""
    path = state.intent.path
    state.intent.put_back(saved.intent, lock)
    with writing(path):
        os.utime(path, ns=(modified, modified))
