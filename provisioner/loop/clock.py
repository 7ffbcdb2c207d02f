"""Loop time: the loop's own clock, which continues across restarts (law: time is an argument)."""

from __future__ import annotations

import time
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from provisioner.model import Memory, Uptime

LONGEST_GAP = 3600.0
"""Longest gap in seconds. After a restart, loop time advances by the time since memory was last written, but at most by
this gap."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""File with the id of the host's present boot. A container reads the boot id of its host, and shares the host's
monotonic clock."""


CYCLE: ContextVar[int] = ContextVar("cycle", default=0)
"""Number of the cycle for which a thread works, as journal and log print it; 0 outside a cycle, for example in an
observer."""


class Clock(Protocol):
    """The source of the loop's time."""

    def now(self) -> float:
        """Return loop time in seconds."""

    def wall(self) -> float:
        """Return the host's wall clock in epoch seconds."""

    def uptime(self) -> Uptime | None:
        """Return the host's monotonic clock with the id of its boot; None if the id is unknown."""


def gap(before: Memory, uptime: Uptime | None, wall: float) -> float:
    """Return the seconds since a memory was written, between 0 and ``LONGEST_GAP``.

    The host's uptime measures these seconds if the host has not rebooted. After a reboot, or on another host, the wall
    clock measures them.
    """
    written = before.written.uptime
    same_boot = written is not None and uptime is not None and written.boot == uptime.boot
    seconds = uptime.seconds - written.seconds if written and uptime and same_boot else wall - before.written.wall
    return min(max(seconds, 0.0), LONGEST_GAP)


class LoopClock:
    """The clock of loop time. The first loop begins at the time of the wall clock. From then on, loop time follows the
    monotonic clock and continues across restarts."""

    def __init__(self, before: Memory | None = None) -> None:
        """Continue the time of ``before``, the last memory of the previous loop."""
        self._boot = boot_id()
        self._monotonic = time.monotonic()
        self._start = time.time() if before is None else before.written.time + gap(before, self.uptime(), time.time())

    def now(self) -> float:
        """Return loop time in seconds."""
        return self._start + time.monotonic() - self._monotonic

    def wall(self) -> float:
        """Return this host's wall clock in epoch seconds."""
        return time.time()

    def uptime(self) -> Uptime | None:
        """Return the monotonic clock with the boot's id; None if the boot's id is unknown."""
        return Uptime(self._boot, time.monotonic()) if self._boot else None


def boot_id() -> str:
    """Return the kernel's id of this host's current boot; empty if the kernel has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
