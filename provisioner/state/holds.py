"""``holds.json``: the operators' holds. Commands write the file under its lock, and the loop reads it. Scripts do not
use it.

A lost, unparsable or old file is refused, because only an operator may release a hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from provisioner.model import NO_HOLDS, Hold, HoldKind, Holds
from provisioner.state.database import Tables, generation_of
from provisioner.state.errors import StateMissing, StateUnreadable
from provisioner.state.locks import DataLock
from provisioner.state.record_format import RecordError, decode, encode
from provisioner.state.state_file import StateFile

Change = Callable[[Holds], Holds]


class HoldStore(StateFile):
    """The holds in effect, and the last release of each hold. The file does not exist before the first hold is set."""

    kind = "holds"
    advice = (
        "The holds in force are unknown. `provisioner stop-all` or `start-all` starts a new file; set the holds again."
    )
    tables = ("current", "released")

    def read(self) -> Holds:
        """Return all holds. Raises StateMissing, StateUnreadable, StateTooNew or StateDenied."""
        noted = self.known_generation()  # before the data, because a writer may write both meanwhile
        try:
            tables = self.load()
        except StateMissing:
            if noted:
                raise
            return NO_HOLDS
        if generation_of(tables) < noted:
            raise self._unreadable("is an old copy: a later one had been written")
        return self._holds(tables)

    def change(self, change: Change, *, replace_unusable: bool = False) -> tuple[Holds, Holds]:
        """Replace the holds durably, and return the holds before and after that. The function ``change`` gets the old
        holds and returns the new holds. Raises the errors of ``read``.

        ``replace_unusable``: True to move an unusable file aside. The function gets no holds if this happens. Raises
        StateUnwritable.
        """
        with DataLock(self.lock_path) as lock:
            before = self._read_usable() if replace_unusable else self.read()
            after = change(before)
            if after != before or (replace_unusable and not self.exists()):
                self._write(after, lock)
        return before, after

    def _read_usable(self) -> Holds:
        with suppress(StateMissing):
            try:
                return self.read()
            except StateUnreadable:
                self.set_aside()
        return NO_HOLDS

    def _write(self, holds: Holds, lock: DataLock) -> None:
        generation = max(lock.generation, generation_of(self.load()) if self.exists() else 0) + 1
        tables = self._new_tables("")
        for name in self.tables:
            stored: tuple[Hold, ...] = getattr(holds, name)
            tables[name] = {_key(hold): encode(hold) for hold in stored}
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


def with_hold(holds: Holds, hold: Hold) -> Holds:
    """Return the holds with ``hold`` added. A hold that is set already stays unchanged and still names its first
    operator."""
    if any(_key(known) == _key(hold) for known in holds.current):
        return holds
    return replace(holds, current=(*holds.current, hold))


def without_holds(holds: Holds, kinds: Collection[HoldKind], by: Hold) -> Holds:
    """Return ``holds`` after a release. ``by`` describes the release: its target, operator, time and reason. The holds
    of these kinds on this target are no longer in force."""
    removed_keys = {_key(hold) for hold in holds.current if hold.kind in kinds and hold.target == by.target}
    if not removed_keys:
        return holds
    released = {_key(hold): hold for hold in holds.released}
    released |= {_key(hold): replace(by, kind=hold.kind) for hold in holds.current if _key(hold) in removed_keys}
    return Holds(tuple(hold for hold in holds.current if _key(hold) not in removed_keys), tuple(released.values()))
