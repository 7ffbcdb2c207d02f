"""Restore of a dump into a state directory. The next loop then starts as it does with an old copy of memory.

After an interruption, scripts and loop refuse the directory or latch the brake. The operator can run the restore again.
Each step is durable before the next step begins:

* Copy the present files.
* Make memory an old copy. So the loop rebuilds memory and latches the brake.
* Put back the terminal answers that were reported to HF.
* Put back intent last.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from provisioner.hostfactory.templates import get_higher
from provisioner.state.atomic import create_whole, read_whole, remove, replace, stat_file, sync_directory
from provisioner.state.database import Tables, encode_json, generation_of
from provisioner.state.directory import ANNOUNCED_FILE, StateDir
from provisioner.state.dump_format import ADVICE, Dump
from provisioner.state.errors import (
    LockTimeout,
    StateError,
    StateExists,
    StateMissing,
    StateTooNew,
    StateUnreadable,
    writing,
)
from provisioner.state.locks import DataLock
from provisioner.state.loop_lock import be_the_loop
from provisioner.state.marker_files import make_shared_directory
from provisioner.state.memory_file import MemoryCodec
from provisioner.state.poll_markers import numbers_in
from provisioner.state.record_format import RecordError, decode_intent
from provisioner.utc import format_utc

T = TypeVar("T")

DATABASES = ("intent.json", "memory.json", "status.json", "holds.json")


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    requests: int
    returns: int
    reported: int
    """Number of entries of terminal answers that the directory did not have."""
    kept: str
    """Directory with copies of the files from before the restore; empty if there were no files."""
    left_out: tuple[str, ...]
    """Files of the dump that were damaged when the dump was taken. The loop makes them again."""


def restore_dump(state: StateDir, dump: Dump, instance: str, *, replaces: bool) -> Restored:
    """Restore the dump. ``replaces``: True if present files may be replaced; copies of them stay. Present terminal
    answers always stay.

    Raises StateError, for example for a dump of another provider instance. Raises StateExists if present files must not
    be replaced. Raises LockTimeout while a loop or a script works on the directory.
    """
    if dump.manifest.instance != instance:
        raise StateError(
            f"{dump.source}: belongs to HF's provider instance {dump.manifest.instance!r}, not to {instance!r}; "
            "no file was changed. Give a dump of this instance, or correct HF_PROVIDER_NAME or --config."
        )
    saved = _Saved.from_dump(dump)
    lock = DataLock(state.intent.lock_path)
    with be_the_loop(state):
        if not lock.try_acquire():
            raise LockTimeout(
                f"{state.intent.lock_path}: a script writes at this moment; no file was changed. Stop HostFactory, or "
                "try again."
            )
        with lock.released_at_end():
            kept = _set_aside(state, replaces=replaces)
            lock.generation = max(lock.generation, generation_of(saved.intent))
            lock.note()  # from now on scripts do not make a new intent
            _outdate(state, saved.memory)
            reported = _restore_reported(state, dump)
            _restore_signs(state, dump, saved)
            _restore_intent(state, saved, lock, dump.files["intent.json"].mtime_ns)
    return Restored(len(saved.intent["requests"]), len(saved.intent["returns"]), reported, kept, saved.left_out)


@dataclass(frozen=True, slots=True)
class _Saved:
    """The databases of a dump, without the records that must not be restored."""

    intent: Tables
    memory: Tables | None
    status: Tables | None
    holds: Tables | None
    announced: Mapping[str, int] | None
    left_out: tuple[str, ...]

    @classmethod
    def from_dump(cls, dump: Dump) -> _Saved:
        intent, memory, holds = map(dump.tables, ("intent", "memory", "holds"))
        status = _if_readable(lambda: dump.tables("status"))  # loop and scripts make damaged files again
        announced = _if_readable(lambda: numbers_in(ANNOUNCED_FILE, dump.files[ANNOUNCED_FILE].content, ""))
        remade = {"status.json": status, ANNOUNCED_FILE: announced}
        left_out = tuple(name for name, content in remade.items() if content is None and name in dump.files)
        if intent is None:
            raise StateUnreadable(f"{dump.source}: holds no intent.json. No file was changed.")
        try:
            decode_intent(intent)
            if memory is not None:
                MemoryCodec().decode(memory)
        except RecordError as error:
            raise StateUnreadable(f"{dump.source}: {error}. {ADVICE}") from error
        for name in ("requests", "returns"):  # leave out trimmed records, whose answers may be gone
            records = (memory or {}).get(name, {})
            intent[name] = {
                id_: one for id_, one in intent.get(name, {}).items() if not records.get(id_, {}).get("is_trimmed")
            }
        if status is not None:
            # HF may have newer answers to running requests. Without an answer, running machines count as known to HF.
            answers = {id_: answer for id_, answer in status.get("answers", {}).items() if answer.get("ended")}
            status = {**status, "answers": answers, "lost": {}, "available": {}}
        return cls(intent, memory, status, holds, announced, left_out)


def _if_readable(read: Callable[[], T]) -> T | None:
    """Return the content of a file; None if the file is missing, or if this version cannot read it."""
    with suppress(KeyError, StateMissing, StateUnreadable, StateTooNew):
        return read()
    return None


def _find_present(state: StateDir) -> Iterator[str]:
    """Yield the existing files that will be replaced. Raises StateError for a link or a directory."""
    for name in (*DATABASES, ANNOUNCED_FILE):
        path = os.path.join(state.path, name)
        if (facts := stat_file(path)) is not None:
            if not stat.S_ISREG(facts.st_mode):
                raise StateError(f"{path}: is no regular file; no file was changed. Move it away, then try again.")
            yield name


def _set_aside(state: StateDir, *, replaces: bool) -> str:
    """Copy the files that will be replaced. Return the directory of the copies; empty if there are no files. Raises
    StateExists if the state is not empty and ``replaces`` is False."""
    present = list(_find_present(state))
    if not replaces and (present or state.terminal_answers.ids() or state.intent.existed()):
        present_message = ", ".join(present) or "answers that HF was given, or locks of files that are lost"
        raise StateExists(
            f"{state.path}: is not empty ({present_message}); no file was changed. With --yes the files are replaced, "
            "copies of them stay in before-restore-TIME, and the answers that HF was given stay."
        )
    if not present:
        return ""
    now = "".join(filter(str.isalnum, format_utc(time.time())))
    kept = os.path.join(state.path, f"before-restore-{now}")
    make_shared_directory(kept)
    for name in present:  # a copy exists if a restore was interrupted within this second
        create_whole(os.path.join(kept, name), read_whole(os.path.join(state.path, name), ADVICE))
    sync_directory(kept)
    return kept


def _outdate(state: StateDir, memory: Tables | None) -> None:
    """Put back the dump's memory, and record it as an old copy. If the dump has no memory, set aside the present
    memory. A new epoch stops an earlier loop."""
    file = state.memory
    with DataLock(file.lock_path) as lock:
        written = [generation_of(tables) for tables in (memory, _if_readable(file.load)) if tables is not None]
        lock.generation = max([lock.generation, *written]) + 1
        lock.note()
        if memory is not None:
            replace(file.path, encode_json(memory))
        elif file.exists():
            file.set_aside()
    epoch = int(memory["memory"]["memory"].get("epoch", 0)) if memory else 0
    state.loop_lock.raise_epoch(epoch + 1)
    state.loop_lock.sign_off()


def _restore_reported(state: StateDir, dump: Dump) -> int:
    """Put back the terminal answers' entries that the directory lacks. Return the number of these entries.

    A present entry stays, because HF may have got the answer in it.
    """
    make_shared_directory(state.terminal_answers.path)
    return sum([create_whole(os.path.join(state.path, name), saved.content) for name, saved in dump.reported().items()])


def _restore_signs(state: StateDir, dump: Dump, saved: _Saved) -> None:
    """Put back the maxNumbers, the holds, the status and the journal. A present maxNumber stays if it is higher.
    Readable holds and a journal stay if they are present."""
    if saved.status is None:
        remove(state.status.path)  # the old status names requests that intent will not contain
    else:
        replace(state.status.path, encode_json(saved.status))
    if saved.announced is not None:
        numbers = dict(saved.announced)
        with suppress(StateUnreadable):
            present = state.announced.read()
            numbers |= {name: get_higher(most, numbers.get(name, most)) for name, most in present.items()}
        state.announced.write(numbers)
    with DataLock(state.holds.lock_path) as lock:
        if saved.holds is not None and _if_readable(state.holds.load) is None:
            state.holds.put_back(saved.holds, lock)
    if not state.journal.files():
        for name, one in dump.files.items():
            if name.startswith("journal"):
                replace(os.path.join(state.path, name), one.content)


def _restore_intent(state: StateDir, saved: _Saved, lock: DataLock, modified_ns: int) -> None:
    """Put back intent with its old modification time. Its generation is above every generation that writers know.

    The loop needs the old modification time to recognize requests whose deadline is over.
    """
    path = state.intent.path
    state.intent.put_back(saved.intent, lock)
    with writing(path):
        os.utime(path, ns=(modified_ns, modified_ns))
