"""Make a directory of libraries that no program of the system can load.

EGO's profile exports a library path with EGO's own versions of some libraries. A path to this directory is the worst
case of such a path.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.hosts import PYTHON

PROGRAMS = (
    *("curl", "getent", "grep", "hostname", "id", "mkdir", "mv", "poweroff", "readlink", "runuser", "sed"),
    *("systemd-run", "timeout"),
)
"""Programs of the system that our scripts start, without the shells."""
MODULES = (
    "import _hashlib, _ssl, sys, zlib; print(*(m.__file__ for m in sys.modules.values() if hasattr(m, '__file__')))"
)
SHELLS = ("bash", "sh")
"""Shells, which load their libraries before a script of ours can change the library path."""


FEW = frozenset({"libz", "libssl", "libcrypto"})
"""Libraries of which EGO has versions of its own. These versions break programs of the system."""


def broken_libraries(directory: Path, *, few: bool = False) -> str:
    """Make a directory of broken libraries, and return its path.

    Each file has the name of a library, but other content. ``few``: make only the files for ``FEW``.
    """
    pythons = [Path(sys.executable).resolve(), Path(PYTHON).resolve()]
    wanted = [*(found for name in PROGRAMS if (found := shutil.which(name))), *map(str, pythons)]
    for python in pythons:
        printed = subprocess.run([python, "-c", MODULES], capture_output=True, text=True, check=True).stdout
        wanted += [file for file in printed.split() if file.endswith(".so")]
    names = set().union(*map(_libraries, wanted)) - set().union(*(_libraries(str(shutil.which(one))) for one in SHELLS))
    if few:
        names = {name for name in names if name.split(".so")[0] in FEW}
    assert {name.split(".so")[0] for name in names} >= FEW
    directory.mkdir(mode=0o755)
    for name in names:
        (directory / name).write_text("no library\n")
    for program in ([sys.executable, "-c", "import ssl, zlib"], ["curl", "--version"]):
        assert subprocess.run(
            program, env={"LD_LIBRARY_PATH": str(directory)}, capture_output=True, check=False
        ).returncode
    return str(directory)


def _libraries(program: str) -> set[str]:
    """Return the names by which the loader finds the program's libraries; empty for a program that has no libraries."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(?m)^\s+(lib\S+\.so\S*) => ", listed)) - {"libc.so.6", "libm.so.6"}
