"""Tests of the console scripts that have the names of Google's connector."""

from __future__ import annotations

import json
import os
import sys
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest

from hf_scripts import connector_names
from tests.support.hostfactory.provider import ROOT, HostFactory, requesting


@pytest.fixture
def hf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFactory:
    made = HostFactory(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Return the exit code of ``hf-gce`` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/hf-gce", *arguments])
    with pytest.raises(SystemExit) as ended:
        connector_names.call_script()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("form", ["-f FILE", "--json-file FILE", "--json-file=FILE", "JSON", "JSON -f /missing"])
def test_the_connectors_calls_are_answered_as_the_scripts_answer(
    hf: HostFactory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], form: str
) -> None:
    document = json.dumps(requesting("T1", 2))
    hf.input.write_text(document)
    arguments = [word.replace("FILE", str(hf.input)).replace("JSON", document) for word in form.split()]
    assert call(monkeypatch, "requestMachines", *arguments) == 0
    (id_,) = hf.state.intent.read().requests
    assert json.loads(capfd.readouterr().out)["requestId"] == id_


def test_a_refusal_ends_with_1_and_an_unknown_verb_with_2(
    hf: HostFactory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "requestMachines", "{}") == 1
    assert capfd.readouterr().out == "the argument: template: is missing\n"
    assert call(monkeypatch, "makeMachines") == 2
    assert call(monkeypatch, "--version") == 0
    assert capfd.readouterr().out.startswith("hf-gce ")


def test_an_empty_path_of_a_file_is_refused(
    hf: HostFactory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An empty path, for example from a caller's empty variable, must be refused. The call must not read standard input
    instead, because standard input may stay open."""
    assert call(monkeypatch, "requestMachines", "-f", "") == 1
    assert capfd.readouterr().out == ": No such file or directory\n"


@pytest.mark.parametrize(
    ("function", "arguments", "command"),
    [
        ("call_script", ["monitorEvents"], ["run"]),
        ("call_script", ["initializeDB"], ["init"]),
        ("run_loop", ["--once"], ["run", "--once"]),
    ],
)
def test_the_event_daemon_is_the_loop(
    monkeypatch: pytest.MonkeyPatch, function: str, arguments: list[str], command: list[str]
) -> None:
    def become(program: str, argv: list[str]) -> None:
        assert program == sys.executable
        raise SystemExit(argv[1:])

    monkeypatch.setattr(os, "execv", become)
    monkeypatch.setattr(sys, "argv", ["hf-monitor", *arguments])
    with pytest.raises(SystemExit) as ended:
        getattr(connector_names, function)()
    assert ended.value.code == ["-P", "-m", "provisioner", *command]


def test_each_console_script_names_a_function() -> None:
    parsed = ConfigParser()
    parsed.read(ROOT / "setup.cfg")
    entries = dict(line.split(" = ") for line in parsed["options.entry_points"]["console_scripts"].split("\n") if line)
    assert entries.keys() >= {"provisioner", "hf-gce", "hf-gke", "hf-monitor", "monitorEvents"}
    for entry in entries.values():
        module, _, function = entry.partition(":")
        assert callable(getattr(import_module(module), function))
