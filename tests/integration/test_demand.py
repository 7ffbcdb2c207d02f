"""``provisioner demand`` with HostFactory's real scripts: one step, a step without effect, and the lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands import demand as command
from provisioner.commands.cli import run
from provisioner.demand.service import ACCOUNT
from provisioner.hostfactory import Answer, Loss
from provisioner.state.directory import StateDir
from provisioner.state.locks import LockFile
from tests.support.hostfactory.sites import example_site

WISH = "sources: {base: {kind: fixed, template: {template}, machines: {machines}}}\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    example_site(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_PYTHON", sys.executable)
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return StateDir(tmp_path / "work")


def wish(machines: int) -> str:
    """Let demand.yaml want so many machines of the example's first template, and return the template."""
    conf = Path(os.environ["HF_PROVIDER_CONFDIR"])
    template = str(json.loads((conf / "demoinstprov_templates.json").read_text())["templates"][0]["templateId"])
    (conf / "demand.yaml").write_text(WISH.replace("{template}", template).replace("{machines}", str(machines)))
    return template


def step(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    """Make one step, and return its report."""
    capsys.readouterr()
    assert run(["demand", "--once", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_step_requests_what_is_missing_and_finds_it_again(site: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    template = wish(3)
    assert step(capsys)["templates"] == {template: {"wanted": 3, "asked": 0, "running": 0, "idle": 0}}
    assert step(capsys)["templates"] == {template: {"wanted": 3, "asked": 3, "running": 0, "idle": 0}}
    assert [(one.template, one.count, one.rc_account) for one in site.intent.read().requests.values()] == [
        (template, 3, ACCOUNT)
    ]
    assert site.read_demand()["sources"]["base"]["wanted"] == {template: 3}


def test_lost_machines_are_returned_and_replaced(site: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    template = wish(2)
    step(capsys)
    [id_] = site.intent.read().requests
    machines: list[dict[str, Any]] = [
        {"name": f"hf-{id_}-{number}", "result": "succeed", "status": "running", "launchtime": 1} for number in range(2)
    ]
    entry = {"requestId": id_, "status": "complete", "message": "", "machines": machines}
    site.status.write({id_: Answer(json.dumps(entry), True)}, {machines[0]["name"]: Loss(0)}, {})
    step(capsys)
    intent = site.intent.read()
    assert [one.names for one in intent.returns.values()] == [(machines[0]["name"],)]
    assert sorted(one.count for one in intent.requests.values()) == [1, 2]
    assert step(capsys)["templates"][template] == {"wanted": 2, "asked": 2, "running": 1, "idle": 0}


def test_a_dry_run_has_no_effect(site: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    template = wish(3)
    report = step(capsys, "--dry-run")
    assert report["reasons"] == [f"{template}: requests 3, because 3 are wanted and 0 asked"]
    assert os.listdir(site.path) == []


def test_a_second_service_is_refused(
    site: StateDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wish(3)
    monkeypatch.setattr(command, "CALL_SECONDS", 0.01)
    lock = LockFile(os.path.join(site.path, "demand.lock"))
    assert lock.acquire(0)
    assert run(["demand", "--once"]) == 1
    assert "demand.lock: another process held this lock" in capsys.readouterr().err
    assert not site.intent.exists()
    lock.release()


def test_a_script_that_outlives_its_service_holds_the_lock(site: StateDir) -> None:
    path = os.path.join(site.path, "demand.lock")
    lock = LockFile(path)
    assert lock.acquire(0)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock.fileno(),)) as script:
        lock.release()  # the kernel does this for a process that is killed
        assert not LockFile(path).try_acquire()
        assert script.stdin is not None
        script.stdin.close()
        script.wait()
    assert LockFile(path).try_acquire()


def test_a_lost_intent_ends_the_step(site: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    wish(3)
    step(capsys)
    os.unlink(site.intent.path)
    assert run(["demand", "--once"]) == 1
    assert "intent.json" in json.loads(capsys.readouterr().out)["problem"]
    assert not site.intent.exists()
