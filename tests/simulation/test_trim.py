"""Requests that leave the files, interrupted between any two steps; a week of HF's calls leaves no entry behind."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.simulation import LIMITS, Simulation, crash, disk_is_full

RETENTION = LIMITS.retention_seconds


def finished_simulation() -> Simulation:
    """Return a simulation whose requests and returns have ended and are about to leave the files."""
    sim = Simulation()
    for template in ("pods", "vms"):
        sim.request(template, 2)
    sim.run(150.0, 6)
    sim.poll_all()
    sim.return_all()
    sim.run(200.0, 6)
    sim.poll_all()
    sim.cycle()
    assert all(sim.returns.values())
    assert sim.machines() == {}
    sim.advance(RETENTION - 1.0)
    sim.cycle()
    assert len(leftover_ids(sim)["intent"]) == 3, "nothing leaves before its time"
    sim.advance(1.0)
    return sim


def leftover_ids(sim: Simulation) -> dict[str, set[str]]:
    """Return the ids that each file still contains."""
    intent, memory = sim.hf.intent.read(), sim.memory()
    assert memory is not None
    return {
        "intent": {*intent.requests, *intent.returns},
        "memory": {*memory.requests, *memory.returns},
        "status": set(sim.hf.status.read_all()),
        "seen": set(sim.hf.seen.marks()),
    }


@pytest.mark.parametrize(
    "end", [pytest.param(crash, id="killed", marks=pytest.mark.slow), pytest.param(disk_is_full, id="disk full")]
)
def test_trimming_is_taken_up_again_wherever_it_ended(end: Callable[[str], None]) -> None:
    """A return request first leaves intent, and in the next cycle memory and status. Only then do the requests of its
    machines leave, in the same order. Each of these steps is interrupted."""
    places: set[str] = set()
    for before in range(2):
        for at in itertools.count(1):
            if not (ended := trimmed_but_for(before, at, end)):
                break
            places |= ended
    writes = ["memory.write", "status.write", "intent.remove", "terminal_answers.forget"]
    assert places >= {f"{when} {write}" for when in ("before", "after") for write in writes}


def trimmed_but_for(before: int, at: int, end: Callable[[str], None]) -> set[str]:
    """Run some cycles (``before``: their number), then end the next cycle at a step (``at``: its place).

    Check that all ids have left the files some time later. Return the name of the step.
    """
    places: set[str] = set()

    def ends(where: str) -> None:
        places.add(where)
        end(where)

    sim = finished_simulation()
    sim.run(1.0 * before, before)
    sim.fuse.light(at, ends)
    sim.cycle()
    sim.run(RETENTION, 8)  # a restart may have set loop time back
    assert leftover_ids(sim) == {"intent": set(), "memory": set(), "status": set(), "seen": set()}
    sim.poll_all()  # HF polls once more, and the judge checks that no answer reverts
    sim.run(60.0, 3)
    assert sim.machines() == {}
    sim.close()
    return places


INTERVAL = 30.0
"""Seconds between two steps of a day. In each step, HF requests machines and returns others."""

FILES = ("intent", "memory", "status")


def machines(chance: random.Random, most: int, median: float = 6.0) -> int:
    """Return a random number of machines, from a lognormal distribution with this median."""
    return min(most, max(1, round(chance.lognormvariate(math.log(median), 0.9))))


KEPT = 600.0
"""Seconds for which a request stays: a short day, with as many calls as the loop can handle in seconds."""

NO_CAPS = replace(
    LIMITS,
    pools={
        name: replace(pool, max_machines=None, max_pending=1000, initial_window=1000)
        for name, pool in LIMITS.pools.items()
    },
    templates={name: replace(template, max_machines=None) for name, template in LIMITS.templates.items()},
    retention_seconds=KEPT,
)


@pytest.mark.slow
def test_the_records_of_a_week_stop_growing_and_leave_nothing_behind() -> None:
    sim, chance = Simulation(limits=NO_CAPS), random.Random(1)
    work(sim, chance)
    come_to_rest(sim)
    rest = sizes_of(sim)
    peaks = [work(sim, chance) for _ in range(6)]
    for kind, size in rest.items():
        early, late = (max(peak[kind] for peak in some) for some in (peaks[:2], peaks[2:]))
        assert late < 1.5 * early, f"{kind}.json grows from day to day"
        assert early > 5 * size, f"{kind}.json was written"
    come_to_rest(sim)
    for kind, size in sizes_of(sim).items():
        assert size < 1.1 * rest[kind], f"something stays in {kind}.json"
    sim.close()


def work(sim: Simulation, chance: random.Random) -> dict[str, int]:
    """Play a small day in which HF often requests and returns machines, and the loop runs. Return the largest size of
    each file."""
    peak = dict.fromkeys(FILES, 0)
    for _ in range(round(2 * KEPT / INTERVAL)):
        sim.request(chance.choice(["wide", "pods", "vms"]), machines(chance, 12, median=3.0))
        hosts = sorted(sim.judge.hosts())
        if len(hosts) > 10:
            sim.return_machines(chance.sample(hosts, min(len(hosts), machines(chance, 12, median=4.0))))
        poll_open(sim)
        sim.list_hosts()
        sim.run(INTERVAL, 2)
        peak = {kind: max(size, peak[kind]) for kind, size in sizes_of(sim).items()}
    return peak


def come_to_rest(sim: Simulation) -> None:
    """Let HF return all machines and read the ends, until all ids have left the files."""
    for _ in range(40):
        sim.return_all()
        poll_open(sim)
        sim.list_hosts()
        sim.run(120.0, 4)
        if not any(leftover_ids(sim).values()):
            return
    raise AssertionError(f"still there: {leftover_ids(sim)}")


def poll_open(sim: Simulation) -> None:
    """Call getRequestStatus for the ids that HF waits for."""
    reported = {id_: wanted.reported for id_, wanted in sim.requests.items()} | sim.returns
    for id_ in [id_ for id_, answer in reported.items() if answer is None]:
        sim.poll(id_)


def sizes_of(sim: Simulation) -> dict[str, int]:
    """Return the size of each file's content. Leave out usage, which grows with each day."""
    files = {kind: json.loads((Path(sim.store.directory) / f"{kind}.json").read_text()) for kind in FILES}
    files["memory"].pop("usage", None)
    return {kind: len(json.dumps(content)) for kind, content in files.items()}
