"""``intent.json``: what HF wants. Scripts write it, and the loop's trim, each under its lock.

The scripts import this at each call, so what only the loop needs (model, codec) is imported where it is used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from provisioner.state import atomic
from provisioner.state.atomic import read_if_present, tries
from provisioner.state.batched_writes import BatchedWrite, Rows, waiting
from provisioner.state.database import RECOVER, SCHEMA, Tables, about, entries, generation_of
from provisioner.state.errors import (
    Condition,
    Disturbed,
    StateError,
    StateExists,
    StateMissing,
    StateStale,
    StateUnreadable,
    condition,
    missing,
)
from provisioner.state.locks import LOCK_WAIT, DataLock
from provisioner.state.state_file import StateFile, was_written

if TYPE_CHECKING:
    from provisioner.model import Intent

WITHDRAWALS = 100
"""How often a write is made ready again because one of those who wait gives up: each may disturb it twice, once his
time is up."""

RELIABLE = frozenset({Condition.NEW, Condition.FINE})
"""Conditions in which scripts and trim go on."""


class IntentFile(StateFile):
    """Reading: what stands in the file, and whether it may be relied on."""

    kind = "intent"
    tables = ("requests", "returns")

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._directory = directory
        self._memory_path = os.path.join(directory, "memory.json")

    def load(self) -> Tables:
        """All tables; an empty one for one that is missing. Raises as ``read``."""
        tables = super().load()
        for name in self.tables:
            tables.setdefault(name, {})
        return tables

    def read(self) -> Intent:
        """All of intent. Raises StateMissing, StateUnreadable or StateTooNew."""
        from provisioner.state.codec import RecordError, intent_of

        try:
            return intent_of(self.load())
        except RecordError as error:
            raise self._unreadable(str(error)) from error

    def read_newest(self) -> tuple[Intent, int]:
        """All of intent, and the newest generation ever written: more than intent's own when an old copy was put back.

        Caches are given a moment to catch up. Raises as ``read``.
        """
        for _ in tries():
            newest = self.known_generation()  # before the data: see condition
            intent = self.read()
            if intent.generation >= newest:
                break
        return intent, max(newest, intent.generation)

    def check(self, provisioner: str) -> None:
        """Raises what a script that asks for machines would, for the file's sake; writes nothing and takes no lock."""
        newest = self.known_generation()  # before the data: see condition
        self._check_owner(self._settled(newest, provisioner), provisioner)

    def find(self, identifiers: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """The documents of those ids that intent knows, requests or returns. Needs no model.

        Raises as ``read``, and StateStale when one is missing and the file is an old copy: nobody knows then.
        """
        wanted = list(identifiers)
        recorded = self._pick(self.load(), wanted)
        if len(recorded) == len(wanted):
            return recorded
        newest = self.known_generation()  # before the data: see condition
        return self._pick(self._settled(newest, None), wanted)

    def _pick(self, tables: Tables, wanted: list[str]) -> dict[str, Mapping[str, Any]]:
        return {key: tables[name][key] for name in self.tables for key in wanted if key in tables[name]}

    def returned_names(self) -> frozenset[str]:
        """Every machine name in a return request. Raises as ``read``; needs no model."""
        try:
            return frozenset(name for document in self.load()["returns"].values() for name in document["names"])
        except (KeyError, TypeError) as error:
            raise self._unreadable(f"the names of a return request do not fit: {error}") from error

    def _current(self, lock: DataLock, create_for: str | None) -> Tables:
        """What is on disk, not older than the newest generation. While caches catch up others may have the lock."""
        while (observation := self._observe(lock.generation, create_for))[0] not in RELIABLE:
            lock.release()
            self._settled(lock.generation, create_for)
            if not lock.acquire():
                raise lock.timeout()
        self._check_owner(observation[1], create_for)
        return observation[1]

    def _settled(self, newest: int, create_for: str | None) -> Tables:
        """The tables as ``_current`` gives them, read without the lock; caches are given a moment to catch up."""
        for _ in tries():
            judged, tables = self._observe(newest, create_for)
            if judged in RELIABLE:
                return tables
        if judged is Condition.MISSING:
            raise StateMissing(
                f"{self.path}: the file is gone, although it was written {newest} times; nothing was created. "
                f"{RECOVER} To begin anew where no machine runs: `provisioner init`."
            )
        raise StateStale(
            f"{self.path}: generation {generation_of(tables)} is older than {newest}, which was written "
            "before; nothing was changed. On NFS mount the directory with lookupcache=none,actimeo=0. "
            "If an old copy was put back, run `provisioner recover`."
        )

    def _observe(self, newest: int, create_for: str | None) -> tuple[Condition, Tables]:
        """The tables and their condition; new ones where there are none."""
        try:
            tables = self.load()
        except StateMissing:
            self._check_no_memory()
            if create_for is None and not newest:
                raise
            return condition(None, newest), self._new_tables(create_for or "")
        return condition(generation_of(tables), newest), tables

    def _check_owner(self, tables: Tables, provisioner: str | None) -> None:
        owner = about(tables)["provisioner"]
        if provisioner not in (None, owner):
            raise StateError(
                f"{self.path}: belongs to HF's provider instance {owner!r}, not to {provisioner!r}; "
                "nothing was changed. Correct HF_PROVIDER_NAME, or give each instance a state directory of its own."
            )

    def _check_no_memory(self) -> None:
        if os.path.lexists(self._memory_path):
            raise StateMissing(
                f"{self.path}: the file is missing although {self._memory_path} exists, so it was lost; "
                f"nothing was created. {RECOVER}"
            )

    def _missing(self) -> StateMissing:
        """The error for intent.json, which in a new state directory is not there yet and not lost."""
        others = (self._memory_path, os.path.join(self._directory, "status.json"))
        if not os.path.isdir(self._directory) or any(was_written(path) for path in (self.path, *others)):
            return super()._missing()
        return StateMissing(
            f"{self.path}: is not there yet: the state directory is new. "
            "HostFactory's first requestMachines makes it, or `provisioner init`."
        )


class IntentStore(IntentFile):
    """Writing, each time the whole file: batched additions, the trim, and what ``recover`` puts back."""

    def note_newest(self, generation: int) -> None:
        """Tell writers of a generation that the lock file has lost: an older file they refuse from now on.

        Raises StateUnwritable or LockTimeout.
        """
        with DataLock(self.lock_path) as lock:
            lock.generation = max(lock.generation, generation)

    def restore(self, wanted: Intent) -> str | None:
        """Put back requests and returns that were lost; returns the name under which the file before was kept.

        A current file keeps what it holds, an older or unreadable one gives way. ``wanted.generation``: the newest
        that is known of beside the lock file. Raises StateMissing, StateTooNew, StateUnwritable or LockTimeout.
        """
        from provisioner.state.codec import intent_documents

        self._check_directory()
        with DataLock(self.lock_path) as lock:
            newest = max(lock.generation, wanted.generation)
            tables = self._current_or_new(newest, wanted.provisioner)
            for name, documents in intent_documents(wanted).items():
                tables[name] |= {key: document for key, document in documents.items() if key not in tables[name]}
            aside = self.keep_aside() if self.exists() else None
            self._save(tables, lock, max(newest, generation_of(tables)) + 1)
            return aside

    def _current_or_new(self, newest: int, provisioner: str) -> Tables:
        """The tables as they are, without the rows that cannot be read: those stand in the copy that is kept."""
        from provisioner.state.codec import readable_rows

        try:
            tables = self.load()
        except (StateMissing, StateUnreadable):
            return self._new_tables(provisioner)
        if generation_of(tables) < newest:
            return self._new_tables(provisioner)
        return tables | {name: readable_rows(name, tables[name]) for name in self.tables}

    def create(self, provisioner: str, *, wait: float = LOCK_WAIT) -> None:
        """Make an empty intent.json. Raises StateExists where it is there, StateMissing where memory shows it was."""
        self._check_directory()
        with DataLock(self.lock_path, wait) as lock:
            if self.exists():
                raise StateExists(f"{self.path}: exists already; it was left as it is.")
            self._check_no_memory()
            self._save(self._new_tables(provisioner), lock, lock.generation + 1)

    def add(self, added: Rows, *, create_for: str | None = None, wait: float = LOCK_WAIT) -> None:
        """Add requests and returns, by table and new id: durably, in one write with what others add at the same time.

        ``create_for``: the provisioner id; the first addition to a new state directory then creates the file, and a
        file of another provisioner is refused. Raises StateMissing, StateUnreadable, StateTooNew, StateStale,
        StateUnwritable or LockTimeout, and StateError for another's file.
        """
        self._check_ready(create_for)
        write, lock = BatchedWrite(self.path, added), DataLock(self.lock_path, wait)
        if lock.try_acquire():
            self._add(write, lock, create_for)
        else:
            self._add_in_turn(write, lock, create_for)

    def _add_in_turn(self, write: BatchedWrite, lock: DataLock, create_for: str | None) -> None:
        try:
            if self._our_turn(write, lock, create_for):
                self._add(write, lock, create_for)
        except StateError:  # whatever was raised: another writer may have written the posting, or has it in hand
            write.withdraw()
            if not self._has_written(write):
                raise

    def _our_turn(self, write: BatchedWrite, lock: DataLock, create_for: str | None) -> bool:
        """Wait: True when the lock is ours, False when another writer has written the posting. Raises LockTimeout."""
        terms = {"schema": SCHEMA} if create_for is None else {"schema": SCHEMA, "provisioner": create_for}
        with write.posted(terms):
            if lock.acquire(stop=write.gone):
                return True
            if self._has_written(write):
                return False
            if lock.acquire():  # the posting is gone although nobody wrote it
                return True
        raise lock.timeout()

    def _has_written(self, write: BatchedWrite) -> bool:
        """Whether the posting stands in the file, whoever wrote it; then it does so durably.

        Its bytes are looked for: fifty who were served at once would parse, and hold, five megabytes each.
        """
        content = read_if_present(self.path, self.advice) or b""
        if not all(entry in content for entry in entries(write.tables)):
            return False
        atomic.settle(self.path)
        return True

    def _add(self, write: BatchedWrite, lock: DataLock, create_for: str | None) -> None:
        with lock.held():
            tables = self._current(lock, create_for)
            if not self._join([write], tables):
                if all(tables[name].get(key) == document for name, key, document in self._rows(write)):
                    atomic.settle(self.path)  # the writer died before he could remove the posting
                    return
                raise StateError(
                    f"{self.path}: an id drawn at random is taken already; nothing was written. Try again."
                )
            self._write(tables, lock)

    def _rows(self, write: BatchedWrite) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """The documents of a posting, each with its table and its id."""
        for name in self.tables:
            for key, document in write.tables.get(name, {}).items():
                yield name, key, document

    def _join(self, writes: Iterable[BatchedWrite], tables: Tables) -> list[BatchedWrite]:
        """Add the documents of the postings; returns those whose ids were all free."""
        joined = []
        for write in writes:
            if not any(key in tables[name] for name, key, _ in self._rows(write)):
                joined.append(write)
                for name, key, document in self._rows(write):
                    tables[name][key] = document
        return joined

    def _write(self, tables: Tables, lock: DataLock) -> None:
        """Write the tables with their changes, and with what all who wait have posted."""
        generation = generation_of(tables) + 1
        joined = self._join(waiting(self.path, about(tables)), tables)

        def check_wanted() -> None:
            if not all(write.wanted() for write in joined):
                raise Disturbed(f"{self.path}: one of those who waited no longer does; nothing was written. Try again.")

        for last in [False] * WITHDRAWALS + [True]:
            try:
                self._save(tables, lock, generation, check_wanted)
                break
            except Disturbed:
                if last:
                    raise
            for write in [write for write in joined if not write.wanted()]:
                joined.remove(write)
                self._drop(tables, [key for _, key, _ in self._rows(write)])
        for write in joined:
            write.granted()

    def remove(self, identifiers: Iterable[str]) -> float:
        """Trim requests and return requests; ids that are not there (any more) are skipped.

        Returns the seconds it waited for the lock; raises as ``add``.
        """
        doomed = list(identifiers)
        self._check_ready(None)
        asked = time.monotonic()
        with DataLock(self.lock_path) as lock:
            waited = time.monotonic() - asked
            tables = self._current(lock, None)
            if self._drop(tables, doomed):
                self._write(tables, lock)
        return waited

    def _drop(self, tables: Tables, ids: Iterable[str]) -> bool:
        """Remove the documents of those ids that have one; False if none has."""
        dropped = [tables[name].pop(key, None) for key in ids for name in self.tables]
        return any(document is not None for document in dropped)

    def _check_ready(self, create_for: str | None) -> None:
        self._check_directory()
        if create_for is None and not self.exists():
            raise self._missing()

    def _check_directory(self) -> None:
        if not os.path.isdir(self._directory):
            raise missing(self.path, RECOVER)
