"""A recorded run is played again, with the ids and machines of the replay in place of the recorded ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands.cli import run
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.replay import ScriptResult, run_script
from provisioner.lab.trace import read_trace
from tests.conformance.stage import Case, Grid, names, stage
from tests.support.hostfactory.provider import SCRIPTS, HostFactory, requesting


@pytest.fixture
def cloud() -> Iterator[Simulator]:
    with stage() as simulator:
        yield simulator


def case(number: int) -> Case:
    """Return an instance with a namespace of its own."""
    return Case(number, "", lambda _: None)


def recorded(hf: Grid, trace: Path, name: str, document: object) -> Any:
    """Run a script, and record the call."""
    called = hf.run([str(SCRIPTS / f"{name}.sh"), "--record", str(trace), "-f", hf.command(name, document)[-1]])
    return called.document


def test_a_recorded_run_ends_the_same_in_another_place(
    tmp_path: Path, cloud: Simulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    with Grid(tmp_path / "first", cloud, case(1)) as hf:
        recorded(hf, trace, "getAvailableTemplates", {})
        request = recorded(hf, trace, "requestMachines", requesting("T2", 3))["requestId"]
        hf.ended(request)
        machines = names(recorded(hf, trace, "getRequestStatus", {"requests": [{"requestId": request}]})["requests"][0])
        given = [{"name": name, "machineId": name} for name in machines[:2]]
        recorded(hf, trace, "getReturnRequests", {"machines": given})
        return_id = recorded(hf, trace, "requestReturnMachines", {"machines": given})["requestId"]
        hf.ended(return_id)
        recorded(hf, trace, "getRequestStatus", {"requests": [{"requestId": return_id}]})
    assert [event.command for event in read_trace(trace)] == [
        "getAvailableTemplates", "requestMachines", "getRequestStatus", "getReturnRequests", "requestReturnMachines",
        "getRequestStatus",
    ]  # fmt: skip
    with Grid(tmp_path / "second", cloud, case(2)) as hf:
        for name, value in hf.environment.items():
            monkeypatch.setenv(name, value)
        hf.cycles(1)
        assert run(["replay", str(trace)]) == 2
        assert f"{hf.state.path}: a loop runs there" in capsys.readouterr().err
        assert not hf.state.intent.exists(), "nothing was asked"
        assert run(["replay", str(trace), "--yes"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (sum(report["calls"].values()), sum(report["refused"].values())) == (6, 0)
        assert report["unknown_machines"] == 0
        left = hf.until_cloud(lambda machines: len(machines) == 1, "running")
        assert not set(left) & set(machines), "names are never used twice"


def test_a_call_that_is_refused_is_recorded_with_what_was_printed(tmp_path: Path) -> None:
    hf, trace = HostFactory(tmp_path), tmp_path / "trace"
    script, *call = hf.command("requestMachines", requesting("none"))
    refusal = hf.run([script, "--record", str(trace), *call]).refusal
    entry = json.loads(trace.read_text())
    assert (entry["command"], entry["input"], entry["output"]) == ("requestMachines", requesting("none"), refusal)


def test_a_refused_call_counts_and_where_no_loop_runs_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, trace = HostFactory(tmp_path), tmp_path / "trace.jsonl"
    for name, value in hf.environment.items():
        monkeypatch.setenv(name, value)
    assert run_script("requestMachines", requesting("T0", 1)) == ScriptResult(1, {})
    for template, code, recorded in (("T0", 1, False), ("T1", 0, True)):
        call = {"time": 1, "command": "requestMachines", "input": requesting(template, 1), "output": ""}
        trace.write_text(json.dumps(call) + "\n")
        assert run(["replay", str(trace)]) == code
        assert hf.state.intent.exists() is recorded
