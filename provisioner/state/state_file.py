"""The base of intent.json, memory.json, status.json and holds.json. Each of these files has a lock file and a
generation.

The scripts import this module at each call, so it imports only modules that load fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from provisioner.state.atomic import create_whole, read_whole, stat_file
from provisioner.state.database import RECOVER, SCHEMA, StateStorage, Tables, generation_of, get_meta, unreadable
from provisioner.state.errors import Condition, StateMissing, StateUnreadable, condition, missing, writing
from provisioner.state.locks import DataLock, read_record, whole_number


def _noted_generation(path: str) -> int:
    return whole_number(read_record(f"{path}.lock"), "generation")


def was_written(path: str) -> bool:
    """Return True if the state file exists, or existed before, as its lock file shows."""
    return os.path.lexists(path) or _noted_generation(path) > 0


class StateFile:
    """A database's file, its lock file and its generation."""

    kind = ""
    advice = RECOVER
    tables: tuple[str, ...] = ()
    """Names of the tables besides ``meta``."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, f"{self.kind}.json")
        self.lock_path = f"{self.path}.lock"

    def exists(self) -> bool:
        """Return True if the file exists, even if it is unreadable."""
        return os.path.lexists(self.path)

    def existed(self) -> bool:
        """Return True if the file exists, or existed before, as its lock file shows."""
        return was_written(self.path)

    def signature(self) -> tuple[int, int, int] | None:
        """Return a value that changes with the file (inode, mtime in ns, size); None if the file is missing.

        The method makes one stat call.
        """
        facts = stat_file(self.path)
        return None if facts is None else (facts.st_ino, facts.st_mtime_ns, facts.st_size)

    def condition(self) -> Condition:
        """Return the condition that follows from the file and its lock file. Raises StateTooNew or StateDenied."""
        # Read the lock file first. After the data, it might record a write that the data lack.
        noted = self.known_generation() if os.path.exists(self.lock_path) else None
        try:
            return condition(generation_of(self.load()), noted)
        except StateMissing:
            return condition(None, noted)
        except StateUnreadable:
            return Condition.UNREADABLE

    def known_generation(self) -> int:
        """Return the last generation that the lock file records; 0 if it is unknown."""
        return _noted_generation(self.path)

    def set_aside(self) -> str:
        """Rename an unusable file, so that a new file can be made. Return the renamed file's path."""
        return self._put_aside(os.rename)

    def keep_aside(self) -> str:
        """Copy a file that is about to be replaced; return the copy's path."""
        return self._put_aside(lambda path, aside_path: create_whole(aside_path, read_whole(path, self.advice)))

    def _put_aside(self, move: Callable[[str, str], object]) -> str:
        signature = self.signature()
        if signature is None:
            raise self._missing()
        aside_path = f"{self.path}.aside-{signature[1]}"
        with writing(self.path):
            try:
                move(self.path, aside_path)  # an existing copy is from an interrupted try
            except FileNotFoundError as error:
                raise self._missing() from error
        return aside_path

    def put_back(self, tables: Tables, lock: DataLock) -> None:
        """Replace all tables, with a generation above all earlier generations. Raises StateUnwritable."""
        self._save(tables, lock, max(lock.generation, generation_of(tables)) + 1)

    def load(self) -> Tables:
        """Return all tables. Raises StateMissing, StateUnreadable or StateTooNew."""
        try:
            return StateStorage(self.path, self.kind, self.advice).read()
        except StateMissing as error:
            raise self._missing() from error

    def _missing(self) -> StateMissing:
        """Return the error for a file that does not exist."""
        return missing(self.path, self.advice)

    def _peek(self, name: str) -> dict[str, Any]:
        """Return the documents of the table ``name``, by id. The file's last table is large, so it is read only if the
        table is not before it."""
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
        """Write the tables durably, then record their generation in the lock file.

        In the reverse order, a crash between the two writes would make the file look old.
        """

        def check_ours() -> None:
            lock.check()
            check()

        self._replace(tables, generation, check_ours)
        lock.generation = generation

    def _replace(self, tables: Tables, generation: int, check: Callable[[], None] = lambda: None) -> None:
        get_meta(tables).update(schema=SCHEMA, generation=generation)
        StateStorage(self.path, self.kind, self.advice).write(tables, check)
