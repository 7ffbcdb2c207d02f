"""Standby: one loop at a time works on a state directory, and a successor lets its predecessor finish."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

from provisioner.interrupts import Latch
from provisioner.loop.cycle import SupersededError
from provisioner.model import Memory
from provisioner.state.errors import StateMissing
from provisioner.state.protocols import State

log = logging.getLogger(__name__)


def take_turn(state: State, stop: Latch, longest_cycle: float) -> int | None:
    """Lock, raise the epoch, and let a predecessor that may still act finish, for so many seconds.

    Return the epoch; None if the loop was stopped meanwhile.
    """
    lock = state.loop_lock
    if not lock.acquire(0):
        advice = {"advice": message} if (message := lock.stopped()) else {}
        log.info("Standing by: another loop runs", extra={"holder": str(lock.holder())} | advice)
        if not lock.acquire(None, stop.is_set):
            return None
    before, memory = lock.holder(), read_memory(state)
    epoch = lock.raise_epoch(memory.epoch + 1 if memory else 1)
    if _may_live(before):
        log.info("Waiting for the loop before to end", extra={"holder": str(before), "seconds": longest_cycle})
        if stop.wait(longest_cycle):
            return None
    check_turn(state, epoch)
    return epoch


def read_memory(state: State) -> Memory | None:
    """What the loop before remembered; None if there is no memory."""
    try:
        return state.memory.read()
    except StateMissing:
        return None


def check_turn(state: State, epoch: int) -> None:
    """Raises SupersededError where another process is the loop by now, StateError where nobody can say."""
    # First the lock: a client of NFS that gets one forgets what it has cached, so the epoch is the newest.
    if not state.loop_lock.keep():
        raise SupersededError(
            f"{state.path}: this loop has lost its lock (its NFS server was away, or this host), and another "
            "process has it; this one ends. Started again, it stands by."
        )
    if (newest := state.loop_lock.epoch()) != epoch:
        raise SupersededError(f"A newer loop (epoch {newest}) works on {state.path}; this one ends.")


def _may_live(holder: Mapping[str, object]) -> bool:
    """The loop that signed before may still have calls under way: on another host, or as a process of this one."""
    if not holder.get("pid") or holder.get("ended"):
        return False
    if holder.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(str(holder["pid"])), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return int(str(holder["pid"])) != os.getpid()
