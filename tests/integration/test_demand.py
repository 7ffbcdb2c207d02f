"""``provisioner demand`` with the real scripts: a single step, a dry run, metrics, and the lock or lease that lets only
one service act."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client import CollectorRegistry

from provisioner.commands import demand as command
from provisioner.commands.cli import run
from provisioner.commands.demand_metrics import DemandMetrics
from provisioner.demand.service import ACCOUNT, Report
from provisioner.hostfactory import Answer, Loss
from provisioner.hostfactory.provider_config import Directories
from provisioner.hostfactory.script_calls import HostFactory
from provisioner.state.directory import DEMAND_FILE, StateDir
from provisioner.state.kube.lease import KubeTurn
from provisioner.state.kube.objects import leases
from provisioner.state.locks import LockFile
from provisioner.state.opening import KubeStore
from provisioner.telemetry.server import Server
from provisioner.testing.waiting import until
from tests.support.hostfactory.in_process import call_here
from tests.support.hostfactory.sites import example_site
from tests.support.kube_state_server import MemoryApiServer, ObjectServer

WISH = "sources: {base: {kind: fixed, template: {template}, machines: {machines}}}\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    example_site(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_PYTHON", sys.executable)
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return StateDir(tmp_path / "work")


def wish(machines: int) -> str:
    """Write a demand.yaml that wants ``machines`` machines of the example's first template. Return the template."""
    conf = Path(os.environ["HF_PROVIDER_CONFDIR"])
    template = str(json.loads((conf / "demoinstprov_templates.json").read_text())["templates"][0]["templateId"])
    (conf / "demand.yaml").write_text(WISH.replace("{template}", template).replace("{machines}", str(machines)))
    return template


