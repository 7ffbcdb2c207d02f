"""The cost of `provisioner status` as a grid grows: CPU and memory of the command, each time a new process.

    python tests/bench/bench_status.py

Half of the machines run, and half wait for a pool without room. All fifty requests have unmet machines. Goal: half a
second at ten thousand machines. Exits 1 if the goal is missed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from provisioner.model import Limits, Memory, PoolLimits, TemplateLimits
from provisioner.state.directory import StateDir
from provisioner.telemetry.pool_status import PoolStatus
from tests.support.parts import alter
from tests.unit.core import NOW, TEMPLATE, memory, record, running, slot

REQUESTS = 50
SIZES = (0, 1_000, 10_000)
GOAL = 0.5
"""Goal at the largest size: the largest number of CPU seconds."""
REPEATS = 5


class Cost(NamedTuple):
    """The cost of one run of the command: seconds of CPU, and the peak memory in megabytes."""

    cpu: float
    memory: float


def grid(machines: int) -> Memory:
    """Return a memory with fifty requests and ``machines`` slots. Half of the slots run. Each request wants ten
    machines more than it has slots."""
    each = machines // REQUESTS
    ids = [f"a{number:09d}" for number in range(REQUESTS if each else 0)]
    requests = [
        record(
            *(running(n, request=id_) if n % 2 else slot(n, request=id_) for n in range(each)), id_=id_, count=each + 10
        )
        for id_ in ids
    ]
    return alter(memory(*requests), provisioner="demoinst", time=NOW, time_wall=time.time())


def leave(directory: Path, machines: int) -> None:
    """Write the state directory of a loop that has just ended a cycle."""
    state = StateDir(directory)
    state.memory.write(grid(machines))
    limits = Limits(
        "hf", {"a": PoolLimits("a", max_machines=10_000)}, {TEMPLATE: TemplateLimits(TEMPLATE, ("a",), 10_000)}
    )
    pool_status = PoolStatus(limits=limits)
    state.pool_status.write(asdict(pool_status))
    state.heartbeat.touch()


def called(directory: Path, environment: Mapping[str, str]) -> Cost:
    """Run the command once, and return its cost."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "provisioner", "status", "--state-dir", str(directory)]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, after.ru_maxrss / 1024)


def main() -> int:
    """Print the table, and return 1 if the goal is missed."""
    table = Table("machines", f"CPU s (goal {GOAL})", "MB", title="provisioner status, at best")
    cpu = 0.0
    for machines in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            leave(Path(directory), machines)
            costs = [called(Path(directory), os.environ) for _ in range(REPEATS)]
        cpu = min(cost.cpu for cost in costs)
        table.add_row(f"{machines:,}", f"{cpu:.2f}", f"{max(cost.memory for cost in costs):.0f}")
    Console().print(table)
    return int(cpu > GOAL)


if __name__ == "__main__":
    sys.exit(main())
