"""The needs of a loop by number of machines: processor, memory, disk and calls, in a steady state and under churn.

    python tests/bench/bench_sizing.py [--machines 100 1000 10000 50000] [--http groups pods]

With ``--http`` the loop is a process, and the embedded cloud is another (``sizing_loop.py``). Such a run takes minutes.
Without ``--http`` each run is a process in virtual time.

* *Steady*: all machines run and are kept. HostFactory lists them each half minute.
* *Churn*: HostFactory requests all machines at the beginning of each hour, and returns them half an hour later. So
  every machine is made and deleted once an hour.

In virtual time the processor seconds include the models of HostFactory and the places. They include neither network nor
disk. The bytes are the sizes of real files.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from provisioner.hostfactory import MAX_NUMBER
from provisioner.lab.virtual.run import play
from provisioner.lab.virtual.scenario import Demand, Scenario, Template, VirtualPool
from provisioner.model import Memory
from provisioner.state.directory import StateDir
from tests.bench.bench_store import MACHINES, answer, record
from tests.support.processes import mebibytes

USUAL = (100, 1_000)
"""These sizes take some seconds each. 10,000 machines take minutes, and 50,000 take many minutes."""

BEGUN, ENDED = 1.0, 3.0
"""The hours of a shorter and a longer run. The difference of their needs does not include the start."""


class Need(NamedTuple):
    """The resources that a loop needed in one run."""

    cpu: float
    mebibytes: float
    calls: float
    broken: tuple[str, ...]


def scenario(machines: int, hours: float, *, churn: bool) -> Scenario:
    """Return a scenario of pods, each made and deleted by a separate call.

    The machines are divided among several templates, because HF requests at most 10,000 machines of one template.
    """
    parts = {f"part-{number}": MAX_NUMBER for number in range(machines // MAX_NUMBER)}
    if rest := machines % MAX_NUMBER:
        parts["rest"] = rest
    return Scenario(
        name="churn" if churn else "steady",
        about="For the sizing table.",
        hours=hours,
        pools={part: VirtualPool(name=part, max_pending=5000, boot_seconds=120.0) for part in parts},
        templates={part: Template(pools=(part,)) for part in parts},
        demand=tuple(
            Demand(template=part, machines=most, for_minutes=30, every_minutes=60)
            if churn
            else Demand(template=part, machines=most)
            for part, most in parts.items()
        ),
        settings={"loop": {"floor_seconds": 5.0, "interval_seconds": 5.0}},
    )


def run(machines: int, hours: float, churn: bool) -> Need:
    """Play the scenario in virtual time, and return its needs. Call this in a process of its own, because the result
    contains the peak memory of the process."""
    began = time.process_time()
    result = play(scenario(machines, hours, churn=churn), seed=1)
    per_machine, made = result.measures["calls_per_machine"] or 0.0, result.measures["created"] or 0.0
    peak = mebibytes(os.getpid(), "VmHWM")  # ru_maxrss knows that of the process which began this one
    return Need(time.process_time() - began, peak, per_machine * made, result.broken)


def an_hour(machines: int, *, churn: bool) -> Need:
    """Return the needs of one hour, without the start of the loop. They are the difference between a longer and a
    shorter run, except for memory, which is the peak of the longer run."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        short, long = pool.starmap(run, [(machines, hours, churn) for hours in (BEGUN, ENDED)], chunksize=1)
    hours = ENDED - BEGUN
    broken = short.broken + long.broken
    return Need((long.cpu - short.cpu) / hours, long.mebibytes, (long.calls - short.calls) / hours, broken)


def stored(machines: int) -> tuple[int, float]:
    """Return the size in bytes of a state directory whose machines all run. Return also the seconds to write its memory
    and answers once."""
    with tempfile.TemporaryDirectory() as directory:
        state = StateDir(directory)
        ids = [f"r{number:09d}" for number in range(-(-machines // MACHINES))]
        records, answers = {id_: record(id_) for id_ in ids}, {id_: answer(id_) for id_ in ids}
        document = {"template": "T1", "count": MACHINES, "created_wall": 1.0}
        state.intent.add({"requests": dict.fromkeys(ids, document)}, create_for="demo")
        for id_ in ids:
            state.terminal_answers.settle_reported(id_, answers[id_].text)
        began = time.perf_counter()
        state.memory.write(Memory("demo", requests=records))
        state.status.write(answers, {})
        seconds = time.perf_counter() - began
        return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file()), seconds


def over_http(sizes: Sequence[int], kinds: Sequence[str]) -> Table:
    """Measure a loop that calls the embedded cloud. The clouds' client libraries are imported only here, so that the
    memory of the virtual runs does not include them."""
    from tests.bench.sizing_loop import used

    table = Table(
        "machines", "in", "CPU s/h\nquiet", "CPU s/h\nchurn", "processors\nat most", "MiB", "Compute calls/min\nquiet",
        "Compute calls/min\nat most", "pods' creates\nand deletes", title="over HTTP",
    )  # fmt: skip
    for kind, machines in itertools.product(kinds, sizes):
        use = used(machines, kind)
        table.add_row(
            f"{machines:,}",
            kind,
            f"{use.quiet_cpu:.0f}",
            f"{use.churn_cpu:.0f}",
            f"{use.processors:.2f}",
            f"{use.mebibytes:.0f}",
            *(f"{use.quiet_calls:.0f}", f"{use.most_calls:.0f}") if kind == "groups" else ("", ""),
            f"{use.pod_calls:,}" if kind == "pods" else "",
        )
    return table


def main() -> int:
    """Print the tables, and return 1 if a run broke a law."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", type=int, nargs="+", default=USUAL)
    parser.add_argument("--http", choices=("groups", "pods"), nargs="+", default=(), metavar="KIND")
    options = parser.parse_args()
    table = Table(
        "machines", "CPU s/h\nsteady", "CPU s/h\nchurn", "MiB\nsteady", "MiB\nchurn", "calls/h\nchurn", "state MB",
        "written\nin s", title="what a loop needs in virtual time",
    )  # fmt: skip
    broken: list[str] = []
    for machines in options.machines:
        steady, churn = an_hour(machines, churn=False), an_hour(machines, churn=True)
        size, seconds = stored(machines)
        broken += steady.broken + churn.broken
        cells = (steady.cpu, churn.cpu, steady.mebibytes, churn.mebibytes, churn.calls)
        table.add_row(
            f"{machines:,}",
            *(f"{cell:,.1f}" if cell < 10 else f"{cell:,.0f}" for cell in cells),
            f"{size / 1e6:.1f}",
            f"{seconds:.2f}",
        )
    Console().print(table)
    if options.http:
        Console(width=120).print(over_http(options.machines, options.http))
    for line in broken:
        print(line)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
