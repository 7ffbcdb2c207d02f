"""The state directory: everything in it, by what it is for.

The scripts import this at each call, so what only the loop needs (model, codec, journal) is imported where it is used.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from provisioner.files import atomic
from provisioner.files.atomic import StateMissing
from provisioner.state.hf_signals import Announced, Inventory, Seen
from provisioner.state.intent import IntentStore
from provisioner.state.locks import LoopLock
from provisioner.state.loop_signals import Heartbeat, PoolNotes
from provisioner.state.status import StatusStore
from provisioner.state.terminal_answers import Told

if TYPE_CHECKING:
    from provisioner.state.journal import Journal
    from provisioner.state.memory import MemoryStore

INVENTORY_FILE, ANNOUNCED_FILE, NOTES_FILE = "hf-inventory.json", "announced.json", "pools.json"

STATE_FILES = frozenset({"intent.json", "memory.json", "status.json", INVENTORY_FILE, ANNOUNCED_FILE, NOTES_FILE})
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
        self.status = StatusStore(self.path)
        self.seen = Seen(os.path.join(self.path, "seen"))
        self.told = Told(self.seen.path)
        self.inventory = Inventory(os.path.join(self.path, INVENTORY_FILE))
        self.announced = Announced(os.path.join(self.path, ANNOUNCED_FILE))
        self.heartbeat = Heartbeat(os.path.join(self.path, "heartbeat"))
        self.notes = PoolNotes(os.path.join(self.path, NOTES_FILE))
        self._recovery = os.path.join(self.path, "recover")
        self.loop_lock = LoopLock(os.path.join(self.path, "loop.lock"))

    @cached_property
    def memory(self) -> MemoryStore:
        """What the loop must not forget."""
        from provisioner.state.memory import MemoryStore

        return MemoryStore(self.path)

    @cached_property
    def journal(self) -> Journal:
        """The history of actions."""
        from provisioner.state.journal import Journal

        return Journal(os.path.join(self.path, "journal.jsonl"))

    def since_intent(self) -> float:
        """Seconds from the last write of intent.json to the loop's last sign of life, both by the file system's clock
        (law: time is an argument); 0 when intent is newer, or when there is nothing to tell by.

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
        atomic.remove(self._recovery)
