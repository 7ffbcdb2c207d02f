"""The end of a process: no thread holds it up, and Ctrl-C ends a command at once, with exit code 130, no traceback.

What would outlive the process (other processes, temporary directories) is begun inside ``orderly``, or inside
``ended_first`` where a thread waits for a process.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

INTERRUPTED = 130
"""Exit code: what shells say of a program that SIGINT ended."""

_orderly: list[Callable[[], None]] = []
_first: list[Callable[[], None]] = []
_held: list[bool] = []
"""For each block that is not to be broken: whether Ctrl-C came meanwhile."""


class Latch:
    """Set once, by a signal handler or in any thread; one thread waits for it."""

    def __init__(self) -> None:
        self._closed = False
        # The handler of a signal interrupts the main thread anywhere. A threading.Event has a lock, which that thread
        # takes for its wait: a handler that needs it, too, waits for ever. This queue's put is reentrant.
        self._news: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the wait, and every later one."""
        self._closed = True
        self._news.put(None)

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._closed

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, at most so long; whether it is."""
        if not self._closed:
            with suppress(Empty):
                self._news.get(timeout=seconds)
        return self._closed


def follow() -> None:
    """Obey Ctrl-C from now on; called in the main thread."""
    signal.signal(signal.SIGINT, _interrupted)


def ignore_signals() -> None:
    """The process ends: another Ctrl-C could only take its exit code away, as Python resets the signal at its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end(code: int = INTERRUPTED) -> None:
    """End the process, after what is left to be ended. Threads are not waited for: they wait for clouds."""
    ignore_signals()
    for undo in (*_first, *reversed(_orderly)):
        undo()
    atexit._run_exitfuncs()
    os._exit(code)


@contextmanager
def orderly(undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Inside, Ctrl-C is a KeyboardInterrupt. ``undo`` is called at the end, more than once when that is broken, too."""
    _orderly.append(undo)
    try:
        yield
    finally:
        undo()
        _orderly.remove(undo)


@contextmanager
def ended_first(process: int) -> Iterator[None]:
    """Inside, Ctrl-C ends that process group before it ends this process. Any thread."""

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)

    _first.append(kill)
    try:
        yield
    finally:
        _first.remove(kill)


@contextmanager
def held() -> Iterator[None]:
    """Inside, Ctrl-C waits, so that what the block begins can be ended by who began it. In the main thread."""
    _held.append(False)
    try:
        yield
    finally:
        if _held.pop():
            signal.raise_signal(signal.SIGINT)


def _interrupted(*_: object) -> None:
    if _held:
        _held[-1] = True
    elif _orderly:
        raise KeyboardInterrupt
    else:
        end()
