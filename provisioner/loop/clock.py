"""Loop time: the loop's own clock, which goes on across restarts (law: time is an argument)."""

from __future__ import annotations

import time
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from provisioner.model import Memory, Uptime

LONGEST_GAP = 3600.0
"""Seconds of the gap across a restart that count as loop time at most."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Where Linux names the boot of a host: a container's too, whose monotonic clock is the host's."""


CYCLE: ContextVar[int] = ContextVar("cycle", default=0)
"""The number of the cycle that a thread works for, as journal and log have it; 0: none, as in an observer."""


class Clock(Protocol):
    """Where the loop takes its time from."""

    def now(self) -> float:
        """Loop time in seconds."""

    def wall(self) -> float:
        """The host's clock, epoch seconds."""

    def uptime(self) -> Uptime | None:
        """The host's monotonic clock; None where nobody can say which boot it counts from."""


def gap(before: Memory, uptime: Uptime | None, wall: float) -> float:
    """Seconds since a memory was written, by the host's uptime; on another host or boot by the wall clock. Clamped."""
    held = before.written.uptime
    same_boot = held is not None and uptime is not None and held.boot == uptime.boot
    seconds = uptime.seconds - held.seconds if held and uptime and same_boot else wall - before.written.wall
    return min(max(seconds, 0.0), LONGEST_GAP)


class LoopClock:
    """Loop time: the wall clock's time when it first ran, carried on by the monotonic clock, also across restarts."""

    def __init__(self, before: Memory | None = None) -> None:
        """``before``: what the loop before remembered last."""
        self._boot = boot_id()
        self._monotonic = time.monotonic()
        self._start = time.time() if before is None else before.written.time + gap(before, self.uptime(), time.time())

    def now(self) -> float:
        """Loop time in seconds."""
        return self._start + time.monotonic() - self._monotonic

    def wall(self) -> float:
        """Epoch seconds of this host."""
        return time.time()

    def uptime(self) -> Uptime | None:
        """The monotonic clock of this boot."""
        return Uptime(self._boot, time.monotonic()) if self._boot else None


def boot_id() -> str:
    """What the kernel calls the present boot of this host; empty where it has no name for it."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
