"""The journal: JSON lines of requests, actions, observations and reports. The files are rotated by size.

Decisions never depend on the journal.
"""

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

from provisioner.files.safe_open import closed_at_end, open_own, read_descriptor
from provisioner.state.atomic import open_shared
from provisioner.state.errors import writing

JOURNAL_BYTES = 10_000_000
JOURNAL_KEPT = 5
"""Number of older files that are kept. All files together have 60 MB, which is enough for a busy week, because repeated
lines are only counted."""

UNWRITTEN_BYTES = 1_000_000
"""Maximum number of bytes of the newest lines that are kept in memory while the disk refuses writes. A megabyte is
enough for some hours, because the loop changes no machine while the disk refuses writes."""

Line = Mapping[str, Any]

_encode = json.JSONEncoder(separators=(",", ":")).encode


def format_time(wall: float) -> str:
    """Return epoch seconds as a line's ``time``: ISO 8601 with the host's offset."""
    return datetime.fromtimestamp(wall).astimezone().isoformat(timespec="milliseconds")


def parse_time(line: Line) -> float:
    """Return the epoch seconds of a line. Raises ValueError, TypeError or KeyError."""
    return _epoch(line["time"])


@lru_cache(maxsize=1000)
def _epoch(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The lines that a search of the journal has found."""

    lines: Sequence[Line] = ()
    """Lines with a readable ``time``, in the order in which they were written."""
    torn: int = 0
    """Number of lines that do not parse because a crash or a full disk cut them."""
    since: float | None = None
    """Epoch seconds of the oldest line in the files; None if there are no lines."""
    unreadable: str = ""
    """Reason why a file of the journal cannot be read; empty if all files can be read."""


class Journal:
    """``journal.jsonl`` and the older files ``journal.jsonl.1`` (newest) … ``.5``."""

    def __init__(self, path: str, *, max_bytes: int = JOURNAL_BYTES, keep: int = JOURNAL_KEPT) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._unwritten = b""
        """Complete lines that the disk refused to store."""

    def append(self, entries: Iterable[Line]) -> None:
        """Add one line per entry, in one write, without fsync.

        Raises StateUnwritable. The lines that could not be written are kept, up to ``UNWRITTEN_BYTES``, and the next
        call writes them first.
        """
        text = "".join([_encode(entry) + "\n" for entry in entries])
        if not text:
            return
        self._unwritten += text.encode()
        try:
            with writing(self.path):
                if self._append() >= self._max_bytes:
                    self._rotate()
        finally:  # no text is left if all of it was written
            if len(self._unwritten) > UNWRITTEN_BYTES:
                self._unwritten = self._unwritten[-UNWRITTEN_BYTES:].partition(b"\n")[2]

    def _append(self) -> int:
        """Write the unwritten lines at the end of the newest file. Return the file's size.

        A crash or a full disk may have left a partial line there. If so, end this line first.
        """
        with closed_at_end(open_shared(self.path, os.O_RDWR | os.O_APPEND)) as descriptor:
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

    def _rotate(self) -> None:
        """Rename the files, unless another writer has just done so. A second rotation would lose the oldest file."""
        if not os.path.exists(self.path) or os.path.getsize(self.path) < self._max_bytes:
            return
        names = self._names()
        for newer, older in reversed(list(pairwise(names))):
            if os.path.exists(newer):
                os.replace(newer, older)

    def _names(self) -> list[str]:
        """Return the paths of all files, the newest first."""
        return [self.path, *(f"{self.path}.{number}" for number in range(1, self._keep + 1))]

    def files(self) -> list[str]:
        """Return the names of the files that exist, the newest first."""
        return [os.path.basename(path) for path in self._names() if os.path.exists(path)]

    def find(self, *needles: str, newest: bool = False, most: int | None = None) -> Excerpt:
        """Return an excerpt: the lines that contain one of ``needles``. The caller has encoded the needles as JSON. If
        a file cannot be read, the excerpt gives the reason.

        ``newest``: True to search only the newest file. ``most``: maximum number of lines from each file. Older lines
        are cut off. If the cut divides the lines of a cycle, the rest of this cycle is cut off, too, unless the file
        has no other cycle.
        """
        contents, unreadable = self._contents([self.path] if newest else self._names())
        lines: list[Line] = []
        torn = 0
        for content in contents:
            whole = content.rfind(b"\n") + 1
            texts = list(_matching(content, [needle.encode() for needle in needles], whole))
            left_out = 0 if most is None else max(0, len(texts) - most)
            del texts[:left_out]
            parsed = _parse_lines(texts)
            lines += _whole_cycles(parsed) if left_out else parsed
            torn += len(texts) - len(parsed) + (whole < len(content))
        return Excerpt(lines, torn, _find_oldest_time(contents), unreadable)

    def _contents(self, names: Iterable[str]) -> tuple[list[bytes], str]:
        """Return the files' contents, the oldest first, and the reason why a file cannot be read.

        ``names``: the newest file first. If a rotation renames a file meanwhile, the search still finds it, because its
        new name is searched later. A file that is found under two names counts once, because its inode is the same.
        """
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
    with closed_at_end(open_own(name, os.O_RDONLY)) as descriptor:
        facts = os.fstat(descriptor)
        contents.setdefault((facts.st_dev, facts.st_ino), read_descriptor(descriptor))


def _matching(content: bytes, needles: Sequence[bytes], whole: int) -> Iterator[bytes]:
    """Yield each line that contains a needle, once and in order. Lines without a needle are not parsed.

    ``whole``: the number of bytes up to the end of the last complete line.
    """
    ends: dict[int, int] = {}
    for needle in needles:
        place = content.find(needle, 0, whole)
        while place >= 0:
            end = content.find(b"\n", place)
            ends[content.rfind(b"\n", 0, place) + 1] = end
            place = content.find(needle, end, whole)
    yield from (content[start : ends[start]] for start in sorted(ends))


def _whole_cycles(lines: list[Line]) -> list[Line]:
    """Return the lines without the first cycle, because the limit on lines may have cut off a part of it. If no other
    cycle is left, return all lines."""
    return [line for line in lines if line["at"] != lines[0]["at"]] or lines


def _parse_lines(texts: Sequence[bytes]) -> list[Line]:
    """Return the lines that parse.

    Parsing all lines as one document takes half the time. If a line is torn, each line is parsed on its own.
    """
    with suppress(ValueError, RecursionError):
        return [line for one in json.loads(b"[" + b",".join(texts) + b"]") if (line := _add_time(one)) is not None]
    return [line for text in texts if (line := _parse_line(text)) is not None]


def _parse_line(text: bytes) -> Line | None:
    with suppress(ValueError, RecursionError):
        return _add_time(json.loads(text))
    return None


def _add_time(line: Any) -> Line | None:
    """Return the line with its time in epoch seconds as ``at``; None if no loop of ours can have written the line."""
    with suppress(ValueError, TypeError, KeyError, OverflowError, OSError):
        line["at"] = parse_time(line)
        return line if isinstance(line.get("event", ""), str) else None
    return None


def _find_oldest_time(contents: Sequence[bytes]) -> float | None:
    texts = (text for content in contents for text in content[:10_000].split(b"\n"))
    return next((line["at"] for line in map(_parse_line, texts) if line), None)
