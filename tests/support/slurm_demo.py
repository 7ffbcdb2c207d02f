"""The demonstration with a place beyond Google: ``make demo PLACES=slurm``.

The loop first fills a real Slurm of Debian. GKE and a Spot group of the embedded cloud get the machines that do not fit
Slurm. The configuration is config/slurm-first with short times. Slurm's own command and the cloud's own state check
each step.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from provisioner.lab.demo import TERMINATED, Demo, show_demo
from provisioner.lab.playground import CLONE, CONFIG, Playground, PlaygroundError
from provisioner.process_end import INTERRUPTED
from tests.support.schedulers.slurm import PACKAGES, SlurmCluster, is_installed

SAMPLE = CLONE / "config" / "slurm-first"
TEMPLATE = "Grid8"
ROOM, REST, LAST = 6, 8, 4
"""Numbers of machines: those for which Slurm has room, those that GKE takes, and those that the Spot group takes."""

PHASES = {"PENDING": "pending", "RUNNING": "running"}
SHORT: dict[str, dict[str, Any]] = {
    "onprem": {
        "partition": "grid",
        "cpus": 1,
        "memory_mb": 100,
        "exclusive": False,
        "observe_seconds": 1,
        "spill_after_seconds": 8,
    },
    "gke": {"spill_after_seconds": 60},
    "spot": {"observe_seconds": 1, "lag_seconds": 4},
}
"""Settings that differ from the sample configuration: short times, and one node on which each CPU is a machine."""

REASONS = {
    "onprem": r"queued in onprem since [\d:]+: \w+",
    "gke": r"stockout: “FailedScaleUp: .*?out of resources",
}
"""Pattern of the reason why machines leave each pool for the next pool, as ``explain`` prints the reason."""


class SlurmPlayground(Playground):
    """The embedded cloud, a loop, and a Slurm cluster. The demonstration counts the cluster's jobs as machines, like
    those of the cloud."""

    def __init__(self, cluster: SlurmCluster, config: Path) -> None:
        super().__init__(config, "gridinst")
        self.cluster = cluster

    def cloud(self) -> list[dict[str, Any]]:
        """Return the jobs that squeue lists, and every machine in the embedded cloud."""
        lines = (line.split() for line in self.cluster.run("squeue", "-h", "-o", "%j %T").splitlines())
        jobs = [{"name": name, "pool": "Slurm", "phase": PHASES.get(state, "stopping")} for name, state in lines]
        return [*jobs, *super().cloud()]

    def explain(self, id_: str) -> str:
        """Return what ``provisioner explain`` prints about a request."""
        command = [sys.executable, "-m", "provisioner", "explain", id_]
        return subprocess.run(command, env=self.environment, cwd=CLONE, capture_output=True, text=True).stdout


class SlurmDemo(Demo):
    """The steps with Slurm as the first place."""

    title = "an own Slurm first, then GKE, then Spot instances"
    summary = (
        "judged by squeue and by the cloud's own state. Slurm was filled first, and each other machine was made where "
        "there was room. No job and no machine was left."
    )
    cloud: SlurmPlayground

    def play(self) -> None:
        """Play all steps in order."""
        with self._stepping("getAvailableTemplates") as step:
            step.note = ", ".join(self.hf.templates())
        with self._stepping(f"request {ROOM + REST} machines: Slurm has room for {ROOM}") as step:
            first = self._fill({"Slurm": ROOM, "symphony": REST})
            step.note = f"{ROOM} jobs run in Slurm, {REST} pods in GKE; no job is queued"
        self._explain(first, "onprem")
        with self._stepping(f"request {LAST} more: Slurm is full, and pods find no node") as step:
            self.cloud.faults({"mode": "stockout", "target": "symphony"})
            last = self._fill({"grid-spot-n2d": LAST})
            step.note = f"{LAST} Spot instances run; the jobs and pods tried before are gone"
        self._explain(last, "onprem", "gke")
        self._return_machines()
        self._step.note = f"squeue lists no job; {self._step.note}"

    def _fill(self, expected: dict[str, int]) -> str:
        id_ = self.hf.request(TEMPLATE, sum(expected.values()))
        self._until_complete(id_)
        pools = Counter(machine["pool"] for machine in self._of(id_) if machine["phase"] == "running")
        self._hold(pools == expected, f"running: {dict(pools)}")
        self._until(lambda: len(self._of(id_)) == sum(expected.values()), f"the withdrawn machines of {id_} go")
        return id_

    def _explain(self, id_: str, *pools: str) -> None:
        with self._stepping(f"provisioner explain {id_}") as step:
            said, notes = self.cloud.explain(id_), []
            for pool in pools:
                found = re.search(rf"(\d+) machines? (?:was|were) withdrawn in pool {pool}: .*?({REASONS[pool]})", said)
                self._hold(found is not None, f"the reason of {pool} is not in: {said}")
                notes.append("{} withdrawn: {}".format(*found.groups()).replace("“", "") if found else "")
            step.note = "\n".join(notes)


def write_configuration(cluster: SlurmCluster, directory: Path) -> Path:
    """Write the sample's configuration with the cluster's address and short times. Return its directory."""
    config = directory / "conf"
    shutil.copytree(SAMPLE, config)
    shutil.copy(CONFIG / "cloud.json", config)
    (config / "machine.sh").write_text("#!/bin/sh\nexec sleep 3600\n")
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(cluster.token())
    settings = yaml.safe_load((config / "provisioner.yaml").read_text())
    for name, changes in SHORT.items():
        settings["pools"][name] |= changes
    settings["pools"]["onprem"] |= {"endpoint": cluster.url, "user": cluster.user, "token_file": str(token)}
    del settings["pools"]["gke"]["endpoint"]
    settings["loop"] = {"interval_seconds": 2, "floor_seconds": 0.3}
    (config / "provisioner.yaml").write_text(yaml.safe_dump(settings))
    return config


def main() -> int:
    """Play the demonstration, and return the exit code."""
    console = Console()
    if not is_installed():
        console.print(f"This demonstration needs Slurm. On Debian, as root: apt-get install {PACKAGES}", style="red")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        with ExitStack() as end:
            cluster = SlurmCluster(cpus=ROOM)
            end.callback(cluster.stop)
            config = write_configuration(cluster, Path(end.enter_context(tempfile.TemporaryDirectory())))
            return show_demo(SlurmDemo(end.enter_context(SlurmPlayground(cluster, config))), console)
    except PlaygroundError as error:
        console.print(Text(str(error), style="red"))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
