"""The protocol that settles terminal answers. A request id has a row of entries. Entries never change, and the last
entry counts.

If several processes create an entry at the next free position, only one process succeeds (law: a terminal answer
stays).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from provisioner.hostfactory import Answer

REPORTED, CLAIMED, ASSUMED = "reported", "claimed", "assumed"
"""Kinds of entries.

A script that prints the answer writes REPORTED. The loop writes CLAIMED, and may claim another answer until a script
reports an answer. A recovery writes ASSUMED if HF probably has an answer whose text is unknown.
"""
KINDS = (REPORTED, CLAIMED, ASSUMED)


class Entry(NamedTuple):
    """An entry that settles the terminal answer of a request id."""

    kind: str
    text: str
    position: int
    """Number of earlier entries of the same id."""


class SettledAnswers(ABC):
    """A store of the entries of all request ids. Subclasses keep the entries in files or in a Kubernetes API."""

    def settled(self, id_: str) -> Answer | None:
        """Return the terminal answer that every script call prints; None if no answer is settled or its text is
        unknown. The loop may replace an answer that no script has printed yet.

        Raises StateUnreadable. Each method that takes an id raises StateError for an invalid id.
        """
        last = self._last(id_)
        return Answer(last.text, True) if last is not None and last.text else None

    def settle_reported(self, id_: str, text: str) -> str:
        """Settle the answer that the caller is about to print. Return this answer, or the answer that was settled
        before.

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
        """Settle the answer that replaces a published answer. Return False if HF has, or may have, the answer that was
        settled before.

        Durable on return. Raises the errors of ``settle_reported``.
        """
        for last in self._tries(id_):
            if last is not None and (last.kind != CLAIMED or last.text == text):
                return last.kind == CLAIMED
            if self._add(id_, last, CLAIMED, text):
                return True
        raise AssertionError("unreachable: the tries end with an error")

    def assume_reported(self, id_: str) -> None:
        """Record the assumption that HF has the answer.

        A recovery calls this method if HF may have had the request's machines for a long time. HF will not ask for such
        a request again. Raises the errors of ``settle_reported``.
        """
        if self._last(id_) is None:
            self._add(id_, None, ASSUMED, "")

    def copy_from(self, other: SettledAnswers, ids: Iterable[str]) -> int:
        """Add the entries of these ids that ``other`` has and this store lacks. Return the number of added entries."""
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
        """Yield the id's last entry before each attempt to add an entry. Raises StateStale after the last attempt.

        The first value may be None although an entry exists, because a store may assume that there is none, or an NFS
        cache may be late. The attempt then fails.
        """

    @abstractmethod
    def _read(self, id_: str, position: int) -> Entry | None:
        """Return an entry; None if it does not exist."""

    @abstractmethod
    def _add(self, id_: str, last: Entry | None, kind: str, text: str) -> bool:
        """Create the entry after ``last``. Return False if another process has created this entry first."""
