"""The commands `request`, `return` and `requests`: what they record, print and leave alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands import requests
from provisioner.commands.cli import run
from provisioner.hostfactory import Answer
from provisioner.hostfactory.script_calls import HostFactory as Scripts
from provisioner.hostfactory.script_calls import ScriptFailed
from provisioner.names import OPERATOR_ACCOUNT
from tests.support.hostfactory.in_process import call_here, entry
from tests.support.hostfactory.provider import HostFactory

ONE = "hf-aaaaaaaaaa-000000"


def machine(name: str, status: str = "running", message: str = "") -> dict[str, Any]:
    result = "succeed" if status == "running" else "fail"
    return {"machineId": name, "name": name, "result": result, "status": status, "message": message} | {
        "privateIpAddress": "10.0.0.7",
        "publicIpAddress": "",
        "launchtime": 0,
    }


@pytest.fixture
def hf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFactory:
    """A provider instance whose scripts run in this process."""
    made = HostFactory(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)

    def call(_: Scripts, script: str, document: object) -> Any:
        called = call_here(script, [json.dumps(document)], made.environment)
        if called.code:
            raise ScriptFailed(f"{script}: {called.refusal}")
        return called.document

    monkeypatch.setattr(Scripts, "call", call)
    return made


def publish(hf: HostFactory, *, status: str, machines: object = (), message: str = "") -> str:
    """Publish an answer to the only request, as the loop does. Return the request's id."""
    (id_,) = hf.state.intent.read().requests
    hf.state.status.write({id_: Answer(entry(id_, status, message, machines), status != "running")}, {})
    hf.state.heartbeat.touch()
    return id_


def test_a_request_is_recorded_for_the_operators_account(hf: HostFactory, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["request", "T1", "3"]) == 0
    ((id_, made),) = hf.state.intent.read().requests.items()
    assert (made.template, made.count, made.rc_account) == ("T1", 3, OPERATOR_ACCOUNT)
    assert capsys.readouterr().out == f"{id_}  3 of T1  running\n"


@pytest.mark.parametrize(("status", "code"), [("complete", 0), ("complete_with_error", 1)])
def test_waiting_ends_with_the_request(
    hf: HostFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str, code: int
) -> None:
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        publish(hf, status="running" if len(pauses) < 2 else status, machines=[machine(ONE)], message="zone full")

    monkeypatch.setattr(requests.time, "sleep", pause)
    assert run(["request", "T1", "2", "--wait", "-o", "json"]) == code
    assert len(pauses) == 2
    printed = capsys.readouterr()
    (shown,) = json.loads(printed.out)["requests"]
    assert shown["requestId"] in printed.err, "the id is known even if the command is interrupted"
    assert (shown["status"], shown["count"], shown["machines"][0]["name"]) == (status, 2, ONE)


def test_the_requests_show_the_machines_that_were_not_returned(
    hf: HostFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["request", "T1", "3"]) == 0
    (id_,) = hf.state.intent.read().requests
    one, two, third = (f"hf-{id_}-{number:06}" for number in range(3))
    failed = machine(third, "terminated", "stockout: no room")
    publish(hf, status="complete_with_error", machines=[machine(one), machine(two), failed], message="one failed")
    assert run(["return", one]) == 0
    assert [back.names for back in hf.state.intent.read().returns.values()] == [(one,)]
    capsys.readouterr()
    assert run(["requests"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{id_}  3 of T1  complete_with_error: one failed",
        f"  {two}  running  10.0.0.7",
        f"  {third}  terminated  stockout: no room",
    ]


def test_hostfactorys_own_requests_are_not_polled(hf: HostFactory, capsys: pytest.CaptureFixture[str]) -> None:
    """`provisioner requests` must not poll the requests of HostFactory, because a poll would settle an answer that
    HostFactory has not read."""
    id_ = Scripts(hf.environment, hf.work).request("T1", 1)
    assert run(["requests"]) == 0
    assert capsys.readouterr().out == "No request was made by `provisioner request`.\n"
    assert id_ not in hf.state.polls()


@pytest.mark.parametrize("arguments", [["request", "None", "1"], ["request", "T1", "0"], ["request", "T0", "1"]])
def test_a_refusal_of_the_scripts_is_printed(
    hf: HostFactory, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(arguments) == 1
    assert capsys.readouterr().err.startswith("requestMachines: ")
    assert not hf.state.intent.exists()
