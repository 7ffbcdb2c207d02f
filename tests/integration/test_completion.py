"""The completions of shells, requested from the shells themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.commands import cli

ASK = """
eval "$1"
cd "$2"
COMP_WORDS=("${@:3}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
function=$(complete -p provisioner | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" provisioner "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


def code(shell: str) -> str:
    command = [sys.executable, "-m", "provisioner", "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def bash() -> str:
    return code("bash")


def retiring_at(bash: str, directory: Path, *words: str) -> set[str]:
    command = ["bash", "-c", ASK, "ask", bash, str(directory), "provisioner", *words]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_commands_their_options_and_files_are_offered(bash: str, tmp_path: Path) -> None:
    assert {entry.name for entry in cli.COMMANDS} <= retiring_at(bash, tmp_path, "")
    assert retiring_at(bash, tmp_path, "statu") == {"status"}
    assert {"--live", "--output"} <= retiring_at(bash, tmp_path, "check", "--")
    assert "--live" not in retiring_at(bash, tmp_path, "status", "--")
    (tmp_path / "other.yaml").touch()
    assert "other.yaml" in retiring_at(bash, tmp_path, "check", "oth")


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_every_command_too(shell: str) -> None:
    script = code(shell)
    assert all(entry.name in script for entry in cli.COMMANDS)
