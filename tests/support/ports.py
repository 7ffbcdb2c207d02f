"""Free ports for programs that cannot choose a port themselves."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path

LOWEST = 20_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL = 32_768
"""Lowest port that Linux gives to a program that names no port. On other systems this port is higher."""


def free_ports(count: int) -> Sequence[int]:
    """Return ``count`` free ports.

    Linux gives these ports only to a program that names them. So they stay free until the program listens, and while it
    is started again.
    """
    with contextlib.ExitStack() as stack:
        return [_taken(stack.enter_context(socket.socket())) for _ in range(count)]


def _taken(probe: socket.socket) -> int:
    highest = int(RANGE.read_text().split()[0]) if RANGE.exists() else USUAL
    while True:
        # Not from the shared generator: runs of tests begin it with one seed, and would all ask for the same ports.
        port = random.SystemRandom().randrange(min(LOWEST, highest // 2), highest)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
