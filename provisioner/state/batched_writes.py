"""Batched writes (group commit): what one call of HF adds to intent, and how those who wait are written with it.

Who finds the lock held leaves a *posting* beside the data; whoever holds the lock next writes it too.

* A posting is a file with what is to be added, so the fsyncs of one write serve all who wait.
* Its owner keeps it locked while he waits: nobody writes the posting of a process that has died.
* It is removed after it was written durably. That it is gone is only a hint: what counts is what stands in the data.
* An owner who gives up removes his posting, then whatever is written aside (``withdraw``); a writer, once all is ready
  but the rename, looks whether the owners of the postings in it still wait. One of the two notices the other: a writer
  that had looked before finds its file removed, or has taken its place, which the owner reads next.
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
"""Ends the name of a posting that is not written to its end."""

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

Rows = Mapping[str, Mapping[str, dict[str, Any]]]
"""Documents by id, by the name of their table."""

Terms = Mapping[str, Any]
"""What the data has to say of itself for a posting to be written into it."""


class BatchedWrite:
    """Documents that are to be added to the data at ``path``."""

    def __init__(self, path: str, tables: Rows, name: str = "") -> None:
        self.tables = tables
        self._data_path = path
        self._path = os.path.join(os.path.dirname(path), name or f"{_prefix(path)}{os.urandom(8).hex()}")

    @contextmanager
    def posted(self, terms: Terms) -> Iterator[None]:
        """Leave it beside the data while waiting for the lock; where that is refused, there is only the wait."""
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
                with suppress(OSError):  # the descriptor, and with it the lock, is gone whatever close() reports
                    os.close(descriptor)

    def _post(self, descriptor: int, terms: Terms) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(descriptor, FILE_MODE)
        write_all(descriptor, json.dumps({"terms": terms, "tables": self.tables}, allow_nan=False).encode())
        os.rename(self._path + UNFINISHED, self._path)

    def gone(self) -> bool:
        """True when its file is not there (any more), or never was."""
        return not os.path.exists(self._path)

    def wanted(self) -> bool:
        """True while its owner waits, as far as can be told."""
        with suppress(OSError):
            return _content_while_owned(self._path) != b""
        return False

    def granted(self) -> None:
        """It was written durably: its owner need not wait any longer. What cannot be removed he finds by himself."""
        with suppress(OSError):
            discard(self._path)

    def withdraw(self) -> None:
        """Once this returns the document stands in the data, or it never will. Raises StateUnwritable.

        What the system refuses is tried again for a moment: half a withdrawal is none.
        """
        for is_last in tries():
            try:
                discard(self._path)
                stop_replacing(self._data_path)
                return
            except OSError as error:
                if is_last:
                    raise unwritable(self._data_path, error) from error


def waiting(path: str, facts: Terms) -> list[BatchedWrite]:
    """The postings for the data at ``path`` whose owners wait; those of the dead are removed. ``facts``: what it is.

    What cannot be read, or is meant for other data, is left to its owner, who waits for the lock as well.
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
    """The content of a posting; when nobody holds its lock any more the file is removed, and there is none."""
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
    """What the posting would add, if it is one that we understand."""
    match json.loads(content or "null"):
        case {"terms": {"schema": _} as terms, "tables": tables} if are_tables(tables):
            return [tables] if terms.items() <= facts.items() else []
    return []


ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_id() -> str:
    """Ten random characters of [a-z0-9], each equally likely: 50 bits, so that no id ever comes twice."""
    letters = ""
    while len(letters) < REQUEST_ID_LENGTH:
        for byte in os.urandom(REQUEST_ID_LENGTH):
            if byte < 256 - 256 % len(ID_ALPHABET):
                letters += ID_ALPHABET[byte % len(ID_ALPHABET)]
    return letters[:REQUEST_ID_LENGTH]
