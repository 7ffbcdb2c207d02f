"""Locks: flock on a file beside the data. The file is never renamed. The holder signs it with a line of fixed width.

The line is JSON. The holder writes it in one call, so a killed process does not leave half a line. If the line does not
parse, holder and generation are unknown.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from provisioner.files.safe_open import closed_at_end, open_own
from provisioner.state.atomic import open_shared, read_if_present
from provisioner.state.errors import LockTimeout, StateError, StateUnwritable, writing
from provisioner.utc import format_utc

LOCK_WAIT = 20.0
"""Seconds that a script waits for a lock: much less than the 300 s that HF allows for a whole call."""

RECORD_WIDTH = 256
"""Width in bytes of the line in a lock file. The width is fixed, so that a short line leaves no tail of a longer
line."""

HELD_SECONDS = 5.0
"""Seconds after which a held lock is reported. A write takes only milliseconds, and scripts give up after
``LOCK_WAIT``."""

SHORTEST_POLL = 0.001
LONGEST_POLL = 0.04
"""Longest pause in seconds between two tries. A shorter pause would burden an NFS server, because each try is a call to
the server, and fifty writers may wait."""

TURN_POLL = 0.002
"""Seconds between two tries to take the lock. Only the process that has the turn tries (see ``DataLock``)."""

LOST_FILE = "The lock file was removed while it was held; no file was written. Never remove lock files. Try again."
LOST_LOCK = (
    "This lock was lost while it was held (an NFS server forgets the locks of a host that is silent for long); "
    "no file was written. Try again."
)


class LockFile:
    """A lock file. A process that holds the lock may write the data beside the lock file."""

    def __init__(self, path: str, longest_poll: float = LONGEST_POLL) -> None:
        self.path = path
        self._longest_poll = longest_poll
        self._descriptor: int | None = None
        self._signed: dict[str, Any] = {}

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Raises StateUnwritable if the file cannot be opened or locked."""
        try:
            with writing(self.path, "locked"):
                if self._descriptor is None:
                    self._descriptor = open_shared(self.path, os.O_RDWR)
                if not self._flock(self._descriptor):
                    return False
            if self.is_in_place():
                return True
        except StateError:
            self.release()
            raise
        self.release()
        return False

    def _flock(self, descriptor: int) -> bool:
        """Lock the open file; return False if another process holds the lock. Raises OSError."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self, wait: float | None = None, stop: Callable[[], bool] = lambda: False) -> bool:
        """Take the lock within ``wait`` seconds; None means without limit.

        Return False when the time is up or ``stop()`` is true.
        """
        deadline = None if wait is None else time.monotonic() + wait
        pause = SHORTEST_POLL
        while not stop():  # ask before each try: a caller that was served meanwhile needs no lock
            if self.try_acquire():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                break
            time.sleep(pause * (0.5 + os.urandom(1)[0] / 255))  # jitter, so that waiting processes do not try in step
            pause = min(pause * 1.5, self._longest_poll)
        self.release()
        return False

    def fileno(self) -> int:
        """Return the descriptor of the locked file. A child process that inherits the descriptor also holds the lock,
        until the child ends. Raises StateUnwritable if the lock is not held."""
        if self._descriptor is None:
            raise StateUnwritable(f"{self.path}: {LOST_FILE}")
        return self._descriptor

    def is_in_place(self) -> bool:
        """Return True while other processes find the locked file under the lock's name."""
        if self._descriptor is None:
            return False
        with writing(self.path):
            try:
                return os.path.samestat(os.fstat(self._descriptor), os.lstat(self.path))
            except FileNotFoundError:
                return False

    def check_in_place(self) -> None:
        """Raise StateUnwritable if the lock file was removed. Another writer may then hold a new lock file."""
        if not self.is_in_place():
            raise StateUnwritable(f"{self.path}: {LOST_FILE}")

    def is_signed(self) -> bool:
        """Return True if the file still contains our signature.

        Raises StateUnwritable if the file cannot be read. NFS 4 refuses the read if the lock was lost.
        """
        return self.record() == self._signed

    def record(self) -> dict[str, Any]:
        """Return the file's record, read through the locked descriptor; empty if it is unknown."""
        if self._descriptor is None:
            return {}
        with writing(self.path):
            return parse_line(os.pread(self._descriptor, 2 * RECORD_WIDTH, 0))

    def sign(self, facts: dict[str, Any], *, durable: bool = False) -> None:
        """Replace the lock file's line with ``facts``, in one write. Raises StateUnwritable."""
        if self._descriptor is None:
            raise StateUnwritable(f"{self.path}: {LOST_FILE}")
        line = json.dumps(facts, separators=(",", ":")).encode().ljust(RECORD_WIDTH - 1) + b"\n"
        with writing(self.path):
            os.pwrite(self._descriptor, line, 0)
            if durable:
                os.fsync(self._descriptor)
        self._signed = facts

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        if self._descriptor is not None:
            with suppress(OSError):  # the descriptor and its lock are gone even if close() fails
                os.close(self._descriptor)
            self._descriptor = None


