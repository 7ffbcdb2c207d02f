"""Locks: flock on a file beside the data, opened once, never renamed, signed by its holder with a line of fixed width.

A kill never leaves half of such a line (JSON); one that does not parse means: holder unknown, generation unknown.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from provisioner.state.atomic import open_shared, read_if_present
from provisioner.state.errors import LockTimeout, StateError, StateUnwritable, writing
from provisioner.utc import format_utc

LOCK_WAIT = 20.0
"""Seconds a script waits for a lock: far below HF's 300 s for a whole call."""

RECORD_WIDTH = 256
"""Bytes of the line in a lock file. Fixed, so that a shorter line never leaves the tail of a longer one."""

SHORTEST_POLL = 0.001
LONGEST_POLL = 0.04
"""Seconds between tries: on NFS each is a call to the server, and fifty writers may be waiting."""

TURN_POLL = 0.002
"""Seconds between tries of the process that has the turn: no other process tries then."""

LOST_FILE = "The lock file was removed while it was held; nothing was written. Never remove lock files. Try again."
LOST_LOCK = (
    "This lock was lost while it was held (an NFS server forgets those of a host that it has not heard of for long); "
    "nothing was written. Try again."
)


class LockFile:
    """One lock file and, while it is held, the right to write the data beside it."""

    def __init__(self, path: str, longest_poll: float = LONGEST_POLL) -> None:
        self.path = path
        self._longest_poll = longest_poll
        self._descriptor: int | None = None
        self._signed: dict[str, Any] = {}

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it. Raises StateUnwritable when the file cannot be opened or locked."""
        try:
            with writing(self.path, "locked"):
                if self._descriptor is None:
                    self._descriptor = open_shared(self.path, os.O_RDWR)
                if not self._flock(self._descriptor):
                    return False
            if self.in_place():
                return True
        except StateError:
            self.release()
            raise
        self.release()
        return False

    def _flock(self, descriptor: int) -> bool:
        """Lock the open file; False if another process holds the lock. Raises OSError."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self, wait: float | None = None, stop: Callable[[], bool] = lambda: False) -> bool:
        """Take the lock within ``wait`` seconds (None: however long it takes); False when time is up or ``stop()``."""
        deadline = None if wait is None else time.monotonic() + wait
        pause = SHORTEST_POLL
        while not stop():  # asked before each try: who was served meanwhile leaves the lock to others
            if self.try_acquire():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                break
            time.sleep(pause * (0.5 + os.urandom(1)[0] / 255))  # jitter: those who wait do not try in step
            pause = min(pause * 1.5, self._longest_poll)
        self.release()
        return False

    def in_place(self) -> bool:
        """True while the locked file is the one that others find under its name."""
        if self._descriptor is None:
            return False
        with writing(self.path):
            try:
                return os.path.samestat(os.fstat(self._descriptor), os.lstat(self.path))
            except FileNotFoundError:
                return False

    def check_in_place(self) -> None:
        """Raises StateUnwritable when somebody removed the lock file: another writer may then hold a new one."""
        if not self.in_place():
            raise StateUnwritable(f"{self.path}: {LOST_FILE}")

    def is_signed(self) -> bool:
        """The file still says what we signed. Raises StateUnwritable where it cannot be read: NFS 4 tells a loss so."""
        return self.record() == self._signed

    def record(self) -> dict[str, Any]:
        """What the file says now, read through the locked descriptor; empty when that is unknown."""
        if self._descriptor is None:
            return {}
        with writing(self.path):
            return parse_line(os.pread(self._descriptor, 2 * RECORD_WIDTH, 0))

    def sign(self, facts: dict[str, Any], *, durable: bool = False) -> None:
        """Replace the line in one write. Raises StateUnwritable."""
        if self._descriptor is None:
            raise StateUnwritable(f"{self.path}: {LOST_FILE}")
        line = json.dumps(facts, separators=(",", ":")).encode().ljust(RECORD_WIDTH - 1) + b"\n"
        with writing(self.path):
            os.pwrite(self._descriptor, line, 0)
            if durable:
                os.fsync(self._descriptor)
        self._signed = facts

    def release(self) -> None:
        """Let go of the lock. Safe to call twice."""
        if self._descriptor is not None:
            with suppress(OSError):  # the descriptor, and with it the lock, is gone whatever close() reports
                os.close(self._descriptor)
            self._descriptor = None


