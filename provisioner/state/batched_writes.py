"""Batched writes (group commit): one write adds the documents of all waiting scripts to intent.

A script that finds the lock taken leaves a *posted write* beside the data. The next holder of the lock, the *writer*,
writes the posted documents together with its own.

* A posted write is a file with the documents to add. Its *owner* is the script that posted it. The fsyncs of one write
  serve all waiting scripts.
* The owner keeps the file locked while waiting. An unlocked file shows that its owner is dead. A writer does not write
  the documents of a dead owner.
* A writer removes the file after the documents are durable. So a missing file is only a hint that the documents were
  written. The proof is in the data.
* An owner that gives up removes its file, then the temporary file of every writer (``withdraw``).
* Just before its rename, a writer checks that all owners in its batch still wait.

So if an owner gives up, one of three things happens: the writer notices it, the writer loses its temporary file, or the
owner finds its documents in the data.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from provisioner.files.safe_open import closed_at_end, open_own, read_descriptor
from provisioner.state.atomic import FILE_MODE, discard, stop_replacing, tries, write_all
from provisioner.state.database import are_tables
from provisioner.state.errors import unwritable

UNFINISHED = ".new"
"""Suffix of the file of a posted write until the file is complete."""

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

Rows = Mapping[str, Mapping[str, dict[str, Any]]]
"""Documents by id, for each table by its name."""

Terms = Mapping[str, Any]
"""Properties of the data to which a posted write may be added: the schema, and the provisioner if known."""


class BatchedWrite:
    """Documents that a script wants to add to the data at ``path``."""

    def __init__(self, path: str, tables: Rows, name: str = "") -> None:
        self.tables = tables
        self._data_path = path
        self._path = os.path.join(os.path.dirname(path), name or f"{_prefix(path)}{os.urandom(8).hex()}")

    @contextmanager
    def posted(self, terms: Terms) -> Iterator[None]:
        """Post the write beside the data while the caller waits for the lock.

        If the system refuses to make the file, the caller waits without a posted write.
        """
        descriptor = None
        try:
            with suppress(OSError):
                descriptor = os.open(self._path + UNFINISHED, NEW_FILE, FILE_MODE)
                self._post(descriptor, terms)
            yield
        finally:
            for path in (self._path, self._path + UNFINISHED):
                with suppress(OSError):
                    discard(path)
            if descriptor is not None:
                with suppress(OSError):  # the descriptor and its lock are gone even if close() fails
                    os.close(descriptor)

    def _post(self, descriptor: int, terms: Terms) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(descriptor, FILE_MODE)
        write_all(descriptor, json.dumps({"terms": terms, "tables": self.tables}, allow_nan=False).encode())
        os.rename(self._path + UNFINISHED, self._path)

    def is_gone(self) -> bool:
        """Return True if the posted file does not exist."""
        return not os.path.exists(self._path)

    def is_wanted(self) -> bool:
        """Return True if the posted file shows that the owner still waits."""
        with suppress(OSError):
            return _content_while_owned(self._path) != b""
        return False

    def confirm_written(self) -> None:
        """Remove the posted file, because its documents are durable. If the file cannot be removed, the owner finds the
        documents in the data."""
        with suppress(OSError):
            discard(self._path)

    def withdraw(self) -> None:
        """Withdraw the write. After this call, the documents are either in the data or will never be.

        If the system refuses a step, try all steps again for a moment. Raises StateUnwritable if a step still fails.
        """
        for is_last in tries():
            try:
                discard(self._path)
                stop_replacing(self._data_path)
                return
            except OSError as error:
                if is_last:
                    raise unwritable(self._data_path, error) from error


def find_waiting(path: str, facts: Terms) -> list[BatchedWrite]:
    """Return the posted writes for the data at ``path`` whose owners still wait. Remove the posted writes of dead
    processes.

    ``facts``: the properties of the data. Leave a posted write in place if it is unreadable or is for data with other
    properties. Its owner writes the documents itself when it gets the lock.
    """
    directory, prefix = os.path.dirname(path), _prefix(path)
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(directory)
    writes = []
    for name in names:
        if not name.startswith(prefix):
            continue
        with suppress(OSError, ValueError, RecursionError):
            content = _content_while_owned(os.path.join(directory, name))
            if not name.endswith(UNFINISHED):
                writes += [BatchedWrite(path, tables, name) for tables in _tables(content, facts)]
    return writes


def _prefix(path: str) -> str:
    return f"{os.path.splitext(os.path.basename(path))[0]}.batch-"


def _content_while_owned(path: str) -> bytes:
    """Return the content of a posted write. If the owner no longer locks the file, remove the file and return empty
    bytes."""
    with closed_at_end(open_own(path, os.O_RDONLY)) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            discard(path)
            return b""
        except BlockingIOError:
            return read_descriptor(descriptor)


def _tables(content: bytes, facts: Terms) -> list[Rows]:
    """Return the tables of rows in a posted write.

    Return an empty list if the content does not parse, or is for data with other properties than ``facts``.
    """
    match json.loads(content or "null"):
        case {"terms": {"schema": _} as terms, "tables": tables} if are_tables(tables):
            return [tables] if terms.items() <= facts.items() else []
    return []
