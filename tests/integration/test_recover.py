"""`provisioner recover` beside a running loop and without one, on the embedded cloud."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.state.directory import StateDir
from provisioner.tools.playground import Playground, PlaygroundError
from tests.conformance.stage import Case, Grid, stage
from tests.support.waiting import PATIENCE, until


def recover(grid: Playground, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of the command."""
    endpoints = {"KUBECONFIG": grid.addresses["kubeconfig"], "PROVISIONER_COMPUTE_ENDPOINT": grid.addresses["compute"]}
    done = subprocess.run(
        [sys.executable, "-m", "provisioner", "recover", "-o", "json", *arguments],
        env={**os.environ, **grid.environment, **endpoints},
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def complete(grid: Playground, id_: str) -> list[str]:
    """The machines of a request, once it has ended well."""
    entry = until(
        lambda: (told := grid.hf.status(id_))["status"] != "running" and told, 60, every=0.2, what=f"{id_} ends"
    )
    assert entry["status"] == "complete"
    return [machine["name"] for machine in entry["machines"]]


def names(grid: Playground) -> set[str]:
    return {machine["name"] for machine in grid.cloud() if machine["phase"] == "running"}


def brake(grid: Playground) -> str | None:
    held = StateDir(grid.state).memory.read().brake
    return held.reason if held else None


@pytest.mark.slow
def test_lost_files_cost_no_machine_and_the_grid_goes_on() -> None:
    with Playground() as grid:
        first = grid.hf.request("GkePod", 5)
        machines = complete(grid, first)

        # Beside a running loop.
        (grid.state / "intent.json").unlink()
        until(lambda: brake(grid) == "intent_lost", 20, what="the loop notices")
        with pytest.raises(PlaygroundError, match=r"provisioner recover"):
            grid.hf.request("GkePod", 1)
        code, shown = recover(grid)
        assert (code, shown["applied"], shown["files"]["intent"]) == (1, False, "missing")
        assert shown["requests"] == [{"id": first, "template": "GkePod", "count": 5, "kept": False}]
        assert not (grid.state / "intent.json").exists()
        assert recover(grid, "--apply")[0] == 0
        code, shown = recover(grid)
        assert (code, shown["brake"]["reason"], shown["writes"]) == (1, "intent_lost", []), "a person releases it"
        assert recover(grid, "--release-brake")[0] == 0
        until(lambda: brake(grid) is None, 20, what="the brake is released")
        second = grid.hf.request("GkePod", 2)
        machines += complete(grid, second)

        # Without one, and with nothing left but what HF was told and what runs.
        loop = grid._processes[-1]
        loop.send_signal(signal.SIGTERM)
        assert loop.wait(timeout=60 * PATIENCE) == 0
        (grid.state / "intent.json").unlink()
        (grid.state / "memory.json").write_text("{")
        code, done = recover(grid, "--apply")
        assert (code, done["writes"]) == (0, ["intent", "memory"])
        grid.start_loop()
        until(lambda: (grid.state / "memory.json").exists() and brake(grid) == "memory_lost", 60, what="memory is made")
        assert complete(grid, first) + complete(grid, second) == machines
        assert names(grid) == set(machines)
        assert grid.hf.reclaimed(machines) == {}
        assert recover(grid)[0] == 1
        assert brake(grid) == "memory_lost", "looking releases nothing"
        assert recover(grid, "--release-brake")[0] == 0
        until(lambda: brake(grid) is None, 20, what="the brake is released")

        back = grid.hf.give_back(machines)
        until(lambda: grid.hf.status(back)["status"] == "complete", 60, every=0.2, what="all are returned")
        assert grid.cloud() == []
        assert grid.cloud_state()["calls"]["pods.create"] == 7


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Grid]:
    with stage() as cloud, Grid(tmp_path, cloud, Case(1, "", lambda _: None)) as grid:
        yield grid


def test_looking_asks_the_pools_and_changes_no_byte(hf: Grid) -> None:
    machines = hf.complete(2)
    hf.stop_loop()
    for name in ("intent.json", "memory.json"):
        (hf.work / name).unlink()

    def every_byte() -> dict[str, tuple[int, int, bytes]]:
        return {
            str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in (hf.work, *hf.work.rglob("*"))
        }

    before = every_byte()
    environment = {**os.environ, **hf.environment, "KUBECONFIG": str(hf.simulator.kubeconfig)}
    command = [sys.executable, "-m", "provisioner", "recover"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    assert done.returncode == 1, done.stderr
    assert f"writes back request {machines[0].split('-')[1]}: 2 of" in done.stdout
    assert every_byte() == before