def parse_line(content: bytes) -> dict[str, Any]:
    """Return the record in a lock file's content; empty if the content does not parse."""
    try:
        facts = json.loads(content.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def read_record(path: str) -> dict[str, Any]:
    """Return a lock file's record, read from disk without a lock; empty if the file is missing or does not parse."""
    return parse_line(read_if_present(path, "") or b"")


def whole_number(facts: dict[str, Any], key: str) -> int:
    """Return a counter in a lock file's record; 0 if it is unknown."""
    value = facts.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class DataLock:
    """The lock of a database, as a context manager. A writer takes the lock before it reads the data. It keeps the lock
    until it has replaced the data.

    A waiting process first takes the *turn*, which is another lock file. It keeps the turn until it has the lock.

    * Only the process with the turn tries for the lock, every ``TURN_POLL``. So no process can starve the others by
      taking the lock again and again. ``tests/bench/bench_writers.py`` measures this.
    * A process whose time is up without the turn still tries for the lock once. So a stopped process with the turn does
      not block the others.
    * A writer first makes the data durable, then records its generation in the lock file. Only a restore records the
      generation first (``note``), so that the data of an interrupted restore counts as old.
    """

    def __init__(self, path: str, wait: float = LOCK_WAIT) -> None:
        self._file = LockFile(path, TURN_POLL)
        self._turn = LockFile(f"{path}.turn")
        self._wait = wait
        self._deadline = time.monotonic() + wait
        self.generation = 0
        """Last generation known to be durable; 0 if it is unknown."""

    def __enter__(self) -> DataLock:
        if not self.acquire():
            raise self.timeout()
        return self

    @contextmanager
    def released_at_end(self) -> Iterator[None]:
        """Release the lock, which the caller has acquired, at the end of the block."""
        try:
            yield
        finally:
            self.release()

    def try_acquire(self) -> bool:
        """Take the lock. Return False if another process holds the lock or waits for it."""
        try:
            is_taken = self._turn.try_acquire() and self._file.try_acquire()
        finally:
            self._turn.release()
        return is_taken and self._sign_acquired()

    def acquire(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Take the lock within this object's time, which began when the object was made. Return False if this time is
        up or ``stop()`` is true."""
        try:
            if self._turn.acquire(self._left_seconds(), stop):  # fails if the turn's holder is stopped
                self._turn.sign(identity() | {"since": format_utc(time.time())})
            is_taken = self._file.acquire(self._left_seconds(), stop)
        finally:
            self._turn.release()
        return is_taken and self._sign_acquired()

    def timeout(self) -> LockTimeout:
        """Return the error that names the holder and the operator's next step."""
        return LockTimeout(describe_holder(self._file.path, self._wait))

    def _left_seconds(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def _sign_acquired(self) -> bool:
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
        """Record the generation and release the lock."""
        try:
            # The data is durable, and the record may be behind it, so an error here must not fail the write.
            with suppress(StateUnwritable):
                if self._file.is_in_place() and self._file.is_signed():
                    self._file.sign({"generation": self.generation})
        finally:
            self._file.release()

    def note(self) -> None:
        """Record the generation durably, before the data of this generation is written. A restore does this, so that
        the data of an interrupted restore counts as an old copy. Raises StateUnwritable."""
        self._file.check_in_place()
        self._sign(durable=True)

    def _sign(self, *, durable: bool = False) -> None:
        facts = {**identity(), "since": format_utc(time.time()), "generation": self.generation}
        self._file.sign(facts, durable=durable)

    def check(self) -> None:
        """Raise StateUnwritable if the lock was lost."""
        self._file.check_in_place()
        if not self._file.is_signed():
            raise StateUnwritable(f"{self._file.path}: {LOST_LOCK}")


def identity() -> dict[str, Any]:
    """Return the host and pid of this process."""
    return {"host": os.uname().nodename[:64], "pid": os.getpid()}


def is_locked(path: str) -> bool:
    """Return True if this host can see that a process holds the lock of the file ``path``. Return False if the file is
    missing. The function creates no file."""
    with suppress(OSError), closed_at_end(open_own(path, os.O_RDONLY)) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def find_lasting_holder(path: str, clock: Callable[[], float]) -> str:
    """Return a message about a process that has held the lock, or its turn, for at least ``HELD_SECONDS``. The message
    also gives the operator's next step. Return an empty text if there is no such process, or if this is unknown.

    ``path``: the lock file. ``clock``: function that returns the time by the file system's clock.
    """
    for file in (path, f"{path}.turn"):
        with suppress(OSError):
            # A signature sets the file's time. Ask twice, because a process that takes the turn briefly does not sign.
            held = is_locked(file) and clock() - os.lstat(file).st_mtime
            if held >= HELD_SECONDS and is_locked(file):
                return f"{os.path.basename(file)} is held for {held:.0f} s. {_format_holder(file)}"
    return ""


def get_boot_id() -> str:
    """Return the id of this host's present boot; empty if it is unknown."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


def is_gone(holder: Mapping[str, Any]) -> bool:
    """Return True if the holder is proven gone: its process ran in this host's present boot and does not exist now.

    A holder with this process's own pid was an earlier process, for example in the previous container.
    """
    pid, boot = holder.get("pid"), holder.get("boot")
    is_here = bool(boot) and boot == get_boot_id() and holder.get("host") == os.uname().nodename[:64]
    return is_here and type(pid) is int and (pid == os.getpid() or not _exists(pid))


def _exists(pid: int) -> bool:
    """Return True if this host has, or may have, a process with this pid."""
    with suppress(PermissionError, OverflowError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def describe_holder(path: str, wait: float) -> str:
    """Return the message for a lock that was not acquired: its holder and the operator's next step."""
    start = f"{path}: another process held this lock for {wait:g} s; no file was written. "
    return start + _format_holder(path)


def _format_holder(path: str) -> str:
    facts = read_record(path)
    host, pid = facts.get("host"), facts.get("pid")
    if not isinstance(host, str) or not isinstance(pid, int):
        return f"The holder has not signed; `lsof {path}` names it on its host. Try again."
    since = f", since {facts['since']}" if "since" in facts else ""
    life = _format_life(host, pid, path)
    return f"Signed by process {pid} on host {host}{since}, {life} Try again once the process has ended."


def _format_life(host: str, pid: int, path: str) -> str:
    if host != os.uname().nodename[:64]:
        return f"which only that host can check (`ps -p {pid}`)."
    if not _exists(pid):
        return f"which no longer runs: its child, or a process that has not signed yet, holds the lock (`lsof {path}`)."
    if message := stopped_message({"host": host, "pid": pid}):
        return f"which runs on this host: {message}."
    return f"which runs on this host (`ps -p {pid}`)."


def stopped_message(holder: Mapping[str, Any]) -> str:
    """Return the operator's next step if the lock's holder is a stopped process of this host; empty if not."""
    pid = holder.get("pid")
    if holder.get("host") != os.uname().nodename[:64] or type(pid) is not int:
        return ""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[:1]
    except OSError:  # the process has ended, or is hidden
        return ""
    return f"process {pid} is stopped (SIGSTOP): continue it (kill -CONT {pid}) or end it" if state == [b"T"] else ""
