"""The state directory: intent, memory and status databases and the small files beside them (DESIGN §4).

The scripts import this at each call, so what only the loop needs (model, records, journal) is imported where it is
used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from provisioner.files import atomic
from provisioner.files.atomic import (
    Disturbed,
    LockTimeout,
    StateError,
    StateExists,
    StateMissing,
    StateStale,
    StateTooNew,
    StateUnreadable,
    StateUnwritable,
    discard,
    missing,
    pauses,
    read_whole,
)
from provisioner.hostfactory.answer import Answer, Loss
from provisioner.names import REQUEST_ID_LENGTH, RETURN_ID_PREFIX
from provisioner.state.database import (
    RECOVER,
    SCHEMA,
    Database,
    StateFile,
    StateStorage,
    Tables,
    about,
    entries,
    generation_of,
)
from provisioner.state.group_commit import Wish, waiting
from provisioner.state.hf_signals import Announced, Heartbeat, Inventory, PoolNotes, Seen
from provisioner.state.locks import LOCK_WAIT, DataLock, LoopLock
from provisioner.state.status import StatusStore
from provisioner.state.terminal_answers import Told

if TYPE_CHECKING:
    from provisioner.model import Intent, Memory
    from provisioner.state.codec import MemoryCodec
    from provisioner.state.journal import Journal

__all__ = [
    "LOCK_WAIT", "SCHEMA", "Additions", "Answer", "Heartbeat", "IntentStore", "Inventory", "LockTimeout", "LoopLock",
    "Loss", "MemoryStore", "Seen", "StateDir", "StateError", "StateExists", "StateMissing", "StateStale",
    "StateStorage", "StateTooNew", "StateUnreadable", "StateUnwritable", "StatusStore", "Told", "new_id",
]  # fmt: skip

ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"

WITHDRAWALS = 100
"""How often a write is made ready again because one of those who wait gives up: each may disturb it twice, once his
time is up."""

LIFE = 10**12
"""Generations of memory.json between two losses of it: more than any loop writes. So the number of losses is known for
as long as the file or its lock file is there."""

Documents = Mapping[str, Mapping[str, Any]]


def new_id() -> str:
    """Ten random characters of [a-z0-9], each equally likely: 50 bits, so that no id ever comes twice."""
    letters = ""
    while len(letters) < REQUEST_ID_LENGTH:
        fair = (byte for byte in os.urandom(REQUEST_ID_LENGTH) if byte < 256 - 256 % len(ID_ALPHABET))
        letters += "".join(ID_ALPHABET[byte % len(ID_ALPHABET)] for byte in fair)
    return letters[:REQUEST_ID_LENGTH]


def _unused(taken: Mapping[str, object], make: Callable[[], str]) -> str:
    identifier = make()
    while identifier in taken:
        identifier = make()
    return identifier


class Additions:
    """New requests and return requests, which will be written together."""

    def __init__(self) -> None:
        self.tables: Tables = {"requests": {}, "returns": {}}

    def add_request(self, template: str, count: int, *, created_wall: float, rc_account: str = "") -> str:
        """Record HF's wish for ``count`` machines; returns its new id, which counts once all is written."""
        document: dict[str, Any] = {"template": template, "count": count, "created_wall": created_wall}
        if rc_account:
            document["rc_account"] = rc_account
        return self._insert("requests", new_id, document)

    def add_return(self, names: Iterable[str], *, created_wall: float) -> str:
        """Record that HF gives the named machines back (short names); returns its new id."""
        document = {"names": list(names), "created_wall": created_wall}
        return self._insert("returns", lambda: RETURN_ID_PREFIX + new_id(), document)

    def _insert(self, table: str, make_id: Callable[[], str], document: dict[str, Any]) -> str:
        identifier = _unused(self.tables[table], make_id)
        self.tables[table][identifier] = document
        return identifier


