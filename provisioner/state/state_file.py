"""What intent.json, memory.json and status.json have in common: a file, its lock file and its generation.

The scripts import this at each call: it imports nothing that costs time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from provisioner.state.atomic import create_whole, facts_of, read_whole
from provisioner.state.database import (
    RECOVER,
    SCHEMA,
    StateStorage,
    Tables,
    about,
    generation_of,
    unreadable,
)
from provisioner.state.errors import Condition, StateMissing, StateUnreadable, condition, missing, writing
from provisioner.state.locks import DataLock, read_record, whole_number


def _noted_generation(path: str) -> int:
    return whole_number(read_record(f"{path}.lock"), "generation")


def was_written(path: str) -> bool:
    """True when the state file is there or, by its lock file, was there once."""
    return os.path.lexists(path) or _noted_generation(path) > 0


class StateFile:
    """What the databases have in common: a file, its lock file and its generation."""

    kind = ""
    advice = RECOVER
    tables: tuple[str, ...] = ()
    """The tables beside ``meta``."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, f"{self.kind}.json")
        self.lock_path = f"{self.path}.lock"

    def exists(self) -> bool:
        """True when the file is there, readable or not."""
        return os.path.lexists(self.path)

    def existed(self) -> bool:
        """True when the file is there or, by its lock file, was there once."""
        return was_written(self.path)

    def signature(self) -> tuple[int, int, int] | None:
        """Changes whenever the file does (inode, mtime in ns, size); None when it is missing. Costs one stat."""
        facts = facts_of(self.path)
        return None if facts is None else (facts.st_ino, facts.st_mtime_ns, facts.st_size)

    def condition(self) -> Condition:
        """What the file and its lock file say together. Raises StateTooNew or StateDenied."""
        # The lock file first: read after the data, it could know of a write that the data just read cannot have.
        noted = self.known_generation() if os.path.exists(self.lock_path) else None
        try:
            return condition(generation_of(self.load()), noted)
        except StateMissing:
            return condition(None, noted)
        except StateUnreadable:
            return Condition.UNREADABLE

    def known_generation(self) -> int:
        """The last generation that was written, by the lock file; 0 when unknown."""
        return _noted_generation(self.path)

    def set_aside(self) -> str:
        """Rename a file that cannot be used, so that a new one can be made; returns its new name."""
        return self._aside(os.rename)

    def keep_aside(self) -> str:
        """Copy a file that is about to be replaced; returns the copy's name."""
        return self._aside(lambda path, aside: create_whole(aside, read_whole(path, self.advice)))

    def _aside(self, move: Callable[[str, str], object]) -> str:
        signature = self.signature()
        if signature is None:
            raise self._missing()
        aside = f"{self.path}.aside-{signature[1]}"
        with writing(self.path):
            try:
                move(self.path, aside)  # a copy that is there is from an earlier try that was interrupted
            except FileNotFoundError as error:
                raise self._missing() from error
        return aside

    def put_back(self, tables: Tables, lock: DataLock) -> None:
        """Replace all tables, as newer than whatever was written before. Raises StateUnwritable."""
        self._save(tables, lock, max(lock.generation, generation_of(tables)) + 1)

    def load(self) -> Tables:
        """All tables. Raises StateMissing, StateUnreadable or StateTooNew."""
        try:
            return StateStorage(self.path, self.kind, self.advice).read()
        except StateMissing as error:
            raise self._missing() from error

    def _missing(self) -> StateMissing:
        """The error for a file that is not there."""
        return missing(self.path, self.advice)

    def _peek(self, name: str) -> dict[str, Any]:
        """The documents of one table by id, read without the last one."""
        storage = StateStorage(self.path, self.kind, self.advice)
        tables = storage.read_before(self.tables[-1])
        documents: dict[str, Any] = (tables if name in tables else storage.read()).get(name, {})
        return documents

    def _unreadable(self, problem: str) -> StateUnreadable:
        return unreadable(self.path, problem, self.advice)

    def _new_tables(self, provisioner: str) -> Tables:
        meta = {"schema": SCHEMA, "kind": self.kind, "generation": 0, "provisioner": provisioner}
        return {"meta": {"state": meta}, **{name: {} for name in self.tables}}

    def _save(self, tables: Tables, lock: DataLock, generation: int, check: Callable[[], None] = lambda: None) -> None:
        """Write the tables durably, then note their generation in the lock file: never the other way round."""

        def still_ours() -> None:
            lock.check()
            check()

        self._replace(tables, generation, still_ours)
        lock.generation = generation

    def _replace(self, tables: Tables, generation: int, check: Callable[[], None] = lambda: None) -> None:
        about(tables).update(schema=SCHEMA, generation=generation)
        StateStorage(self.path, self.kind, self.advice).write(tables, check)
