"""The host of tests that install programs: a Python that every user may run, a user without rights, and the build's own
tools."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"
"""The system's Python. Other users may run it, but not a Python below a home directory."""

UNPRIVILEGED_USER = 54321
"""A user id that has no entry in /etc/passwd."""


def tools() -> Path:
    """Return the Python of the environment that builds our distribution. If the environment is missing, make it by
    ``make``."""
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "tools.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "--silent", "build/tools/installed"], cwd=ROOT, check=True, timeout=280 * PATIENCE)
    return ROOT / "build" / "tools" / "bin" / "python"


def python_version() -> str:
    """Return the version of the system's Python, such as ``3.11``."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def other_python(version: str) -> str:
    """Return a Python of this version, from pyenv or from the PATH. Skip the test if there is none."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    found = shutil.which(f"python{version}") if not kept else str(kept[-1])
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs another Python: python{version} in the PATH, or of pyenv")
    return found


def environment_on(python: Path, directory: Path) -> Path:
    """Make a virtual environment with our packages, on a Python that is installed below ``python``. Return the
    environment's Python."""
    version = Path(sys.executable).resolve().name
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / version).symlink_to(python / "bin" / version)
    (directory / "lib" / version).mkdir(parents=True)
    (directory / "lib" / version / "site-packages").symlink_to(sysconfig.get_path("purelib"))
    (directory / "pyvenv.cfg").write_text(f"home = {python / 'bin'}\n")
    return directory / "bin" / version


def as_unprivileged(*command: str | Path) -> list[str]:
    """Return the command line that runs this command as a user without rights."""
    if os.geteuid() != 0:
        return [str(part) for part in command]
    change = ["setpriv", f"--reuid={UNPRIVILEGED_USER}", f"--regid={UNPRIVILEGED_USER}", "--clear-groups", "--"]
    return [*change, *map(str, command)]
