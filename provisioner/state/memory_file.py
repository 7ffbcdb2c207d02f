"""``memory.json``: the records that the loop must not lose. Only the loop and operators' commands import this
module."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from provisioner.model import Memory, RequestRecord, ReturnRecord, Slot, UsageTotals
from provisioner.names import SLOT_DIGITS
from provisioner.state.database import generation_of
from provisioner.state.errors import StateMissing
from provisioner.state.locks import DataLock
from provisioner.state.record_format import Decode, Document, RecordError, Tables, decode, encode
from provisioner.state.state_file import StateFile, was_written

LIFE = 10**12
"""Size of a range of generations of memory.json. A new range begins each time memory is made again. A range is larger
than the number of writes of any loop.

So the generation shows the number of losses, as long as the file or its lock file exists.
"""

MEMORY_TABLES = ("memory", "requests", "returns", "windows", "usage")
"""Fields of Memory that have a table of their own.

The first table has one document with all other fields, and with the fields of ``usage`` except its days.
"""


def _encode_new(before: Mapping[Any, tuple[Any, Any]], now: Mapping[Any, Any], rule: Decode = encode) -> dict[Any, Any]:
    """Return each value of ``now`` with its document, by key. A value that is the same object as in ``before`` keeps
    its document; ``rule`` encodes all other values."""
    return {
        key: known if (known := before.get(key)) and known[0] is value else (value, rule(value))
        for key, value in now.items()
    }


class MemoryCodec:
    """Encoder and decoder between memory and tables.

    A codec keeps its last encoding, so that it encodes only changed records again.
    """

    def __init__(self) -> None:
        self._requests: dict[str, tuple[RequestRecord, Document]] = {}
        self._slots: dict[str, dict[int, tuple[Slot, list[Any]]]] = {}
        self._days: dict[str, tuple[Any, Document]] = {}

    def encode(self, memory: Memory) -> dict[str, Document]:
        """Return the tables of a memory. Unchanged records keep the documents of the last call."""
        document = encode(replace(memory, requests={}, usage=replace(memory.usage, days={})))
        tables = {name: document.pop(name, {}) for name in MEMORY_TABLES if name != "usage"}
        self._slots = {key: self._slots.get(key, {}) for key in memory.requests}
        self._requests = _encode_new(self._requests, memory.requests, self._request)
        self._days = _encode_new(self._days, memory.usage.days)
        tables["requests"] = {key: document for key, (_, document) in self._requests.items()}
        tables["usage"] = {day: document for day, (_, document) in self._days.items()}
        tables["memory"] = {"memory": document}
        return tables

    def _request(self, record: RequestRecord) -> Document:
        self._slots[record.id] = rows = _encode_new(self._slots.get(record.id, {}), record.slots)
        document: Document = encode(replace(record, slots={}))
        return document | {"slots": {str(number): row for number, (_, row) in rows.items()}} if rows else document

    def decode(self, tables: Tables) -> Memory:
        """Return the memory that the tables contain. Raises RecordError, which names the document."""
        whole, *others, _ = MEMORY_TABLES
        document = tables.get(whole, {}).get(whole, {}) | {name: tables.get(name, {}) for name in others}
        memory: Memory = decode(Memory, document)
        days = decode(UsageTotals, {"days": tables.get("usage", {})}).days
        memory = replace(memory, usage=replace(memory.usage, days=days))
        records: Mapping[str, RequestRecord | ReturnRecord] = {**memory.requests, **memory.returns}
        for key, record in records.items():
            if record.id != key:
                raise RecordError(f"{key[:60]}: has the id {record.id[:60]!r}")
        for request in memory.requests.values():
            for number, slot in request.slots.items():
                if not slot.name.endswith(f"-{request.id}-{number:0{SLOT_DIGITS}}"):
                    raise RecordError(f"{request.id[:60]}: slots: {number}: has the name {slot.name[:60]!r}")
        return memory


class MemoryStore(StateFile):
    """``memory.json``: the records that the loop must not lose. Only the loop writes the file, and scripts never read
    it."""

    kind = "memory"
    tables = MEMORY_TABLES

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._generation: int | None = None
        self._codec = MemoryCodec()

    def read(self) -> Memory:
        """Return all of memory. Raises StateMissing, StateUnreadable or StateTooNew."""
        try:
            return self._codec.decode(self.load())
        except RecordError as error:
            raise self._unreadable(str(error)) from error

    def write(self, memory: Memory) -> None:
        """Replace memory durably. A record is not encoded again if it is the same object as in the last write.

        Raises StateUnwritable. Raises StateUnreadable or StateTooNew if an unusable file was not set aside.
        """
        with DataLock(self.lock_path) as lock:
            if self._generation is None:
                self._generation = generation_of(self.load()) if self.exists() else 0
            tables = self._new_tables(memory.provisioner) | self._codec.encode(memory)
            generation = max(self._generation, lock.generation) + 1
            self._save(tables, lock, generation)
            self._generation = generation

    def _missing(self) -> StateMissing:
        """Return the error for a missing memory.json. Before the first loop, the message says that the file was not
        made yet."""
        if self.existed() or was_written(os.path.join(os.path.dirname(self.path), "status.json")):
            return super()._missing()
        return StateMissing(
            f"{self.path}: does not exist yet, because no loop has run on this directory. `provisioner run` makes it."
        )

    def outdate(self) -> None:
        """Mark memory as an old copy. The next loop then rebuilds memory and latches the brake. Raises StateError."""
        with DataLock(self.lock_path) as lock:
            lock.generation += 1

    def begin_life(self) -> int:
        """Begin a new range of generations because memory is made again. Return how often memory has been made again,
        including this time.

        Raises StateUnreadable or StateTooNew if there is an unusable file.
        """
        written = max(self.known_generation(), generation_of(self.load()) if self.exists() else 0)
        life = written // LIFE + 1
        self._generation = life * LIFE
        return life
