"""Records of HF's calls: polled requests, reported terminal answers, HF's hosts, and the maxNumbers that scripts have
shown to HF.

* ``seen/<id>.answer-<n>`` is an entry that settles the terminal answer of a request id. A process writes the whole
  entry under another name. Then it links the entry to the name with the next free number. Entries never change. The
  last entry counts (law: a terminal answer stays).
* A script settles the answer that it is about to print. Every later call prints the same bytes, unless there is a
  newer entry.
* A revised answer is a newer entry. The loop settles it before it acts on the revised answer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from provisioner.hostfactory import Answer
from provisioner.state.atomic import Located, create_whole, parse, read_if_present, remove, replace, stat_file, tries
from provisioner.state.errors import StateError, StateStale, StateUnreadable, missing
from provisioner.state.marker_files import make_shared_directory, names_in, touch_within
from provisioner.state.settled_answers import ASSUMED, KINDS, REPORTED, Entry, SettledAnswers

ID_PATTERN = r"[A-Za-z0-9-]{1,64}"
"""Pattern of a file name in ``seen/``. A name that matches cannot lead out of the directory."""


def is_id(name: str) -> bool:
    """Return True if ``name`` may be the name of a file in ``seen/``."""
    return re.fullmatch(ID_PATTERN, name) is not None  # compiled here, because not every script needs it


def check_id(name: str) -> None:
    """Raise StateError if ``name`` cannot be the name of a file in ``seen/``."""
    if not re.fullmatch(ID_PATTERN, name):
        raise StateError(f"{name[:80]!r} is no request id: expected 1 to 64 of A-Z, a-z, 0-9 and '-'.")


class Seen(Located):
    """``seen/<request id>``: a script touches this file at each poll of the request, before it reads the answer."""

    def touch(self, request: str) -> int:
        """Record a poll and return its time in ns.

        Raises StateError for an invalid id, and StateUnwritable.
        """
        check_id(request)
        return touch_within(os.path.join(self.path, request))

    def marks(self) -> dict[str, int]:
        """Return the time of HF's last poll, by request, in ns by the file system's clock."""
        marks = {}
        for name in filter(is_id, names_in(self.path)):
            if (facts := stat_file(os.path.join(self.path, name))) is not None:  # the file may be removed meanwhile
                marks[name] = facts.st_mtime_ns
        return marks


class Inventory(Located):
    """``hf-inventory.json``: the hosts that HF listed in its last getReturnRequests."""

    advice = "HF's next getReturnRequests writes it again."

    def write(self, names: Iterable[str]) -> None:
        """Replace the list. The file is not fsynced, because HF lists its hosts again within a minute."""
        replace(self.path, _document(names), durable=False)

    def note(self, names: Mapping[str, object]) -> None:
        """Store the hosts that HF lists, even if the stored list is unreadable. Raises StateUnwritable.

        HF sends a long list in several calls, faster than the loop reads the lists. So if ``names`` and the stored list
        have no host in common, ``names`` are taken as a further part of the same list, and are added to the stored
        list. Otherwise, ``names`` replace the stored list.
        """
        content = _document(names)
        with suppress(StateError):
            before = read_if_present(self.path, self.advice)
            # Mostly HF lists the same hosts again, and parsing fifty thousand names would cost time.
            if names and before and before != content:
                listed = self._names(before)
                if names.keys().isdisjoint(listed):
                    content = _document([*listed, *names])
        replace(self.path, content, durable=False)

    def read(self) -> tuple[tuple[str, ...], int] | None:
        """Return the hosts' names, and the time in ns at which the names were written; None before HF's first list.

        Raises StateUnreadable.
        """
        facts = stat_file(self.path)  # before the content, so that a write meanwhile shows by a later time
        content = facts and read_if_present(self.path, self.advice)
        return (tuple(self._names(content)), facts.st_mtime_ns) if facts and content is not None else None

    def _names(self, content: bytes) -> list[str]:
        document = parse(self.path, content, self.advice)
        names = document.get("names") if isinstance(document, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise StateUnreadable(f"{self.path}: expected {{'names': [...]}}. {self.advice}")
        return names


def _document(names: Iterable[str]) -> bytes:
    return json.dumps({"names": list(names)}).encode()


def numbers_in(path: str, content: bytes, advice: str) -> dict[str, int]:
    """Return maxNumber by templateId from the content of ``announced.json``. Raises StateUnreadable."""
    document = parse(path, content, advice)
    if not isinstance(document, dict) or not all(type(value) is int for value in document.values()):
        raise StateUnreadable(f"{path}: expected {{TEMPLATE: NUMBER}}. {advice}")
    return document


class ShownMaxNumbers(Located):
    """``announced.json``: the highest maxNumber that was shown to HF for each template.

    HF hangs if it is shown a lower maxNumber while it runs (docs/hostfactory.md: maxNumber never sinks).
    """

    def read(self) -> dict[str, int]:
        """Return maxNumber by templateId; empty before the first call. Raises StateMissing or StateUnreadable."""
        advice = "Remove the file while HostFactory is stopped; it is made again."
        if not os.path.isdir(os.path.dirname(self.path)):
            raise missing(self.path, "")
        content = read_if_present(self.path, advice)
        return {} if content is None else numbers_in(self.path, content, advice)

    def write(self, numbers: Mapping[str, int]) -> None:
        """Replace the maxNumbers, durably. Raises StateUnwritable."""
        replace(self.path, json.dumps(numbers).encode())


ENTRY = rf"({ID_PATTERN})\.answer-[0-9]+"
ADVICE = "Restore it from a backup; without it HF gets the answer that the loop published last."


class ReportedAnswers(SettledAnswers):
    """The entries that settle terminal answers, as files in one directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._listed: frozenset[str] = frozenset()
        """Names that were in the directory at the last call of ``ids``."""
        self._kinds: dict[str, str] = {}
        """Kinds of the entries that ``ids`` has read, by entry name. The kind of an entry never changes."""

    def ids(self) -> frozenset[str]:
        """Return the ids of the requests whose answer was reported to HF or assumed to be reported. Raises
        StateUnreadable."""
        listed = frozenset(names_in(self.path))
        if listed != self._listed:
            entries = filter(_id_of, listed)
            self._kinds = {name: self._kinds.get(name) or self._kind(name) for name in entries}
            self._listed = listed
        return frozenset(_id_of(name) for name, kind in self._kinds.items() if kind in (REPORTED, ASSUMED))

    def answers(self) -> dict[str, Answer]:
        """Return every settled answer. Raises StateUnreadable."""
        ids = {id_ for name in names_in(self.path) if (id_ := _id_of(name))}
        settled = {id_: self.settled(id_) for id_ in sorted(ids)}
        return {id_: answer for id_, answer in settled.items() if answer is not None}

    def forget(self, ids: Iterable[str]) -> None:
        """Remove the poll markers and entries of requests that have left intent. Also remove these requests' temporary
        files.

        Raises StateUnwritable or StateUnreadable.
        """
        removed_ids = frozenset(ids)
        removed_names = [name for name in names_in(self.path) if name.partition(".")[0] in removed_ids]
        # Remove the last entry first, so that an interruption leaves the entries of an earlier moment.
        for name in sorted(removed_names, reverse=True):
            remove(os.path.join(self.path, name))

    def _tries(self, id_: str) -> Iterator[Entry | None]:
        # An entry of another host may appear late on NFS.
        for _ in tries():
            yield self._last(id_)
        raise StateStale(
            f"{self._path(id_, 0)}: another host's entry exists and cannot be read. On NFS mount the directory with "
            "lookupcache=none,actimeo=0."
        )

    def _read(self, id_: str, position: int) -> Entry | None:
        path = self._path(id_, position)
        if (content := read_if_present(path, ADVICE)) is None:
            return None
        kind, _, text = content.decode("utf-8", "surrogateescape").partition("\n")
        if kind not in KINDS:
            raise StateUnreadable(f"{path}: begins with {kind[:20]!r}, not with a word of ours. {ADVICE}")
        return Entry(kind, text, position)

    def _add(self, id_: str, last: Entry | None, kind: str, text: str) -> bool:
        path = self._path(id_, last.position + 1 if last else 0)
        content = f"{kind}\n{text}".encode("utf-8", "surrogateescape")
        make_shared_directory(self.path)
        return create_whole(path, content)

    def _kind(self, name: str) -> str:
        """Return the kind of an entry, which is its first line; empty if the entry is gone."""
        content = read_if_present(os.path.join(self.path, name), ADVICE) or b""
        return content.partition(b"\n")[0].decode("ascii", "replace")

    def _path(self, id_: str, position: int) -> str:
        check_id(id_)
        return os.path.join(self.path, f"{id_}.answer-{position}")


def _id_of(name: str) -> str:
    """Return the request id in the name of an entry's file; empty for the name of any other file."""
    entry = re.fullmatch(ENTRY, name)
    return entry[1] if entry else ""