class IntentStore(StateFile):
    """``intent.json``: what HF wants. Written by scripts and by the loop's trim, under its lock."""

    kind = "intent"
    tables = ("requests", "returns")

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._memory_path = os.path.join(directory, "memory.json")

    def read(self) -> Intent:
        """All of intent. Raises StateMissing, StateUnreadable or StateTooNew."""
        from provisioner.state.codec import RecordError, intent_of

        try:
            return intent_of(self._load())
        except RecordError as error:
            raise self._unreadable(str(error)) from error

    def read_newest(self) -> tuple[Intent, int]:
        """All of intent, and the newest generation ever written: more than intent's own when an old copy was put back.

        Caches are given a moment to catch up. Raises as ``read``.
        """
        for pause in [*pauses(), None]:
            known = self.known_generation()  # before the data: see is_older
            intent = self.read()
            if intent.generation >= known or pause is None:
                break
            time.sleep(pause)
        return intent, max(known, intent.generation)

    def note_newest(self, generation: int) -> None:
        """Tell writers of a generation that the lock file has lost: an older file they refuse from now on.

        Raises StateUnwritable or LockTimeout.
        """
        with DataLock(self.lock_path) as lock:
            lock.generation = max(lock.generation, generation)

    def restore(self, wanted: Intent) -> str | None:
        """Put back requests and returns that were lost; returns the name under which the file before was kept.

        A current file keeps what it holds, an older or unreadable one gives way. ``wanted.generation``: the newest
        that is known of beside the lock file. Raises StateMissing, StateTooNew, StateUnwritable or LockTimeout.
        """
        from provisioner.state.codec import intent_documents

        self._check_directory()
        with DataLock(self.lock_path) as lock:
            newest = max(lock.generation, wanted.generation)
            tables = self._current_or_new(newest, wanted.provisioner)
            database = self._open(tables)
            for name, documents in intent_documents(wanted).items():
                table = database.state_table(name)
                known = table.by_id()
                table.put({key: document for key, document in documents.items() if key not in known})
            aside = self.keep_aside() if self.exists() else None
            self._save(database, lock, max(newest, generation_of(tables)) + 1)
            return aside

    def _current_or_new(self, newest: int, provisioner: str) -> Tables:
        try:
            tables = self._load()
        except (StateMissing, StateUnreadable):
            return self._new_tables(provisioner)
        return tables if generation_of(tables) >= newest else self._new_tables(provisioner)

    def check(self, provisioner: str) -> None:
        """Raises what a script that asks for machines would, for the file's sake; writes nothing and takes no lock."""
        newest = self.known_generation()  # before the data: see is_older
        self._check_owner(self._settled(newest, provisioner), provisioner)

    def find(self, identifiers: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """The documents of those ids that intent knows, requests or returns. Needs no model.

        Raises as ``read``, and StateStale when one is missing and the file is an old copy: nobody knows then.
        """
        wanted = list(identifiers)
        found = self._pick(self._load(), wanted)
        if len(found) == len(wanted):
            return found
        newest = self.known_generation()  # before the data: see is_older
        return self._pick(self._settled(newest, None), wanted)

    def _pick(self, tables: Tables, wanted: list[str]) -> dict[str, Mapping[str, Any]]:
        database = self._open(tables)
        return database.state_table("requests").pick(wanted) | database.state_table("returns").pick(wanted)

    def returned_names(self) -> frozenset[str]:
        """Every machine name in a return request. Raises as ``read``; needs no model."""
        try:
            return frozenset(name for document in self._view("returns") for name in document["names"])
        except (KeyError, TypeError) as error:
            raise self._unreadable(f"the names of a return request do not fit: {error}") from error

    def create(self, provisioner: str, *, wait: float = LOCK_WAIT) -> None:
        """Make an empty intent.json. Raises StateExists where it is there, StateMissing where memory shows it was."""
        self._check_directory()
        with DataLock(self.lock_path, wait) as lock:
            if self.exists():
                raise StateExists(f"{self.path}: exists already; it was left as it is.")
            self._check_no_memory()
            self._save(self._open(self._new_tables(provisioner)), lock, lock.generation + 1)

    @contextmanager
    def additions(self, *, wait: float = LOCK_WAIT, create_for: str | None = None) -> Iterator[Additions]:
        """Gather what to add, then lock, read, and write it durably, with what others add at the same time.

        ``create_for``: the provisioner id; the first additions to a new state directory then create the file, and a
        file of another provisioner is refused. An exception inside writes nothing. Raises StateMissing,
        StateUnreadable, StateTooNew, StateStale, StateUnwritable or LockTimeout, and StateError for another's file.
        """
        additions = Additions()
        yield additions
        self._check_ready(create_for)
        wish, lock = Wish(self.path, additions.tables), DataLock(self.lock_path, wait)
        if lock.try_acquire():
            self._add(wish, lock, create_for)
        else:
            self._add_in_turn(wish, lock, create_for)

    def _add_in_turn(self, wish: Wish, lock: DataLock, create_for: str | None) -> None:
        try:
            if self._our_turn(wish, lock, create_for):
                self._add(wish, lock, create_for)
        except StateError:  # whatever it is: another writer may have written the wish, or has it in hand
            wish.withdraw()
            if not self._has_written(wish):
                raise

    def _our_turn(self, wish: Wish, lock: DataLock, create_for: str | None) -> bool:
        """Wait: True when the lock is ours, False when another writer has written the wish. Raises LockTimeout."""
        terms = {"schema": SCHEMA} if create_for is None else {"schema": SCHEMA, "provisioner": create_for}
        with wish.posted(terms):
            if lock.acquire(stop=wish.gone):
                return True
            if self._has_written(wish):
                return False
            if lock.acquire():  # the wish is gone although nobody wrote it
                return True
        raise lock.timeout()

    def _has_written(self, wish: Wish) -> bool:
        """Whether the wish stands in the file, whoever wrote it; then it does so durably.

        Its bytes are looked for: fifty who were served at once would parse, and hold, five megabytes each.
        """
        try:
            content = read_whole(self.path, self.advice)
        except StateMissing:
            return False
        if not all(entry in content for entry in entries(wish.tables)):
            return False
        atomic.settle(self.path)
        return True

    def _add(self, wish: Wish, lock: DataLock, create_for: str | None) -> None:
        with lock.held():
            database = self._open(self._current(lock, create_for))
            if all(database.state_table(name).pick(documents) == documents for name, documents in wish.tables.items()):
                atomic.settle(self.path)  # its writer died before he could say so
                return
            if not self._join([wish], database):
                raise StateError(
                    f"{self.path}: an id drawn at random is taken already; nothing was written. Try again."
                )
            self._write(database, lock)

    def _join(self, wishes: Iterable[Wish], database: Database) -> list[Wish]:
        """Add the documents of the wishes; returns those whose ids were all free."""
        new: Tables = {name: {} for name in self.tables}
        joined = []
        for wish in wishes:
            ours = [(name, wish.tables[name]) for name in self.tables if name in wish.tables]
            if not any(database.state_table(name).pick(ids) or ids.keys() & new[name].keys() for name, ids in ours):
                joined.append(wish)
                for name, documents in ours:
                    new[name].update(documents)
        for name, documents in new.items():
            database.state_table(name).put(documents)
        return joined

    def _write(self, database: Database, lock: DataLock) -> None:
        """Write the tables with their changes, and with what those wish who wait."""
        facts = about(database.state.read())
        generation = facts["generation"] + 1
        joined = self._join(waiting(self.path, facts), database)
        for last in [False] * WITHDRAWALS + [True]:
            try:
                self._save(database, lock, generation, lambda: self._check_wanted(joined))
                break
            except Disturbed:
                if last:
                    raise
            for wish in [wish for wish in joined if not wish.wanted()]:
                joined.remove(wish)
                for name, documents in wish.tables.items():
                    database.state_table(name).drop(documents)
        for wish in joined:
            wish.granted()

    def _check_wanted(self, joined: Iterable[Wish]) -> None:
        if not all(wish.wanted() for wish in joined):
            raise Disturbed(f"{self.path}: one of those who waited no longer does; nothing was written. Try again.")

    def remove(self, identifiers: Iterable[str]) -> float:
        """Trim requests and return requests; ids that are not there (any more) are skipped.

        Returns the seconds it waited for the lock; raises as ``additions``.
        """
        doomed = list(identifiers)
        self._check_ready(None)
        asked = time.monotonic()
        with DataLock(self.lock_path) as lock:
            waited = time.monotonic() - asked
            database = self._open(self._current(lock, None))
            for name in self.tables:
                database.state_table(name).drop(doomed)
            if database.state.changed:
                self._write(database, lock)
        return waited

    def _current(self, lock: DataLock, create_for: str | None) -> Tables:
        """What is on disk, not older than the newest generation. While caches catch up others may have the lock."""
        while (tables := self._look(lock.generation, create_for)) is None or generation_of(tables) < lock.generation:
            lock.release()
            self._settled(lock.generation, create_for)
            if not lock.acquire():
                raise lock.timeout()
        self._check_owner(tables, create_for)
        return tables

    def _settled(self, newest: int, create_for: str | None) -> Tables:
        """The same without the lock; caches are given a moment to catch up."""
        for pause in [*pauses(), None]:
            tables = self._look(newest, create_for)
            if tables is not None and generation_of(tables) >= newest:
                return tables
            if pause is not None:
                time.sleep(pause)
        if tables is None:
            raise StateMissing(
                f"{self.path}: the file is gone, although it was written {newest} times; nothing was created. "
                f"{RECOVER} To begin anew where no machine runs: `provisioner init`."
            )
        raise self._stale(generation_of(tables), newest)

    def _stale(self, generation: int, newest: int) -> StateStale:
        return StateStale(
            f"{self.path}: generation {generation} is older than {newest}, which was written "
            "before; nothing was changed. On NFS mount the directory with lookupcache=none,actimeo=0. "
            "If an old copy was put back, run `provisioner recover`."
        )

    def _look(self, newest: int, create_for: str | None) -> Tables | None:
        """The tables; new ones where nothing was ever written; None when they should be there and are not."""
        try:
            return self._load()
        except StateMissing:
            self._check_no_memory()
            if newest:
                return None
            if create_for is None:
                raise
            return self._new_tables(create_for)

    def _check_owner(self, tables: Tables, provisioner: str | None) -> None:
        owner = about(tables)["provisioner"]
        if provisioner not in (None, owner):
            raise StateError(
                f"{self.path}: belongs to HF's provider instance {owner!r}, not to {provisioner!r}; "
                "nothing was changed. Correct HF_PROVIDER_NAME, or give each instance a state directory of its own."
            )

    def _check_no_memory(self) -> None:
        if os.path.lexists(self._memory_path):
            raise StateMissing(
                f"{self.path}: the file is missing although {self._memory_path} exists, so it was lost; "
                f"nothing was created. {RECOVER}"
            )

    def _check_ready(self, create_for: str | None) -> None:
        self._check_directory()
        if create_for is None and not self.exists():
            raise self._missing()

    def _check_directory(self) -> None:
        if not os.path.isdir(os.path.dirname(self.path)):
            raise missing(self.path, RECOVER)

    def _missing(self) -> StateMissing:
        """The error for intent.json, which in a new state directory is not there yet and not lost."""
        directory = os.path.dirname(self.path)
        others = (MemoryStore(directory), StatusStore(directory))
        if not os.path.isdir(directory) or any(file.existed() for file in (self, *others)):
            return super()._missing()
        return StateMissing(
            f"{self.path}: is not there yet: the state directory is new. "
            "HostFactory's first requestMachines makes it, or `provisioner init`."
        )


class MemoryStore(StateFile):
    """``memory.json``: what the loop must not forget. Written by the loop alone; scripts never read it."""

    kind = "memory"
    tables = ("memory", "requests", "returns", "pressures")

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._generation: int | None = None
        self._codec: MemoryCodec | None = None

    def read(self) -> Memory:
        """All of memory. Raises StateMissing, StateUnreadable or StateTooNew."""
        from provisioner.state.codec import RecordError

        try:
            return self._codec_now().decode(self._load())
        except RecordError as error:
            raise self._unreadable(str(error)) from error

    def write(self, memory: Memory) -> None:
        """Replace memory, durably. A record that is the same object as at the last write is not encoded again.

        Raises StateUnreadable or StateTooNew when such a file stands there and was not set aside, and StateUnwritable.
        """
        with DataLock(self.lock_path) as lock:
            if self._generation is None:
                self._generation = generation_of(self._load()) if self.exists() else 0
            database = self._open(self._new_tables(memory.provisioner))
            for name, documents in self._codec_now().encode(memory).items():
                database.state_table(name).put(documents)
            generation = max(self._generation, lock.generation) + 1
            self._save(database, lock, generation)
            self._generation = generation

    def begin_life(self) -> int:
        """A memory is made again: its generations go on in a range of their own. Returns how often that has been.

        Raises StateUnreadable or StateTooNew when such a file stands there.
        """
        written = max(self.known_generation(), generation_of(self._load()) if self.exists() else 0)
        life = written // LIFE + 1
        self._generation = life * LIFE
        return life

    def _codec_now(self) -> MemoryCodec:
        from provisioner.state.codec import MemoryCodec

        if self._codec is None:
            self._codec = MemoryCodec()
        return self._codec


INVENTORY_FILE, ANNOUNCED_FILE, NOTES_FILE = "hf-inventory.json", "announced.json", "pools.json"

STATE_FILES = frozenset(
    {
        *(f"{one.kind}.json" for one in (IntentStore, MemoryStore, StatusStore)),
        INVENTORY_FILE,
        ANNOUNCED_FILE,
        NOTES_FILE,
    }
)
"""The JSON files of a state directory, which may also be that of the configuration."""


class StateDir:
    """The state directory and everything in it. Opening it touches nothing. Raises StateMissing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self.path = os.path.abspath(path)
        except FileNotFoundError as error:
            raise StateMissing(
                f"{path}: no such directory: the working directory is gone. "
                "Give HF_PROVIDER_WORKDIR or --state-dir as an absolute path."
            ) from error
        self.intent = IntentStore(self.path)
        self.memory = MemoryStore(self.path)
        self.status = StatusStore(self.path)
        self.seen = Seen(os.path.join(self.path, "seen"))
        self.told = Told(self.seen.path)
        self.inventory = Inventory(os.path.join(self.path, INVENTORY_FILE))
        self.announced = Announced(os.path.join(self.path, ANNOUNCED_FILE))
        self.heartbeat = Heartbeat(os.path.join(self.path, "heartbeat"))
        self.notes = PoolNotes(os.path.join(self.path, NOTES_FILE))
        self._recovery = os.path.join(self.path, "recover")
        self.loop_lock = LoopLock(os.path.join(self.path, "loop.lock"))

    @property
    def journal(self) -> Journal:
        """The history of actions."""
        from provisioner.state.journal import Journal

        return Journal(os.path.join(self.path, "journal.jsonl"))

    def since_intent(self) -> float:
        """Seconds from the last write of intent.json to the loop's last sign of life, both by the file system's clock
        (DESIGN law 11); 0 when intent is newer, or when there is nothing to tell by.

        Less than the time since HF's last call if the loop trimmed intent after it: requests then seem younger than
        they are. It matters to a memory made again without any trace of HF, for a request without machines. Raises
        StateUnreadable.
        """
        written = atomic.facts_of(self.intent.path)
        signs = [atomic.facts_of(path) for path in (self.heartbeat.path, self.loop_lock.path)]
        last = max((facts.st_mtime for facts in signs if facts is not None), default=None)
        return 0.0 if written is None or last is None else max(last - written.st_mtime, 0.0)

    def ask_recovery(self) -> None:
        """A person has looked: the loop may release the brake. Raises StateUnwritable."""
        atomic.replace(self._recovery, b"", durable=False)

    def recovery_asked(self) -> bool:
        """A person asked to release the brake."""
        return os.path.exists(self._recovery)

    def recovery_done(self) -> None:
        """The brake is released, and durably so. Raises StateUnwritable."""
        try:
            discard(self._recovery)
        except OSError as error:
            raise atomic.unwritable(self._recovery, error) from error
