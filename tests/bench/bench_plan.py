"""The CPU of a plan that opens all slots of a request, of a plan in a steady state, and of a plan after a change. The
CPU of a whole cycle in which nothing changed, because such a cycle makes no plan.

Goals are ratios of times in one run, so that they hold on any computer. The first goal compares the time of a plan with
the time of copying the same slots. The second goal limits the growth of a plan's time for ten times as many slots.

Many slots may exceed the processor's caches. If a copy becomes slower for this reason, a plan may become slower by the
same factor. Exits 1 if a goal is missed.

    python tests/bench/bench_plan.py
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from provisioner.loop.cycle_report import Mandate
from provisioner.loop.loop import relax_collector, without_collector
from provisioner.loop.reconciler import Reconciler
from provisioner.model import (
    Fingerprint,
    Intent,
    Limits,
    Machine,
    Memory,
    Phase,
    Plan,
    PoolLimits,
    Request,
    Slot,
    Snapshot,
    TemplateLimits,
)
from provisioner.planning.plan import PlanInputs, make_plan
from provisioner.state.directory import StateDir
from tests.support.inline_actors import InlineActors
from tests.support.stores import add_return

SIZES = (1_000, 10_000, 100_000)
PER_REQUEST = 10_000
COPY = "copy of the slots"
GOALS = {"open all": 8.0, "all begin to run": 12.0, "steady": 3.0, "100 vanish": 3.0, "quiet cycle": 0.5}
"""Goals for 10,000 and for 100,000 slots: the largest ratio of a plan's time to the time of copying the same slots."""
GROWTH = 12.0
"""Goal: the largest factor by which a plan's time may grow if there are ten times as many slots. The goal is 1.2 times
the factor by which a copy's time grows, if that is larger."""
REPEATS = 9


class Still:
    """A clock whose time never changes."""

    def now(self) -> float:
        return 1000.0

    def wall(self) -> float:
        return 1000.0

    def uptime(self) -> None:
        """Return None, as on a host whose uptime is unknown. The loop then uses the wall clock to find the time that
        has passed across a restart."""


