"""A library path as EGO's profile exports it, at its worst: its libraries can be loaded by no program of the system."""

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
"""The system's programs that the scripts start, but for those of the shell."""
MODULES = (
    "import _hashlib, _ssl, sys, zlib; print(*(m.__file__ for m in sys.modules.values() if hasattr(m, '__file__')))"
)
SHELLS = ("bash", "sh")
"""They start before a script of ours can change the path."""


FEW = frozenset({"libz", "libssl", "libcrypto"})
"""The libraries that EGO brings in versions of its own, which break programs of the system."""


def broken_libraries(directory: Path, *, few: bool = False) -> str:
    """Make the directory: each file has a library's name, and is no library. ``few``: those of ``FEW`` alone."""
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
