"""``holds.json``: what people hold back. Commands write it under its lock, the loop reads it; scripts never do.

A file that is missing although it was written, that does not parse or that is an old copy is refused: a hold is let go
by a person alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from provisioner.model import NO_HOLDS, Hold, HoldKind, Holds
from provisioner.state.codec import RecordError, decode, encode
from provisioner.state.database import Tables, generation_of
from provisioner.state.errors import StateMissing, StateUnreadable
from provisioner.state.locks import DataLock
from provisioner.state.state_file import StateFile

Change = Callable[[Holds], Holds]


class HoldStore(StateFile):
    """What is held, and who let go of what last. Before the first hold is pulled there is no such file."""

    kind = "holds"
    advice = (
        "Nobody knows which holds are in force: `provisioner stop-all` or `start-all` begins anew; pull them again."
    )
    tables = ("current", "released")

    def read(self) -> Holds:
        """All of it. Raises StateMissing, StateUnreadable or StateTooNew, or StateDenied."""
        noted = self.known_generation()  # before the data, which may be newer than the note and not older
        try:
            tables = self.load()
        except StateMissing:
            if noted:
                raise
            return NO_HOLDS
        if generation_of(tables) < noted:
            raise self._unreadable("is an old copy: a later one had been written")
        return self._holds(tables)

    def change(self, change: Change, *, anew: bool = False) -> tuple[Holds, Holds]:
        """Replace it, durably, by what ``change`` makes of it; what there was, and what there is. Raises as ``read``.

        ``anew``: a file that cannot be used is moved aside, and none is held before. Raises StateUnwritable.
        """
        with DataLock(self.lock_path) as lock:
            before = self._usable() if anew else self.read()
            after = change(before)
            if after != before or (anew and not self.exists()):
                self._write(after, lock)
        return before, after

    def _usable(self) -> Holds:
        try:
            return self.read()
        except StateMissing:
            return NO_HOLDS
        except StateUnreadable:
            self.set_aside()
            return NO_HOLDS

    def _write(self, holds: Holds, lock: DataLock) -> None:
        generation = max(lock.generation, generation_of(self.load()) if self.exists() else 0) + 1
        tables = self._new_tables("")
        for name in self.tables:
            held: tuple[Hold, ...] = getattr(holds, name)
            tables[name] = {_key(hold): encode(hold) for hold in held}
        self._save(tables, lock, generation)

    def _holds(self, tables: Tables) -> Holds:
        try:
            read = {name: decode(tuple[Hold, ...], [*tables[name].values()]) for name in self.tables}
        except RecordError as error:
            raise self._unreadable(str(error)) from error
        except KeyError as error:
            raise self._unreadable(f"lacks its table {error}") from error
        return Holds(**read)


def _key(hold: Hold) -> str:
    return f"{hold.kind} {hold.target}".rstrip()


def pulled(holds: Holds, hold: Hold) -> Holds:
    """With one more hold; the same ones if it is held already: whoever pulled it first stays named."""
    if any(_key(held) == _key(hold) for held in holds.current):
        return holds
    return replace(holds, current=(*holds.current, hold))


def let_go(holds: Holds, kinds: Collection[HoldKind], by: Hold) -> Holds:
    """Without the holds of these kinds on the target of ``by``, which says who lets go of them, when and why."""
    gone = {_key(hold) for hold in holds.current if hold.kind in kinds and hold.target == by.target}
    if not gone:
        return holds
    released = {_key(hold): hold for hold in holds.released}
    released |= {_key(hold): replace(by, kind=hold.kind) for hold in holds.current if _key(hold) in gone}
    return Holds(tuple(hold for hold in holds.current if _key(hold) not in gone), tuple(released.values()))
