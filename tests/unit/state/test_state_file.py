"""Faults at each system call of each write. The call is refused, or a kill or a power cut follows it.

Readers then find the complete old or new state, and the next writer goes on. ``tests/integration/test_scripts_kill.py``
kills a real process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from provisioner.files import safe_open
from provisioner.hostfactory import Answer
from provisioner.model import Memory
from provisioner.state import (
    atomic,
    batched_writes,
    database,
    directory,
    intent_file,
    locks,
    marker_files,
    new_ids,
    poll_markers,
    state_file,
)
from provisioner.state.batched_writes import BatchedWrite
from provisioner.state.database import SCHEMA
from provisioner.state.directory import StateDir
from provisioner.state.errors import Condition, StateError, StateMissing
from provisioner.state.locks import DataLock
from tests.support.stores import add_request
from tests.support.waiting import PATIENCE, until

CALLS = ("open", "close", "read", "pread", "write", "pwrite", "fsync", "fstat", "lstat", "fchmod", "rename", "listdir")
"""Calls on ``os`` that a write makes; ``flock`` comes from fcntl."""


class Killed(BaseException):
    """The end of the process: no later call has an effect."""


class System:
    """A replacement of ``os`` and ``fcntl`` in the store's modules. It can undo what a power cut would undo.

    Only the thread that made the replacement uses it. Other threads have the real modules. ``turn``: number of the call
    that fails with ``error``; without ``error``, the process is killed after this call. ``most``: number of files that
    may be open at once.
    """

    urandom = staticmethod(os.urandom)

    def __init__(self, turn: int = -1, error: int | None = None, most: int = 1000) -> None:
        self.calls: list[str] = []
        self._turn = turn
        self._error = error
        self._most = most
        self.renamed: Callable[[], object] = lambda: None
        """Called after each rename."""
        self._thread = threading.get_ident()
        self._dead = False
        self._open: dict[int, str] = {}
        self._unsynced: set[int] = set()
        self._replaced: dict[str, bytes | None] = {}

    def __getattr__(self, name: str) -> Any:
        real = fcntl.flock if name == "flock" else getattr(fcntl if name.startswith("LOCK_") else os, name)
        if name not in (*CALLS, "flock") or threading.get_ident() != self._thread:
            return real
        return lambda *arguments: self._call(name, real, *arguments)

    def _call(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        if self._dead:
            raise Killed
        turn = len(self.calls)
        self.calls.append(name)
        if turn == self._turn and self._error is not None:
            if name == "close":  # Linux closes also when it reports an error
                real(*arguments)
                del self._open[arguments[0]]
            raise OSError(self._error, os.strerror(self._error))
        if name in ("open", "listdir") and len(self._open) >= self._most:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._note_before(name, arguments)
        result = real(*arguments)
        self._note_after(name, arguments, result)
        if turn == self._turn:
            self._dead = True
            raise Killed
        return result

    def _note_before(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "rename":
            old = Path(arguments[1])
            self._replaced[arguments[1]] = old.read_bytes() if old.exists() else None

    def _note_after(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name == "open":
            self._open[result] = arguments[0]
        elif name == "close":
            del self._open[arguments[0]]
        elif name in ("write", "pwrite"):
            self._unsynced.add(os.fstat(arguments[0]).st_ino)
        elif name == "fsync":
            self._unsynced.discard(os.fstat(arguments[0]).st_ino)
            if os.path.isdir(self._open[arguments[0]]):
                self._replaced.clear()
        elif name == "rename":
            self.renamed()

    def end(self) -> None:
        """Close the open files, as the kernel does when a process ends."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def cut_power(self, directory: Path, *, names_too: bool) -> None:
        """Undo content that was not fsynced, and with ``names_too`` also names whose directory was not fsynced."""
        for path in directory.iterdir():
            if path.stat().st_ino in self._unsynced:
                path.write_bytes(b"")
        for name, old in self._replaced.items() if names_too else ():
            if old is None:
                Path(name).unlink(missing_ok=True)
            else:
                Path(name).write_bytes(old)


# --- what is written --------------------------------------------------------------------------------------------------


def add(state: StateDir) -> None:
    """Add another request, under the same id in each run, so that states can be compared."""
    file = Path(state.intent.path)
    number = len(json.loads(file.read_text())["requests"]) if file.exists() else 0
    with patch.object(new_ids, "new_id", lambda: f"request{number:03d}"):
        add_request(state, "T", 1, created_wall=1.0, wait=0, create_for="demo")


def add_after_waiting(state: StateDir) -> None:
    """Add a request while the lock is taken at first and free a moment later."""
    with patch.object(DataLock, "try_acquire", lambda _: False):
        add(state)


