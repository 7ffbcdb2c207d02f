"""The loop's memory in the Kubernetes API. A write-ahead log makes each write of memory as atomic as the write of one
file.

* The *log* is the StatePart ``P.log``, where P is the provisioner's object name. The log has every document that is not
  in its own object yet. ``write`` is durable as soon as the log is written. ``kept`` in the log names the documents
  that are in their objects, each with the object's generation.
* The record of a request or return belongs in the status of its object. All other documents belong in the StatePart
  ``P.memory``. A document is written to its object only after the log has the document. The document leaves the log
  only after its object has the document.

So after a crash between any two calls, memory comes from exactly one ``write``, never a mixture. An object with another
generation than in ``kept`` was changed or lost from outside. The condition of memory is then OLDER.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from provisioner.model import BrakeReason, Memory
from provisioner.names import RETURN_ID_PREFIX
from provisioner.state.errors import Condition, StateMissing, StateStale, StateUnreadable, condition
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.memory_reader import ATTEMPTS, LOG, REST, Kept, Loaded, MemoryReader, id_of
from provisioner.state.kube.objects import PARTS, REQUESTS, RETURNS, STATES, object_name, pack
from provisioner.state.kube.parts import Conflict, Item, Marks, patch
from provisioner.state.memory_file import LIFE, MEMORY_TABLES, MemoryCodec
from provisioner.state.record_format import Document, RecordError

MOST_LOGGED = 60_000
"""Number of characters of the log above which documents are written to their objects even if no answer changes."""

MOST_RECORD = 400_000
"""Maximum number of characters of a record in its object, enough for four thousand machines. A longer record continues
in pieces (see ``parts.py``)."""


def resource_of(id_: str) -> str:
    """Return the resource of a request or return request."""
    return RETURNS if id_.startswith(RETURN_ID_PREFIX) else REQUESTS


def key_of(id_: str) -> str:
    """Return the key of a request's or return's record among the documents of memory."""
    return f"{'returns' if id_.startswith(RETURN_ID_PREFIX) else 'requests'}/{id_}"


class KubeMemory(MemoryReader):
    """The records that the loop must not lose. Only the loop writes them."""

    def __init__(self, api: ApiServer, provisioner: str, note: str = "") -> None:
        super().__init__(api, provisioner, note)
        self._codec = MemoryCodec()
        self._is_adopted, self._loaded = False, Loaded()
        """``_is_adopted``: True once this process has read memory before its first write. ``_loaded``: memory as the
        server has it."""
        self._logged: dict[str, Document | None] = {}
        """The documents that only the log has, by key; None for a document that was removed from memory."""
        self.log_size = 0
        """Number of characters of the log."""
        self.on_restore: Callable[[], None] = lambda: None
        self.prepare: Callable[[], None] = lambda: None
        """Function that makes the ProvisionerState, called before the first write."""
        self.latest: Memory | None = None
        """Memory as last written or read by this process."""
        self.restored = 0
        """Number of restores of etcd that this process has noticed."""

    # --- reading ------------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return True if a loop has written memory."""
        return self._parts.get(LOG) is not None

    def existed(self) -> bool:
        """Return True if memory exists, or if this disk or the server records a generation of memory."""
        return self.exists() or self._find_noted() > 0

    def signature(self) -> object:
        """Return a value that changes if etcd is restored. Without a restore, only this process changes memory."""
        return self._loaded.version, self.restored

    def condition(self) -> Condition:
        """Return the condition of memory, concluded from log, objects, and the highest generation noted."""
        noted = self._find_noted()  # before the log, because the loop may write both meanwhile
        try:
            loaded = self._load()
        except StateMissing:
            return condition(None, noted)
        except StateUnreadable:
            return Condition.UNREADABLE
        return Condition.OLDER if loaded.is_torn else condition(loaded.generation, noted)

    def read(self) -> Memory:
        """Return all of memory. Raises StateMissing or StateUnreadable."""
        tables: dict[str, dict[str, Document]] = {name: {} for name in MEMORY_TABLES}
        for key, document in self._load().documents.items():
            table, _, name = key.partition("/")
            tables.setdefault(table, {})[name] = document
        try:
            memory = self._codec.decode(tables)
        except RecordError as error:
            raise StateUnreadable(f"{self._api.name}: the loop's memory: {error}") from error
        if not self._is_adopted:
            self.latest = memory
        return memory

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def marks(self) -> Marks:
        """Return the epoch and the generation of the last written memory. Each write of the loop contains both numbers.
        The server refuses a write with lower numbers."""
        self.adopt()
        return {"epoch": self.latest.epoch if self.latest else 0, "generation": self._loaded.generation}

    def write(self, memory: Memory) -> None:
        """Replace memory durably, by one write of the log. Raises StateStale if a newer loop has written."""
        tables = self._codec.encode(memory)
        documents = {f"{table}/{key}": one for table, rows in tables.items() for key, one in rows.items()}
        self.adopt()
        self._write_log(memory, documents)
        self.latest = memory

    def fence(self, epoch: int) -> None:
        """Make the server refuse writes below ``epoch``. Raises StateStale if a newer loop has written."""
        patch(self._api, PARTS, self._parts.name(LOG), {"spec": {"epoch": epoch}})

    def set_aside(self) -> str:
        """Move an unreadable log into another StatePart, so that the loop can make memory again. Return the name of the
        other StatePart's object."""
        return self._parts.set_aside(LOG)

    def begin_life(self) -> int:
        """Begin a new range of generations because memory is made again. Return how often memory has been made again,
        including this time."""
        self.adopt()
        life = max(self._find_noted(), self._loaded.generation) // LIFE + 1
        self._loaded.generation = life * LIFE
        self._loaded.kept.clear()
        return life

    def outdate(self) -> None:
        """Mark memory as an old copy. The next loop then rebuilds memory and latches the brake. Raises StateError."""
        self.adopt()
        self._loaded.generation += 1
        self.prepare()
        patch(self._api, STATES, object_name(self._provisioner), {"status": self.marks}, "status")

    def adopt(self) -> None:
        """Read memory from the server if this process has not done so yet. Lost memory leaves its last generation."""
        if not self._is_adopted:
            self._loaded.generation = self._find_noted()
            with suppress(StateMissing):
                self._loaded = self._load()
            self._is_adopted = True

    def detach(self, ids: Iterable[str]) -> None:
        """Put the records of these requests and returns into the log. Called before their objects are removed."""
        keys = {key_of(id_) for id_ in ids} & self._loaded.kept.keys()
        self._loaded.kept = {key: place for key, place in self._loaded.kept.items() if key not in keys}
        if keys and self.latest is not None:
            self._write_log(self.latest, self._loaded.documents)

    def _write_log(self, memory: Memory, documents: dict[str, Document]) -> None:
        loaded = self._loaded
        for _ in range(ATTEMPTS):
            kept, changes = self._compare(documents)
            loaded.generation = max(loaded.generation, self._noted) + 1  # each try has a number of its own
            older = memory.brake is not None and memory.brake.reason is BrakeReason.INTENT_OLDER
            log = {"kept": kept, "changes": changes, "intent": memory.generation, "older": older}
            marks = {"epoch": memory.epoch, "generation": loaded.generation}
            try:
                if not loaded.version:
                    self.prepare()
                written = self._parts.write(LOG, log, marks, loaded.version)
            except Conflict:
                # Perhaps a write of ours took effect without a response. Put all documents into the log to be safe.
                found = self._parts.get(LOG)
                spec = found["spec"] if found else {}
                if spec.get("epoch", 0) > memory.epoch:
                    raise
                if spec.get("generation", 0) < self._noted:
                    self.on_restore()
                loaded.kept.clear()
                loaded.version = found["metadata"]["resourceVersion"] if found else ""
                loaded.generation = max(loaded.generation, spec.get("generation", 0))
                continue
            loaded.version = written["metadata"]["resourceVersion"]
            loaded.documents, self._logged, self.log_size = documents, changes, len(written["spec"]["data"])
            self._note_generation(loaded.generation)
            return
        raise StateStale(f"{self._api.name}: other writes of the log came before ours {ATTEMPTS} times")

    def _compare(self, documents: dict[str, Document]) -> tuple[dict[str, int], dict[str, Document | None]]:
        """Return ``kept`` and ``changes`` of the next log. ``kept``: a record's key → the generation of the object
        whose document is still valid; the empty key stands for the object ``P.memory``. ``changes``: each document that
        no object has in its present form, and None for each removed document."""
        places, kept, changes = self._loaded.kept, dict[str, int](), dict[str, Document | None]()
        for key, document in documents.items():
            place = places.get(key)
            if place is None or (place.document is not document and place.document != document):
                changes[key] = document
            else:
                places[key] = Kept(document, place.generation)  # the next comparison finds the same object
        for key, (_, generation) in places.items():
            if not id_of(key):
                kept[""] = generation
                changes |= {} if key in documents else {key: None}
            elif key in documents and key not in changes:
                kept[key] = generation
        return kept, changes

    def patch(self, id_: str, fields: Mapping[str, object]) -> Item | None:
        """Write fields into the status of a request's object. If only the log has the request's record, write the
        record, too. Return the object; None if the object is gone. Raises StateStale if a newer loop has written."""
        key, marks = key_of(id_), self.marks
        generation = marks["generation"]
        status: dict[str, object] = {**fields, **marks}
        if (document := self._logged.get(key)) is not None:
            self._loaded.kept.pop(key, None)
            packed = pack({"generation": generation, "document": document})
            status["record"] = self._parts.split(f"{id_}.record", packed, MOST_RECORD, marks)
        written = patch(self._api, resource_of(id_), id_, {"status": status}, "status")
        if written is not None and document is not None:
            self._loaded.kept[key] = Kept(document, generation)
            del self._logged[key]
            self._parts.remove_pieces(f"{id_}.record", generation)
        return written

    def save(self) -> list[str]:
        """If the log is long, write all documents without an own object to ``P.memory``. Return the ids of requests and
        returns whose records only the log has. The caller must then write these records. If the log is short, do
        nothing and return no ids."""
        if self.log_size < MOST_LOGGED:
            return []
        self.log_size = 0
        own = {key: document for key, document in self._loaded.documents.items() if not id_of(key)}
        self._loaded.kept = {key: place for key, place in self._loaded.kept.items() if id_of(key)}
        self._parts.write(REST, own, self.marks)
        self._loaded.kept |= {key: Kept(document, self._loaded.generation) for key, document in own.items()}
        return [id_ for key, document in self._logged.items() if (id_ := id_of(key)) and document is not None]

    def remove_pieces(self, id_: str) -> None:
        """Remove the pieces that continue the record of a request whose object was removed."""
        self._parts.remove_pieces(f"{id_}.record")
