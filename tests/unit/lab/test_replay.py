"""A trace played again: ids and machines of the replay replace the recorded ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands.cli import run
from provisioner.lab.replay import LONGEST_WAIT, Replay, ScriptResult, is_loop_alive
from provisioner.lab.trace import read_trace
from provisioner.state.directory import StateDir
from tests.support.hostfactory.provider import requesting
from tests.unit.lab.test_trace import events, line


def morgan_stanley(path: Path) -> Path:
    """Write a trace in the format of Morgan Stanley's hfreplay. The replay uses only the rows of type ``input``, and of
    these only the rows of five categories."""
    rows = [
        ("request", "aaaa", 100.0, "input", requesting("T2", 2)),
        ("request", "aaaa", 100.5, "output", {"requestId": "aaaa"}),
        ("request-status", "aaaa", 130.0, "input", {"requests": [{"requestId": "aaaa"}]}),
        ("pod", "aaaa-0", 131.0, "input", {"anything": 1}),
        ("return-request", "", 160.0, "input", {"machines": [{"name": "aaaa-0"}, {"name": "aaaa-1"}]}),
        ("return", "rrrr", 190.0, "input", {"machines": [{"name": "aaaa-1", "machineId": "a-uid"}, {"name": "x"}]}),
        ("template", "", 90.0, "input", {}),
    ]  # fmt: skip
    return events(path, *((*row[:4], json.dumps(row[4])) for row in rows))


class Scripts:
    """Scripts that answer as the real ones, and record their calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, command: str, document: dict[str, Any]) -> ScriptResult:
        self.asked.append((command, document))
        if command == "getRequestStatus":
            machines = [{"name": f"hf-new-{number}"} for number in range(2)]
            asked = [one for one in document.get("requests", ()) if isinstance(one, dict)]
            return ScriptResult(0, {"requests": [one | {"status": "complete", "machines": machines} for one in asked]})
        return ScriptResult(0, {"requestId": "new" if command == "requestMachines" else "ret-new"})


def test_morgan_stanley_s_trace_is_played_with_its_gaps(tmp_path: Path) -> None:
    waits: list[float] = []
    scripts = Scripts()
    replay = Replay(scripts, speed=10, longest_gap=2.5, wait=waits.append)
    replay.play(read_trace(morgan_stanley(tmp_path / "events.db")))
    assert waits == [1.0, 2.5, 2.5, 2.5]
    assert [command for command, _ in scripts.asked] == [
        "getAvailableTemplates", "requestMachines", "getRequestStatus", "getReturnRequests", "getRequestStatus",
        "requestReturnMachines",
    ]  # fmt: skip
    assert scripts.asked[2][1] == {"requests": [{"requestId": "new"}]}
    assert [one["name"] for one in scripts.asked[3][1]["machines"]] == ["hf-new-0", "hf-new-1"]
    assert scripts.asked[5][1]["machines"] == [{"name": "hf-new-1", "machineId": "hf-new-1"}, {"name": "x"}]
    assert replay.report()["unknown_machines"] == 1


def test_a_gap_is_never_longer_than_a_process_can_wait(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("".join(line("getAvailableTemplates", {}, at=at) for at in (0.0, 1e300)))
    waits: list[float] = []
    Replay(Scripts(), wait=waits.append).play(read_trace(trace))
    assert waits == [LONGEST_WAIT]


@pytest.mark.parametrize(
    ("command", "document", "played"),
    [
        ("getRequestStatus", {"requests": "abc"}, {"requests": "abc"}),
        ("getRequestStatus", {}, {}),
        ("getRequestStatus", {"requests": {}}, {"requests": {}}),
        ("getRequestStatus", {"requests": {"requestId": "old"}}, {"requests": {"requestId": "new"}}),
        ("getRequestStatus", {"requests": [None, {}, {"requestId": 5}, {"requestId": "old"}]},
         {"requests": [None, {}, {"requestId": 5}, {"requestId": "new"}]}),
        ("requestReturnMachines", {"machines": 5}, {"machines": 5}),
        ("getReturnRequests", {"machines": None}, {"machines": None}),
        ("requestReturnMachines", {"machines": {"name": "m1"}}, {"machines": {"name": "hf-new-1"}}),
        ("requestReturnMachines", {"machines": ["m1", {}, {"name": "m1", "machineId": 5}]},
         {"machines": ["m1", {}, {"name": "hf-new-1", "machineId": 5}]}),
    ],
)  # fmt: skip
def test_a_call_keeps_its_form_whether_it_was_refused_or_not(
    tmp_path: Path, command: str, document: object, played: object
) -> None:
    trace = tmp_path / "trace.jsonl"
    answer = {"requests": [{"requestId": "old", "machines": [{"name": "m0"}, {"name": "m1"}]}]}
    trace.write_text(
        line("requestMachines", requesting("T2", 2), {"requestId": "old"})
        + line("getRequestStatus", {"requests": [{"requestId": "old"}]}, answer)
        + line(command, document, "refused")
    )
    scripts = Scripts()
    replay = Replay(scripts, wait=lambda _: None)
    replay.play(read_trace(trace))
    assert scripts.asked[-1] == (command, played)
    assert replay.report()["unknown_machines"] == 0


def test_a_loop_is_known_by_its_lock_or_its_heartbeat_until_it_has_signed_off(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert not is_loop_alive(state), "no loop ever ran there"
    assert not Path(state.loop_lock.path).exists(), "the check makes no file"
    assert state.loop_lock.acquire(0)
    assert is_loop_alive(state), "the loop has begun"
    state.loop_lock.raise_epoch()
    state.loop_lock.sign(state.loop_lock.record() | {"host": "elsewhere"})
    state.loop_lock.release()
    assert not is_loop_alive(state)
    state.heartbeat.touch()
    assert is_loop_alive(state), "the loop beats on a host whose locks are not visible here"
    assert state.loop_lock.acquire(0)
    state.loop_lock.sign_off()
    state.loop_lock.release()
    assert not is_loop_alive(state), "the loop has just ended"


@pytest.mark.parametrize("options", [["--speed", "nan"], ["--speed", "0"], ["--longest-gap", "nan"], []])
def test_a_pace_that_is_none_or_a_trace_that_cannot_be_read_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setenv("HF_PROVIDER_WORKDIR", str(tmp_path))
    trace = tmp_path / "trace"
    trace.write_text("".join(line("getAvailableTemplates", {}, at=at) for at in (1.0, 2.0)) if options else "{")
    assert run(["replay", str(trace), *options]) == 2


@pytest.mark.parametrize("form", ["text", "rows", "rows of something else"])
def test_a_trace_without_calls_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_PROVIDER_WORKDIR", str(tmp_path))
    trace = tmp_path / "trace"
    if form == "text":
        trace.write_text("")
    else:
        events(trace, *([("pod", "a", 1.0, "input", "{}")] if form.endswith("else") else []))
    assert run(["replay", str(trace)]) == 2
    assert f"{trace}: contains no call of HostFactory" in capsys.readouterr().err
