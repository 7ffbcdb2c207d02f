"""A restore drill with processes: a dump while loop and scripts run, a lost directory, and what HF sees after the
restore."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.lab.playground import Playground
from provisioner.model import format_utc
from provisioner.state.directory import StateDir
from provisioner.state.dump_format import unpack
from provisioner.state.errors import Condition
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


def start(grid: Playground, *arguments: str) -> subprocess.Popen[str]:
    """Start a command of this provider instance."""
    endpoints = {"KUBECONFIG": grid.addresses["kubeconfig"], "PROVISIONER_COMPUTE_ENDPOINT": grid.addresses["compute"]}
    return subprocess.Popen(
        [sys.executable, "-m", "provisioner", *arguments],
        env={**os.environ, **grid.environment, **endpoints},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def command(grid: Playground, *arguments: str) -> str:
    """Run a command that has to succeed, and return its output."""
    process = start(grid, *arguments)
    output, _ = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 0, output
    return output


def complete(grid: Playground, id_: str) -> list[str]:
    """Poll a request until it has ended, and return its machines."""
    entry = until(
        lambda: (answer := grid.hf.status(id_))["status"] != "running" and answer, 60, every=0.2, what=f"{id_} ends"
    )
    assert entry["status"] == "complete"
    return [machine["name"] for machine in entry["machines"]]


def running(grid: Playground) -> set[str]:
    return {machine["name"] for machine in grid.cloud() if machine["phase"] == "running"}


def end_loop(grid: Playground) -> None:
    loop = grid._processes[-1]
    loop.send_signal(signal.SIGTERM)
    assert loop.wait(timeout=60 * PATIENCE) == 0


def test_a_lost_directory_costs_hf_no_machine_and_changes_no_answer(tmp_path: Path) -> None:
    dump = tmp_path / "state.tar.gz"
    with Playground() as grid:
        first = grid.hf.request("GkePod", 4)
        kept, given, *others = complete(grid, first)
        answer = grid.hf.status(first)
        command(grid, "dump", str(dump))  # beside the running loop

        return_id = grid.hf.return_machines([given])
        until(lambda: grid.hf.status(return_id)["status"] == "complete", 60, every=0.2, what="one is returned")
        later = complete(grid, grid.hf.request("GkePod", 2))
        hosts = {kept, *others, *later}
        saved = unpack(str(dump), dump.read_bytes()).tables("memory")
        assert saved is not None
        end_loop(grid)
        shutil.rmtree(grid.state)
        grid.state.mkdir()
        output = command(grid, "restore", str(dump))
        assert "provisioner recover --release-brake" in output

        grid.start_loop()
        state = StateDir(grid.state)
        until(lambda: made_again(state), 60, what="memory is made again")
        until(lambda: set(state.memory.read().orphans.since) == set(later), 60, what="the unknown machines are orphans")
        usage = json.loads(command(grid, "usage", "-o", "json"))
        assert usage["counted_since"] == format_utc(saved["memory"]["memory"]["usage"]["since_wall"])
        assert usage["total"]["hours"] > 0
        assert grid.hf.status(first) == answer
        assert set(grid.hf.reclaimed(sorted(hosts))) == set(), "HF is asked for nothing, and lists what it has"
        until(lambda: not state.memory.read().orphans.since, 60, what="what HF lists is no orphan")
        assert running(grid) == hosts

        process = start(grid, "recover")
        shown, _ = process.communicate(timeout=60 * PATIENCE)
        assert (process.returncode, "BRAKE memory_older" in shown) == (1, True), shown
        command(grid, "recover", "--release-brake")
        until(lambda: state.memory.read().brake is None, 60, what="the brake is released")
        again = grid.hf.request("GkePod", 1)
        hosts |= set(complete(grid, again))
        assert running(grid) == hosts

        return_id = grid.hf.return_machines(sorted(hosts))
        until(lambda: grid.hf.status(return_id)["status"] == "complete", 60, every=0.2, what="all are returned")
        assert running(grid) == set()


def made_again(state: StateDir) -> bool:
    """Return True if the loop has made a memory of its own in place of the dump's."""
    return state.memory.condition() is Condition.FINE and state.memory.read().brake is not None
