"""TinyDB on files that are replaced whole. The only module that imports tinydb.

Opening never creates; readers take no lock; a transaction works on tables in memory and writes once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

from tinydb import TinyDB
from tinydb.storages import Storage
from tinydb.table import Document, Table

from provisioner.files.atomic import (
    StateMissing,
    StateTooNew,
    StateUnreadable,
    facts_of,
    missing,
    open_regular,
    parse,
    read_whole,
    replace,
    unwritable,
)
from provisioner.state.locks import DataLock, read_record, whole_number

SCHEMA = 1
"""Version of what the databases hold. A file with a higher one is refused."""

BLOCK = 65_536
"""Bytes that are read at a time where the beginning of a file is looked for: mostly it is in the first."""

ENDS = (b"}}}", b"{}}")
"""So ends every database: its last document, or none, then that table, then the file."""

RECOVER = "Restore it from a backup, or run `provisioner recover`."

Tables = dict[str, dict[str, Any]]


class StateTable(Table):
    """A TinyDB table whose document ids are our own strings, so that one document is found without scanning."""

    document_id_class = str  # type: ignore[assignment]  # TinyDB declares int and works with any class

    def put(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Insert new documents under their ids, in one operation."""
        self.insert_multiple(Document(value, cast(int, key)) for key, value in documents.items())

    def pick(self, wanted: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """The documents of those ids that have one."""
        found = {key: self.get(doc_id=cast(int, key)) for key in wanted}
        return {key: document for key, document in found.items() if document is not None}

    def by_id(self) -> dict[str, Mapping[str, Any]]:
        """All documents."""
        return {cast(str, document.doc_id): document for document in self}

    def drop(self, identifiers: Iterable[str]) -> None:
        """Remove the documents of those ids that have one; nothing is written when none has."""
        if doomed := list(self.pick(identifiers)):
            self.remove(doc_ids=cast(list[int], doomed))


class StateStorage(Storage):
    """TinyDB's two methods on one file.

    ``read`` opens one inode, without lock, and never creates. ``write`` replaces the file durably. With ``held`` tables
    both work on those, and only ``commit`` writes: that is a transaction.
    """

    def __init__(self, path: str, kind: str, advice: str, held: Tables | None = None) -> None:
        self._path = path
        self._kind = kind
        self._advice = advice
        self._held = held
        self.changed = False

    def read(self) -> Tables:
        """All tables. Raises StateMissing, StateUnreadable or StateTooNew."""
        if self._held is not None:
            return self._held
        return self._checked(parse(self._path, read_whole(self._path, self._advice), self._advice))

    def read_before(self, name: str) -> Tables:
        """The tables that stand before the one of that name; all of them where the file is not as we write it.

        For a file whose last table is large: fifty thousand machines are twelve megabytes of answers. Of what is left
        unread only the end is looked at, which a file that was cut off lacks. Raises as ``read``.
        """
        with suppress(OSError, ValueError, RecursionError):
            tables = json.loads(_beginning(self._path, f',"{name}":{{'.encode()) + b"}")
            return self._checked(tables)
        return self.read()

    def _checked(self, tables: Any) -> Tables:
        """What was parsed, when it is a database of ours. Raises StateUnreadable or StateTooNew."""
        if problem := _shape_problem(tables, self._kind):
            raise unreadable(self._path, problem, self._advice)
        if (schema := tables["meta"]["state"]["schema"]) > SCHEMA:
            raise StateTooNew(
                f"{self._path}: has schema version {schema}, this provisioner knows up to {SCHEMA}; "
                "the file was left as it is. Install the newer version again, on all hosts that share the directory."
            )
        return cast(Tables, tables)

    def write(self, data: Tables) -> None:
        """Replace all tables; inside a transaction, those that ``commit`` will write."""
        if self._held is None:
            replace(self._path, _encoded(data))
        else:
            self._held = data
            self.changed = True

    def commit(self, generation: int, check: Callable[[], None] = lambda: None) -> None:
        """Write what the transaction holds, as the given generation; may be tried again. Raises as ``replace``."""
        tables = self.read()
        tables["meta"]["state"]["generation"] = generation
        replace(self._path, _encoded(tables), check=check)


def _beginning(path: str, mark: bytes) -> bytes:
    """What stands before ``mark`` in a file that ends as ours do. Raises OSError, or ValueError where it does not.

    In a text of JSON the mark's quotes would have backslashes; what stands before a mark at another depth has brackets
    open, and does not parse.
    """
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if os.pread(descriptor, 3, max(size - 3, 0)) not in ENDS:
            raise ValueError(f"{path} does not end as a database")
        content = b""
        while block := os.read(descriptor, BLOCK):
            content += block
            if (at := content.find(mark)) >= 0:
                return content[:at]
        raise ValueError(f"{path} lacks {mark!r}")
    finally:
        os.close(descriptor)


def _encoded(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def entries(tables: Mapping[str, Mapping[str, Any]]) -> list[bytes]:
    """Each document under its id, as a written file has it: nothing else in a file looks like it."""
    return [_encoded({key: document})[1:-1] for table in tables.values() for key, document in table.items()]


def _shape_problem(tables: Any, kind: str) -> str:
    """Why this is not a database of that kind; empty when it is one."""
    if not isinstance(tables, dict) or not all(
        isinstance(table, dict) and all(isinstance(document, dict) for document in table.values())
        for table in tables.values()
    ):
        return "is JSON, but not a database of tables with documents"
    meta = tables.get("meta", {}).get("state", {})
    expected = {"schema": int, "generation": int, "kind": str, "provisioner": str}
    if not all(isinstance(meta.get(name), kind_of_value) for name, kind_of_value in expected.items()):
        return f"was not written by the provisioner: its table 'meta' lacks one of {', '.join(expected)}"
    return "" if meta["kind"] == kind else f"holds {meta['kind']!r}, not {kind!r}"


def unreadable(path: str, problem: str, advice: str) -> StateUnreadable:
    """The error for a file that cannot be used."""
    return StateUnreadable(f"{path}: {problem}. The file was left as it is. {advice}")


def about(tables: Tables) -> Mapping[str, Any]:
    """What a database says of itself: ``schema``, ``kind``, ``generation`` and ``provisioner``."""
    return cast(Mapping[str, Any], tables["meta"]["state"])


def generation_of(tables: Tables) -> int:
    """How often the database has been written; grows by one with each write."""
    return cast(int, about(tables)["generation"])


class Database(TinyDB):
    """TinyDB with our tables and our storage."""

    table_class = StateTable

    def __init__(self, path: str, kind: str, advice: str, held: Tables | None = None) -> None:
        super().__init__(path, kind, advice, held, storage=StateStorage)

    @property
    def state(self) -> StateStorage:
        """The storage, as what it is."""
        return cast(StateStorage, self.storage)

    def state_table(self, name: str) -> StateTable:
        """A table, as what it is."""
        return cast(StateTable, self.table(name))


class StateFile:
    """What the databases have in common: a file, its lock file and its generation."""

    kind = ""
    advice = RECOVER
    tables: tuple[str, ...] = ()
    """The tables beside ``meta``."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, f"{self.kind}.json")
        self.lock_path = f"{self.path}.lock"

    def exists(self) -> bool:
        """True when the file is there, readable or not."""
        return os.path.lexists(self.path)

    def existed(self) -> bool:
        """True when the file is there or, by its lock file, was there once."""
        return self.exists() or self.known_generation() > 0

    def stands_alone(self) -> bool:
        """True without a lock file beside it, which every writer makes first: somebody put the file there."""
        return self.exists() and not os.path.exists(self.lock_path)

    def signature(self) -> tuple[int, int, int] | None:
        """Changes whenever the file does (inode, mtime in ns, size); None when it is missing. Costs one stat."""
        facts = facts_of(self.path)
        return None if facts is None else (facts.st_ino, facts.st_mtime_ns, facts.st_size)

    def is_older(self) -> bool:
        """True when the file is older than one already written, by its lock file: somebody put an old copy back.

        Raises StateMissing, StateUnreadable or StateTooNew.
        """
        # The lock file first: read after the data, it could know of a write that the data just read cannot have.
        known = self.known_generation()
        return generation_of(self._load()) < known

    def known_generation(self) -> int:
        """The last generation that was written, by the lock file; 0 when unknown."""
        return whole_number(read_record(self.lock_path), "generation")

    def set_aside(self) -> str:
        """Rename a file that cannot be used, so that a new one can be made; returns its new name."""
        return self._aside(os.rename)

    def keep_aside(self) -> str:
        """Give a file that is about to be replaced a second name, under which it stays; returns that name."""
        return self._aside(os.link)

    def _aside(self, move: Callable[[str, str], None]) -> str:
        signature = self.signature()
        if signature is None:
            raise self._missing()
        aside = f"{self.path}.aside-{signature[1]}"
        try:
            move(self.path, aside)
        except FileExistsError:
            return aside  # it has this name already: an earlier try was interrupted
        except FileNotFoundError as error:
            raise self._missing() from error
        except OSError as error:
            raise unwritable(self.path, error) from error
        return aside

    def _load(self) -> Tables:
        try:
            return StateStorage(self.path, self.kind, self.advice).read()
        except StateMissing as error:
            raise self._missing() from error

    def _missing(self) -> StateMissing:
        """The error for a file that is not there."""
        return missing(self.path, self.advice)

    def _open(self, held: Tables) -> Database:
        """The tables as a TinyDB database; its changes are written by ``commit``."""
        return Database(self.path, self.kind, self.advice, held)

    def _view(self, name: str) -> StateTable:
        """One table as it is in the file now, read once."""
        return self._open(self._load()).state_table(name)

    def _peek(self, name: str) -> StateTable:
        """One table as it is in the file now, read without the last one."""
        storage = StateStorage(self.path, self.kind, self.advice)
        tables = storage.read_before(self.tables[-1])
        return self._open(tables if name in tables else storage.read()).state_table(name)

    def _unreadable(self, problem: str) -> StateUnreadable:
        return unreadable(self.path, problem, self.advice)

    def _new_tables(self, provisioner: str) -> Tables:
        meta = {"schema": SCHEMA, "kind": self.kind, "generation": 0, "provisioner": provisioner}
        return {"meta": {"state": meta}, **{name: {} for name in self.tables}}

    def _save(
        self, database: Database, lock: DataLock, generation: int, check: Callable[[], None] = lambda: None
    ) -> None:
        """Write the transaction durably, then note its generation in the lock file: never the other way round."""
        lock.check()
        database.state.commit(generation, check)
        lock.generation = generation
