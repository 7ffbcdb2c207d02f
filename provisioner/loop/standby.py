"""Standby: one loop at a time works on a state directory. The next loop waits until the previous loop has finished."""

from __future__ import annotations

import logging
from collections.abc import Callable

from provisioner.loop.cycle_report import SupersededError
from provisioner.process_end import Latch
from provisioner.state.protocols import State, read_memory

log = logging.getLogger(__name__)


def take_turn(state: State, stop: Latch, longest_cycle: float, stands_by: Callable[[], None]) -> int | None:
    """Take the loop's lock and raise the epoch. If the previous loop may still act, wait ``longest_cycle`` seconds.

    Return the epoch; None if this loop was stopped while it waited. ``stands_by`` is called if another loop runs.
    """
    lock = state.loop_lock
    if not lock.acquire(0):
        advice = {"advice": message} if (message := lock.stopped_message()) else {}
        log.info("Standing by: another loop runs", extra={"holder": str(lock.holder())} | advice)
        stands_by()
        if not lock.acquire(None, stop.is_set):
            return None
    before, memory = lock.holder(), read_memory(state)
    wait_seconds = longest_cycle if lock.has_calls() else 0.0
    epoch = lock.raise_epoch(memory.epoch + 1 if memory else 1, wait_seconds)
    if wait_seconds:
        log.info("Waiting for the previous loop to end", extra={"holder": str(before), "seconds": wait_seconds})
        if stop.wait(wait_seconds):
            return None
    check_turn(state, epoch)
    if wait_seconds:
        lock.end_wait()
    return epoch


def check_turn(state: State, epoch: int) -> None:
    """Raise SupersededError if another process is now the active loop. Raise StateError if the active loop cannot be
    found out."""
    # Take the lock first. An NFS client that takes a lock drops its cache, so the epoch read afterwards is the newest.
    if not state.loop_lock.keep():
        raise SupersededError(
            f"{state.path}: this loop has lost its lock, because the lock's server or this host was unreachable, and "
            "another process has taken the lock. This loop ends; if it is started again, it stands by."
        )
    if (newest := state.loop_lock.epoch()) != epoch:
        raise SupersededError(f"A newer loop (epoch {newest}) works on {state.path}. This loop ends.")
