"""``make demo PLACES=slurm``, as an operator calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import slurm_demo
from tests.support.schedulers.slurm import NO_SLURM, PACKAGES, SlurmCluster, is_installed
from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
MODULE = "tests.support.slurm_demo"


def test_the_target_plays_the_places_that_it_is_given() -> None:
    for places, command in (("slurm", f"python -m {MODULE}"), ("", "provisioner demo")):
        shown = subprocess.run(
            ["make", "-n", "demo", f"PLACES={places}"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        commands = [line for line in shown.splitlines() if not line.startswith("make")]  # a make above tells its steps
        assert commands[-1] == f".venv/bin/{command}"


def test_a_host_without_slurm_reads_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_demo, "is_installed", lambda: False)
    assert slurm_demo.main() == 1
    assert f"apt-get install {PACKAGES}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.schedulers
@pytest.mark.skipif(not is_installed(), reason=NO_SLURM)
def test_slurm_is_filled_first_and_the_rest_spills_to_the_cloud() -> None:
    command, wide = [sys.executable, "-m", MODULE], {**os.environ, "COLUMNS": "160"}
    done = subprocess.run(
        command, cwd=ROOT, env=wide, capture_output=True, text=True, check=False, timeout=240 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == 6
    assert "All steps passed" in done.stdout
    assert "withdrawn: queued in onprem since" in done.stdout


@pytest.mark.schedulers
@pytest.mark.skipif(not is_installed(), reason=NO_SLURM)
def test_a_cluster_that_ends_leaves_no_process_of_a_job() -> None:
    cluster = SlurmCluster()
    script = f"echo $$ > {cluster.daemons.directory}/state/pid; exec sleep 1000"
    cluster.run("sbatch", "-o", "/dev/null", "-D", "/tmp", "--wrap", script)
    noted = cluster.daemons.directory / "state" / "pid"
    pid = int(until(lambda: noted.exists() and noted.read_text(), 30, what="the job's process"))
    os.kill(pid, 0)
    cluster.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
