"""The state that a command works on: files, or the Kubernetes API that the provider config names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.commands import diff, plan, recover
from provisioner.commands.cli import run
from provisioner.model import Brake, BrakeReason, Memory, RequestRecord
from provisioner.state.kube.script_state import KubeScriptState
from provisioner.state.kube.state import KubeState
from provisioner.state.opening import KubeStore
from tests.support.hostfactory.sites import example_site
from tests.support.kube_state_server import MemoryApiServer, ObjectServer


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """A server that keeps the state of the example instance."""
    site, server = example_site(tmp_path, monkeypatch), ObjectServer()
    (site / "conf" / "demoinstprov_config.json").write_text(json.dumps({"STATE": "kubernetes:hf"}))
    monkeypatch.setattr(KubeStore, "api", lambda store: MemoryApiServer(server))
    for module in (diff, recover):  # no cloud answers here
        monkeypatch.setattr(module, "observe_once", lambda *_: {})
    monkeypatch.setattr(plan, "make_backends", lambda *_: {})
    return server


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(list(arguments))
    out, error = capsys.readouterr()
    return code, out + error


def request(server: ObjectServer) -> str:
    script = KubeScriptState(MemoryApiServer(server), "demoinst")
    return script.record_request("demoinst", "t", 2, created_wall=5.0, rc_account="").id


def loop(server: ObjectServer, memory: Memory) -> KubeState:
    state = KubeState(MemoryApiServer(server), "demoinst")
    state.memory.write(memory)
    return state


def test_a_status_shows_requests_and_holds(server: ObjectServer, capsys: pytest.CaptureFixture[str]) -> None:
    id_ = request(server)
    loop(server, Memory("demoinst", 1, requests={id_: RequestRecord(id_, "t", 2, 0.0, 9.0)}))
    assert called(capsys, "stop-all", "--reason", "a test")[0] == 0
    _, text = called(capsys, "status")
    assert "kubernetes:hf (https://memory)" in text
    assert id_ in text
    assert "a test" in text
    assert called(capsys, "start-all")[0] == 0
    assert "a test" not in called(capsys, "status")[1]


@pytest.mark.parametrize("command", [["explain", "ID"], ["usage"], ["diff"], ["plan"], ["trim", "--dry-run"]])
def test_commands_read_the_state(server: ObjectServer, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    id_ = request(server)
    loop(server, Memory("demoinst", 1, requests={id_: RequestRecord(id_, "t", 2, 0.0, 9.0)}))
    before = server.version
    code, text = called(capsys, *(word.replace("ID", id_) for word in command))
    assert code in (0, 1), text
    assert "Traceback" not in text
    assert server.version == before
    if "ID" in command:
        assert id_ in text


def test_a_command_about_files_says_so(server: ObjectServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = called(capsys, "init")
    assert code == 2
    assert "The Kubernetes API keeps this state (namespace hf), and this command is for state files." in text


def test_trim_removes_requests_while_no_loop_runs(server: ObjectServer, capsys: pytest.CaptureFixture[str]) -> None:
    id_ = request(server)
    record = RequestRecord(id_, "t", 2, 0.0, 9.0, is_trimmed=True)
    loop(server, Memory("demoinst", 1, requests={id_: record}))
    assert called(capsys, "trim") == (0, f"  request {id_} left the files\n")
    assert KubeState(MemoryApiServer(server), "demoinst").memory.read().requests == {}


@pytest.mark.parametrize("calls", [["--apply --release-brake"], ["--apply", "--release-brake"]])
def test_recover_makes_lost_requests_again_and_releases_the_brake(
    server: ObjectServer, capsys: pytest.CaptureFixture[str], calls: list[str]
) -> None:
    old = server.snapshot()
    id_ = request(server)
    record = RequestRecord(id_, "t", 2, 0.0, 9.0)
    state = KubeState(MemoryApiServer(server), "demoinst")
    state.intent.read()
    server.restore(old)
    brake = Brake(BrakeReason.INTENT_OLDER, 0.0, "restored")
    state.memory.write(Memory("demoinst", 1, requests={id_: record}, brake=brake))
    assert state.intent.read_newest()[0].requests == {}
    code, text = called(capsys, "recover")
    assert code == 1
    assert f"to write back: request {id_}" in text
    assert called(capsys, "recover", "--release-brake")[0] == 1, "the request is not made again yet"
    for options in calls:
        assert not state.release_asked()
        code, text = called(capsys, "recover", *options.split())
        assert code == 0, text
    assert state.release_asked()
    state.forget_release()
    intent, newest = state.intent.read_newest()
    assert (intent.requests.keys(), newest) == ({id_}, intent.generation)


def test_a_directory_on_the_command_line_means_files(
    server: ObjectServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "files").mkdir()
    code, text = called(capsys, "init", "--state-dir", str(tmp_path / "files"))
    assert code == 0, text
    assert (tmp_path / "files" / "intent.json").exists()


def test_a_namespace_on_the_command_line_wins(server: ObjectServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = called(capsys, "init", "--state-dir", "kubernetes:other")
    assert (code, "namespace other" in text) == (2, True)
