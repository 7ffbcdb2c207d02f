"""``loop.lock``: one loop per state directory, and its *epoch*."""

from __future__ import annotations

import fcntl
import os
from typing import Any

from provisioner.files.regular import open_own
from provisioner.state.atomic import read_whole
from provisioner.state.errors import StateUnreadable, writing
from provisioner.state.locks import LockFile, identity, parse_line, read_record, stopped_message, whole_number

STANDBY_POLL = 0.5
"""Seconds between a standby loop's tries: a takeover is not urgent, and on NFS each try is a call to the server."""


class LoopLock(LockFile):
    """The loop is whoever holds this lock, which says the holder's *epoch*; the others stand by.

    The epoch is read again by name before every write and batch: a loop whose own no longer stands there has been
    succeeded and stops.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, STANDBY_POLL)

    def keep(self) -> bool:
        """Hold on to the lock, also where a server has forgotten it; False where another process has it by now.

        A kernel that has lost a lock on NFS lets its holder believe that he has it: only who asks again knows.
        """
        assert self._descriptor is not None
        with writing(self.path, "locked"):
            return self._flock(self._descriptor)

    def is_held(self) -> bool:
        """Some process is the loop now, as far as locks reach. Makes no file; false where there is none to look at."""
        try:
            descriptor = open_own(self.path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def holder(self) -> dict[str, Any]:
        """``epoch``, ``host`` and ``pid`` of the loop that signed last; empty when unknown."""
        return read_record(self.path)

    def stopped(self) -> str:
        """What to do about a holder that is a stopped process (SIGSTOP) of this host; else empty."""
        return stopped_message(self.holder())

    def epoch(self) -> int:
        """The epoch on disk; 0 in a new file. Raises StateMissing or StateUnreadable: then nobody may go on as loop."""
        advice = "Stop all loops of this directory, then start one: it signs the file again."
        content = read_whole(self.path, advice)
        epoch = whole_number(parse_line(content), "epoch")
        if content and not epoch:
            raise StateUnreadable(f"{self.path}: holds no epoch. {advice}")
        return epoch

    def raise_epoch(self, at_least: int = 1) -> int:
        """Sign with an epoch above the one on disk, ``at_least`` the given one; durable on return. Needs the lock."""
        self.check_in_place()
        epoch = max(whole_number(self.record(), "epoch") + 1, at_least)
        self.sign({"epoch": epoch, **identity()}, durable=True)
        return epoch

    def sign_off(self) -> None:
        """Say that no call of this loop is under way any more: a successor need not wait for it. Needs the lock."""
        self.check_in_place()
        epoch = whole_number(self.record(), "epoch")
        self.sign({"epoch": epoch, **identity(), "ended": True}, durable=True)