def parse_line(content: bytes) -> dict[str, Any]:
    """What a lock file says by this content; empty when it does not parse."""
    try:
        facts = json.loads(content.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def read_record(path: str) -> dict[str, Any]:
    """What a lock file says, read from disk without a lock; empty when it is missing or does not parse."""
    return parse_line(read_if_present(path, "") or b"")


def whole_number(facts: dict[str, Any], key: str) -> int:
    """A counter in a lock file; 0 when unknown."""
    value = facts.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class DataLock:
    """The lock of one database, as a context manager: held from reading the data to having replaced it.

    Who waits takes the *turn* first, a lock file of its own, and keeps it until the lock is his.

    * Only one process tries for the lock, every ``TURN_POLL``: one that takes the lock again and again cannot starve
      the others, the loop's trim among them. ``tests/bench/bench_writers.py`` measures what turns bring.
    * Whoever waited for the turn until his time was up tries for the lock all the same: a process that is stopped in
      its turn stops nobody else.
    * The lock file keeps the last generation, written after the data is durable: it never runs ahead of the data.
    """

    def __init__(self, path: str, wait: float = LOCK_WAIT) -> None:
        self._file = LockFile(path, TURN_POLL)
        self._turn = LockFile(f"{path}.turn")
        self._wait = wait
        self._deadline = time.monotonic() + wait
        self.generation = 0
        """Last generation known to be durable; 0 when unknown."""

    def __enter__(self) -> DataLock:
        if not self.acquire():
            raise self.timeout()
        return self

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the lock that was acquired is held; it is released at the end."""
        try:
            yield
        finally:
            self.release()

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it or waits for it."""
        try:
            taken = self._turn.try_acquire() and self._file.try_acquire()
        finally:
            self._turn.release()
        return taken and self._signed()

    def acquire(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Take the lock before the time is up, which began with this object; False when it is, or when ``stop()``."""
        try:
            self._turn.acquire(self._left(), stop)  # in vain where its holder is stopped: one try is left then
            taken = self._file.acquire(self._left(), stop)
        finally:
            self._turn.release()
        return taken and self._signed()

    def timeout(self) -> LockTimeout:
        """The error that names the holder and says what to do."""
        return LockTimeout(describe_holder(self._file.path, self._wait))

    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def _signed(self) -> bool:
        try:
            self.generation = whole_number(self._file.record(), "generation")
            self._sign()
        except StateError:
            self._file.release()
            raise
        return True

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Note the generation and let go of the lock."""
        try:
            # The data is durable already, and a lock file may be behind it: this must not turn success into failure.
            with suppress(StateUnwritable):
                if self._file.in_place() and self._file.is_signed():
                    self._file.sign({"generation": self.generation})
        finally:
            self._file.release()

    def note(self) -> None:
        """Note the generation durably, before what it is about is written. Raises StateUnwritable."""
        self._file.check_in_place()
        self._sign(durable=True)

    def _sign(self, *, durable: bool = False) -> None:
        facts = {**identity(), "since": format_utc(time.time()), "generation": self.generation}
        self._file.sign(facts, durable=durable)

    def check(self) -> None:
        """Raises StateUnwritable when the lock is no longer ours to rely on."""
        self._file.check_in_place()
        if not self._file.is_signed():
            raise StateUnwritable(f"{self._file.path}: {LOST_LOCK}")


def identity() -> dict[str, Any]:
    """Who we are, as others see us."""
    return {"host": os.uname().nodename[:64], "pid": os.getpid()}


def describe_holder(path: str, wait: float) -> str:
    """Why the lock was not had, and what to do about it."""
    facts = read_record(path)
    start = f"{path}: another process held this lock for {wait:g} s; nothing was written. "
    host, pid = facts.get("host"), facts.get("pid")
    if not isinstance(host, str) or not isinstance(pid, int):
        return start + f"The holder has not signed; `lsof {path}` names it on its host. Try again."
    since = f", since {facts['since']}" if "since" in facts else ""
    return start + f"Signed by process {pid} on host {host}{since}, {_life(host, pid, path)} Try again once it ended."


def _life(host: str, pid: int, path: str) -> str:
    if host != os.uname().nodename[:64]:
        return f"which only that host can check (`ps -p {pid}`)."
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return f"which no longer runs: a child of it or a process yet to sign holds the lock (`lsof {path}`)."
    except PermissionError:
        pass
    if message := stopped_message({"host": host, "pid": pid}):
        return f"which runs on this host: {message}."
    return f"which runs on this host (`ps -p {pid}`)."


def stopped_message(holder: Mapping[str, Any]) -> str:
    """What to do about the holder of a lock, if it is a stopped process of this host; else empty."""
    pid = holder.get("pid")
    if holder.get("host") != os.uname().nodename[:64] or type(pid) is not int:
        return ""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[:1]
    except OSError:  # it has ended, or is hidden
        return ""
    return f"process {pid} is stopped (SIGSTOP): continue it (kill -CONT {pid}) or end it" if state == [b"T"] else ""
