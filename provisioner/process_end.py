"""The end of a process: Ctrl-C ends a command at once, with exit code 130 and without a traceback.

The end waits for no thread. Code that creates another process or a temporary directory runs inside
``interruptible``, or inside ``ends_process`` if a thread waits for the process, so that neither outlives this process.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

INTERRUPTED = 130
"""Exit code that shells report for a program ended by SIGINT."""

CLOSED_PIPE = 141
"""Exit code that shells report for a program ended by SIGPIPE, as ``head`` ends the program whose output it reads."""

_cleanups: list[Callable[[], None]] = []
"""Calls of ``undo`` for the active ``interruptible`` blocks."""
_kills: list[Callable[[], None]] = []
"""Calls that end the processes of the active ``ends_process`` blocks."""
_deferring: list[bool] = []
"""A flag for each active ``deferred_interrupts`` block, True if Ctrl-C was pressed inside it."""


class Latch:
    """A flag that is set once, by a signal handler or any thread, and for which one thread waits."""

    def __init__(self) -> None:
        self._closed = False
        # A signal handler interrupts the main thread anywhere. The main thread's wait for a threading.Event takes the
        # event's lock, so that a handler that sets the event would wait for ever. The put of this queue is reentrant.
        self._news: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Set the latch: end the current wait, and every later one."""
        self._closed = True
        self._news.put(None)

    def is_set(self) -> bool:
        """Return True if the latch is set."""
        return self._closed

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the latch is set, at most ``seconds``; return True if it is."""
        if not self._closed:
            with suppress(Empty):
                self._news.get(timeout=seconds)
        return self._closed


def follow() -> None:
    """Handle Ctrl-C from now on. Must be called in the main thread."""
    signal.signal(signal.SIGINT, _interrupted)


def ignore_signals() -> None:
    """Ignore Ctrl-C while the process ends, so that it keeps its exit code. Python resets the signal at its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end(code: int = INTERRUPTED) -> None:
    """End the process after all registered clean-ups. It waits for no thread because threads wait for clouds."""
    ignore_signals()
    for undo in (*_kills, *reversed(_cleanups)):
        undo()
    atexit._run_exitfuncs()
    os._exit(code)


@contextmanager
def interruptible(undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Turn Ctrl-C into KeyboardInterrupt inside the block, and call ``undo`` at its end.

    ``undo`` is called again if a second Ctrl-C interrupts it.
    """
    _cleanups.append(undo)
    try:
        yield
    finally:
        undo()
        _cleanups.remove(undo)


@contextmanager
def ends_process(process: int) -> Iterator[None]:
    """Let Ctrl-C end the process group ``process`` before this process, inside the block. Safe in any thread."""

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)

    _kills.append(kill)
    try:
        yield
    finally:
        _kills.remove(kill)


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, so that the caller can end a process that the block starts.

    Must be called in the main thread.
    """
    _deferring.append(False)
    try:
        yield
    finally:
        if _deferring.pop():
            signal.raise_signal(signal.SIGINT)


def _interrupted(*_: object) -> None:
    if _deferring:
        _deferring[-1] = True
    elif _cleanups:
        raise KeyboardInterrupt
    else:
        end()
