"""``levers.json``: what people hold back. Commands write it under its lock, the loop reads it; scripts never do.

A file that is missing although it was written, that does not parse or that is an old copy is refused: a lever is let go
by a person alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from provisioner.model import NO_LEVERS, Lever, LeverKind, Levers
from provisioner.state.codec import RecordError, decode, encode
from provisioner.state.database import Tables, generation_of
from provisioner.state.errors import StateMissing, StateUnreadable
from provisioner.state.locks import DataLock
from provisioner.state.state_file import StateFile

Change = Callable[[Levers], Levers]


class LeverStore(StateFile):
    """What is held, and who let go of what last. Before the first lever is pulled there is no such file."""

    kind = "levers"
    advice = "Nobody knows which levers are held: `provisioner stop-all` or `start-all` begins anew; pull them again."
    tables = ("held", "released")

    def read(self) -> Levers:
        """All of it. Raises StateMissing, StateUnreadable or StateTooNew, or StateDenied."""
        noted = self.known_generation()  # before the data, which may be newer than the note and not older
        try:
            tables = self.load()
        except StateMissing:
            if noted:
                raise
            return NO_LEVERS
        if generation_of(tables) < noted:
            raise self._unreadable("is an old copy: a later one had been written")
        return self._levers(tables)

    def change(self, change: Change, *, anew: bool = False) -> tuple[Levers, Levers]:
        """Replace it, durably, by what ``change`` makes of it; what there was, and what there is. Raises as ``read``.

        ``anew``: a file that cannot be used is moved aside, and none is held before. Raises StateUnwritable.
        """
        with DataLock(self.lock_path) as lock:
            before = self._usable() if anew else self.read()
            after = change(before)
            if after != before or (anew and not self.exists()):
                self._write(after, lock)
        return before, after

    def _usable(self) -> Levers:
        try:
            return self.read()
        except StateMissing:
            return NO_LEVERS
        except StateUnreadable:
            self.set_aside()
            return NO_LEVERS

    def _write(self, levers: Levers, lock: DataLock) -> None:
        generation = max(lock.generation, generation_of(self.load()) if self.exists() else 0) + 1
        tables = self._new_tables("")
        for name in self.tables:
            held: tuple[Lever, ...] = getattr(levers, name)
            tables[name] = {_key(lever): encode(lever) for lever in held}
        self._save(tables, lock, generation)

    def _levers(self, tables: Tables) -> Levers:
        try:
            read = {name: decode(tuple[Lever, ...], [*tables[name].values()]) for name in self.tables}
        except RecordError as error:
            raise self._unreadable(str(error)) from error
        except KeyError as error:
            raise self._unreadable(f"lacks its table {error}") from error
        return Levers(**read)


def _key(lever: Lever) -> str:
    return f"{lever.kind} {lever.target}".rstrip()


def pulled(levers: Levers, lever: Lever) -> Levers:
    """With one more lever; the same ones if it is held already: whoever pulled it first stays named."""
    if any(_key(held) == _key(lever) for held in levers.held):
        return levers
    return replace(levers, held=(*levers.held, lever))


def let_go(levers: Levers, kinds: Collection[LeverKind], by: Lever) -> Levers:
    """Without the levers of these kinds on the target of ``by``, which says who lets go of them, when and why."""
    gone = {_key(lever) for lever in levers.held if lever.kind in kinds and lever.target == by.target}
    if not gone:
        return levers
    released = {_key(lever): lever for lever in levers.released}
    released |= {_key(lever): replace(by, kind=lever.kind) for lever in levers.held if _key(lever) in gone}
    return Levers(tuple(lever for lever in levers.held if _key(lever) not in gone), tuple(released.values()))
