"""The end of a process: Ctrl-C ends a command at once, with exit code 130 and without a traceback.

The end does not wait for threads. Code that starts a child process or creates a temporary directory must run inside
``interruptible``. A thread that waits for a child process must run inside ``ends_process``. Then neither the child nor
the directory outlives this process.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprocess import Popen

INTERRUPTED = 130
"""Exit code that shells report for a program ended by SIGINT."""

CLOSED_PIPE = 141
"""Exit code that shells report for a program that SIGPIPE has ended, for example because ``head`` stopped reading
its output."""

_cleanups: list[Callable[[], None]] = []
"""The ``undo`` functions of the active ``interruptible`` blocks."""
_kills: list[Callable[[], None]] = []
"""Functions that end the processes of the active ``ends_process`` blocks."""
_starts: list[object] = []
"""An entry for each program that a thread starts at this moment. Its process is not known yet."""

START_SECONDS = 2.0
"""Longest time for which the end of this process waits for programs that are being started."""


class CommandFailed(Exception):
    """A failure for which a command prints this message and ends with exit code 1."""


class Latch:
    """A flag that is set once and is never reset. A signal handler or any thread may set the flag. One thread waits for
    the flag."""

    def __init__(self) -> None:
        self._closed = False
        # A signal handler may interrupt the main thread while the thread waits for a threading.Event and has its lock.
        # A handler that then sets the event would wait for ever. The put of this queue is reentrant.
        self._news: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Set the latch. A wait that is under way, and each later wait, ends at once."""
        self._closed = True
        self._news.put(None)

    def is_set(self) -> bool:
        """Return True if the latch is set."""
        return self._closed

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the latch is set, but at most ``seconds``. Return True if the latch is set."""
        if not self._closed:
            with suppress(Empty):
                self._news.get(timeout=seconds)
        return self._closed


def follow() -> None:
    """Handle Ctrl-C from now on in the way that this module describes. Call this only in the main thread."""
    signal.signal(signal.SIGINT, _interrupted)


def ignore_signals() -> None:
    """Ignore Ctrl-C while the process ends, so that the process keeps its exit code. A handler function would not
    suffice, because Python removes handler functions while Python ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end(code: int = INTERRUPTED) -> None:
    """End the process after all registered clean-ups. Do not wait for threads, because they may wait for clouds. If a
    thread is just starting a program, wait until it has started, so that the program is killed, too."""
    ignore_signals()
    deadline = time.monotonic() + START_SECONDS
    while _starts and time.monotonic() < deadline:
        time.sleep(0.001)
    for undo in (*_kills, *reversed(_cleanups)):
        undo()
    atexit._run_exitfuncs()
    os._exit(code)


@contextmanager
def interruptible(undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Turn Ctrl-C into KeyboardInterrupt inside the block. Call ``undo`` at the end of the block, with or without
    Ctrl-C.

    If a second Ctrl-C interrupts ``undo``, ``undo`` is called again.
    """
    _cleanups.append(undo)
    try:
        yield
    finally:
        undo()
        _cleanups.remove(undo)


@contextmanager
def ends_process(start: Callable[[], Popen[bytes]]) -> Iterator[Popen[bytes]]:
    """Start a program that leads a process group. Inside the block, let Ctrl-C first end this group, and then this
    process. Safe in any thread."""

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    _starts.append(kill)
    try:
        process = start()
        _kills.append(kill)
    finally:
        _starts.remove(kill)
    try:
        yield process
    finally:
        _kills.remove(kill)


def _interrupted(*_: object) -> None:
    if _cleanups:
        raise KeyboardInterrupt
    end()
