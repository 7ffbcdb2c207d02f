"""Commands whose output goes to a full disk, a closed descriptor, or a terminal whose encoding lacks characters of the
output. They print no traceback and nothing untrue."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.state.directory import StateDir
from tests.support.hostfactory.provider import ROOT
from tests.support.hostfactory.sites import example_site
from tests.support.waiting import PATIENCE


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the example's site. The environment names the site's files, as HF's environment does."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return example_site(tmp_path, monkeypatch)


def call(*arguments: str, shell: str = "", stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run a command, which must print no traceback. ``shell``: the shell's redirections for the command."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "provisioner", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )
    for text in (done.stdout or "", done.stderr):
        assert "Traceback" not in text
        assert "Exception ignored" not in text
    return done


@pytest.mark.parametrize(("command", "unbuffered"), [("check", ""), ("simulate --list", "1")])
def test_a_full_disk_behind_the_output_is_said(
    site: Path, command: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = call(*command.split(), shell=">/dev/full")
    words = "The operating system refused a write to our output: No space left on device. Make room on its disk, or"
    assert (done.returncode, done.stderr.partition(" raise ")[0], done.stderr.count("\n")) == (1, words, 1)


@pytest.mark.parametrize(
    "command",
    [
        "render-hf {root}/config/hf/settings.yaml --out {site}/top --dry-run",
        "settings",
        "--help",
        "check --help",
        "status --state-dir /nowhere",
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_ends_as_others_do_whose_reader_has_ended(
    site: Path, command: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    reader, writer = os.pipe()
    os.close(reader)
    words = command.format(root=ROOT, site=site).split()
    done = call(*words, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr.count("\n")) == ((2, 1) if "/nowhere" in command else (141, 0)), done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_no_state_file_takes_the_descriptor_of_a_closed_output(site: Path, closed: str) -> None:
    done = call("init", shell=closed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert StateDir(site / "work").intent.read().provisioner == "demoinst"


def test_characters_that_a_terminal_lacks_are_escaped(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = call("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "machines named hf-\\u2026" in done.stdout


def test_a_kubeconfig_that_cannot_be_written_is_named(site: Path) -> None:
    done = call("simulator", "--kubeconfig", str(site))
    assert (done.returncode, done.stderr) == (2, f"{site}: Is a directory\n")
