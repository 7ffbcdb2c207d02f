"""``loop.lock``: allows one loop per state directory, and records the loop's *epoch*."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from provisioner.state import locks
from provisioner.state.atomic import read_whole
from provisioner.state.errors import LockTimeout, StateUnreadable, writing
from provisioner.state.marker_files import Fate
from provisioner.utc import format_utc

if TYPE_CHECKING:
    from provisioner.state.protocols import State

STANDBY_POLL = 0.5
"""Seconds between a standby loop's tries. A takeover is not urgent, and on NFS each try is a call to the server."""


def find_fate(holder: Mapping[str, Any], *, is_held: bool) -> Fate:
    """Return the fate (see ``Fate``) of the loop that signed the lock last. ``is_held``: True if some process is the
    loop now."""
    if holder.get("ended") or not holder.get("pid"):
        return "ended" if holder.get("ended") else ""
    if is_held:
        return "waits" if holder.get("waits_until") else "holds"
    # A process id that is our own proves that the holder is gone only to a successor, which has the lock.
    return "gone" if locks.is_gone(holder) and holder["pid"] != os.getpid() else "released"


@contextmanager
def be_the_loop(state: State) -> Iterator[None]:
    """Hold the right to be the loop of a state during the block. No other process then works on the state as its loop.
    Raises LockTimeout."""
    turn = state.loop_lock
    if not turn.acquire(0):
        holder = turn.holder()
        holder_message = f" (process {holder['pid']} on host {holder.get('host')})" if "pid" in holder else ""
        raise LockTimeout(
            f"{state.path}: a loop or a restore works on this state{holder_message}; no record was changed. "
            f"{turn.stopped_message() or 'Stop the loop, and any that stands by'}, then try again."
        )
    try:
        yield
    finally:
        turn.release()


class LoopLock(locks.LockFile):
    """The lock that the active loop holds while other loops stand by. The lock file contains the holder's *epoch*.

    Before each write and batch, the loop opens the file again and reads the epoch. A different epoch shows that a newer
    loop has taken over. The older loop then stops.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, STANDBY_POLL)

    def keep(self) -> bool:
        """Lock the file again, because an NFS server may have forgotten the lock. Return False if another process now
        has the lock.

        The kernel does not report a lock that it has lost on NFS. Only a new request for the lock shows the loss.
        """
        assert self._descriptor is not None
        with writing(self.path, "locked"):
            return self._flock(self._descriptor)

    def is_held(self) -> bool:
        """Return True if some process is the loop now, as far as locks show; False if the file is missing.

        This method creates no file.
        """
        return locks.is_locked(self.path)

    def holder(self) -> dict[str, Any]:
        """Return ``epoch``, ``host``, ``pid`` and ``boot`` of the loop that signed last; empty if unknown.

        After that loop has signed off, the result also has ``ended``. While that loop waits for its predecessor, the
        result also has ``waits_until``.
        """
        return locks.read_record(self.path)

    def fate(self) -> Fate:
        """Return the fate (see ``Fate``) of the loop that signed the lock last."""
        return find_fate(self.holder(), is_held=self.is_held())

    def has_calls(self) -> bool:
        """Return True if calls to a cloud may still be under way. These may be calls of the last holder, or of the loop
        for which the last holder waited."""
        holder = self.holder()
        is_open = bool(holder.get("pid")) and not holder.get("ended")
        return is_open and (bool(holder.get("waits_until")) or not locks.is_gone(holder))

    def stopped_message(self) -> str:
        """Return the operator's next step if the holder is a stopped process (SIGSTOP) of this host; empty if not."""
        return locks.stopped_message(self.holder())

    def epoch(self) -> int:
        """Return the epoch on disk; 0 in a new file.

        Raises StateMissing or StateUnreadable. In both cases the process must not go on as the loop.
        """
        advice = "Stop all loops of this directory, then start one: it signs the file again."
        content = read_whole(self.path, advice)
        epoch = locks.whole_number(locks.parse_line(content), "epoch")
        if content and not epoch:
            raise StateUnreadable(f"{self.path}: contains no epoch. {advice}")
        return epoch

    def raise_epoch(self, at_least: int = 1, wait_seconds: float = 0.0) -> int:
        """Sign the lock file with a new epoch, and return the epoch. The epoch is higher than the epoch on disk, and at
        least ``at_least``. It is durable on return. The caller must have the lock.

        ``wait_seconds``: the new loop acts only after this time. The file shows it until ``end_wait`` is called.
        """
        epoch = max(self._signed_epoch() + 1, at_least)
        self._sign_epoch(epoch, {"waits_until": format_utc(time.time() + wait_seconds)} if wait_seconds else {})
        return epoch

    def end_wait(self) -> None:
        """Record that this loop waits no longer. The caller must have the lock."""
        self._sign_epoch(self._signed_epoch(), {})

    def sign_off(self) -> None:
        """Record that no call of this loop is under way. The next loop then does not wait. The caller must have the
        lock."""
        self._sign_epoch(self._signed_epoch(), {"ended": True})

    def _signed_epoch(self) -> int:
        self.check_in_place()
        return locks.whole_number(self.record(), "epoch")

    def _sign_epoch(self, epoch: int, facts: dict[str, Any]) -> None:
        self.sign({"epoch": epoch, **locks.identity(), "boot": locks.get_boot_id(), **facts}, durable=True)
