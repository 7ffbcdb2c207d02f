"""``intent.json``: HF's requests and return requests. Scripts add records, and the loop removes them, under the file's
lock.

The scripts import this module at each call. So modules that only the loop needs (model, record_format) are imported
where they are used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from provisioner.state import atomic
from provisioner.state.atomic import read_if_present, tries
from provisioner.state.batched_writes import BatchedWrite, Rows, find_waiting
from provisioner.state.database import RECOVER, SCHEMA, Tables, entries, generation_of, get_meta
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
"""Number of times that a write is prepared again because a waiting script gives up.

Each script that gives up may disturb a write twice, so the number is enough for fifty scripts.
"""

RELIABLE = frozenset({Condition.NEW, Condition.FINE})
"""Conditions of the file that allow scripts and the loop's trim to write the file."""


class IntentFile(StateFile):
    """A reader of intent. The reader also checks whether the file is reliable."""

    kind = "intent"
    tables = ("requests", "returns")

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._directory = directory
        self._memory_path = os.path.join(directory, "memory.json")

    def load(self) -> Tables:
        """Return all tables. A missing table is returned as an empty table. Raises StateMissing, StateUnreadable or
        StateTooNew."""
        tables = super().load()
        for name in self.tables:
            tables.setdefault(name, {})
        return tables

    def read(self) -> Intent:
        """Return all of intent. Raises StateMissing, StateUnreadable or StateTooNew."""
        from provisioner.state.record_format import RecordError, decode_intent

        try:
            return decode_intent(self.load())
        except RecordError as error:
            raise self._unreadable(str(error)) from error

    def read_newest(self) -> tuple[Intent, int]:
        """Return all of intent, and the newest generation ever written.

        If an old copy was put back, the newest generation is higher than the intent's own generation. An old file is
        first read again, because an NFS cache may be late. Raises the errors of ``read``.
        """
        for _ in tries():
            newest = self.known_generation()  # before the data, see ``StateFile.condition``
            intent = self.read()
            if intent.generation >= newest:
                break
        return intent, max(newest, intent.generation)

    def check(self, provisioner: str) -> None:
        """Check that a script could add a request for ``provisioner`` now. The method takes no lock and writes no file.

        Raises the errors of ``IntentStore.add``.
        """
        newest = self.known_generation()  # before the data, see ``StateFile.condition``
        self._check_owner(self._settled(newest, provisioner), provisioner)

    def find(self, identifiers: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return the documents of the requests and returns with these ids. Skip ids that intent lacks. This method does
        not import the model, so that scripts start fast.

        Raises the errors of ``read``. Raises StateStale if the file is an old copy and lacks an id.
        """
        wanted = list(identifiers)
        recorded = self._pick(self.load(), wanted)
        if len(recorded) == len(wanted):
            return recorded
        newest = self.known_generation()  # before the data, see ``StateFile.condition``
        return self._pick(self._settled(newest, None), wanted)

    def _pick(self, tables: Tables, wanted: list[str]) -> dict[str, Mapping[str, Any]]:
        return {key: tables[name][key] for name in self.tables for key in wanted if key in tables[name]}

    def returned_names(self) -> frozenset[str]:
        """Return every machine name in a return request. Raises the errors of ``read``. This method does not import the
        model, so that scripts start fast."""
        try:
            return frozenset(name for document in self.load()["returns"].values() for name in document["names"])
        except (KeyError, TypeError) as error:
            raise self._unreadable(f"the names of a return request do not fit: {error}") from error

    def _current(self, lock: DataLock, create_for: str | None) -> Tables:
        """Return the tables on disk, after checking that they have the newest generation.

        While NFS caches catch up, the lock is released, so that other writers may take it.
        """
        while (observation := self._observe(lock.generation, create_for))[0] not in RELIABLE:
            lock.release()
            self._settled(lock.generation, create_for)
            if not lock.acquire():
                raise lock.timeout()
        self._check_owner(observation[1], create_for)
        return observation[1]

    def _settled(self, newest: int, create_for: str | None) -> Tables:
        """Return tables that are not older than ``newest``, read without the lock. Try again for a moment, because an
        NFS cache may be late.

        Raises StateMissing or StateStale if the newest file does not appear.
        """
        for _ in tries():
            found, tables = self._observe(newest, create_for)
            if found in RELIABLE:
                return tables
        if found is Condition.MISSING:
            raise StateMissing(
                f"{self.path}: the file is gone, although it was written {newest} times; no file was created. "
                f"{RECOVER} To begin with an empty state where no machine runs: `provisioner init`."
            )
        raise StateStale(
            f"{self.path}: generation {generation_of(tables)} is older than {newest}, which was written "
            "before; no file was changed. If the directory is on NFS, mount it with lookupcache=none,actimeo=0. "
            "If an old copy was put back, run `provisioner recover`."
        )

    def _observe(self, newest: int, create_for: str | None) -> tuple[Condition, Tables]:
        """Return the condition of the file and its tables. If the file is missing, return new tables for the
        provisioner ``create_for``. Raises StateMissing if memory shows that the file was lost. Also raises StateMissing
        if the file was never made and ``create_for`` is None."""
        try:
            tables = self.load()
        except StateMissing:
            self._check_no_memory()
            if create_for is None and not newest:
                raise
            return condition(None, newest), self._new_tables(create_for or "")
        return condition(generation_of(tables), newest), tables

    def _check_owner(self, tables: Tables, provisioner: str | None) -> None:
        owner = get_meta(tables)["provisioner"]
        if provisioner not in (None, owner):
            raise StateError(
                f"{self.path}: belongs to HF's provider instance {owner!r}, not to {provisioner!r}; "
                "no file was changed. Correct HF_PROVIDER_NAME, or give each instance a state directory of its own."
            )

    def _check_no_memory(self) -> None:
        if os.path.lexists(self._memory_path):
            raise StateMissing(
                f"{self.path}: the file is missing although {self._memory_path} exists, so it was lost; "
                f"no file was created. {RECOVER}"
            )

    def _missing(self) -> StateMissing:
        """Return the error for a missing intent.json. In a new state directory, the message says that the file was
        not made yet."""
        others = (self._memory_path, os.path.join(self._directory, "status.json"))
        if not os.path.isdir(self._directory) or any(was_written(path) for path in (self.path, *others)):
            return super()._missing()
        return StateMissing(
            f"{self.path}: does not exist yet, because the directory is new. "
            "The first requestMachines makes the file, or `provisioner init`."
        )


class IntentStore(IntentFile):
    """A writer of intent: adds batched writes, removes old records, and restores lost records for `provisioner
    recover`. Each write replaces the whole file."""

    def note_newest(self, generation: int) -> None:
        """Raise the lock file's generation to ``generation`` if it is lower. From now on, writers refuse an older file.

        Raises StateUnwritable or LockTimeout.
        """
        with DataLock(self.lock_path) as lock:
            lock.generation = max(lock.generation, generation)

    def restore(self, wanted: Intent) -> str | None:
        """Put back lost requests and returns. Return the path of the copy of the previous file, if there was a file.

        The newest generation is the lock file's or ``wanted.generation``, whichever is higher. A file with the newest
        generation keeps its records. An older or unreadable file is replaced. Raises StateMissing, StateTooNew,
        StateUnwritable or LockTimeout.
        """
        from provisioner.state.record_format import intent_documents

        self._check_directory()
        with DataLock(self.lock_path) as lock:
            newest = max(lock.generation, wanted.generation)
            tables = self._current_or_new(newest, wanted.provisioner)
            for name, documents in intent_documents(wanted).items():
                tables[name] |= {key: document for key, document in documents.items() if key not in tables[name]}
            aside_path = self.keep_aside() if self.exists() else None
            self._save(tables, lock, max(newest, generation_of(tables)) + 1)
            return aside_path

    def _current_or_new(self, newest: int, provisioner: str) -> Tables:
        """Return the current tables without unreadable rows. The copy of the previous file keeps these rows."""
        from provisioner.state.record_format import readable_rows

        try:
            tables = self.load()
        except (StateMissing, StateUnreadable):
            return self._new_tables(provisioner)
        if generation_of(tables) < newest:
            return self._new_tables(provisioner)
        return tables | {name: readable_rows(name, tables[name]) for name in self.tables}

    def create(self, provisioner: str, *, wait: float = LOCK_WAIT) -> None:
        """Make an empty intent.json. Raises StateExists if the file exists, StateMissing if memory shows that the file
        was lost."""
        self._check_directory()
        with DataLock(self.lock_path, wait) as lock:
            if self.exists():
                raise StateExists(f"{self.path}: exists already; it was left as it is.")
            self._check_no_memory()
            self._save(self._new_tables(provisioner), lock, lock.generation + 1)

    def add(self, added: Rows, *, create_for: str | None = None, wait: float = LOCK_WAIT) -> None:
        """Add requests and returns durably, by table and unused id. The same write also adds the documents that waiting
        scripts have posted.

        ``create_for``: the provisioner id. In a new state directory, the first addition creates the file for this
        provisioner. Raises StateMissing, StateUnreadable, StateTooNew, StateStale, StateUnwritable or LockTimeout, and
        StateError if the file belongs to another provisioner.
        """
        self._check_ready(create_for)
        write, lock = BatchedWrite(self.path, added), DataLock(self.lock_path, wait)
        if lock.try_acquire():
            self._add(write, lock, create_for)
        else:
            self._add_in_turn(write, lock, create_for)

    def _add_in_turn(self, write: BatchedWrite, lock: DataLock, create_for: str | None) -> None:
        try:
            if self._wait_for_turn(write, lock, create_for):
                self._add(write, lock, create_for)
        except StateError:  # another writer may write the posted documents, now or later
            write.withdraw()
            if not self._has_written(write):
                raise

    def _wait_for_turn(self, write: BatchedWrite, lock: DataLock, create_for: str | None) -> bool:
        """Wait for the lock. Return True if this process has the lock. Return False if another writer has meanwhile
        written the documents that this process posted. Raises LockTimeout."""
        terms = {"schema": SCHEMA} if create_for is None else {"schema": SCHEMA, "provisioner": create_for}
        with write.posted(terms):
            if lock.acquire(stop=write.is_gone):
                return True
            if self._has_written(write):
                return False
            if lock.acquire():  # the posted file is gone, but its documents were not written
                return True
        raise lock.timeout()

    def _has_written(self, write: BatchedWrite) -> bool:
        """Return True if the documents are in the file, whichever process wrote them. Make the documents durable.

        The search compares bytes. Parsing would take five megabytes of memory in each of fifty waiting scripts.
        """
        content = read_if_present(self.path, self.advice) or b""
        if not all(entry in content for entry in entries(write.tables)):
            return False
        atomic.sync_directory(self.path)
        return True

    def _add(self, write: BatchedWrite, lock: DataLock, create_for: str | None) -> None:
        with lock.released_at_end():
            tables = self._current(lock, create_for)
            if not self._join([write], tables):
                if all(tables[name].get(key) == document for name, key, document in self._rows(write)):
                    atomic.sync_directory(self.path)  # the writer died before it could remove the posted file
                    return
                raise StateError(
                    f"{self.path}: an id drawn at random is taken already; no file was written. Try again."
                )
            self._write(tables, lock)

    def _rows(self, write: BatchedWrite) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the documents of a write, each with its table and its id."""
        for name in self.tables:
            yield from ((name, key, document) for key, document in write.tables.get(name, {}).items())

    def _join(self, writes: Iterable[BatchedWrite], tables: Tables) -> list[BatchedWrite]:
        """Add the documents of each write whose ids are all unused. Return these writes."""
        joined = []
        for write in writes:
            if not any(key in tables[name] for name, key, _ in self._rows(write)):
                joined.append(write)
                for name, key, document in self._rows(write):
                    tables[name][key] = document
        return joined

    def _write(self, tables: Tables, lock: DataLock) -> None:
        """Write the tables, together with the documents that waiting scripts have posted."""
        generation = generation_of(tables) + 1
        joined = self._join(find_waiting(self.path, get_meta(tables)), tables)

        def check_wanted() -> None:
            if not all(write.is_wanted() for write in joined):
                raise Disturbed(f"{self.path}: a script that waited gave up; no file was written. Try again.")

        for is_last in [False] * WITHDRAWALS + [True]:
            try:
                self._save(tables, lock, generation, check_wanted)
                break
            except Disturbed:
                if is_last:
                    raise
            for write in [write for write in joined if not write.is_wanted()]:
                joined.remove(write)
                self._drop(tables, [key for _, key, _ in self._rows(write)])
        for write in joined:
            write.confirm_written()

    def remove(self, identifiers: Iterable[str]) -> float:
        """Remove requests and return requests. Skip ids that intent does not contain.

        Return the seconds spent waiting for the lock. Raises the errors of ``add``.
        """
        removed_ids = list(identifiers)
        self._check_ready(None)
        asked_at = time.monotonic()
        with DataLock(self.lock_path) as lock:
            waited_seconds = time.monotonic() - asked_at
            tables = self._current(lock, None)
            if self._drop(tables, removed_ids):
                self._write(tables, lock)
        return waited_seconds

    def _drop(self, tables: Tables, ids: Iterable[str]) -> bool:
        """Remove the documents of these ids; return False if the tables contain none of them."""
        dropped = [tables[name].pop(key, None) for key in ids for name in self.tables]
        return any(document is not None for document in dropped)

    def _check_ready(self, create_for: str | None) -> None:
        self._check_directory()
        if create_for is None and not self.exists():
            raise self._missing()

    def _check_directory(self) -> None:
        if not os.path.isdir(self._directory):
            raise missing(self.path, RECOVER)
