"""`provisioner plan`, then `run --once` and its log: what is planned is done, and what is done is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conformance.stage import Case, Grid, stage
from tests.support.waiting import PATIENCE


def call(hf: Grid, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command as an operator does, and check its exit code."""
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


def test_one_cycle_does_what_was_planned_and_its_log_counts_what_was_done(tmp_path: Path) -> None:
    with stage() as cloud, Grid(tmp_path, cloud, Case(1, "", lambda _: None, loop=False)) as hf:
        hf.fault("quota", params={"limit": 3})
        hf.request("T2", 5)
        planned = [one["machine"] for one in json.loads(call(hf, "plan", "-o", "json").stdout)["creates"]]
        assert (len(planned), hf.cloud()) == (5, []), "a plan touches nothing"
        log = call(hf, "run", "--once", "--listen", "127.0.0.1:0").stderr
        (line,) = (line for line in map(json.loads, log.splitlines()) if line["message"] == "Cycle")
        assert (line["severity"], line["result"], line["creates"]) == ("INFO", "partial", 3)
        assert f"{line['failures']} not created in gke-main: quota" in line["causes"]
        assert set(hf.until_cloud(lambda names: len(names) == 3, "running")) < set(planned)

        (hf.work / "intent.json").unlink()
        assert "Cycle failed" in call(hf, "run", "--once", "--listen", "127.0.0.1:0", code=1).stderr
