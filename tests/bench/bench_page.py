"""The cost of each page of the loop's status page as a grid grows: CPU of the server's thread, without cached data.

    python tests/bench/bench_page.py

Half of the machines run, and half wait for a pool without room. All fifty requests have unmet machines. Pages show
events from the journal's newest file. Each page is measured with three such files: one is empty, one is full of events
of machines, and one is full of refusals.

Goal: a tenth of a second for each page at ten thousand machines. Exits 1 if the goal is missed. The script also prints
the cost of taking a sample for the page's plots, which the loop does once a minute.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from provisioner.model import Memory
from provisioner.names import machine_name
from provisioner.state.directory import StateDir
from provisioner.state.journal import JOURNAL_BYTES, format_time
from provisioner.telemetry.machine_plots import SAMPLE_SECONDS, Samples, points
from provisioner.telemetry.status_page import StatusPage
from tests.bench.bench_explain import REFUSED, Line, life, size_of
from tests.bench.bench_status import REQUESTS, grid, leave

SIZES = (0, 1_000, 10_000)
GOAL = 0.1
"""Goal at the largest size: the largest number of CPU seconds."""
REPEATS = 7
JOURNALS = ("empty", "lives", "refusals")


def fill(state: StateDir, memory: Memory, journal: str) -> None:
    """Fill the newest file of the journal. Stay a little below the size at which the file is rotated."""
    if journal == "empty":
        return
    wall, size = time.time() - 86_400, int(0.99 * JOURNAL_BYTES)
    lines: list[Line] = []
    for number, record in enumerate(memory.requests.values()):
        names = [slot.name for slot in record.slots.values()]
        lines += life(names, record.id, wall + number) if journal == "lives" else refused(names, wall + number)
    state.journal.append(lines)
    number = 0
    while size_of(state.journal.path) < size:
        id_, number = f"b{number:09d}", number + 1
        names = [machine_name("hf", id_, slot) for slot in range(200)]
        state.journal.append(life(names, id_, wall + number) if journal == "lives" else refused(names, wall + number))


def refused(names: Sequence[str], wall: float) -> list[Line]:
    """Return a journal line for each create that a pool refuses. The real loop writes fewer lines, because it counts
    equal refusals."""
    fields = {"event": "create", "pool": "a", "result": "stockout", "text": REFUSED}
    return [{"time": format_time(wall), "cycle": 1, "machine": name, **fields} for name in names]


def least(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest of several runs of ``work``."""
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def costs(directory: Path, machines: int, journal: str) -> dict[str, float]:
    """Return the CPU seconds of each page, and of taking a sample."""
    leave(directory, machines)
    memory, samples = grid(machines), Samples()
    fill(StateDir(directory), memory, journal)
    for number in range(1440):
        samples.add(memory, {}, number * SAMPLE_SECONDS)

    def shown(path: str) -> None:
        response = StatusPage(StateDir(directory), lambda: memory, samples).respond(path, "")
        assert response is not None
        assert response.status == 200, response.body

    first = next(iter(memory.requests), "")
    paths = ["/", "/status.json", "/pool/a", "/template/T"]
    paths += [f"/request/{first}", f"/machine/{memory.requests[first].slots[0].name}"] if first else []
    return {path.rpartition("/")[0] or path: least(lambda path=path: shown(path)) for path in paths} | {  # type: ignore[misc]
        "sample": least(lambda: points(memory, {}))
    }


def main() -> int:
    """Print the table, and return 1 if the goal is missed."""
    title = f"The status page of {REQUESTS} requests, at best"
    table = Table("machines", "journal", "page", f"CPU s (goal {GOAL})", title=title)
    worst = 0.0
    for machines in SIZES:
        for journal in JOURNALS if machines == SIZES[-1] else JOURNALS[:1]:
            with tempfile.TemporaryDirectory() as directory:
                found = costs(Path(directory), machines, journal)
            if machines == SIZES[-1]:
                worst = max(worst, *(seconds for page, seconds in found.items() if page != "sample"))
            for page, seconds in found.items():
                table.add_row(f"{machines:,}", journal, page, f"{seconds:.4f}")
    Console().print(table)
    return int(worst > GOAL)


if __name__ == "__main__":
    sys.exit(main())
