"""TinyDB on files that are replaced whole, by the only module that imports tinydb.

Readers take no lock; a writer changes tables in memory and writes them once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from tinydb.storages import Storage

from provisioner.files.safe_open import open_own
from provisioner.state.atomic import parse, read_whole, replace
from provisioner.state.errors import StateTooNew, StateUnreadable

SCHEMA = 3
"""Version of what the databases hold. A file with a higher one is refused."""

BLOCK = 65_536
"""Bytes that are read at a time where the beginning of a file is looked for: mostly it is in the first."""

ENDS = (b"}}}", b"{}}")
"""So ends every database: its last document, or none, then that table, then the file."""

RECOVER = "Restore it from a backup, or run `provisioner recover`."

Tables = dict[str, dict[str, Any]]


class StateStorage(Storage):
    """TinyDB's two methods on one file, which it never creates when it reads. Ids of documents are texts of ours."""

    def __init__(self, path: str, kind: str, advice: str) -> None:
        self._path = path
        self._kind = kind
        self._advice = advice

    def read(self) -> Tables:
        """All tables. Raises StateMissing, StateUnreadable or StateTooNew."""
        return self._checked(parse(self._path, read_whole(self._path, self._advice), self._advice))

    def read_before(self, name: str) -> Tables:
        """The tables that stand before the one of that name; all of them where the file is not as we write it.

        For a file whose last table is large (twelve megabytes of answers): of what is left unread only the end is
        looked at, which a file that was cut off lacks. Raises as ``read``.
        """
        with suppress(OSError, ValueError, RecursionError):
            tables = json.loads(_beginning(self._path, f',"{name}":{{'.encode()) + b"}")
            return self._checked(tables)
        return self.read()

    def _checked(self, tables: Any) -> Tables:
        """What was parsed, when it is a database of ours. Raises StateUnreadable or StateTooNew."""
        if problem := shape_problem(tables, self._kind):
            raise unreadable(self._path, problem, self._advice)
        if (schema := tables["meta"]["state"]["schema"]) > SCHEMA:
            raise StateTooNew(
                f"{self._path}: has schema version {schema}, this provisioner knows up to {SCHEMA}; "
                "the file was left as it is. Install the newer version again, on all hosts that share the directory."
            )
        return cast(Tables, tables)

    def write(self, data: Tables, check: Callable[[], None] = lambda: None) -> None:
        """Replace all tables, durably, unless ``check`` raises. Raises StateUnwritable."""
        replace(self._path, encoded(data), check=check)


def _beginning(path: str, mark: bytes) -> bytes:
    """What stands before ``mark`` in a file that ends as ours do. Raises OSError, or ValueError where it does not.

    In a text of JSON the mark's quotes would have backslashes; what stands before a mark at another depth has brackets
    open, and does not parse.
    """
    descriptor = open_own(path, os.O_RDONLY)
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


def encoded(content: Mapping[str, Any]) -> bytes:
    """A database, or a part of one, as it stands in a file."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def entries(tables: Mapping[str, Mapping[str, Any]]) -> list[bytes]:
    """Each document under its id, as a written file has it: nothing else in a file looks like it."""
    return [encoded({key: document})[1:-1] for table in tables.values() for key, document in table.items()]


def are_tables(tables: Any) -> bool:
    """Documents by id, by the name of their table."""
    if not isinstance(tables, dict):
        return False
    for table in tables.values():
        if not isinstance(table, dict) or not {*map(type, table.values())} <= {dict}:
            return False
    return True


def shape_problem(tables: Any, kind: str) -> str:
    """Why this is not a database of that kind; empty when it is one."""
    if not are_tables(tables):
        return "is JSON, but not a database of tables with documents"
    meta = tables.get("meta", {}).get("state", {})
    match meta:
        case {"schema": int(), "generation": int(), "kind": str(), "provisioner": str()}:
            return "" if meta["kind"] == kind else f"holds {meta['kind']!r}, not {kind!r}"
    return "was not written by the provisioner: its table 'meta' lacks one of schema, generation, kind, provisioner"


def unreadable(path: str, problem: str, advice: str) -> StateUnreadable:
    """The error for a file that cannot be used."""
    return StateUnreadable(f"{path}: {problem}. The file was left as it is. {advice}")


def about(tables: Tables) -> dict[str, Any]:
    """What a database says of itself: ``schema``, ``kind``, ``generation`` and ``provisioner``."""
    return cast(dict[str, Any], tables["meta"]["state"])


def generation_of(tables: Tables) -> int:
    """How often the database has been written; grows by one with each write."""
    return cast(int, about(tables)["generation"])
