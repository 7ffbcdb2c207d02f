"""check_install.sh says how it is called, before it looks at anything."""

from __future__ import annotations

import subprocess

import pytest

from hf_scripts.installation import HERE
from tests.support.waiting import PATIENCE

USAGE = "usage: check_install.sh [--loop-user USER]\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--loop-user"], ["--helpless"]], ids=" ".join)
def test_check_install_says_how_it_is_called_and_refuses_what_it_does_not_know(arguments: list[str]) -> None:
    program = [f"{HERE}/check_install.sh", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env={}, timeout=30 * PATIENCE)
    if arguments == ["--help"]:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(USAGE)
    else:
        assert (done.returncode, done.stdout, done.stderr) == (2, "", USAGE)
