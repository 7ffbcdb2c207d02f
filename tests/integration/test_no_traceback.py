"""What is wrong around a command is a sentence with what to do, whatever it is; no traceback, and no untrue word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.state.directory import StateDir
from tests.support.hostfactory.provider import ROOT
from tests.support.hostfactory.sites import example_site

BOOM = """
import sys
from provisioner.commands import status
def boom(options):
    raise KeyError("of\\nours")
status.run = boom
from provisioner.__main__ import main
main()
"""
"""As ``python -m provisioner``, with a mistake of ours in ``status``."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's provider instance, as HF's environment names it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return example_site(tmp_path, monkeypatch)


def call(*arguments: str, shell: str = "", code: str = "") -> subprocess.CompletedProcess[str]:
    """A command that prints no traceback; ``shell``: redirections, ``code``: what is run in place of the program."""
    program = ["-c", code] if code else ["-m", "provisioner"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, *program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    for text in (done.stdout, done.stderr):
        assert "Traceback" not in text
        assert "Exception ignored" not in text
    return done


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error."""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.rstrip("\n")


# --- where it prints to -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["check", "simulate --list"])
def test_a_full_disk_behind_the_output_is_said(
    site: Path, command: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = call(*command.split(), shell=">/dev/full")
    words = "The operating system refused a write to our output: No space left on device. See to disk space, rights and"
    assert (done.returncode, sentence(done).partition(" mounts ")[0]) == (1, words)


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_closed_output_is_nobody_s_and_no_state_file_takes_its_place(site: Path, closed: str) -> None:
    done = call("init", shell=closed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert StateDir(site / "work").intent.read().provisioner == "demoinst"


def test_what_a_terminal_s_alphabet_lacks_is_escaped(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = call("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "machines named hf-\\u2026" in done.stdout


# --- what it is called with -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["run", "--listen", "word"], "argument --listen: expected HOST:PORT such as 127.0.0.1:9464, got 'word'"),
        (["run", "--listen", "localhost:"], "argument --listen: expected HOST:PORT such as 127.0.0.1:9464"),
        (["simulator", "--port", "65536"], "argument --port: expected a whole number from 0 to 65535, got '65536'"),
        (["simulator", "--port=-1"], "argument --port: expected a whole number from 0 to 65535, got '-1'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_an_address_that_is_none_is_wrong_usage_before_anything_is_asked(
    site: Path, command: list[str], words: str
) -> None:
    done = call(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_kubeconfig_that_cannot_be_written_is_named(site: Path) -> None:
    done = call("simulator", "--kubeconfig", str(site))
    assert (done.returncode, sentence(done)) == (2, f"{site}: Is a directory")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(
            "[" * 5000, "nested more than 60 levels deep", id="nested beyond Python's stack", marks=pytest.mark.slow
        ),
        pytest.param(None, "no such file", id="missing"),
    ],
)
def test_a_settings_file_that_cannot_be_read_is_not_said_to_lack_its_keys(
    site: Path, content: str | None, words: str
) -> None:
    file = site / "hf.yaml"
    if content is not None:
        file.write_text(content)
    done = call("render-hf", str(file), "--out", str(site / "out"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"{file}: 1 problem\n")
    assert words in done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["usage", "--since", "2026-11-30", "--until", "2026-11-01"], "--since 2026-11-30: is after 2026-11-01"),
        (["usage", "--since", "soon"], "expected a date such as 2026-11-01, or so many days such as 7d, got 'soon'"),
        (["status", "--state-dir", __file__], "is no directory; name one"),
        (["replay", "/nowhere/trace"], "/nowhere/trace: No such file or directory; name a trace that --record wrote"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_wrong_argument_is_said_with_what_would_be_right(site: Path, command: list[str], words: str) -> None:
    done = call(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [("status", "--state-dir DIR"), ("pause gke-main", "--state-dir DIR"), ("check", "--config FILE")],
)
def test_without_hostfactory_s_environment_the_option_is_named_that_stands_in_for_it(
    site: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    for name in ("HF_PROVIDER_CONFDIR", "HF_PROVIDER_WORKDIR"):
        monkeypatch.delenv(name)
    done = call(*command.split())
    assert done.returncode == 2
    assert sentence(done).endswith(f"; give {option}, or set it as HostFactory does for its scripts")


def test_a_configuration_that_is_not_there_is_one_complaint(site: Path) -> None:
    done = call("check", "/nowhere/provisioner.yaml")
    assert (done.returncode, "prov_templates.json" in done.stderr) == (2, False)
    assert "no such file; make it" in done.stderr


def test_a_templates_file_that_is_not_there_is_said_with_what_to_do(site: Path) -> None:
    for file in (site / "conf").glob("*prov_templates.json"):
        file.unlink()
    done = call("check")
    assert done.returncode == 2
    assert "demoinstprov_templates.json: 1 problem\n  No such file or directory; " in done.stderr
    assert "`provisioner render-hf` writes it" in done.stderr


@pytest.mark.parametrize("content", [b"pools: [", b"\xff\xfe\x00"], ids=["no YAML", "no text"])
def test_a_pool_is_not_said_to_be_none_where_the_configuration_cannot_be_read(site: Path, content: bytes) -> None:
    assert call("init").returncode == 0
    (site / "conf" / "provisioner.yaml").write_bytes(content)
    done = call("pause", "gke-main")
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence(done).startswith(
        "Whether there is a pool 'gke-main' is not known: no loop has told its pools yet, and"
    )
    assert "provisioner.yaml" in done.stderr
    assert "`provisioner check`" in done.stderr
    assert not (site / "work" / "levers.json").exists()


# --- a new state directory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("trim", "memory.json: is not there yet: no loop has run on this state directory. `provisioner run` makes it."),
        ("status", "intent.json: is not there yet: the state directory is new. HostFactory's first requestMachines"),
        ("recover", "intent.json: is not there yet: the state directory is new. HostFactory's first requestMachines"),
    ],
)
def test_in_a_new_directory_nothing_is_said_to_be_lost(site: Path, command: str, words: str) -> None:
    done = call(command)
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence(done).startswith(f"{site}/work/{words}")


@pytest.mark.slow
def test_before_the_first_loop_there_is_nothing_to_recover(site: Path) -> None:
    assert call("init").returncode == 0
    shown = call("recover")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "  intent.json: fine",
        "  memory.json: new",
        "  status.json: new",
        "  No loop has run on this state directory yet (`provisioner run`): there is nothing to recover.",
    ]
    refused = call("recover", "--release-brake")
    assert (refused.returncode, refused.stderr) == (1, "")
    assert "The brake was not released: none is latched. No loop has run on this state directory yet" in refused.stdout


@pytest.mark.parametrize("left", ["status.json", pytest.param("memory.json.lock", marks=pytest.mark.slow)])
def test_a_memory_that_a_loop_has_made_is_lost_when_it_is_missing(site: Path, left: str) -> None:
    assert call("init").returncode == 0
    state = StateDir(site / "work")
    if left == "status.json":
        state.status.write({}, {})
    else:
        Path(state.path, left).write_text('{"generation": 3}\n')
    assert "memory.json: the file does not exist" in sentence(call("trim"))
    assert "latches a brake that nobody has seen yet" in call("recover").stdout


# --- a mistake of ours ------------------------------------------------------------------------------------------------


def test_a_mistake_of_ours_is_a_line_that_can_be_reported(site: Path) -> None:
    done = call("status", code=BOOM)
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence(done).startswith("Internal error at <string>:5: KeyError: 'of\\nours'. ")
    assert "`provisioner --log-level DEBUG …`" in sentence(done)


def test_the_whole_story_of_a_mistake_of_ours_is_logged_where_that_is_asked_for(site: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOOM, "--log-level", "DEBUG", "status"],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert '"message": "Internal error"' in done.stderr
    assert "in boom" in done.stderr