def scene(slots: int, per_request: int = PER_REQUEST) -> tuple[Intent, Limits, Snapshot]:
    """Return an intent, limits and a snapshot: requests for ``slots`` machines of one template, and one empty pool that
    may create all of them at once."""
    count = min(slots, per_request)
    ids = [f"{number:010d}" for number in range(slots // count)]
    requests = {id_: Request(id_, "T", count, 0.0) for id_ in ids}
    pool = PoolLimits("pool", max_pending=slots, initial_window=slots)
    limits = Limits("hf", {"pool": pool}, {"T": TemplateLimits("T", ("pool",), slots)})
    # maxNumber is at most 10,000 in HF; the plan does not care.
    return Intent("demo", 1, requests, {}), limits, Snapshot("pool", 999.0, {})


def running(plan: Plan) -> Snapshot:
    """Return a snapshot in which every machine that the plan creates runs."""
    machines = {
        create.name: Machine(
            create.name, Phase.RUNNING, Fingerprint(uid=create.name, ip="10.0.0.1"), ip="10.0.0.1", launched=1000
        )
        for create in plan.creates
    }
    return Snapshot("pool", 1001.0, machines)


def timed(act: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest of several runs. Collect garbage before each run. During a run, the
    collector is off, as in a cycle of the loop."""
    taken = []
    for _ in range(REPEATS):
        gc.collect()
        with without_collector():
            began = time.process_time()
            act()
            taken.append(time.process_time() - began)
    return min(taken)


def copied(memory: Memory) -> list[dict[int, Slot]]:
    """Return a copy of each slot with one field changed. This is the least work of a plan that changes all slots."""
    return [
        {number: slot._replace(is_set_aside=True) for number, slot in record.slots.items()}
        for record in memory.requests.values()
    ]


def measure(slots: int) -> dict[str, float]:
    """Return the CPU seconds of copying the slots, of each plan in ``GOALS``, and of a quiet cycle."""
    intent, limits, empty = scene(slots)
    fresh = Memory("demo")
    first = PlanInputs(intent, {"pool": empty})
    opened = make_plan(first, fresh, limits, 1000.0)
    assert len(opened.creates) == slots
    full = running(opened)
    steady = PlanInputs(intent, {"pool": full})
    settled = make_plan(steady, opened.memory, limits, 1002.0).memory
    some = dict(full.machines)
    for name in list(some)[:100]:
        del some[name]
    changed = PlanInputs(intent, {"pool": replace(full, machines=some)})
    return {
        COPY: timed(lambda: copied(settled)),
        "open all": timed(lambda: make_plan(first, fresh, limits, 1000.0)),
        "all begin to run": timed(lambda: make_plan(steady, opened.memory, limits, 1002.0)),
        "steady": timed(lambda: make_plan(steady, settled, limits, 1003.0)),
        "100 vanish": timed(lambda: make_plan(changed, settled, limits, 1004.0)),
        "quiet cycle": quiet(intent, limits, full, settled),
    }


def quiet(intent: Intent, limits: Limits, full: Snapshot, settled: Memory) -> float:
    """Return the seconds of a whole cycle in which nothing changed. The cycle checks the files, but plans and writes
    nothing."""
    with tempfile.TemporaryDirectory() as directory:
        state = StateDir(directory)
        add_return(state, ["hf-none"], created_wall=0.0, create_for="demo")
        wanted = state.intent.read()
        stored = replace(settled, provisioner="demo", generation=wanted.generation)
        state.memory.write(stored)
        reconciler = Reconciler(
            clock=Still(),
            state=state,
            actors=InlineActors({}),
            limits=limits,
            provisioner="demo",
            mandate=Mandate(),
        )
        observations = {"pool": full}
        for _ in range(3):
            reconciler.cycle(observations)
        plans = [reconciler.cycle(observations).plan for _ in range(2)]
        assert plans == [None, None], "a cycle with nothing to do planned"
        return timed(lambda: reconciler.cycle(observations))


def missed(results: dict[int, dict[str, float]]) -> list[str]:
    """Return a line for each missed goal, with the measured ratio."""
    lines = []
    for slots in SIZES[1:]:
        floor = results[slots][COPY]
        for kind, goal in GOALS.items():
            if results[slots][kind] > goal * floor:
                ratio = results[slots][kind] / floor
                lines.append(f"{kind}: {ratio:.1f} times the copy of {slots:,} slots, goal {goal:.1f}")
    few, many = results[SIZES[1]], results[SIZES[2]]
    bound = max(GROWTH, 1.2 * many[COPY] / few[COPY])
    for kind in GOALS.keys() - {"quiet cycle"}:
        if (growth := many[kind] / few[kind]) > bound:
            lines.append(f"{kind}: {growth:.1f} times as long for ten times the slots, goal {bound:.1f}")
    return lines


def cell(seconds: float, floor: float) -> str:
    """Return a table cell: milliseconds, and their ratio to the time of the copy."""
    return f"{seconds * 1000:.2f} ({seconds / floor:.1f} x)"


def main() -> int:
    """Print the table, and return 1 if a goal is missed."""
    relax_collector()
    results = {slots: measure(slots) for slots in SIZES}
    table = Table(title="plan (ms of CPU at best, beside a copy of the same slots)")
    for title in ("slots", COPY, *(f"{kind} (goal {goal:g} x)" for kind, goal in GOALS.items())):
        table.add_column(title, justify="right")
    for slots, result in results.items():
        cells = (cell(result[kind], result[COPY]) for kind in GOALS)
        table.add_row(f"{slots:,}", f"{result[COPY] * 1000:.2f}", *cells)
    few, many = results[SIZES[1]], results[SIZES[2]]
    table.add_row("growth", *(f"{many[kind] / few[kind]:.1f} x" for kind in (COPY, *GOALS)))
    console = Console(width=120)
    console.print(table)
    lines = missed(results)
    for line in lines:
        console.print(f"missed: {line}", style="red")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
