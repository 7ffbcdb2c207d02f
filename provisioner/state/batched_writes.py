"""Batched writes (group commit): the documents that a call of HF adds to intent, and how one write serves all who wait.

A script that finds the lock taken leaves a *posted write* beside the data. The next holder of the lock writes it, too.

* A posted write is a file with the documents to add, so the fsyncs of one write serve all scripts that wait.
* Its owner keeps the file locked while the owner waits. The posted write of a dead process is never written.
* The file is removed after its documents were written durably. Its absence is only a hint; the data is the proof.
* An owner that gives up removes its file, then every file written aside (``withdraw``).
* A writer checks, when only the rename is left to do, that all owners in its batch still wait. So either the writer
  sees that an owner gave up, or the writer's file aside is removed, or the owner finds its documents in the data.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from provisioner.files.safe_open import open_own, read_descriptor
from provisioner.names import REQUEST_ID_LENGTH
from provisioner.state.atomic import FILE_MODE, discard, stop_replacing, tries, write_all
from provisioner.state.database import are_tables
from provisioner.state.errors import unwritable

UNFINISHED = ".new"
"""Suffix of a posted write whose file is not complete yet."""

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

Rows = Mapping[str, Mapping[str, dict[str, Any]]]
"""Documents by id, by the name of their table."""

Terms = Mapping[str, Any]
"""Facts that the data must contain for a posted write to be added to it: its schema, and the provisioner if known."""


class BatchedWrite:
    """Documents that are to be added to the data at ``path``."""

    def __init__(self, path: str, tables: Rows, name: str = "") -> None:
        self.tables = tables
        self._data_path = path
        self._path = os.path.join(os.path.dirname(path), name or f"{_prefix(path)}{os.urandom(8).hex()}")

    @contextmanager
    def posted(self, terms: Terms) -> Iterator[None]:
        """Post the write beside the data while the caller waits for the lock.

        If the system refuses, the caller only waits.
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
        """Return True if the posted file does not exist, or no longer exists."""
        return not os.path.exists(self._path)

    def is_wanted(self) -> bool:
        """Return True if the owner still waits, as far as the file shows."""
        with suppress(OSError):
            return _content_while_owned(self._path) != b""
        return False

    def confirm_written(self) -> None:
        """Remove the posted file, as its documents are durable. If that fails, the owner finds them in the data."""
        with suppress(OSError):
            discard(self._path)

    def withdraw(self) -> None:
        """Withdraw the write: once this returns, the documents are in the data or never will be.

        If the system refuses, the withdrawal is tried again for a moment, because half a withdrawal has no effect.
        Raises StateUnwritable.
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
    """Return the posted writes for the data at ``path`` whose owners wait, and remove those of dead processes.

    ``facts`` describes the data. A posted write that cannot be read, or is meant for other data, is left to its owner,
    who also waits for the lock.
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
    """Return the content of a posted write.

    If its owner no longer holds the lock, remove the file and return no content.
    """
    descriptor = open_own(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        discard(path)
        return b""
    except BlockingIOError:
        return read_descriptor(descriptor)
    finally:
        os.close(descriptor)


def _tables(content: bytes, facts: Terms) -> list[Rows]:
    """Return the tables that a posted write adds; empty if it does not parse or does not fit ``facts``."""
    match json.loads(content or "null"):
        case {"terms": {"schema": _} as terms, "tables": tables} if are_tables(tables):
            return [tables] if terms.items() <= facts.items() else []
    return []


ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_id() -> str:
    """Return ten random characters of [a-z0-9], each equally likely: 50 bits, so that no id is ever given twice."""
    letters = ""
    while len(letters) < REQUEST_ID_LENGTH:
        for byte in os.urandom(REQUEST_ID_LENGTH):
            if byte < 256 - 256 % len(ID_ALPHABET):
                letters += ID_ALPHABET[byte % len(ID_ALPHABET)]
    return letters[:REQUEST_ID_LENGTH]
