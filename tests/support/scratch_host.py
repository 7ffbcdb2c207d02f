"""A copy of this host for tests. Its directories of programs are overlays on those of the host, so changes in them end
with the copy."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

SECONDS = 280


class ScratchHost:
    """Context manager that makes the copy. Needs root."""

    def __init__(self) -> None:
        self._space: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        overlays = "\n".join(
            f"mkdir -p /mnt/{name}/upper /mnt/{name}/work\n"
            f"mount -t overlay -o lowerdir=/{name},upperdir=/mnt/{name}/upper,workdir=/mnt/{name}/work walk /{name}"
            for name in ("etc", "home", "opt", "root", "usr", "var")
        )
        rests = "exec setpriv --pdeathsig KILL sleep infinity"
        program = f"mount -t tmpfs -o mode=755 walk /mnt\n{overlays}\necho ready\n{rests}"
        self._space = subprocess.Popen(["unshare", "-m", "sh", "-ec", program], stdout=subprocess.PIPE, text=True)
        assert self._space.stdout is not None
        if self._space.stdout.readline() != "ready\n":
            self._end()
            pytest.skip("needs overlay file systems in a mount namespace (unshare -m)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._space is not None
        self._space.kill()
        self._space.wait()
        assert self._space.stdout is not None
        self._space.stdout.close()

    def path(self, inside: str) -> Path:
        """Return the path on this host that leads to a path in the copy."""
        assert self._space is not None
        return Path(f"/proc/{self._space.pid}/root{inside}")

    def run(self, lines: str, *who: str, directory: str = "/") -> str:
        """Run lines of bash in the copy, and return their output. Raises AssertionError if the exit code is not 0.

        ``who``: words before the shell, such as those of runuser.
        """
        assert self._space is not None
        command = ["nsenter", f"--target={self._space.pid}", "--mount", *who]
        done = subprocess.run(
            [*command, "bash", "-euo", "pipefail", "-c", f"cd {directory}\n{lines}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{lines}\nended with {done.returncode}: {done.stdout[-3000:]}"
        return done.stdout
