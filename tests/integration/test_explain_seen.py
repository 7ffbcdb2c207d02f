"""`provisioner explain` beside a real loop and the embedded cloud: what became of machines, by the real command."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from provisioner.commands.cli import run
from provisioner.simulator.cloud import Conditions
from provisioner.simulator.server import Simulator
from tests.conformance.stage import TIMINGS, Case, Grid
from tests.support.waiting import until

POD = 1
SPOT_POD = "nodeSelector: {cloud.google.com/gke-spot: 'true'}\ncontainers: [{name: main, image: busybox}]\n"
WORDS = "exceeded quota"


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Grid]:
    """A namespace on Spot nodes."""
    with Simulator(namespaces=[f"case-{POD}"], conditions=Conditions.of(timings=TIMINGS)) as cloud:
        settings = {"backoff": {"first_seconds": 0.1, "last_seconds": 0.5}}
        case = Case(POD, "", lambda _: None, loop=False, settings=settings)
        with Grid(tmp_path, cloud, case) as grid:
            (grid.conf / "pod.yaml").write_text(SPOT_POD)
            grid.start_loop()
            yield grid


def call(hf: Grid, *arguments: str) -> tuple[int, str]:
    """Exit code and output of the command."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = run(["explain", *arguments, "--state-dir", str(hf.work)])
    return code, printed.getvalue()


def called(hf: Grid, id_: str) -> str:
    """Output of the command as a process of its own, in HF's environment."""
    command = [sys.executable, "-m", "provisioner", "explain", id_]
    environment = {**os.environ, **hf.environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout


def until_told(hf: Grid, id_: str, *patterns: str) -> str:
    """What is printed of an id, once its lines fit the patterns in their order."""
    seen = [""]

    def told() -> bool:
        code, seen[0] = call(hf, id_)
        lines = iter(seen[0].splitlines())
        return code == 0 and all(any(re.search(pattern, line) for line in lines) for pattern in patterns)

    try:
        until(told, 30, every=0.1, what=f"explain tells {patterns}")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{seen[0]}") from error
    return seen[0]


def test_a_request_that_was_deferred_refused_partly_run_preempted_and_returned_is_told(hf: Grid) -> None:
    kept, given = hf.complete(2)
    pools = {name: settings | {"paused": True} for name, settings in hf.settings["pools"].items()}
    hf.configure(pools=pools)
    until_told(hf, "gke-main", r"  Paused in pool gke-main\.", "^Now", "It is paused")
    request = hf.request("T2", 2)
    until_told(
        hf, request, "asked for 2 machines", "2 machines wait in pool gke-main: the pool is paused", "2 in .*paused"
    )

    hf.fault("quota", params={"limit": 3})
    hf.configure()
    until_told(
        hf, request, "slots opened", f"Pool gke-main refused .*: quota: “.*{WORDS}", "^Now", "1 of 2 machines run"
    )
    until_told(
        hf, "gke-main", r"  Resumed in", f"refused .*: quota: “.*{WORDS}", "the pool backs off, quota", "^Now", WORDS
    )
    assert "HostFactory is told that 1 machine runs." in call(hf, request)[1]

    hf.simulator.preempt(kept)
    lost = until_told(hf, f"{kept}.example.com", "asked", "opened", "runs in", f"{kept} was lost in .*: preempted")
    assert re.search(rf"HostFactory is told that {kept} (is gone|ends in \d+ s) \(preempted\)", lost)
    back = hf.give_back(given, kept)
    assert hf.ended(back)["status"] == "complete"
    until_told(hf, back, f"gave back .*{given}", f"{given} was returned", "told the end: complete", "^Now", "2 of 2")

    hf.faults()
    assert hf.ended(request)["status"] == "complete"
    until_told(hf, request, "2 machines wait", "refused", "told the end: complete; 2 machines run", "ended as complete")
    hf.stop_loop()
    assert "LOOP NOT RUNNING since" in called(hf, request)
    code, text = call(hf, f"{request}x")
    assert (code, request in text) == (1, True)
