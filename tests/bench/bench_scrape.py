"""The cost of a scrape for ten templates and four pools: CPU of the server's thread, and the number of series.

    python tests/bench/bench_scrape.py

A template names one pool or all four pools, and its machines are in the first pool or in all. Half of the machines run,
and half wait. Goals: fifty milliseconds, and five hundred series while each template uses one pool. Exits 1 if a goal
is missed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from rich.console import Console
from rich.table import Table

from provisioner.hostfactory.provider_config import Digests
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import Limits, Machine, Memory, Phase, PoolLimits, Snapshot, TemplateLimits
from provisioner.settings.reload import Configuration
from provisioner.state.directory import StateDir
from provisioner.telemetry.metrics import OPERATIONS, Metrics
from provisioner.telemetry.reporter import Reporter
from tests.bench.bench_status import grid
from tests.support.parts import alter

SIZES = (0, 1_000, 10_000)
GOAL, SERIES = 0.05, 500
REPEATS = 20
POOLS = ("a", "b", "c", "d")
TEMPLATES = 10


def limits(each: int) -> Limits:
    """Return the limits of ten templates and four pools. ``each``: the number of pools that each template names."""
    templates = [TemplateLimits(f"T{n}", tuple(POOLS[(n + m) % 4] for m in range(each))) for n in range(TEMPLATES)]
    return Limits("hf", {name: PoolLimits(name) for name in POOLS}, {one.id: one for one in templates})


def spread(memory: Memory, used: int) -> Memory:
    """Return the memory with its machines spread over all templates. ``used``: the number of pools that have machines
    of the same template."""
    requests = {}
    for number, (id_, record) in enumerate(memory.requests.items()):
        template = number % TEMPLATES
        slots = {
            key: alter(slot, pool=POOLS[(template + place % used) % 4])
            for place, (key, slot) in enumerate(record.slots.items())
        }
        requests[id_] = replace(record, template=f"T{template}", slots=slots)
    return replace(memory, requests=requests)


def scraped(directory: Path, machines: int, each: int, used: int) -> tuple[float, int]:
    """Return the CPU seconds of the fastest scrape, and the number of series."""
    memory, metrics, bounds = spread(grid(machines), used), Metrics(CollectorRegistry()), limits(each)
    settings = SimpleNamespace(digests=Digests("0" * 8, "1" * 8))
    configuration = SimpleNamespace(limits=bounds, refused="", note="", settings=settings)
    report = Reporter(metrics, StateDir(directory), cast(Configuration, configuration))
    observations = {pool: Snapshot(pool, memory.written.time, _machines(memory, pool)) for pool in POOLS}
    for number in (1, 2):
        report(CycleReport(number, memory.written.time, 0.1, observations, replace(memory), None, {}))
    for pool in POOLS:
        metrics.shutdown.labels(pool).observe(1)
        for operation in OPERATIONS:
            metrics.calls.labels(pool, operation).observe(1)
    for template in bounds.templates.values():
        for pool in template.pools[:used]:
            metrics.startup.labels(pool, template.id).observe(1)
    text = generate_latest(metrics.registry).decode()
    return _least(metrics), sum(not line.startswith("#") for line in text.splitlines())


def _machines(memory: Memory, pool: str) -> dict[str, Machine]:
    slots = [slot for record in memory.requests.values() for slot in record.slots.values() if slot.pool == pool]
    return {
        slot.name: Machine(slot.name, Phase.RUNNING if slot.ran_at is not None else Phase.PENDING) for slot in slots
    }


def _least(metrics: Metrics) -> float:
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        generate_latest(metrics.registry)
        taken.append(time.process_time() - began)
    return min(taken)


def main() -> int:
    """Print the table, and return 1 if a goal is missed."""
    heads = ("machines", "pools each", "used", f"CPU s (goal {GOAL})", f"series (goal {SERIES})")
    table = Table(*heads, title="A scrape with ten templates and four pools, at best")
    missed = False
    for machines in SIZES:
        for each, used in ((1, 1), (4, 1), (4, 4)):
            with tempfile.TemporaryDirectory() as directory:
                seconds, series = scraped(Path(directory), machines, each, used)
            table.add_row(f"{machines:,}", str(each), str(used), f"{seconds:.4f}", str(series))
            missed |= seconds > GOAL or (used == 1 and series > SERIES)
    Console().print(table)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
