"""Objects of one kind in versions: what is there now, what changed since, and snapshots for lists read in pages.

An object's document is never changed once stored: an update stores another one, so that snapshots and the bytes
made from a version stay true. No I/O.
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
"""resourceVersions begin here, so that there are versions too old to watch from even in a new cluster."""

SNAPSHOTS = 64
"""Lists read in pages that may be under way at once; older ones end with 410."""


@dataclass(frozen=True)
class Kind:
    """A kind of object as discovery tells it."""

    kind: str
    resource: str
    singular: str
    short: tuple[str, ...]
    namespaced: bool
    verbs: tuple[str, ...]
    categories: tuple[str, ...] = ()


class Stored:
    """One version of one object."""

    __slots__ = ("_bytes", "document", "kind", "labels", "name", "namespace", "uid", "version")

    def __init__(self, kind: Kind, document: Json, version: int) -> None:
        metadata = document["metadata"]
        self.kind = kind
        stored = {"resourceVersion": str(version)} if version else {}
        self.document: Json = {**document, "metadata": {**metadata, **stored}}
        """The object without kind and apiVersion, as lists hold items. Version 0: a dry run."""
        self.version = version
        self.namespace: str = metadata.get("namespace", "")
        self.name: str = metadata["name"]
        self.uid: str = metadata["uid"]
        self.labels: dict[str, str] = metadata.get("labels") or {}
        self._bytes: bytes | None = None

    @property
    def item(self) -> bytes:
        """JSON as an item of a list; made once."""
        if self._bytes is None:
            self._bytes = json.dumps(self.document, separators=(",", ":")).encode()
        return self._bytes

    @property
    def body(self) -> bytes:
        """JSON with kind and apiVersion, as it stands alone and in watch events."""
        return b'{"kind":"%s","apiVersion":"v1",' % self.kind.kind.encode() + self.item[1:]


ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one object at one version."""

    version: int
    type: ChangeType
    stored: Stored
    before: Stored | None


class Versions:
    """The cluster's one counter of resourceVersions."""

    def __init__(self) -> None:
        self.current = FIRST_VERSION

    def next(self) -> int:
        """A version never used before."""
        self.current += 1
        return self.current


Match = Callable[[Stored], bool]


class Store:
    """All objects of one kind, and the changes of late."""

    def __init__(self, versions: Versions, kind: Kind, history: int) -> None:
        self.kind = kind
        self.listeners: set[Callable[[], None]] = set()
        """Functions to call after each change."""
        self._versions = versions
        self._objects: dict[str, dict[str, Stored]] = {}
        self._changes: list[Change] = []
        self._history = history
        self._forgotten = FIRST_VERSION
        """The version of the last change that is forgotten."""
        self._snapshots: OrderedDict[int, tuple[int, list[Stored]]] = OrderedDict()
        self._numbers = itertools.count(1)

    @property
    def version(self) -> int:
        """The cluster's version now."""
        return self._versions.current

    def get(self, namespace: str, name: str) -> Stored | None:
        """The object, if there is one of that name."""
        return self._objects.get(namespace, {}).get(name)

    def select(self, namespace: str, match: Match | None = None) -> list[Stored]:
        """All that match, of one namespace or (empty name) of all, in the order of the store's keys."""
        spaces = [namespace] if namespace else sorted(self._objects)
        tables = [self._objects.get(space, {}) for space in spaces]
        objects = [table[name] for table in tables for name in sorted(table)]
        return objects if match is None else [stored for stored in objects if match(stored)]

    def count(self, namespace: str) -> int:
        """Objects in a namespace."""
        return len(self._objects.get(namespace, {}))

    def put(self, document: Json) -> Stored:
        """Create or replace; the object gets the next version."""
        stored = Stored(self.kind, document, self._versions.next())
        space = self._objects.setdefault(stored.namespace, {})
        before = space.get(stored.name)
        space[stored.name] = stored
        self._record(Change(stored.version, "MODIFIED" if before else "ADDED", stored, before))
        return stored

    def remove(self, stored: Stored) -> Stored:
        """Take it away; what is returned is its last state under the version of its end."""
        last = Stored(self.kind, stored.document, self._versions.next())
        del self._objects[stored.namespace][stored.name]
        self._record(Change(last.version, "DELETED", last, stored))
        return last

    def since(self, version: int) -> Sequence[Change] | None:
        """Every change after that version; None when some are no longer remembered."""
        if version < self._forgotten:
            return None
        return self._changes[bisect_right(self._changes, version, key=attrgetter("version")) :]

    def forget(self) -> None:
        """Remember no change up to now: whoever watches from an older version gets 410."""
        self._forgotten = self._versions.current
        self._changes.clear()
        self._snapshots.clear()

    def keep(self, objects: list[Stored]) -> int:
        """Keep a list for its next pages; returns the number it is found under."""
        number = next(self._numbers)
        self._snapshots[number] = (self._versions.current, objects)
        while len(self._snapshots) > SNAPSHOTS:
            self._snapshots.popitem(last=False)
        return number

    def kept(self, number: int) -> tuple[int, list[Stored]] | None:
        """The version of a kept list, and the list; None when it is no longer kept."""
        return self._snapshots.get(number)

    def _record(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) > 2 * self._history:
            self._forgotten = self._changes[-self._history - 1].version
            del self._changes[: -self._history]
        for listener in self.listeners:
            listener()
