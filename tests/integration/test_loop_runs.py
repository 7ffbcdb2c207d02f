"""Scripts, check_install and every command report whether the loop runs. They must all report the same. The scripts
alone may differ after a loop has signed off, because they read only the heartbeat."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hf_scripts.installation_check import check_all
from provisioner.commands.cli import run
from provisioner.commands.explain import explain
from provisioner.hostfactory.provider_config import Directories
from provisioner.lab.replay import is_loop_alive
from provisioner.settings.definitions import Loop
from provisioner.state.locks import DataLock
from provisioner.state.marker_files import SILENT_SECONDS
from tests.support.hostfactory.in_process import Here, heartbeat_before
from tests.support.hostfactory.provider import requesting


@pytest.fixture
def hf(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """Return a provider instance. A loop has run on its state directory and ended."""
    here = Here(tmp_path, capfd)
    for name, value in here.environment.items():
        monkeypatch.setenv(name, value)
    lock = here.state.loop_lock
    assert lock.acquire(0)
    lock.raise_epoch()
    lock.release()
    here.state.pool_status.write({"pools": {"a-pool": ["It is full."]}})
    return here


def loop_reports(hf: Here) -> dict[str, bool]:
    """Return for each program whether it reports that the loop runs. The scripts read only the heartbeat."""
    message = hf.answer("requestMachines", requesting())["message"]
    request = next(iter(hf.recorded()[0]))
    reports = {"a script": "has not run for" not in message}
    reports["explain"] = "LOOP NOT RUNNING" not in " ".join(explain(hf.state, "a-pool")["now"])
    reports["replay"] = is_loop_alive(hf.state)
    found = (str(result) for result in check_all(Directories(hf.environment), ""))
    reports["check_install"] = next(line for line in found if "loop runs" in line or "loop has" in line)[:4] == "fine"
    for name, arguments in {"status": ["status"], "cancel": ["cancel", request, "--reason", "x"]}.items():
        hf.capture.readouterr()
        run([*arguments, "-o", "json"])
        document = json.loads(hf.capture.readouterr().out)
        reports[name] = document["loop"]["running"] if name == "status" else document["loop_runs"]
    return reports


@pytest.mark.parametrize(("silent", "runs"), [(0.0, True), (30.0, True), (70.0, False)])
def test_all_agree_for_how_long_a_running_loop_may_be_silent(hf: Here, silent: float, runs: bool) -> None:
    heartbeat_before(hf, silent)
    found = loop_reports(hf)
    assert found == dict.fromkeys(found, runs)


def test_all_but_the_scripts_see_at_once_that_a_loop_has_signed_off(hf: Here) -> None:
    hf.state.heartbeat.touch()
    lock = hf.state.loop_lock
    assert lock.acquire(0)
    lock.sign_off()
    lock.release()
    found = loop_reports(hf)
    assert found == dict.fromkeys(found, False) | {"a script": True}


def test_the_slowest_loop_beats_four_times_before_it_counts_as_dead() -> None:
    most = Loop.model_json_schema()["properties"]["interval_seconds"]["maximum"]
    assert 4 * most <= SILENT_SECONDS


def test_check_install_finds_a_process_that_holds_the_lock_of_intent_for_long(hf: Here) -> None:
    heartbeat_before(hf, 0.0)
    hf.answer("requestMachines", requesting())
    path = f"{hf.state.intent.path}.lock"
    with DataLock(path):
        os.utime(path, (time.time() - 75, time.time() - 75))
        found = [str(result) for result in check_all(Directories(hf.environment), "")]
    assert [line for line in found if line.startswith(f"fix: {hf.state.path}: intent.json.lock is held for 7")], found
