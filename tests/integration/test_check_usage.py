"""check_install.sh: its arguments, and its finding if a link replaces a file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hf_scripts import log
from hf_scripts.installation_check import HERE, check_all
from provisioner.hostfactory.provider_config import Directories
from tests.support.hostfactory.provider import HostFactory
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


def test_each_link_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    directories = Directories(hf.environment)
    log_path, journal = Path(log.file_of(directories)), hf.work / "journal.jsonl"
    journal.symlink_to(tmp_path / "elsewhere")
    findings = "\n".join(str(one) for one in check_all(directories, ""))
    assert f"fix: {journal}: is a symbolic link" in findings
    assert f"fine: {log_path}: the log of calls can be written" in findings
    log_path.unlink(missing_ok=True)
    log_path.symlink_to(tmp_path / "elsewhere")
    assert f"fix: {log_path}: is a symbolic link" in "\n".join(str(one) for one in check_all(directories, ""))
