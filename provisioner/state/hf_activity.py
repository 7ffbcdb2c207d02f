"""What HF's calls leave: which requests it polled, the terminal answers it was given, its hosts, the maxNumbers shown.

* ``seen/<id>.answer-<n>`` is what is settled of an id's terminal answer. Each entry is written whole under another name
  and linked into the next free place, and never changed; the last one counts (law: a terminal answer stays).
* A script settles the answer that it is about to print; from then on every call prints those bytes.
* The loop settles what it will say in place of an answer that it has published, before it acts on it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from provisioner.hostfactory import Answer
from provisioner.state.atomic import create_whole, facts_of, parse, read_if_present, remove, replace, tries
from provisioner.state.errors import StateError, StateStale, StateUnreadable, missing
from provisioner.state.marker_files import make_shared_directory, names_in, touch_within

ID_PATTERN = r"[A-Za-z0-9-]{1,64}"
"""What may be the name of a file in ``seen/``: nothing that leads out of it."""


def is_id(name: str) -> bool:
    """True for what may name a file in ``seen/``."""
    return re.fullmatch(ID_PATTERN, name) is not None  # compiled at the first use: not every script has one


def check_id(name: str) -> None:
    """Raises StateError for what must not name a file in ``seen/``."""
    if not re.fullmatch(ID_PATTERN, name):
        raise StateError(f"{name[:80]!r} is no request id: expected 1 to 64 of A-Z, a-z, 0-9 and '-'.")


class Seen:
    """``seen/<request id>``: touched by a script at each poll of that request, before it reads the answer."""

    def __init__(self, path: str) -> None:
        self.path = path

    def touch(self, request: str) -> int:
        """Note a poll; returns its time in ns. Raises StateError for an id that cannot be one, and StateUnwritable."""
        check_id(request)
        return touch_within(os.path.join(self.path, request))

    def marks(self) -> dict[str, int]:
        """When each request was polled last, in ns by the file system's clock."""
        marks = {}
        for name in filter(is_id, names_in(self.path)):
            if (facts := facts_of(os.path.join(self.path, name))) is not None:  # it may go while we look
                marks[name] = facts.st_mtime_ns
        return marks


class Inventory:
    """``hf-inventory.json``: the hosts HF listed in its last getReturnRequests; the last one wins."""

    advice = "HF's next getReturnRequests writes it again."

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, names: Iterable[str]) -> None:
        """Replace the list. Not fsynced: HF lists its hosts again within a minute."""
        replace(self.path, _document(names), durable=False)

    def note(self, names: Mapping[str, object]) -> None:
        """Replace the list, also one that cannot be read; add to it one that shares no host with it: a further part.

        Such parts come faster than the loop looks. Raises StateUnwritable.
        """
        content = _document(names)
        with suppress(StateError):
            before = read_if_present(self.path, self.advice)
            # Mostly HF lists what it did before, and fifty thousand names need no observation.
            if names and before and before != content:
                listed = self._names(before)
                if names.keys().isdisjoint(listed):
                    content = _document([*listed, *names])
        replace(self.path, content, durable=False)

    def read(self) -> tuple[tuple[str, ...], int] | None:
        """The names and when they were written (ns); None before HF's first call. Raises StateUnreadable."""
        facts = facts_of(self.path)  # before the content: what is written meanwhile has a mark of its own
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
    """maxNumber by templateId, as the content of ``announced.json`` says it. Raises StateUnreadable."""
    document = parse(path, content, advice)
    if not isinstance(document, dict) or not all(type(value) is int for value in document.values()):
        raise StateUnreadable(f"{path}: expected {{TEMPLATE: NUMBER}}. {advice}")
    return document


class Announced:
    """``announced.json``: the highest maxNumber that HF was shown of each template.

    HF hangs when it is shown a lower one while it runs (docs/hostfactory.md: maxNumber never sinks).
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> dict[str, int]:
        """maxNumber by templateId; empty before the first call. Raises StateMissing or StateUnreadable."""
        advice = "Remove it while HostFactory is stopped: it is made again."
        if not os.path.isdir(os.path.dirname(self.path)):
            raise missing(self.path, "")
        content = read_if_present(self.path, advice)
        return {} if content is None else numbers_in(self.path, content, advice)

    def write(self, numbers: Mapping[str, int]) -> None:
        """Replace the maxNumbers, durably. Raises StateUnwritable."""
        replace(self.path, json.dumps(numbers).encode())


REPORTED, CLAIMED, PRESUMED = b"reported", b"claimed", b"presumed"
"""Whose entry it is: of a script that prints it; of the loop, which may claim otherwise until a script tells it; of a
recovery, after which HF counts as told in words that nobody knows. It is the entry's first line."""

ENTRY = rf"({ID_PATTERN})\.answer-[0-9]+"
ADVICE = "Restore it from a backup; without it HF is told what the loop published last."


class Entry(NamedTuple):
    """What is settled of one id."""

    kind: bytes
    text: str
    position: int
    """How many entries stand before it."""


