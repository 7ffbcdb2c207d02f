"""Versioned objects of one kind: the current objects, recent changes, and snapshots for lists in pages.

A stored document is never changed, because an update stores a new document. So snapshots and the cached bytes of a
version stay correct. The module does no I/O.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from provisioner.lab.cloud.kubernetes.errors import Json

FIRST_VERSION = 1000
"""The first resourceVersion. The number is large, so that a client can ask even a new cluster for a version that is too
old."""

SNAPSHOTS = 64
"""Maximum number of lists that clients read in pages at the same time. If there are more, the oldest list is dropped,
and the request for its next page gets 410."""


@dataclass(frozen=True)
class Kind:
    """A kind of object, with the names and verbs that discovery shows."""

    kind: str
    resource: str
    singular: str
    short: tuple[str, ...]
    namespaced: bool
    verbs: tuple[str, ...]
    categories: tuple[str, ...] = ()


class Stored:
    """A version of an object."""

    __slots__ = ("_bytes", "document", "kind", "labels", "name", "namespace", "uid", "version")

    def __init__(self, kind: Kind, document: Json, version: int) -> None:
        metadata = document["metadata"]
        self.kind = kind
        stored = {"resourceVersion": str(version)} if version else {}
        self.document: Json = {**document, "metadata": {**metadata, **stored}}
        """The object without kind and apiVersion, in the form of the items of a list. The resourceVersion is 0 after a
        dry run."""
        self.version = version
        self.namespace: str = metadata.get("namespace", "")
        self.name: str = metadata["name"]
        self.uid: str = metadata["uid"]
        self.labels: dict[str, str] = metadata.get("labels") or {}
        self._bytes: bytes | None = None

    @property
    def item(self) -> bytes:
        """The object's JSON as an item of a list. The JSON is made only once."""
        if self._bytes is None:
            self._bytes = json.dumps(self.document, separators=(",", ":")).encode()
        return self._bytes

    @property
    def body(self) -> bytes:
        """The object's JSON with kind and apiVersion. Watch events and responses with one object contain this form."""
        return b'{"kind":"%s","apiVersion":"v1",' % self.kind.kind.encode() + self.item[1:]


ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object, with its version."""

    version: int
    type: ChangeType
    stored: Stored
    before: Stored | None


class Versions:
    """The cluster's only counter of resourceVersions."""

    def __init__(self) -> None:
        self.current = FIRST_VERSION

    def next(self) -> int:
        """Return a version never used before."""
        self.current += 1
        return self.current


Match = Callable[[Stored], bool]


class Store:
    """All objects of one kind, and their recent changes."""

    def __init__(self, versions: Versions, kind: Kind, history: int) -> None:
        self.kind = kind
        self.listeners: set[Callable[[], None]] = set()
        """Functions to call after each change."""
        self._versions = versions
        self._objects: dict[str, dict[str, Stored]] = {}
        self._changes: list[Change] = []
        self._history = history
        self._forgotten = FIRST_VERSION
        """The version of the newest change that is no longer stored."""
        self._snapshots: OrderedDict[int, tuple[int, list[Stored]]] = OrderedDict()
        self._numbers = itertools.count(1)

    @property
    def version(self) -> int:
        """The newest version of the cluster."""
        return self._versions.current

    def get(self, namespace: str, name: str) -> Stored | None:
        """Return the object of this name; None if the object does not exist."""
        return self._objects.get(namespace, {}).get(name)

    def select(self, namespace: str, match: Match | None = None) -> list[Stored]:
        """Return all matching objects of the namespace, in the order of the store's keys. An empty ``namespace`` means
        all namespaces."""
        spaces = [namespace] if namespace else sorted(self._objects)
        tables = [self._objects.get(space, {}) for space in spaces]
        objects = [table[name] for table in tables for name in sorted(table)]
        return objects if match is None else [stored for stored in objects if match(stored)]

    def count(self, namespace: str) -> int:
        """Return the number of objects in the namespace."""
        return len(self._objects.get(namespace, {}))

    def put(self, document: Json) -> Stored:
        """Create or replace the object, which gets the next version."""
        stored = Stored(self.kind, document, self._versions.next())
        space = self._objects.setdefault(stored.namespace, {})
        before = space.get(stored.name)
        space[stored.name] = stored
        self._record(Change(stored.version, "MODIFIED" if before else "ADDED", stored, before))
        return stored

    def remove(self, stored: Stored) -> Stored:
        """Remove the object; return its last state, with the resource version of its deletion."""
        last = Stored(self.kind, stored.document, self._versions.next())
        del self._objects[stored.namespace][stored.name]
        self._record(Change(last.version, "DELETED", last, stored))
        return last

    def since(self, version: int) -> Sequence[Change] | None:
        """Return every change after ``version``; None if some of these changes are no longer stored."""
        if version < self._forgotten:
            return None
        return self._changes[bisect_right(self._changes, version, key=attrgetter("version")) :]

    def forget(self) -> None:
        """Forget all changes up to now, so that a watch from an older version gets 410."""
        self._forgotten = self._versions.current
        self._changes.clear()
        self._snapshots.clear()

    def keep(self, objects: list[Stored]) -> int:
        """Store a list for its next pages. Return the number with which ``kept`` finds the list."""
        number = next(self._numbers)
        self._snapshots[number] = (self._versions.current, objects)
        while len(self._snapshots) > SNAPSHOTS:
            self._snapshots.popitem(last=False)
        return number

    def kept(self, number: int) -> tuple[int, list[Stored]] | None:
        """Return the version and the objects of a list that ``keep`` stored; None if the list is no longer stored."""
        return self._snapshots.get(number)

    def _record(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) > 2 * self._history:
            self._forgotten = self._changes[-self._history - 1].version
            del self._changes[: -self._history]
        for listener in self.listeners:
            listener()
