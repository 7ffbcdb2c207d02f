"""TinyDB on files that are always replaced as a whole. Only this module imports tinydb.

Readers take no lock. A writer changes the tables in memory and writes them once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from tinydb.storages import Storage

from provisioner.files.safe_open import closed_at_end, open_own
from provisioner.state.atomic import parse, read_whole, replace
from provisioner.state.errors import StateTooNew, StateUnreadable

SCHEMA = 4
"""Version of the databases' format. A file with a higher version is refused."""

BLOCK = 65_536
"""Bytes per read in the search for the beginning of a file. The search mostly ends in the first block."""

ENDS = (b"}}}", b"{}}")
"""Possible last bytes of a database. ``}}}`` closes the last document, its table and the file; ``{}}`` is an empty last
table and the end of the file."""

RECOVER = "Restore it from a backup, or run `provisioner recover`."

Tables = dict[str, dict[str, Any]]


class StateStorage(Storage):
    """A TinyDB storage that keeps all tables in one file. Reading never creates the file. The ids of documents are
    texts that the caller chooses."""

    def __init__(self, path: str, kind: str, advice: str) -> None:
        self._path = path
        self._kind = kind
        self._advice = advice

    def read(self) -> Tables:
        """Return all tables. Raises StateMissing, StateUnreadable or StateTooNew."""
        return self._checked(parse(self._path, read_whole(self._path, self._advice), self._advice))

    def read_before(self, name: str) -> Tables:
        """Return the tables that precede the table ``name`` in the file. If the file does not have our own form, return
        all tables.

        This call is faster than ``read`` if the last table is large. It checks only the last bytes of the unread part.
        These bytes show whether the file was cut off. Raises the errors of ``read``.
        """
        with suppress(OSError, ValueError, RecursionError):
            tables = json.loads(_beginning(self._path, f',"{name}":{{'.encode()) + b"}")
            return self._checked(tables)
        return self.read()

    def _checked(self, tables: Any) -> Tables:
        """Return the parsed tables if they form one of our databases. Raises StateUnreadable or StateTooNew if not."""
        if problem := shape_problem(tables, self._kind):
            raise unreadable(self._path, problem, self._advice)
        if (schema := tables["meta"]["state"]["schema"]) > SCHEMA:
            raise StateTooNew(
                f"{self._path}: has schema version {schema}, this provisioner knows up to {SCHEMA}; "
                "the file was left as it is. Install the newer version again, on all hosts that share the directory."
            )
        return cast(Tables, tables)

    def write(self, data: Tables, check: Callable[[], None] = lambda: None) -> None:
        """Replace all tables durably, unless ``check`` raises. Raises StateUnwritable."""
        replace(self._path, encode_json(data), check=check)


def _beginning(path: str, mark: bytes) -> bytes:
    """Return the content before ``mark``, which is a table's name in quotes.

    Only a key can match, because quotes inside a JSON text have backslashes. If a key of another depth matches, the
    returned content is not valid JSON, so the caller notices. Raises OSError. Raises ValueError if the file lacks
    ``mark`` or has none of the endings in ``ENDS``.
    """
    with closed_at_end(open_own(path, os.O_RDONLY)) as descriptor:
        size = os.fstat(descriptor).st_size
        if os.pread(descriptor, 3, max(size - 3, 0)) not in ENDS:
            raise ValueError(f"{path} does not end as a database")
        content = b""
        while block := os.read(descriptor, BLOCK):
            content += block
            if (at := content.find(mark)) >= 0:
                return content[:at]
        raise ValueError(f"{path} lacks {mark!r}")


def encode_json(content: Mapping[str, Any]) -> bytes:
    """Return a database, or a part of it, as JSON bytes. The form has no white space, as in our files."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def entries(tables: Mapping[str, Mapping[str, Any]]) -> list[bytes]:
    """Return each document as the bytes ``"id":{…}``, exactly as our files have it. A search for these bytes shows
    whether a file has the document."""
    return [encode_json({key: document})[1:-1] for table in tables.values() for key, document in table.items()]


def are_tables(tables: Any) -> bool:
    """Return True if ``tables`` has the form of tables: for each table name, a mapping of ids to documents."""
    if not isinstance(tables, dict):
        return False
    for table in tables.values():
        if not isinstance(table, dict) or not {*map(type, table.values())} <= {dict}:
            return False
    return True


def shape_problem(tables: Any, kind: str) -> str:
    """Return the reason why these tables are not a database of this kind; empty if they are such a database."""
    if not are_tables(tables):
        return "is JSON, but not a database of tables with documents"
    meta = tables.get("meta", {}).get("state", {})
    match meta:
        case {"schema": int(), "generation": int(), "kind": str(), "provisioner": str()}:
            return "" if meta["kind"] == kind else f"holds {meta['kind']!r}, not {kind!r}"
    return "was not written by the provisioner: its table 'meta' lacks one of schema, generation, kind, provisioner"


def unreadable(path: str, problem: str, advice: str) -> StateUnreadable:
    """Return the error for a file whose content cannot be used."""
    return StateUnreadable(f"{path}: {problem}. The file was left as it is. {advice}")


def get_meta(tables: Tables) -> dict[str, Any]:
    """Return the properties of a database: ``schema``, ``kind``, ``generation`` and ``provisioner``."""
    return cast(dict[str, Any], tables["meta"]["state"])


def generation_of(tables: Tables) -> int:
    """Return the database's generation, which grows by one with each write."""
    return cast(int, get_meta(tables)["generation"])