def step(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    """Run one step of ``provisioner demand``, and return its report."""
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
    report = site.read_demand()
    assert (report["sources"]["base"]["wanted"], report["next_at"]) == ({template: 3}, None)


def test_the_next_step_is_due_an_interval_after_the_end_of_a_long_step(site: StateDir) -> None:
    """A step of 400 s must not show the next step as overdue."""
    now = time.time()
    options = argparse.Namespace(once=False, dry_run=False)
    command._publish(options, site, Report(now - 400, next_at=now - 370))
    assert now + 30 <= site.read_demand()["next_at"] <= time.time() + 30


def test_the_metric_of_the_last_step_has_the_end_of_the_step() -> None:
    now, registry = time.time(), CollectorRegistry()
    DemandMetrics(registry).show(Report(now - 400))
    assert (registry.get_sample_value("hf_demand_last_step_timestamp_seconds") or 0.0) >= now


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
    assert report["reasons"] == [f"{template}: requests 3, because 3 are wanted, 0 requested"]
    assert os.listdir(site.path) == []


def test_a_second_process_is_refused_until_the_first_has_ended(
    site: StateDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    template = wish(3)
    monkeypatch.setattr(command, "CALL_SECONDS", 0.01)
    with subprocess.Popen([sys.executable, "-m", "provisioner", "demand"], stderr=subprocess.DEVNULL) as first:
        until(lambda: Path(site.path, DEMAND_FILE).exists() or first.poll() is not None, 60, what="the first step")
        assert run(["demand", "--once"]) == 1
        assert f"Signed by process {first.pid}" in capsys.readouterr().err
        first.terminate()
        assert first.wait() == 0
    assert [one.count for one in site.intent.read().requests.values()] == [3]
    assert step(capsys)["templates"][template]["asked"] == 3


@pytest.fixture
def api(site: StateDir, monkeypatch: pytest.MonkeyPatch) -> MemoryApiServer:
    """Return an API server in memory that keeps the state. The scripts run in this process, so that they can use it."""
    conf = Path(os.environ["HF_PROVIDER_CONFDIR"], "demoinstprov_config.json")
    conf.write_text(json.dumps(json.loads(conf.read_text()) | {"STATE": "kubernetes:hf"}))
    server = ObjectServer("hf", time.time)
    monkeypatch.setattr(KubeStore, "api", lambda self: MemoryApiServer(server))

    def call(_: HostFactory, script: str, document: object) -> Any:
        called = call_here(script, [json.dumps(document)], os.environ)
        assert called.code == 0, called.refusal
        return called.document

    monkeypatch.setattr(HostFactory, "call", call)
    monkeypatch.setattr(command, "CALL_SECONDS", 0.01)
    return MemoryApiServer(server)


def test_a_lease_keeps_the_service_of_another_host_from_acting(
    api: MemoryApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    template = wish(3)
    other = KubeTurn(api, "demoinst-demand")
    assert other.acquire(0)
    assert run(["demand", "--once"]) == 1
    assert "another process serves this instance" in capsys.readouterr().err
    other.release()
    assert [step(capsys)["templates"][template]["asked"] for _ in range(2)] == [0, 3]
    assert not KubeTurn(api, "demoinst-demand").is_held(), "the service has released it"


def test_a_service_that_has_lost_its_lease_ends(api: MemoryApiServer) -> None:
    with command._only_service(Directories(os.environ)) as calls:
        calls.check()
        path = f"{leases('hf')}/demoinst-demand.loop"
        lease = api.call("GET", path).document
        lease["spec"]["holderIdentity"] = "another"
        assert api.call("PUT", path, lease).status == 200
        with pytest.raises(SystemExit):
            calls.check()


def test_metrics_and_health(
    site: StateDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers: list[Server] = []
    start = Server.start
    monkeypatch.setattr(Server, "start", lambda self: (start(self), servers.append(self)))

    def ask(page: str) -> tuple[int, str]:
        answer = requests.get(f"{servers[-1].url}/{page}", timeout=10)
        return answer.status_code, answer.text

    template = wish(3)
    step(capsys)
    step(capsys, "--listen", "127.0.0.1:0")
    lines = ask("metrics")[1].splitlines()
    numbers = {"wanted": 3, "asked": 3, "running": 0, "idle": 0}
    for name, number in numbers.items():
        assert f'hf_demand_{name}{{template="{template}"}} {number:.1f}' in lines
    assert {'hf_demand_source_failures_total{source="base"} 0.0', "hf_demand_steps_total 1.0"} <= {*lines}
    assert [ask(page)[0] for page in ("healthz", "readyz")] == [200, 200]
    assert json.loads(ask("status")[1])["templates"] == {template: numbers}
    servers[-1].stop()
    os.unlink(site.intent.path)
    assert run(["demand", "--once", "--listen", "127.0.0.1:0"]) == 1
    assert ask("healthz")[0] == 200
    code, text = ask("readyz")
    assert code == 503
    assert "intent.json" in text
    taken = servers[-1].url.removeprefix("http://")
    assert run(["demand", "--once", "--listen", taken]) == 1
    assert f"cannot listen on {taken}" in capsys.readouterr().err
    servers[-1].stop()


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


SCONTROL = """#!/bin/sh
[ ! -e {directory}/silent ] || {{ echo Unable to contact slurm controller; exit 1; }}
case $* in *show*) cat {directory}/nodes ;; *) echo "$*" >> {directory}/changes ;; esac
"""


def test_slurm_alone_needs_no_demand_yaml(
    site: StateDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = Path(os.environ["HF_PROVIDER_CONFDIR"])
    assert run(["demand", "--once"]) == 2, "neither of the files is there"
    template = wish(1)
    (conf / "demand.yaml").unlink()
    (conf / "slurm.json").write_text(json.dumps({"nodes": {"c1": template}}))
    (tmp_path / "scontrol").write_text(SCONTROL.format(directory=tmp_path))
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "nodes").write_text("NodeName=c1 State=DOWN+CLOUD+POWERED_DOWN Reason=ResumeTimeout reached\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert run(["demand", "--once"]) == 0
    assert (tmp_path / "changes").read_text() == "update nodename=c1 state=RESUME\n"
    (tmp_path / "silent").touch()
    assert run(["demand", "--once"]) == 1
    assert "Unable to contact slurm controller" in site.read_demand()["problem"]
    assert capsys.readouterr().err.count("demand.yaml") >= 1
