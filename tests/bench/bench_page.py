"""What a page of the status page costs as a grid grows: CPU of the server's thread, with nothing held from before.

    python tests/bench/bench_page.py

Half of the machines run, half wait for a pool without room, in fifty requests that are all short. Goal: a tenth of a
second at ten thousand machines, for each page. Exits 1 when it is missed. Beside it, what a sample costs the loop, once
a minute.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from provisioner.state.directory import StateDir
from provisioner.telemetry.page import StatusPage
from provisioner.telemetry.samples import EVERY, Samples, points
from tests.bench.bench_status import REQUESTS, grid, leave

SIZES = (0, 1_000, 10_000)
GOAL = 0.1
"""Seconds of CPU at most, at the largest size."""
REPEATS = 7


def least(work: Callable[[], object]) -> float:
    """Seconds of CPU, at best."""
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def costs(directory: Path, machines: int) -> dict[str, float]:
    """Of each page, and of a sample."""
    leave(directory, machines)
    held, samples = grid(machines), Samples()
    for number in range(1440):
        samples.take(held, {}, number * EVERY)

    def shown(path: str) -> None:
        response = StatusPage(StateDir(directory), lambda: held, samples).respond(path, "")
        assert response is not None
        assert response.status == 200, response.body

    first = next(iter(held.requests), "")
    paths = ["/", "/status.json", "/pool/a", "/template/T"]
    paths += [f"/request/{first}", f"/machine/{held.requests[first].slots[0].name}"] if first else []
    return {path.rpartition("/")[0] or path: least(lambda path=path: shown(path)) for path in paths} | {  # type: ignore[misc]
        "sample": least(lambda: points(held, {}))
    }


def main() -> int:
    """Print the table; 1 when the goal is missed."""
    table = Table("machines", "page", f"CPU s (goal {GOAL})", title=f"The status page of {REQUESTS} requests, at best")
    worst = 0.0
    for machines in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            found = costs(Path(directory), machines)
        worst = max(seconds for page, seconds in found.items() if page != "sample")
        for page, seconds in found.items():
            table.add_row(f"{machines:,}", page, f"{seconds:.4f}")
    Console().print(table)
    return int(worst > GOAL)


if __name__ == "__main__":
    sys.exit(main())
