"""The history: one JSON line per action with reason and outcome, rotated by size. Nothing is decided by it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from provisioner.state.atomic import open_shared, write_all
from provisioner.state.errors import unwritable

JOURNAL_BYTES = 10_000_000
JOURNAL_KEPT = 5
"""Predecessors that are kept: 60 MB in all, a busy week."""


class Journal:
    """``journal.jsonl`` and its predecessors ``journal.jsonl.1`` (newest) … ``.5``."""

    def __init__(self, path: str, *, max_bytes: int = JOURNAL_BYTES, keep: int = JOURNAL_KEPT) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep

    def append(self, entries: Iterable[Mapping[str, object]]) -> None:
        """Add one line per entry, in one write; not fsynced. Raises StateUnwritable."""
        text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
        if not text:
            return
        try:
            if self._append(text.encode()) >= self._max_bytes:
                self._rotate()
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _append(self, lines: bytes) -> int:
        """Write at the end; returns the size then. Half a line that a crash left is closed first."""
        descriptor = open_shared(self.path, os.O_RDWR | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            write_all(descriptor, lines)
            return size + len(lines)
        finally:
            os.close(descriptor)

    def _rotate(self) -> None:
        for number in range(self._keep, 0, -1):
            older = f"{self.path}.{number}"
            newer = self.path if number == 1 else f"{self.path}.{number - 1}"
            if os.path.exists(newer):
                os.replace(newer, older)