class ReportedAnswers:
    """The entries of all ids in one directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._listed: frozenset[str] = frozenset()
        """What the directory held when ``ids`` was last asked for."""
        self._kinds: dict[str, bytes] = {}
        """Of the entries read by ``ids``: they never change."""

    def settled(self, id_: str) -> Answer | None:
        """The terminal answer that every call prints from now on; None while it may still be another.

        Raises StateUnreadable, and StateError for an id that cannot be one, as all that takes an id does.
        """
        last = self._last(id_)
        return Answer(last.text, True) if last is not None and last.text else None

    def tell(self, id_: str, text: str) -> str:
        """Settle the answer that is about to be printed; returns it, or the one that was settled before.

        Durable when it returns. Raises StateUnreadable, StateUnwritable or StateStale.
        """
        for last in self._tries(id_):
            if last is not None and last.kind == REPORTED:
                return last.text
            text = last.text if last is not None and last.text else text
            if self._add(id_, last, REPORTED, text):
                return text
        raise AssertionError("unreachable: the tries end with an error")

    def claim(self, id_: str, text: str) -> bool:
        """Settle what will be said in place of an answer already published; False when HF was told, or may have been.

        Durable when it returns. Raises as ``tell``.
        """
        for last in self._tries(id_):
            if last is not None and (last.kind != CLAIMED or last.text == text):
                return last.kind == CLAIMED
            if self._add(id_, last, CLAIMED, text):
                return True
        raise AssertionError("unreachable: the tries end with an error")

    def presume(self, id_: str) -> None:
        """HF counts as told: it may have had the machines for long, and will not ask. Raises as ``tell``."""
        if self._last(id_) is None:
            self._add(id_, None, PRESUMED, "")

    def ids(self) -> frozenset[str]:
        """Those that HF was told of, or counts as told. Raises StateUnreadable."""
        listed = frozenset(names_in(self.path))
        if listed != self._listed:
            entries = filter(_id_of, listed)
            self._kinds = {name: self._kinds.get(name) or self._kind(name) for name in entries}
            self._listed = listed
        return frozenset(_id_of(name) for name, kind in self._kinds.items() if kind in (REPORTED, PRESUMED))

    def answers(self) -> dict[str, Answer]:
        """Every settled answer. Raises StateUnreadable."""
        ids = {id_ for name in names_in(self.path) if (id_ := _id_of(name))}
        settled = {id_: self.settled(id_) for id_ in sorted(ids)}
        return {id_: answer for id_, answer in settled.items() if answer is not None}

    def forget(self, ids: Iterable[str]) -> None:
        """Remove poll marks and entries of ids that left the files, and what killed writers left of theirs.

        Raises StateUnwritable or StateUnreadable.
        """
        doomed = frozenset(ids)
        # The last entry goes first: after an interrupted removal the entries are those of an earlier moment.
        for name in sorted((name for name in names_in(self.path) if name.partition(".")[0] in doomed), reverse=True):
            remove(os.path.join(self.path, name))

    def _tries(self, id_: str) -> Iterator[Entry | None]:
        """The last entry, looked for again and again: another host's may show only after a moment (NFS)."""
        for _ in tries():
            yield self._last(id_)
        raise StateStale(
            f"{self._path(id_, 0)}: another host's entry exists and cannot be read. On NFS mount the directory with "
            "lookupcache=none,actimeo=0."
        )

    def _last(self, id_: str) -> Entry | None:
        last = None
        while (entry := self._read(id_, last.position + 1 if last else 0)) is not None:
            last = entry
        return last

    def _read(self, id_: str, position: int) -> Entry | None:
        path = self._path(id_, position)
        if (content := read_if_present(path, ADVICE)) is None:
            return None
        kind, _, text = content.partition(b"\n")
        if kind not in (REPORTED, CLAIMED, PRESUMED):
            raise StateUnreadable(f"{path}: begins with {kind[:20]!r}, not with a word of ours. {ADVICE}")
        return Entry(kind, text.decode("utf-8", "surrogateescape"), position)

    def _add(self, id_: str, last: Entry | None, kind: bytes, text: str) -> bool:
        """Make the next entry; False when another was faster."""
        path = self._path(id_, last.position + 1 if last else 0)
        content = b"%s\n%s" % (kind, text.encode("utf-8", "surrogateescape"))
        make_shared_directory(self.path)
        return create_whole(path, content)

    def _kind(self, name: str) -> bytes:
        """The first line of an entry; empty when it has gone."""
        return (read_if_present(os.path.join(self.path, name), ADVICE) or b"").partition(b"\n")[0]

    def _path(self, id_: str, position: int) -> str:
        check_id(id_)
        return os.path.join(self.path, f"{id_}.answer-{position}")


def _id_of(name: str) -> str:
    """The id that an entry is of; empty for any other file."""
    entry = re.fullmatch(ENTRY, name)
    return entry[1] if entry else ""
