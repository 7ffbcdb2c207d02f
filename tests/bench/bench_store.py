"""The speed of the loop's databases with ten thousand machines: a write of memory after one change, and a read of one
answer.

Each speed is compared with a minimal Python program. For a write, this program makes, writes and syncs the same text.
For a read, it reads and parses the same file. Exits 1 if a goal is missed. ``python
tests/bench/bench_store.py``
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from provisioner.hostfactory import Answer
from provisioner.model import Fingerprint, Memory, RequestRecord, Slot, Verdict
from provisioner.names import machine_name
from provisioner.state.directory import StateDir
from tests.bench.bench_plan import timed
from tests.support.parts import make_slot

REQUESTS, MACHINES = 100, 100
GOALS = {"memory, one request changed": 2.0, "one answer": 2.0}
"""Goals: the largest ratio of the database's time to the time of the minimal program."""


def record(request: str) -> RequestRecord:
    """Return a request whose machines run."""
    slots = {number: slot(request, number) for number in range(MACHINES)}
    return RequestRecord(request, "T1", MACHINES, 1.0, 3600.0, slots, MACHINES)


def slot(request: str, number: int) -> Slot:
    """Return a slot with the fields that memory has for a running machine."""
    mark = 1734619942.123 + number
    return make_slot(
        name=machine_name("hf", request, number),
        pool="gke-main",
        verdict=Verdict.SUCCEEDED,
        opened=mark,
        submitted_at=mark + 0.5,
        is_accepted=True,
        was_seen=True,
        ran_at=mark + 60.25,
        fingerprint=Fingerprint("0f8fad5b-d9cb-469f-a165-70867728950e", "2030-01-01T10:00:00Z", "", "10.0.1.2"),
        ip="10.0.1.2",
        launched=1734619942,
    )


def answer(request: str) -> Answer:
    """Return the answer that HF gets about a request."""
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


def measure(directory: str) -> dict[str, tuple[float, float]]:
    """Return two times in seconds for each task: the time of the database, and the time of the minimal program."""
    state, names = StateDir(directory), [f"request{number:03d}" for number in range(REQUESTS)]
    records = {name: record(name) for name in names}
    state.memory.write(Memory("demo", requests=records))
    state.status.write({name: answer(name) for name in names}, {})
    document = json.loads(Path(state.memory.path).read_text())
    turns = itertools.count()

    def change() -> None:
        changed = {**records, names[0]: record(f"renamed{next(turns):03d}")}
        state.memory.write(Memory("demo", requests=changed))

    return {
        "memory, one request changed": (timed(change), timed(lambda: write_bare(Path(directory, "bare"), document))),
        "one answer": (
            timed(lambda: state.status.read_answers([names[42]]).get(names[42])),
            timed(lambda: json.loads(Path(state.status.path).read_text())),
        ),
    }


def write_bare(path: Path, document: object) -> None:
    """Write the document as JSON text, and sync the file."""
    with path.open("w") as file:
        file.write(json.dumps(document))
        file.flush()
        os.fsync(file.fileno())


def main() -> int:
    """Print the table, and return 1 if a goal is missed."""
    with tempfile.TemporaryDirectory() as directory:
        results = measure(directory)
    table = Table("", "ms at best", "bare work", "beside it", title=f"the store with {REQUESTS * MACHINES:,} machines")
    missed = False
    for what, (seconds, bare) in results.items():
        too_slow = seconds > GOALS[what] * bare
        missed |= too_slow
        beside = f"{seconds / bare:.2f} x (goal {GOALS[what]:g} x)"
        table.add_row(what, f"{seconds * 1000:.1f}", f"{bare * 1000:.1f}", beside, style="red" if too_slow else None)
    Console(width=100).print(table)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
