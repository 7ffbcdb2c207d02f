"""The history: JSON lines of what was asked, done, seen and told, rotated by size. Nothing is decided by it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any

from provisioner.files.safe_open import open_own, read_descriptor
from provisioner.state.atomic import open_shared
from provisioner.state.errors import writing

JOURNAL_BYTES = 10_000_000
JOURNAL_KEPT = 5
"""Predecessors that are kept: 60 MB in all, a busy week, as the loop counts what repeats itself."""

UNWRITTEN_BYTES = 1_000_000
"""The newest lines that are kept for when the disk takes them again: some hours of a grid that cannot change."""

Line = Mapping[str, Any]

_encode = json.JSONEncoder(separators=(",", ":")).encode


def stamp(wall: float) -> str:
    """Epoch seconds as a line's ``time``: ISO 8601 with the host's offset."""
    return datetime.fromtimestamp(wall).astimezone().isoformat(timespec="milliseconds")


def when(line: Line) -> float:
    """Epoch seconds of a line. Raises ValueError, TypeError or KeyError."""
    return _epoch(line["time"])


@lru_cache(maxsize=1000)
def _epoch(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What the journal says of something."""

    lines: Sequence[Line] = ()
    """Each with a readable ``time``, in the order in which they were written."""
    torn: int = 0
    """Lines that do not parse, as a crash or a full disk leaves them."""
    since: float | None = None
    """Epoch seconds of the oldest line that is kept; None where there is none."""
    unreadable: str = ""
    """Why a file of the journal cannot be read; empty when all can."""


class Journal:
    """``journal.jsonl`` and its predecessors ``journal.jsonl.1`` (newest) … ``.5``."""

    def __init__(self, path: str, *, max_bytes: int = JOURNAL_BYTES, keep: int = JOURNAL_KEPT) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._unwritten = b""
        """Whole lines that the disk has refused."""

    def append(self, entries: Iterable[Line]) -> None:
        """Add one line per entry, in one write; not fsynced. Raises StateUnwritable: the next one writes them, too."""
        text = "".join([_encode(entry) + "\n" for entry in entries])
        if not text:
            return
        self._unwritten += text.encode()
        try:
            with writing(self.path):
                if self._append() >= self._max_bytes:
                    self._rotate()
        finally:  # empty once all is written
            if len(self._unwritten) > UNWRITTEN_BYTES:
                self._unwritten = self._unwritten[-UNWRITTEN_BYTES:].partition(b"\n")[2]

    def _append(self) -> int:
        """Write at the end; returns the size then. Half a line that a crash or a full disk left is closed first."""
        descriptor = open_shared(self.path, os.O_RDWR | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            closing = b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
            content, done = closing + self._unwritten, 0
            try:
                while done < len(content):
                    done += os.write(descriptor, content[done:])
            finally:
                whole = content.rfind(b"\n", 0, done) + 1
                self._unwritten = content[max(whole, len(closing)) :]
            return size + done
        finally:
            os.close(descriptor)

    def _rotate(self) -> None:
        """Unless a command that writes as well has just done so: twice would lose the oldest for nothing."""
        if not os.path.exists(self.path) or os.path.getsize(self.path) < self._max_bytes:
            return
        names = self._names()
        for newer, older in reversed(list(pairwise(names))):
            if os.path.exists(newer):
                os.replace(newer, older)

    def _names(self) -> list[str]:
        """The files, the newest first."""
        return [self.path, *(f"{self.path}.{number}" for number in range(1, self._keep + 1))]

    def files(self) -> list[str]:
        """The names of those files that are there, the newest first."""
        return [os.path.basename(path) for path in self._names() if os.path.exists(path)]

    def find(self, *needles: str, newest: bool = False, most: int | None = None) -> Excerpt:
        """The lines that hold one of these texts as JSON writes it; only of the ``newest`` file, if that is asked for.

        ``most``: about so many of the newest of each file, and of no cycle only a part. Raises nothing: what cannot be
        read is said.
        """
        contents, unreadable = self._contents([self.path] if newest else self._names())
        lines: list[Line] = []
        torn = 0
        for content in contents:
            whole = content.rfind(b"\n") + 1
            texts = list(_matching(content, [needle.encode() for needle in needles], whole))
            left_out = 0 if most is None else max(0, len(texts) - most)
            del texts[:left_out]
            parsed = _parsed_at_once(texts)
            lines += _whole_cycles(parsed) if left_out else parsed
            torn += len(texts) - len(parsed) + (whole < len(content))
        return Excerpt(lines, torn, _first(contents), unreadable)

    def _contents(self, names: Iterable[str]) -> tuple[list[bytes], str]:
        """The files' contents, the oldest first. A rotation meanwhile moves a file to a name that is still to be read:
        none is missed, and one that was read is known by its inode."""
        contents: dict[tuple[int, int], bytes] = {}
        unreadable = ""
        for name in names:
            try:
                _read_into(contents, name)
            except FileNotFoundError:
                continue
            except OSError as error:
                unreadable = f"{name}: {error.strerror}"
        return list(contents.values())[::-1], unreadable


def _read_into(contents: dict[tuple[int, int], bytes], name: str) -> None:
    descriptor = open_own(name, os.O_RDONLY)
    try:
        facts = os.fstat(descriptor)
        contents.setdefault((facts.st_dev, facts.st_ino), read_descriptor(descriptor))
    finally:
        os.close(descriptor)


def _matching(content: bytes, needles: Sequence[bytes], whole: int) -> Iterator[bytes]:
    """The lines before ``whole`` with one of the needles, each once and in order; the others are never looked at."""
    ends: dict[int, int] = {}
    for needle in needles:
        place = content.find(needle, 0, whole)
        while place >= 0:
            end = content.find(b"\n", place)
            ends[content.rfind(b"\n", 0, place) + 1] = end
            place = content.find(needle, end, whole)
    for start in sorted(ends):
        yield content[start : ends[start]]


def _whole_cycles(lines: list[Line]) -> list[Line]:
    """Without those of the first moment, of which there may be more; all where there is no other."""
    return [line for line in lines if line["at"] != lines[0]["at"]] or lines


def _parsed_at_once(texts: Sequence[bytes]) -> list[Line]:
    """The lines that parse. As one document they take half the time; one that is torn makes each be read for itself."""
    with suppress(ValueError, RecursionError):
        return [line for one in json.loads(b"[" + b",".join(texts) + b"]") if (line := _dated(one)) is not None]
    return [line for text in texts if (line := _parsed(text)) is not None]


def _parsed(text: bytes) -> Line | None:
    with suppress(ValueError, RecursionError):
        return _dated(json.loads(text))
    return None


def _dated(line: Any) -> Line | None:
    """With its time as ``at``; None for what no loop of ours writes."""
    with suppress(ValueError, TypeError, KeyError, OverflowError, OSError):
        line["at"] = when(line)
        return line if isinstance(line.get("event", ""), str) else None
    return None


def _first(contents: Sequence[bytes]) -> float | None:
    for content in contents:
        for text in content[:10_000].split(b"\n"):
            if line := _parsed(text):
                at: float = line["at"]
                return at
    return None
