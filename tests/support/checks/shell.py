"""The findings of shellcheck in files or texts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def faults(*arguments: str | Path) -> str:
    """Return the findings in files, by their paths in the tree."""
    return _findings(*arguments, text=None)


def faults_of(text: str) -> str:
    """Return the findings in a text that ``sh`` runs."""
    return _findings("--shell=sh", "-", text=text)


def _findings(*arguments: str | Path, text: str | None) -> str:
    command = [SHELLCHECK, "-x", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, input=text, capture_output=True, text=True, check=False, timeout=60 * PATIENCE
    )
    return done.stdout + done.stderr
