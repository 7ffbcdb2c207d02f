"""How long a plan takes: opening a request's slots, a steady state, a change among many, a cycle with nothing to do.

Goals: 60 ms for 10,000 slots, growing linearly to 100,000; a cycle with nothing to do plans nothing. Exits 1 when a
goal is missed. ``python tests/bench/bench_plan.py``
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from provisioner.acting import InlineActors
from provisioner.loop import calm_collector
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
    Snapshot,
    TemplateLimits,
)
from provisioner.plan import World, make_plan
from provisioner.reconcile import Reconciler
from provisioner.store import StateDir

SIZES = (1_000, 10_000, 100_000)
PER_REQUEST = 10_000
GOAL_SECONDS = 0.060
"""For 10,000 slots."""
LINEAR = 13.0
"""Ten times the slots may take so many times as long: ten, and what caches and the garbage collector cost."""
REPEATS = 7


class Still:
    """A clock that stands."""

    def now(self) -> float:
        return 1000.0

    def wall(self) -> float:
        return 1000.0


def scene(slots: int) -> tuple[Intent, Limits, Snapshot]:
    """Requests for so many machines of one template in one proven pool that is empty."""
    count = min(slots, PER_REQUEST)
    ids = [f"{number:010d}" for number in range(slots // count)]
    requests = {id_: Request(id_, "T", count, 0.0) for id_ in ids}
    pool = PoolLimits("pool", max_pending=slots, initial_window=slots)
    limits = Limits("hf", {"pool": pool}, {"T": TemplateLimits("T", ("pool",), slots)})
    # maxNumber is at most 10,000 in HF; the plan does not care.
    return Intent("demo", 1, requests, {}), limits, Snapshot("pool", 999.0, {})


def running(plan: Plan) -> Snapshot:
    """Every machine that the plan creates, running."""
    machines = {
        create.name: Machine(
            create.name, Phase.RUNNING, Fingerprint(uid=create.name, ip="10.0.0.1"), ip="10.0.0.1", launched=1000
        )
        for create in plan.creates
    }
    return Snapshot("pool", 1001.0, machines)


def timed(act: Callable[[], object]) -> float:
    """Median seconds; the garbage of one run is not charged to the next."""
    taken = []
    for _ in range(REPEATS):
        gc.collect()
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def measure(slots: int) -> dict[str, float]:
    """Seconds of each kind of plan."""
    intent, limits, empty = scene(slots)
    fresh = Memory("demo")
    first = World(intent, {"pool": empty})
    opened = make_plan(first, fresh, limits, 1000.0)
    assert len(opened.creates) == slots
    full = running(opened)
    steady = World(intent, {"pool": full})
    settled = make_plan(steady, opened.memory, limits, 1002.0).memory
    some = dict(full.machines)
    for name in list(some)[:100]:
        del some[name]
    changed = World(intent, {"pool": replace(full, machines=some)})
    return {
        "open all": timed(lambda: make_plan(first, fresh, limits, 1000.0)),
        "all begin to run": timed(lambda: make_plan(steady, opened.memory, limits, 1002.0)),
        "steady": timed(lambda: make_plan(steady, settled, limits, 1003.0)),
        "100 vanish": timed(lambda: make_plan(changed, settled, limits, 1004.0)),
        "quiet cycle": quiet(intent, limits, full, settled),
    }


def quiet(intent: Intent, limits: Limits, full: Snapshot, settled: Memory) -> float:
    """A whole cycle in which nothing changed: files looked at, nothing planned, nothing written."""
    with tempfile.TemporaryDirectory() as directory:
        state = StateDir(directory)
        with state.intent.additions(create_for="demo") as intended:
            intended.add_return(["hf-none"], created_wall=0.0)
        known = state.intent.read()
        held = replace(settled, provisioner="demo", generation=known.generation)
        state.memory.write(held)
        reconciler = Reconciler(clock=Still(), state=state, actors=InlineActors({}), limits=limits, provisioner="demo")
        looks = {"pool": full}
        for _ in range(3):
            reconciler.cycle(looks)
        plans = [reconciler.cycle(looks).plan for _ in range(2)]
        assert plans == [None, None], "a cycle with nothing to do planned"
        return timed(lambda: reconciler.cycle(looks))


def main() -> int:
    """Print the table; 1 when a goal is missed."""
    calm_collector()
    table = Table(title="plan (ms, median)")
    results = {slots: measure(slots) for slots in SIZES}
    table.add_column("slots", justify="right")
    for kind in results[SIZES[0]]:
        table.add_column(kind, justify="right")
    for slots, result in results.items():
        table.add_row(f"{slots:,}", *(f"{seconds * 1000:.2f}" for seconds in result.values()))
    console = Console(width=100)
    console.print(table)
    missed = [
        f"{kind}: {seconds * 1000:.0f} ms for 10,000 slots, goal {GOAL_SECONDS * 1000:.0f} ms"
        for kind, seconds in results[10_000].items()
        if seconds > GOAL_SECONDS
    ]
    missed += [
        f"{kind}: {results[100_000][kind] / results[10_000][kind]:.1f} times as long for ten times the slots"
        for kind in results[10_000]
        if kind != "quiet cycle" and results[100_000][kind] > LINEAR * results[10_000][kind]
    ]
    for line in missed:
        console.print(f"missed: {line}", style="red")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
