"""Test whether strace can be used."""

from __future__ import annotations

import shutil
import subprocess

import pytest

STRACE = shutil.which("strace")


def works() -> bool:
    """Return True if strace is installed and this process may trace."""
    return (
        STRACE is not None and subprocess.run([STRACE, "-qq", "true"], capture_output=True, check=False).returncode == 0
    )


NEEDS_STRACE = pytest.mark.skipif(not works(), reason="strace is not installed or may not trace")
