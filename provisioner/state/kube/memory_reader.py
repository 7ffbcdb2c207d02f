"""Reading of memory in the Kubernetes API (see ``memory.py``). Memory is in its log and in the objects of its
documents."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from provisioner.state import atomic
from provisioner.state.errors import StateError, StateMissing, StateUnreadable
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.objects import REQUESTS, RETURNS, STATES
from provisioner.state.kube.parts import Item, Parts, list_items
from provisioner.state.record_format import Document

LOG, REST = "log", "memory"
"""Names of the two StateParts of memory: its log, and all documents that have no object of their own."""

ATTEMPTS = 5
"""Number of tries. A read is tried again because the loop may write meanwhile. A write is tried again because an
earlier write that got no response may still take effect."""


class Kept(NamedTuple):
    """A document as its own object contains it, and the generation of that object."""

    document: Document
    generation: int


@dataclass
class Loaded:
    """The memory as the server has it."""

    version: str = ""
    """Version of the log; empty if there is none."""
    generation: int = 0
    documents: dict[str, Document] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    is_torn: bool = False
    """True if an object of memory was changed or lost from outside, so that its generation differs from the generation
    in the log."""


def id_of(key: str) -> str:
    """Return the id of a record's key; empty for any other key."""
    table, _, id_ = key.partition("/")
    return id_ if table in ("requests", "returns") else ""


class MemoryReader:
    """The reader of log and objects. It also reads the generations that show whether memory is lost or old."""

    def __init__(self, api: ApiServer, provisioner: str, note: str = "") -> None:
        """Set server and provisioner. ``note``: path of the file with the highest generation that a process on this
        disk has seen; empty if there is no such file."""
        self._api, self._provisioner, self._note = api, provisioner, note
        self._parts = Parts(api, provisioner)
        self._noted = 0
        """Highest generation that this process, or an earlier process on this disk, has seen. A lower generation on the
        server shows that etcd was restored."""
        with suppress(StateError, ValueError):
            self._noted = int(atomic.read_whole(note, "")) if note else 0

    def _find_noted(self) -> int:
        """Return the highest generation that this disk or the status of any object records. Raises StateError."""
        written = [*self._list_objects().values(), *list_items(self._api, STATES, self._provisioner).values()]
        return max([self._noted, *(int(one.get("status", {}).get("generation", 0)) for one in written)])

    def _note_generation(self, generation: int) -> None:
        self._noted = generation
        if self._note:
            with suppress(StateError):  # the file is only a hint
                atomic.replace(self._note, str(generation).encode(), durable=False)

    def _load(self) -> Loaded:
        """Read the log and the objects. If they do not agree, read both again, because a loop may be writing.

        After the last try, return the memory as read last. Raises StateMissing or StateUnreadable.
        """
        loaded = Loaded()
        for tries_left in range(ATTEMPTS - 1, -1, -1):
            parts = self._parts.list()
            if (log := parts.get(self._parts.name(LOG))) is None:
                place = f"kubernetes:{self._api.namespace}"
                raise StateMissing(f"{place}: no loop has run on this state. `provisioner run` makes its memory.")
            try:
                loaded = self._read_places(log, parts)
            except StateUnreadable:
                if not tries_left:
                    raise
            else:
                if not loaded.is_torn:
                    break
        return loaded

    def _read_places(self, log: Item, parts: Mapping[str, Item]) -> Loaded:
        head = self._parts.join(self._parts.name(LOG), log["spec"]["data"], parts)
        loaded = Loaded(log["metadata"]["resourceVersion"], log["spec"]["generation"])
        kept = dict(head["kept"])
        if (generation := kept.pop("", None)) is not None:
            rest = parts.get(self._parts.name(REST))
            # After a crash, the rest may have the log's own generation, and then the same documents as the log.
            if rest is None or rest["spec"]["generation"] not in (generation, loaded.generation):
                loaded.is_torn = True
            else:
                documents = self._parts.join(self._parts.name(REST), rest["spec"]["data"], parts)
                loaded.kept |= {key: Kept(one, rest["spec"]["generation"]) for key, one in documents.items()}
        objects = self._list_objects() if kept else {}
        for key, generation in kept.items():
            record = self._read_record(objects.get(id_of(key)), parts)
            if not isinstance(record, dict) or record.get("generation") != generation:
                loaded.is_torn = True
            else:
                loaded.kept[key] = Kept(record["document"], generation)
        changed = {key: place.document for key, place in loaded.kept.items()} | head["changes"]
        loaded.documents = {key: document for key, document in changed.items() if document is not None}
        return loaded

    def _list_objects(self) -> dict[str, Item]:
        returns = list_items(self._api, RETURNS, self._provisioner)
        return {**list_items(self._api, REQUESTS, self._provisioner), **returns}

    def _read_record(self, found: Item | None, parts: Mapping[str, Item]) -> Any:
        if found is None or not (packed := found.get("status", {}).get("record")):
            return None
        with suppress(StateUnreadable):
            return self._parts.join(f"{found['metadata']['name']}.record", packed, parts)
        return None

    def intent_notes(self) -> tuple[int, bool]:
        """Return two notes in the log of memory: the generation of intent at the last write of memory, and True if the
        brake was latched then because intent was an old copy."""
        log = self._parts.read(LOG) or {}
        return log.get("intent", 0), log.get("older", False)
