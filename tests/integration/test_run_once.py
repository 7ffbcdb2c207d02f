"""`provisioner plan`, then `run --once` and its log: what is planned is done, and what is done is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conformance.stage import Case, Grid, stage
from tests.support.waiting import PATIENCE


def call(hf: Grid, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command as people call it, which ends with this code."""
    done = subprocess.run(
        [sys.executable, "-m", "provisioner", *arguments],
        env={**os.environ, **hf.environment, "KUBECONFIG": str(hf.simulator.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def cycle(hf: Grid, *, level: str = "INFO") -> list[dict[str, Any]]:
    """The lines ``Cycle`` of a loop that runs one cycle."""
    log = call(hf, "--log-level", level, "run", "--once", "--listen", "127.0.0.1:0").stderr
    return [line for line in map(json.loads, log.splitlines()) if line["message"] == "Cycle"]


def test_one_cycle_does_what_was_planned_and_its_log_counts_what_was_done(tmp_path: Path) -> None:
    with stage() as cloud, Grid(tmp_path, cloud, Case(1, "", lambda _: None, loop=False)) as hf:
        hf.request("T2", 3)
        planned = [one["machine"] for one in json.loads(call(hf, "plan", "-o", "json").stdout)["creates"]]
        assert hf.cloud() == [], "a plan touches nothing"
        (done,) = cycle(hf)
        assert (done["severity"], done["creates"], done["failures"]) == ("INFO", 3, 0)
        assert hf.until_cloud(lambda names: len(names) == 3, "running") == planned

        hf.fault("quota")
        hf.request("T2", 3)
        (refused,) = cycle(hf)
        assert (refused["creates"], refused["result"]) == (0, "partial")
        assert f"{refused['failures']} not created in gke-main: quota" in refused["causes"]

        (hf.work / "intent.json").unlink()
        assert "Cycle failed" in call(hf, "run", "--once", "--listen", "127.0.0.1:0", code=1).stderr
