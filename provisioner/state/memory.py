"""``memory.json``: what the loop must not forget. Only the loop and people's commands import this."""

from __future__ import annotations

import os

from provisioner.model import Memory
from provisioner.state.codec import MemoryCodec, RecordError
from provisioner.state.database import generation_of
from provisioner.state.errors import StateMissing
from provisioner.state.locks import DataLock
from provisioner.state.state_file import StateFile, was_written

LIFE = 10**12
"""Generations of memory.json between two losses of it: more than any loop writes. So the number of losses is known for
as long as the file or its lock file is there."""


class MemoryStore(StateFile):
    """``memory.json``: what the loop must not forget. Written by the loop alone; scripts never read it."""

    kind = "memory"
    tables = ("memory", "requests", "returns", "pressures")

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._generation: int | None = None
        self._codec = MemoryCodec()

    def read(self) -> Memory:
        """All of memory. Raises StateMissing, StateUnreadable or StateTooNew."""
        try:
            return self._codec.decode(self.load())
        except RecordError as error:
            raise self._unreadable(str(error)) from error

    def write(self, memory: Memory) -> None:
        """Replace memory, durably. A record that is the same object as at the last write is not encoded again.

        Raises StateUnreadable or StateTooNew when such a file stands there and was not set aside, and StateUnwritable.
        """
        with DataLock(self.lock_path) as lock:
            if self._generation is None:
                self._generation = generation_of(self.load()) if self.exists() else 0
            tables = self._new_tables(memory.provisioner) | self._codec.encode(memory)
            generation = max(self._generation, lock.generation) + 1
            self._save(tables, lock, generation)
            self._generation = generation

    def _missing(self) -> StateMissing:
        """The error for memory.json, which before the first loop is not there yet and not lost."""
        if self.existed() or was_written(os.path.join(os.path.dirname(self.path), "status.json")):
            return super()._missing()
        return StateMissing(
            f"{self.path}: is not there yet: no loop has run on this state directory. `provisioner run` makes it."
        )

    def begin_life(self) -> int:
        """A memory is made again: its generations go on in a range of their own. Returns how often that has been.

        Raises StateUnreadable or StateTooNew when such a file stands there.
        """
        written = max(self.known_generation(), generation_of(self.load()) if self.exists() else 0)
        life = written // LIFE + 1
        self._generation = life * LIFE
        return life
