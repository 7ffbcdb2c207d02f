"""How long the loop's databases take with ten thousand machines: memory after one change, one answer of a hundred.

Goals: 60 ms each (DESIGN §4). Exits 1 when one is missed. ``python tests/bench/bench_store.py``
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from provisioner.hostfactory.answer import Answer
from provisioner.model import Fingerprint, Memory, RequestRecord, Slot, Verdict
from provisioner.names import machine_name
from provisioner.state.directory import StateDir
from tests.bench.bench_plan import timed

REQUESTS, MACHINES = 100, 100
GOAL_SECONDS = 0.060


def record(request: str) -> RequestRecord:
    """A request whose machines run."""
    slots = {number: slot(request, number) for number in range(MACHINES)}
    return RequestRecord(request, "T1", MACHINES, 1.0, 3600.0, slots, MACHINES)


def slot(request: str, number: int) -> Slot:
    """As a running machine's slot is remembered."""
    mark = 1734619942.123 + number
    return Slot(
        name=machine_name("hf", request, number),
        number=number,
        pool="gke-main",
        verdict=Verdict.SUCCEEDED,
        opened=mark,
        submitted=mark + 0.5,
        accepted=True,
        seen=True,
        ran=mark + 60.25,
        fingerprint=Fingerprint("0f8fad5b-d9cb-469f-a165-70867728950e", "2030-01-01T10:00:00Z", "", "10.0.1.2"),
        ip="10.0.1.2",
        launched=1734619942,
    )


def answer(request: str) -> Answer:
    """What HF is told of it."""
    entries = [
        {
            "machineId": machine_name("hf", request, number),
            "name": machine_name("hf", request, number),
            "result": "succeed",
            "status": "running",
            "privateIpAddress": "10.0.0.1",
            "publicIpAddress": "",
            "launchtime": 1734619942,
            "message": "",
        }
        for number in range(MACHINES)
    ]
    return Answer(json.dumps({"requestId": request, "status": "complete", "message": "", "machines": entries}), True)


def measure(directory: str) -> dict[str, float]:
    """Seconds of each."""
    state, names = StateDir(directory), [f"request{number:03d}" for number in range(REQUESTS)]
    records = {name: record(name) for name in names}
    state.memory.write(Memory("demo", requests=records))
    state.status.write({name: answer(name) for name in names}, {})
    turns = itertools.count()

    def change() -> None:
        changed = {**records, names[0]: record(f"renamed{next(turns):03d}")}
        state.memory.write(Memory("demo", requests=changed))

    return {
        "memory, one request changed": timed(change),
        "one answer": timed(lambda: state.status.read_answer(names[42])),
    }


def main() -> int:
    """Print the table; 1 when a goal is missed."""
    with tempfile.TemporaryDirectory() as directory:
        results = measure(directory)
    table = Table("", "ms, median", "goal", title=f"the store with {REQUESTS * MACHINES:,} machines")
    for what, seconds in results.items():
        style = "red" if seconds > GOAL_SECONDS else None
        table.add_row(what, f"{seconds * 1000:.1f}", f"{GOAL_SECONDS * 1000:.0f}", style=style)
    Console(width=100).print(table)
    return int(max(results.values()) > GOAL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
