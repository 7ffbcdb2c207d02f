"""The cost of a day of ten thousand machines in virtual time: wall time, CPU and memory of one run.

    python tests/bench/bench_simulation.py [--machines N] [--hours H]

HostFactory requests all machines at once and keeps them. It polls every half minute, and lists all its hosts each time.
The loop gathers changes for five seconds. Goal: less than a minute. Exits 1 if the goal is missed.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

from rich.console import Console
from rich.table import Table

from provisioner.lab.virtual.run import play
from provisioner.lab.virtual.scenario import Demand, Scenario, Template, VirtualPool

GOAL = 60.0
"""Seconds of wall time."""


def scenario(machines: int, hours: float) -> Scenario:
    """Return a day in which all machines are wanted at once and kept."""
    pool = VirtualPool(name="a", max_pending=5000, boot_p95_seconds=200.0, machines_per_call=100)
    return Scenario(
        name="day",
        about="All are wanted at once, and kept.",
        hours=hours,
        pools={"a": pool},
        templates={"T": Template(pools=("a",))},
        demand=(Demand(machines=machines),),
        settings={"loop": {"floor_seconds": 5.0, "interval_seconds": 5.0}},
    )


def main() -> int:
    """Print the table, and return 1 if the goal is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=24.0)
    options = parser.parse_args()
    wall, cpu = time.perf_counter(), time.process_time()
    result = play(scenario(options.machines, options.hours), seed=1)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table = Table(
        "machines", "hours", "plans", f"wall s (goal {GOAL:.0f})", "CPU s", "MB", title="a day in virtual time"
    )
    plans = result.measures["plans"] or 0.0
    table.add_row(
        f"{options.machines:,}", f"{options.hours:g}", f"{plans:.0f}", f"{wall:.1f}", f"{cpu:.1f}", f"{memory:.0f}"
    )
    Console().print(table)
    for line in result.broken:
        print(line)
    return int(wall > GOAL or bool(result.broken))


if __name__ == "__main__":
    sys.exit(main())
