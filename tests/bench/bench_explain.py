"""The cost of `provisioner explain` with a full journal: CPU and memory of the command, each time a new process.

    python tests/bench/bench_explain.py

One request has all machines, and half of them were returned. The journal has its largest size. Goal: a second of CPU at
ten thousand machines, for the timeline of any subject. Exits 1 if the goal is missed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from provisioner.model import Limits, Memory, PoolLimits, TemplateLimits, Verdict
from provisioner.names import machine_name
from provisioner.state.directory import StateDir
from provisioner.state.journal import JOURNAL_BYTES, JOURNAL_KEPT, format_time
from provisioner.telemetry.pool_status import PoolStatus
from tests.support.parts import alter
from tests.unit.core import NOW, REQUEST, TEMPLATE, memory, name, record, running

SIZES = (0, 1_000, 10_000)
GOAL = 1.0
"""Goal at the largest size: the largest number of CPU seconds."""
REPEATS = 3
REFUSED = "ZONE_RESOURCE_POOL_EXHAUSTED: the zone does not have enough resources available"
Line = dict[str, object]


class Cost(NamedTuple):
    """The cost of one run of the command: seconds of CPU, and the peak memory in megabytes."""

    cpu: float
    memory: float


def grid(machines: int) -> Memory:
    """Return a memory with one ended request that had ``machines`` machines. Half of them were returned."""
    verdicts = (Verdict.SUCCEEDED, Verdict.RETURNED)
    slots = [running(number, verdicts[number % 2]) for number in range(machines)]
    return alter(memory(record(*slots, count=machines)), provisioner="demoinst", time=NOW, time_wall=time.time())


def life(names: list[str], id_: str, wall: float) -> Iterator[Line]:
    """Yield journal lines about the machines of one request. First all machines run, and then half of them are
    returned."""
    for machine in names:
        yield _line(wall, "create", machine=machine, pool="a", result="ok")
    yield _line(wall + 60, "running", request=id_, pool="a", machines=names)
    yield _line(wall + 60, "reported", request=id_, answer="complete", running=len(names))
    for machine in names[1::2]:
        yield _line(wall + 600, "close", machine=machine, pool="a", template=TEMPLATE, verdict="returned")
        yield _line(wall + 601, "delete", machine=machine, pool="a", result="ok", reason="returned")


def _line(wall: float, event: str, **fields: object) -> Line:
    return {"time": format_time(wall), "cycle": 1, "event": event, **fields}


def fill(state: StateDir, machines: int) -> None:
    """Write a journal of the largest size. Write the lines of the measured request last. Before them, write lines of
    other requests during the last week, and lines of a pool that refuses creates because it has no room."""
    wall, number = time.time() - 7 * 86_400, 0
    while (
        not Path(f"{state.journal.path}.{JOURNAL_KEPT}").exists() or size_of(state.journal.path) < 0.9 * JOURNAL_BYTES
    ):
        id_, number = f"{number:010d}", number + 1
        lines = list(life([machine_name("hf", id_, slot) for slot in range(500)], id_, wall + number))
        fields = {"pool": "a", "result": "stockout", "text": REFUSED}
        lines += [_line(wall + number, "create", machine=machine_name("hf", id_, 600), **fields)] * 20
        state.journal.append(lines)
    state.journal.append(life([name(slot) for slot in range(machines)], REQUEST, time.time() - 3600))


def size_of(path: str) -> int:
    """Return the size of a file in bytes. Return 0 if the file does not exist, for example just after a rotation."""
    return os.path.getsize(path) if os.path.exists(path) else 0


def leave(directory: Path, machines: int) -> None:
    """Write the state directory of a loop that has just ended a cycle."""
    state = StateDir(directory)
    state.memory.write(grid(machines))
    limits = Limits("hf", {"a": PoolLimits("a")}, {TEMPLATE: TemplateLimits(TEMPLATE, ("a",), 10_000)})
    pool_status = PoolStatus(limits=limits)
    state.pool_status.write(asdict(pool_status))
    state.heartbeat.touch()
    fill(state, machines)


def called(directory: Path, subject: str, environment: Mapping[str, str]) -> Cost:
    """Run the command once, and return its cost."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "provisioner", "explain", subject, "--state-dir", str(directory)]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, after.ru_maxrss / 1024)


def main() -> int:
    """Print the table, and return 1 if the goal is missed."""
    table = Table("machines", "journal MB", "of", f"CPU s (goal {GOAL})", "MB", title="provisioner explain, at best")
    worst = 0.0
    for machines in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            leave(Path(directory), machines)
            size = sum(file.stat().st_size for file in Path(directory).glob("journal.jsonl*")) / 1e6
            worst = 0.0
            for what, subject in {"request": REQUEST, "machine": name(0), "pool": "a"}.items():
                if machines == 0 and what == "machine":
                    continue
                costs = [called(Path(directory), subject, os.environ) for _ in range(REPEATS)]
                cpu = min(cost.cpu for cost in costs)
                worst = max(worst, cpu)
                most = max(cost.memory for cost in costs)
                table.add_row(f"{machines:,}", f"{size:.0f}", what, f"{cpu:.2f}", f"{most:.0f}")
    Console().print(table)
    return int(worst > GOAL)


if __name__ == "__main__":
    sys.exit(main())
