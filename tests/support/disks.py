"""A small disk for one directory. A test can fill the disk, or mount it read-only."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

import pytest

from tests.support.waiting import PATIENCE


class Disk:
    """A file system that is mounted at ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._filler = directory / "filler"
        self._covered = False
        self._ended = threading.Event()
        self._filling = threading.Thread(target=self._keep_full)

    def fill(self) -> None:
        """Fill the disk, and keep it full until ``free`` is called. Fill it again if files are removed."""
        self._fill()
        self._ended.clear()
        self._filling = threading.Thread(target=self._keep_full)
        self._filling.start()

    def _fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            _write_for_ever(file)

    def _keep_full(self) -> None:
        while not self._ended.wait(0.005):
            self._fill()

    def free(self) -> None:
        """Free the blocks that ``fill`` has filled."""
        self.end()
        self._filler.unlink()

    def end(self) -> None:
        """Stop keeping the disk full. The blocks stay filled."""
        self._ended.set()
        if self._filling.ident is not None:
            self._filling.join()

    def forbid(self) -> None:
        """Mount the disk read-only, even if its files are open."""
        mount("--bind", str(self.directory), str(self.directory))
        self._covered = True
        mount("-o", "remount,bind,ro", str(self.directory))

    def allow(self) -> None:
        """Remove the read-only mount."""
        if self._covered:
            subprocess.run(["umount", "--lazy", str(self.directory)], check=True, timeout=60 * PATIENCE)
        self._covered = False


def _write_for_ever(file: BinaryIO) -> NoReturn:
    while True:
        file.write(bytes(4096))


@contextmanager
def disk(directory: Path, size: str = "1m") -> Iterator[Disk]:
    """Mount a disk of this size at ``directory``, and yield the disk. Make the directory if it is missing.

    Skip the test if this user may not mount file systems.
    """
    directory.mkdir(parents=True, exist_ok=True)
    refusal = mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory), check=False)
    if refusal:
        pytest.skip(f"needs the right to mount a file system (root has it): {refusal}")
    mounted = Disk(directory)
    try:
        yield mounted
    finally:
        mounted.end()
        mounted.allow()
        subprocess.run(["umount", "--lazy", str(directory)], check=True, timeout=60 * PATIENCE)


def mount(*arguments: str, check: bool = True) -> str:
    """Run ``mount``. Return an empty text or, if mount refused, its message.

    With ``check``, raise AssertionError if mount refused.
    """
    program = shutil.which("mount", path="/usr/bin:/bin:/usr/sbin:/sbin")
    if program is None:
        return "no program mount"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60 * PATIENCE)
    refusal = (done.stderr.strip() or f"mount ended with {done.returncode}") if done.returncode else ""
    assert not (check and refusal), refusal
    return refusal
