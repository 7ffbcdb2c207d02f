"""The command line: exit codes, places of files, and output."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands import cli, status
from provisioner.commands.cli import run
from provisioner.files.version import full_version
from provisioner.state.errors import STALE
from tests.support.hostfactory.sites import example_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A provider instance's directories, as HF's environment names them."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return example_site(tmp_path, monkeypatch)


Ended = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ended(capsys: pytest.CaptureFixture[str]) -> Ended:
    """Run a command as the console script does; return exit code and both outputs."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert isinstance(end.value.code, int)
        return (end.value.code, *capsys.readouterr())

    return call


def test_an_unknown_argument_is_reported_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["check", "--lve"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: provisioner check ")
    assert "--live" in said
    assert said.endswith("provisioner check: error: unrecognized arguments: --lve\n")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"provisioner {full_version()}\n"


# --- errors around a command are a sentence with a remedy -------------------------------------------------------------

SINCE = "expected a date such as 2026-11-01, or a number of days such as 7d, got 'soon'"
NEW = "intent.json: does not exist yet, because the directory is new. The first requestMachines"
NO_LOOP = "memory.json: does not exist yet, because no loop has run on this directory. `provisioner run` makes it."
WRONG = [
    (2, "run --listen word", "argument --listen: expected HOST:PORT such as 127.0.0.1:9464, got 'word'"),
    (2, "run --listen localhost:", "argument --listen: expected HOST:PORT such as 127.0.0.1:9464"),
    (2, "simulator --port 65536", "argument --port: expected a whole number from 0 to 65535, got '65536'"),
    (2, "simulator --port=-1", "argument --port: expected a whole number from 0 to 65535, got '-1'"),
    (2, "render-hf {site}/hf.yaml --out {site}/out", "{site}/hf.yaml: 1 problem\n  no such file"),
    (2, "usage --since 2026-11-30 --until 2026-11-01", "--since 2026-11-30: is after 2026-11-01"),
    (2, "usage --since soon", SINCE),
    (2, "status --state-dir {site}/conf/provisioner.yaml", "is not a directory; name a directory"),
    (2, "status --state-dir {site}/none", "or name another with --state-dir or HF_PROVIDER_WORKDIR"),
    (2, "status --state-dir {site}/nowhere", "nowhere: no such directory"),
    (2, "replay /nowhere/trace", "/nowhere/trace: No such file or directory; name a trace that --record wrote"),
    (2, "check /nowhere/provisioner.yaml", "no such file; create it"),
    (1, "trim", NO_LOOP),
    (1, "status", NEW),
    (1, "recover", NEW),
]


@pytest.mark.parametrize(("code", "command", "words"), WRONG, ids=[command for _, command, _ in WRONG])
def test_what_is_wrong_is_said_with_what_would_be_right(
    site: Path, ended: Ended, code: int, command: str, words: str
) -> None:
    found, out, error = ended(*command.format(site=site).split())
    assert (found, out, words.format(site=site) in error) == (code, "", True), error
    assert "prov_templates.json" not in error


@pytest.mark.parametrize("command", ["run", "plan", "init", "simulator"])
def test_a_command_without_configuration_says_which_file_is_missing(site: Path, ended: Ended, command: str) -> None:
    (site / "conf" / "provisioner.yaml").unlink()
    code, _, error = ended(command)
    assert (code, "provisioner.yaml" in error) == (2, True)


@pytest.mark.parametrize(
    ("command", "option"),
    [("status", "--state-dir DIR"), ("pause gke-main", "--state-dir DIR"), ("check", "--config FILE")],
)
def test_without_hostfactory_s_environment_the_option_is_named_that_stands_in_for_it(
    site: Path, ended: Ended, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    for name in ("HF_PROVIDER_CONFDIR", "HF_PROVIDER_WORKDIR"):
        monkeypatch.delenv(name)
    code, _, error = ended(*command.split())
    assert (code, "HF_PROVIDER_" in error, error.count("\n")) == (2, True, 1)
    assert error.endswith(f"; give {option}, or set the variable as HostFactory does\n")


def test_a_templates_file_that_is_not_there_is_said_with_what_to_do(site: Path, ended: Ended) -> None:
    for file in (site / "conf").glob("*prov_templates.json"):
        file.unlink()
    code, _, error = ended("check")
    assert code == 2
    assert "demoinstprov_templates.json: 1 problem\n  No such file or directory; " in error
    assert "`provisioner render-hf` writes it" in error


@pytest.mark.parametrize("content", [b"pools: [", b"\xff\xfe\x00"], ids=["no YAML", "no text"])
def test_a_pool_is_not_said_to_be_none_where_the_configuration_cannot_be_read(
    site: Path, ended: Ended, content: bytes
) -> None:
    assert run(["init"]) == 0
    (site / "conf" / "provisioner.yaml").write_bytes(content)
    code, out, error = ended("pause", "gke-main")
    assert (code, out, error.count("\n")) == (1, "", 1)
    words = "The pools are unknown, so 'gke-main' cannot be found: no loop has published its pools yet, and"
    assert error.startswith(words)
    assert "provisioner.yaml" in error
    assert "`provisioner check`" in error
    assert not (site / "work" / "holds.json").exists()


@pytest.mark.parametrize("command", ["run", "status", "recover"])
def test_a_stale_state_directory_is_to_be_mounted_anew(
    site: Path, ended: Ended, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    real, work = os.stat, str(site / "work")

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if path == work or (isinstance(path, Path) and str(path) == work):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), work)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(cli, "_discard_output", lambda: None)
    code, out, error = ended(command)
    assert (code, out) == (1, "")
    assert f"The operating system refused {work}: Stale file handle. {STALE}, then try again." in error


def test_a_mistake_of_ours_is_a_line_that_can_be_reported_and_its_traceback_is_logged_at_debug(
    site: Path, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    def boom(_: object) -> int:
        raise KeyError("of\nours")

    monkeypatch.setattr(status, "run", boom)
    monkeypatch.setattr(cli.sys, "stdout", sys.stdout)
    code, out, error = ended("status")
    assert (code, out, error.count("\n")) == (1, "", 1)
    assert re.match(r"Internal error at .*test_cli.py:\d+: KeyError: 'of\\nours'\. ", error)
    assert "`provisioner --log-level DEBUG …`" in error
    logged = ended("--log-level", "DEBUG", "status")[2]
    assert '"message": "Internal error"' in logged
    assert "in boom" in logged
