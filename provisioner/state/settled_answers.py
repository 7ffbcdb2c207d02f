"""The protocol by which a terminal answer is settled: entries that never change, of which the last one of an id counts.

A process creates an entry in the next free place, so only one process succeeds (law: a terminal answer stays).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from provisioner.hostfactory import Answer

REPORTED, CLAIMED, ASSUMED = "reported", "claimed", "assumed"
"""Kind of an entry.

A script that prints the answer writes REPORTED. The loop writes CLAIMED, and may claim another answer until a script
reports one. A recovery writes ASSUMED: HF is assumed to have the answer, but its words are unknown.
"""
KINDS = (REPORTED, CLAIMED, ASSUMED)


class Entry(NamedTuple):
    """An entry of an id."""

    kind: str
    text: str
    position: int
    """Number of entries before this one."""


class SettledAnswers(ABC):
    """The entries of all ids, wherever they are kept."""

    def settled(self, id_: str) -> Answer | None:
        """Return the terminal answer that every call prints from now on; None while the answer may still change.

        Raises StateUnreadable. Like each method here that takes an id, it raises StateError if the id is invalid.
        """
        last = self._last(id_)
        return Answer(last.text, True) if last is not None and last.text else None

    def settle_reported(self, id_: str, text: str) -> str:
        """Settle the answer that the caller is about to print. Return it, or the answer that was settled before.

        Durable on return. Raises StateUnreadable, StateUnwritable or StateStale.
        """
        for last in self._tries(id_):
            if last is not None and last.kind == REPORTED:
                return last.text
            text = last.text if last is not None and last.text else text
            if self._add(id_, last, REPORTED, text):
                return text
        raise AssertionError("unreachable: the tries end with an error")

    def settle_revised(self, id_: str, text: str) -> bool:
        """Settle the answer that replaces a published answer. Return False if HF has got an answer or may have got one.

        Durable on return. Raises the errors of ``settle_reported``.
        """
        for last in self._tries(id_):
            if last is not None and (last.kind != CLAIMED or last.text == text):
                return last.kind == CLAIMED
            if self._add(id_, last, CLAIMED, text):
                return True
        raise AssertionError("unreachable: the tries end with an error")

    def assume_reported(self, id_: str) -> None:
        """Assume that HF has the answer.

        HF may have had the machines for a long time and will not ask again. Raises the errors of ``settle_reported``.
        """
        if self._last(id_) is None:
            self._add(id_, None, ASSUMED, "")

    def copy_from(self, other: SettledAnswers, ids: Iterable[str]) -> int:
        """Add the entries of these ids that ``other`` has and this store lacks. Return their number."""
        added = 0
        for id_ in ids:
            last = self._last(id_)
            while (entry := other._read(id_, last.position + 1 if last else 0)) is not None:
                added += self._add(id_, last, entry.kind, entry.text)
                last = entry
        return added

    def _last(self, id_: str) -> Entry | None:
        last = None
        while (entry := self._read(id_, last.position + 1 if last else 0)) is not None:
            last = entry
        return last

    @abstractmethod
    def _tries(self, id_: str) -> Iterator[Entry | None]:
        """Yield the last entry again and again, read each time, and at last raise StateStale."""

    @abstractmethod
    def _read(self, id_: str, position: int) -> Entry | None:
        """Return an entry; None if it does not exist."""

    @abstractmethod
    def _add(self, id_: str, last: Entry | None, kind: str, text: str) -> bool:
        """Create the next entry. Return False if another process has created it first."""
