"""The scripts' launcher under a Python that is too old: it says which, which is needed, and how to name another."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hostfactory.provider import SCRIPTS, HostFactory
from tests.support.hosts import other_python
from tests.support.waiting import PATIENCE

ADVICE = "set HF_PYTHON to the Python that hostfactory-provisioner is installed for"
PROGRAM = re.findall(r"exec \"\$python\" -I -c '\n(.*)' \"\$root\"", (SCRIPTS / "python").read_text(), re.DOTALL)[0]
"""What the launcher lets Python run, whichever it is."""


def posing_as(version: tuple[int, int, int], path: Path) -> Path:
    """A Python that takes itself for an older one."""
    pose = f"import sys; sys.version_info = {(*version, 'final', 0)}; sys.executable = {str(path)!r}"
    path.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -I -c "{pose}; exec(sys.argv.pop(1))" "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", [(3, 6, 8), (3, 10, 14)], ids=["RHEL 8's", "the last"])
def test_a_python_that_is_too_old_is_named_with_the_one_needed(version: tuple[int, int, int], tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    python = posing_as(version, tmp_path / "python3")
    environment = hf.environment | {"HF_PYTHON": str(python)}
    refusal = hf.run(hf.command("getAvailableTemplates", {}), environment=environment).refusal
    number = ".".join(map(str, version))
    needed = "3.11 or newer is needed (RHEL 8 and 9: dnf install python3.11)"
    assert refusal == f"{python}: is Python {number}, and {needed}: {ADVICE}"


@pytest.mark.parametrize("version", ["3.6", "3.9"])
@pytest.mark.parametrize("script", ["getAvailableTemplates", "requestMachines", "check_install"])
def test_a_real_old_python_says_so_and_nothing_else(version: str, script: str, tmp_path: Path) -> None:
    hf, python = HostFactory(tmp_path), other_python(version)
    program = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    number = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    words = [SCRIPTS / f"{script}.sh", *([] if script == "check_install" else ["{}"])]
    environment = hf.environment | {"HF_PYTHON": python}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60 * PATIENCE)
    needed = "3.11 or newer is needed (RHEL 8 and 9: dnf install python3.11)"
    told = f"{python}: is Python {number}, and {needed}: {ADVICE}"
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == ("fix: " if script == "check_install" else "") + told + "\n"


def test_a_python_that_is_new_enough_answers(tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    python = posing_as((3, 11, 0), tmp_path / "python3")
    environment = hf.environment | {"HF_PYTHON": str(python)}
    assert hf.run(hf.command("getAvailableTemplates", {}), environment=environment).document["templates"]


def test_an_old_python_can_read_what_it_is_given_to_run() -> None:
    ast.parse(PROGRAM, feature_version=(3, 6))
    with pytest.raises(SyntaxError):
        ast.parse("if (n := 1):\n    pass\n" + PROGRAM, feature_version=(3, 6))
