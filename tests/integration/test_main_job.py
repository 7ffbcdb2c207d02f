"""The whole path with real processes: scripts, loop and embedded cloud. It must survive kill -9 and lost files. Every
check uses the cloud's own record of its machines."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from provisioner.hostfactory.script_calls import HostFactory, ScriptFailed
from provisioner.lab import playground
from provisioner.lab.demo import demo
from provisioner.lab.playground import Playground, PlaygroundError
from tests.support.waiting import PATIENCE, until


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Playground]:
    """Yield a playground whose pools wait an hour for slow machines.

    The pools of the demonstration wait only 8 s. On a slow host, the loop would then replace a slow pod by a pod of the
    next pool.
    """
    config = tmp_path / "conf"
    shutil.copytree(playground.CONFIG, config)
    settings = config / "provisioner.yaml"
    text, changed = re.subn(r"spill_after_seconds: \d+", "spill_after_seconds: 3600", settings.read_text())
    assert changed == 4, "each pool has the setting"
    settings.write_text(text)
    monkeypatch.setattr(playground, "CONFIG", config)
    with Playground() as made:
        yield made


def running(grid: Playground, id_: str = "") -> list[str]:
    return [
        machine["name"]
        for machine in grid.cloud()
        if machine["phase"] == "running" and (not id_ or f"-{id_}-" in machine["name"])
    ]


def end(process: subprocess.Popen[str], how: signal.Signals) -> int:
    process.send_signal(how)
    return process.wait(timeout=30 * PATIENCE)


def loop_of(grid: Playground) -> subprocess.Popen[str]:
    return grid._processes[-1]


def complete(grid: Playground, id_: str, seconds: float = 60) -> dict[str, object]:
    return until(
        lambda: (entry := grid.hf.status(id_))["status"] != "running" and entry, seconds, every=0.2, what=f"{id_} ends"
    )


@pytest.mark.slow
def test_a_loop_killed_in_the_middle_of_100_creates_and_restarted_ends_with_exactly_100(grid: Playground) -> None:
    grid.faults({"mode": "slow_start", "target": ".*", "params": {"seconds": 1}})
    id_ = grid.hf.request("GkePod", 100)
    loop = loop_of(grid)
    until(lambda: len(grid.cloud()) >= 10, 30, every=0.005, what="some creates are done")
    end(loop, signal.SIGKILL)
    made = len(grid.cloud())
    grid.start_loop()
    entry = complete(grid, id_)
    assert entry["status"] == "complete"
    assert len(running(grid)) == 100
    assert len(grid.cloud()) == 100
    assert grid.cloud_state()["calls"]["pods.create"] >= 100
    assert made < 100, "the kill came too late to prove anything"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "restart"),
    [("memory.json", True), ("intent.json", False)],
    ids=["memory, across a restart", "intent, while the loop runs"],
)
def test_no_machine_is_deleted_when_a_state_file_is_deleted(grid: Playground, file: str, restart: bool) -> None:
    """If a state file is deleted, the loop must neither delete nor create machines."""
    id_ = grid.hf.request("GkePod", 50)
    complete(grid, id_)
    before, calls = sorted(running(grid)), grid.cloud_state()["calls"]
    loop = loop_of(grid)
    if restart:
        end(loop, signal.SIGTERM)
    (grid.state / file).unlink()
    if restart:
        grid.start_loop()
    for _ in range(3):  # the loop would delete within a few cycles if it ever did
        beat = (grid.state / "heartbeat").stat().st_mtime_ns
        until(lambda beat=beat: (grid.state / "heartbeat").stat().st_mtime_ns != beat, 30, what="a cycle")
        assert sorted(running(grid)) == before
    for name in ("pods.create", "pods.delete"):
        assert grid.cloud_state()["calls"].get(name, 0) == calls.get(name, 0)
    if file != "intent.json":
        assert grid.hf.status(id_)["status"] == "complete"
        assert grid.hf.reclaimed(before) == {}


@pytest.mark.slow
def test_a_second_loop_stands_by_and_takes_over_when_the_first_is_killed(grid: Playground) -> None:
    first = loop_of(grid)
    second = grid.begin_loop()
    id_ = grid.hf.request("GceVm", 3)
    complete(grid, id_)
    assert second.poll() is None
    assert json.loads((grid.state / "loop.lock").read_text())["pid"] == first.pid
    end(first, signal.SIGKILL)
    until(lambda: json.loads((grid.state / "loop.lock").read_text())["pid"] == second.pid, 20, what="it takes over")
    again = grid.hf.request("GkePod", 2)
    assert complete(grid, again)["status"] == "complete"
    assert len(running(grid)) == 5


@pytest.mark.slow
def test_sigterm_ends_the_loop_with_0_after_the_action_in_hand(grid: Playground) -> None:
    id_ = grid.hf.request("GkePod", 40)
    until(lambda: len(grid.cloud()) >= 1, 30, every=0.005, what="creates have begun")
    assert end(loop_of(grid), signal.SIGTERM) == 0
    made = {machine["name"] for machine in grid.cloud()}
    slots = json.loads((grid.state / "memory.json").read_text())
    assert id_ in json.dumps(slots)
    grid.start_loop()
    assert complete(grid, id_)["status"] == "complete"
    assert made <= set(running(grid))
    assert grid.cloud_state()["calls"]["pods.create"] == 40, "no create was sent twice: its outcome was recorded"


@pytest.mark.slow
def test_a_loop_that_does_not_start_says_why(grid: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator, loop = grid._processes
    end(loop, signal.SIGTERM)
    simulator.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(playground, "START_SECONDS", 8.0)
    try:
        with pytest.raises(PlaygroundError, match=r"did not answer within 8 s; .*run\.log says:\n") as late:
            grid.start_loop()
        assert "Fatal Python error: Aborted" in str(late.value), "where it stands"
    finally:
        simulator.send_signal(signal.SIGCONT)
    (grid.config / "provisioner.yaml").write_text("pools: 7\n")
    with pytest.raises(PlaygroundError, match=r"ended with 2; .*run\.log says:\n[^{]*provisioner\.yaml"):
        grid.start_loop()


def test_a_request_is_complete_and_given_back_and_every_pool_is_exported(grid: Playground) -> None:
    until(lambda: grid.loop_answers("readyz"), 30, what="a complete cycle")
    metrics = requests.get(f"{grid.url}/metrics", timeout=10 * PATIENCE).text
    for pool in ("gke-main", "gke-spare", "mig-a", "mig-b"):
        assert f'hf_provisioner_observation_timestamp_seconds{{pool="{pool}"}}' in metrics
    machines = []
    for template in ("GkePod", "GceVm"):
        id_ = grid.hf.request(template, 2)
        assert complete(grid, id_)["status"] == "complete"
        machines += running(grid, id_)
    assert len(machines) == len(grid.cloud()) == 4
    assert complete(grid, grid.hf.return_machines(machines))["status"] == "complete"
    assert grid.cloud() == []


def directories(place: Path) -> list[str]:
    return [path.name for path in place.iterdir() if path.name.startswith("hostfactory-demo-")]


@pytest.mark.slow
def test_a_playground_is_reached_where_everything_else_is_behind_a_proxy_and_takes_its_directory_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The playground must call its cloud without the proxy that the environment names. This proxy does not exist, so a
    call through it would fail. At its end, the playground must remove its directory."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, ".bank.example")
    with Playground() as made:
        assert directories(tmp_path) == [made.directory.name]
        assert made.cloud() == []
        until(lambda: made.loop_answers("readyz"), 60, what="a cycle that saw every pool")
        assert "export no_proxy=.bank.example,metadata.google.internal," in made.exports()
    assert directories(tmp_path) == []


@pytest.mark.slow
def test_a_demonstration_that_fails_keeps_its_directory_and_says_where_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(HostFactory, "templates", lambda _: (_ for _ in ()).throw(ScriptFailed("no templates")))
    assert demo(keep=False) == 1
    signal.signal(signal.SIGTERM, before)
    [kept] = directories(tmp_path)
    output = "".join(capsys.readouterr().out.split())
    assert "Thestepfailed:notemplates.Logsandstatearekeptin" in output
    assert kept in output
    assert (tmp_path / kept / "log" / "run.log").exists()


def test_a_playground_that_does_not_start_keeps_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Playground()
    monkeypatch.setattr(made, "start_loop", lambda: (_ for _ in ()).throw(PlaygroundError("it did not start")))
    with pytest.raises(PlaygroundError), made:
        pass
    assert directories(tmp_path) == [made.directory.name]
    assert not made._processes
