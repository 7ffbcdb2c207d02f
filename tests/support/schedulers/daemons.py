"""Daemons of a scheduler in a directory of their own, run as a user without rights."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

UNPRIVILEGED = "nobody"
"""User that runs the daemons if root runs the tests. Otherwise the tests' own user runs the daemons."""


class Daemons:
    """Daemons of one installation. :meth:`stop` ends the daemons and removes the directory."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="scheduler-"))
        """A directory that the daemons' user owns. Pytest's own directories are closed to other users."""
        self.user = UNPRIVILEGED if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self.directory.chmod(0o755)
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.directory), **environment}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        """The daemons by name."""

    def own(self, *folders: str) -> None:
        """Make folders in the directory, and give all of it to the daemons' user."""
        for folder in folders:
            (self.directory / folder).mkdir(exist_ok=True)
        if os.geteuid() == 0:
            for path in (self.directory, *self.directory.rglob("*")):
                shutil.chown(path, self.user)

    def start(self, name: str, *argv: str, **environment: str) -> None:
        """Start a daemon. Its output goes to ``NAME.out``."""
        with (self.directory / f"{name}.out").open("ab") as output:
            self.running[name] = subprocess.Popen(
                argv, stdout=output, stderr=output, start_new_session=True, **self._as_user(environment)
            )

    def run(self, *argv: str, check: bool = True, **environment: str) -> str:
        """Run a command of the scheduler. Return its output without the white space around it."""
        done = subprocess.run(argv, capture_output=True, text=True, check=False, **self._as_user(environment))
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout.strip()

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a daemon and its processes."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGCONT)
        os.killpg(process.pid, how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stop(self) -> None:
        """End all daemons in the opposite order of their start, and remove the directory."""
        for name in reversed([*self.running]):
            self.end(name)
        shutil.rmtree(self.directory, ignore_errors=True)

    def logs(self) -> str:
        """Return the last lines of each daemon's output."""
        ends = {path.name: path.read_text(errors="replace")[-2000:] for path in sorted(self.directory.glob("*.out"))}
        return "".join(f"\n--- {name}\n{text}" for name, text in ends.items())

    def _as_user(self, environment: Mapping[str, str]) -> dict[str, object]:
        options: dict[str, object] = {"env": {**self.environment, **environment}, "cwd": self.directory}
        if os.geteuid() == 0:
            entry = pwd.getpwnam(self.user)
            options |= {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        return options