WRITES: dict[str, tuple[bool, Callable[[StateDir], None]]] = {
    "first request": (False, add),
    "init": (False, lambda state: state.intent.create("demo")),
    "another request": (True, add),
    "a request that waits": (True, add_after_waiting),
    "another request, and that of one who waits": (True, add),
    "a trim, and the request of one who waits": (True, lambda state: state.intent.remove(["request000"]) and None),
    "memory": (True, lambda state: state.memory.write(Memory("demo", epoch=2))),
    "status": (True, lambda state: state.status.write({"r": Answer("new", True)}, {})),
}
"""Each write, and whether there is a state before it."""

SLOW = ("init", "another request", "a request that waits", "a trim, and the request of one who waits", "memory")
"""Writes that only slow tests check, because they are much like another write, or part of one."""

WAITING = {"requests": {"waiting000": {"template": "T", "count": 1, "created_wall": 1.0}}}
"""Documents that a waiting script has posted."""


def read_all(directory: Path) -> tuple[Any, ...]:
    """Return the content that readers see: intent, memory and answers. A missing file gives None.

    Raises StateError for an unreadable file.
    """
    state = StateDir(directory)
    return tuple(_or_none(read) for read in (state.intent.read, state.memory.read, state.status.read_all))


def _or_none(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except StateMissing:
        return None


pytestmark = pytest.mark.usefixtures("no_pauses", "no_fsync")

STORE = (
    safe_open, atomic, locks, marker_files, poll_markers, database, state_file, batched_writes, intent_file, directory,
    new_ids,
)  # fmt: skip
"""Modules that call the system."""


@contextmanager
def played(system: System) -> Iterator[None]:
    """Give this system to the store's modules inside the block."""
    with pytest.MonkeyPatch.context() as owners:
        for module in STORE:
            owners.setattr(module, "os", system)
        for module in (locks, batched_writes):
            owners.setattr(module, "fcntl", system)
        owners.setattr(locks, "format_utc", lambda _: "now")
        yield


class Stage:
    """A write that is played many times from the same state, each time with another fault."""

    def __init__(self, directory: Path, write: str) -> None:
        self._directory = directory
        self._name = write
        self._filled, self._write = WRITES[write]
        self._checked: set[object] = set()
        self._start = directory / "start"
        self._start.mkdir()
        if self._filled:
            state = StateDir(self._start)
            add(state)
            state.memory.write(Memory("demo", epoch=1))
            state.status.write({"r": Answer("old", False)}, {})
        self.before = read_all(self._start)
        self.alone = read_all(self._undisturbed(alone=True)[0])
        self.place, self.calls = self._undisturbed()
        self.after = read_all(self.place)
        assert self.before not in (self.alone, self.after)
        assert (self.alone != self.after) is ("one who waits" in write)

    def _undisturbed(self, *, alone: bool = False) -> tuple[Path, list[str]]:
        system = System()
        place, finished = self.play(system, alone=alone)
        assert finished
        return place, system.calls

    def play(self, system: System, *, alone: bool = False) -> tuple[Path, bool]:
        """Run the write in a copy of the start. Return the copy, and True if the write returned. Raises StateError.

        ``alone``: no script waits.
        """
        place = copied(self._start, self._directory / "run")
        system.urandom = bytes  # the same names in each run, so that remaining files can be compared
        with ExitStack() as stack:
            if "one who waits" in self._name and not alone:
                stack.enter_context(BatchedWrite(str(place / "intent.json"), WAITING).posted({"schema": SCHEMA}))
            stack.enter_context(played(system))
            try:
                self._write(StateDir(place))
            except Killed:
                return place, False
            finally:
                system.end()
        return place, True

    def check(self, place: Path, *, finished: bool) -> None:
        """Check that the state is old or new, and that the next writer goes on.

        The state is new if the write returned. The lock file is never ahead of the durable data. If the writer could
        not read a posted write, the new state lacks it. A state is checked only once.
        """
        found = (finished, *sorted((path.name, path.read_bytes()) for path in place.iterdir()))
        if found in self._checked:
            return
        place = copied(place, self._directory / "checked")
        now = read_all(place)
        assert now in (self.before, self.alone, self.after)
        assert now != self.before or not finished
        state = StateDir(place)
        for file in (state.intent, state.memory):
            assert file.condition() is not Condition.OLDER, f"{file.lock_path} is ahead of what is durable"
        add(state)
        state.memory.write(Memory("demo", epoch=3))
        self._checked.add(found)


def copied(start: Path, place: Path) -> Path:
    """Return a directory with the files of another one."""
    place.mkdir(exist_ok=True)
    for path in place.iterdir():
        path.unlink()
    for path in start.iterdir():
        shutil.copy(path, place)
    return place


# --- the rules --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in WRITES])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(tmp_path, request.param)


def test_a_kill_or_a_power_cut_at_any_call_leaves_the_old_or_the_new_state_and_all_that_was_acknowledged(
    stage: Stage,
) -> None:
    for turn in range(len(stage.calls) + 1):
        system = System(turn)
        place, finished = stage.play(system)
        stage.check(place, finished=finished)
        for names_too in (False, True):
            system.cut_power(place, names_too=names_too)
            stage.check(place, finished=finished)


@pytest.mark.parametrize("error", [errno.EIO, pytest.param(errno.ESTALE, marks=pytest.mark.slow)])
def test_a_refused_call_is_reported_and_leaves_the_old_or_the_new_state(stage: Stage, error: int) -> None:
    reported = 0
    for turn in range(len(stage.calls)):
        system = System(turn, error)
        try:
            place, finished = stage.play(system)
        except StateError as refused:
            place, finished = stage.place, False
            reported += str(place) in str(refused)
            last_sync = system.calls[turn] == "fsync" and "rename" in system.calls
            assert last_sync or read_all(place) == stage.before, f"refused, and written: {system.calls[turn]}"
        assert list(place.glob("*.new")) == []
        stage.check(place, finished=finished)
    assert reported > len(stage.calls) / 3


# --- one who waits ----------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """A writer that holds the lock until a script waits for it or has ended. It then writes the script's posted write.

    ``slowly``: the new content replaces the file only after the waiting script has ended.
    """

    def __init__(self, directory: Path, *, slowly: bool) -> None:
        super().__init__()
        self._directory = directory
        self._slowly = slowly
        self.held, self.in_hand, self.ended = threading.Event(), threading.Event(), threading.Event()

    def run(self) -> None:
        state = StateDir(self._directory)
        with DataLock(state.intent.lock_path) as lock:
            self.held.set()
            until(self._is_awaited, 60, every=0.001, what="a script waits")
            state.intent._write(state.intent._current(lock, None), lock)

    def _is_awaited(self) -> bool:
        return self.ended.is_set() or bool(list(self._directory.glob("intent.batch-*[0-9a-f]")))

    def rename(self, aside: str, path: str) -> None:
        """Replacement of ``atomic._rename``. With ``slowly``, this writer first waits until the script has ended."""
        if threading.current_thread() is self:
            self.in_hand.set()
            assert not self._slowly or self.ended.wait(60 * PATIENCE)
        RENAME(aside, path)


RENAME = atomic._rename


def add_beside_writer(directory: Path, system: System, wait: float, *, slowly: bool) -> bool:
    """Let a script add a request beside a writer, and return True if the script succeeds.

    Raises AssertionError if the file has a failed script's request, or lacks a successful script's request.
    """
    state, id_ = StateDir(directory), new_ids.new_id()
    writer = Writer(directory, slowly=slowly)
    if slowly:
        system.renamed = lambda: writer.in_hand.wait(60 * PATIENCE)  # the posted write has its final name
    with patch.object(atomic, "_rename", writer.rename):
        writer.start()
        assert writer.held.wait(60 * PATIENCE)
        try:
            with played(system):
                state.intent.add({"requests": {id_: {"template": "T", "count": 1, "created_wall": 0.0}}}, wait=wait)
            answer = True
        except StateError:
            answer = False
        finally:
            system.end()
            writer.ended.set()
            writer.join()
    recorded = id_ in state.intent.read().requests
    assert answer == recorded, f"succeeded {answer}, recorded {recorded}: {system.calls[-1:]}"
    return answer


@pytest.mark.parametrize(
    "slowly",
    [pytest.param(False, id="a writer", marks=pytest.mark.slow), pytest.param(True, id="a slow writer")],
)
def test_whoever_is_refused_while_he_waits_has_recorded_nothing(tmp_path: Path, slowly: bool) -> None:
    """If a waiting script is refused, its request must not be recorded. Each of the script's calls fails in turn; then
    the number of its open files is limited."""
    StateDir(tmp_path).intent.create("demo")
    system = System()
    assert add_beside_writer(tmp_path, system, 0.0 if slowly else 20.0, slowly=slowly) is not slowly
    disturbed = [System(turn, errno.EIO) for turn in range(len(system.calls))]
    disturbed += [System(most=most) for most in range(6)]
    answers = [add_beside_writer(tmp_path, system, 0.0 if slowly else 0.5, slowly=slowly) for system in disturbed]
    assert answers.count(False) > 3


def test_the_order_of_a_write(tmp_path: Path) -> None:
    """Check the order of a write's calls.

    * Take turn and lock, sign, and find posted writes.
    * Write aside, sync, check the lock, rename, sync, and record.
    """
    order = [name for name in Stage(tmp_path, "another request").calls if name not in FINDING]
    assert " ".join(order) == (
        "flock flock pread pwrite read read listdir fchmod write fsync pread rename fsync listdir pread pwrite"
    )


FINDING = ("open", "close", "lstat", "fstat")
