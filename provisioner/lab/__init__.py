"""The laboratory: an embedded cloud, the loop in virtual time, the demonstration, and the replay of recorded calls."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block. If Ctrl-C interrupted the block, the caller could not end a process that
    the block has just started.

    Call this only in the main thread.
    """
    presses: list[object] = []
    before = signal.signal(signal.SIGINT, lambda *_: presses.append(None))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if presses:
            signal.raise_signal(signal.SIGINT)
