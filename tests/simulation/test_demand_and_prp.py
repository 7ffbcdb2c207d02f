"""Compare ``provisioner demand`` with the provisioner PRP (docs/htcondor.md), for the same jobs and places in virtual
time.

PRP is played by its own formula. Demand and PRP both finish all jobs. A job waits until a machine is free, and then
uses the whole machine.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from provisioner.lab.virtual.demand import DemandService
from provisioner.lab.virtual.formulas import Prp
from provisioner.lab.virtual.run import Controller, Stage, play
from provisioner.lab.virtual.scenario_file import scenarios

MINUTE, HOUR = 60.0, 3600.0
PAGE = Path(__file__).parents[2] / "docs" / "htcondor.md"


class Job(NamedTuple):
    """A job: the time of its submission, and its seconds of work."""

    at: float
    seconds: float


def steady(jobs_an_hour: int, mean: float, hours: int) -> list[Job]:
    """Return jobs with random times and lengths. ``mean``: mean seconds of work of a job."""
    chance = random.Random(jobs_an_hour)
    at, jobs = 0.0, list[Job]()
    while (at := at + chance.expovariate(jobs_an_hour / HOUR)) < hours * HOUR:
        jobs.append(Job(at, MINUTE + chance.expovariate(1 / mean)))
    return jobs


QUEUES: Mapping[str, Sequence[Job]] = {
    "3 jobs of two hours": [Job(0, 2 * HOUR)] * 3,
    "100 jobs of three hours": [Job(0, 3 * HOUR)] * 100,
    "200 jobs within an hour, each of four hours": [Job(18.0 * number, 4 * HOUR) for number in range(200)],
    "200 jobs of 90 to 360 minutes": [Job(0, 90 * MINUTE * length) for length in (1, 2, 3, 4) for _ in range(50)],
    "1,000 jobs of an hour": [Job(0, HOUR)] * 1000,
    "100 jobs an hour, each of about an hour": steady(100, HOUR, 8),
    "40 jobs of 20 minutes every hour": [Job(HOUR * turn, 20 * MINUTE) for turn in range(6) for _ in range(40)],
    "40 jobs of 10 minutes every 20 minutes": [
        Job(20 * MINUTE * turn, 10 * MINUTE) for turn in range(12) for _ in range(40)
    ],
    "1,000 jobs of 6 minutes": [Job(0, 6 * MINUTE)] * 1000,
}
LONG = [
    "3 jobs of two hours",
    "100 jobs of three hours",
    "200 jobs within an hour, each of four hours",
    "200 jobs of 90 to 360 minutes",
]
"""Jobs that last longer than PRP needs to start them."""
SHORT = [name for name in QUEUES if name not in LONG]


class Queue:
    """Jobs that wait for a machine. It replaces the wanted numbers of a scenario."""

    def __init__(self, jobs: Sequence[Job], stage: Stage) -> None:
        self._coming, self._stage = sorted(jobs), stage
        self._left: list[tuple[Job, float]] = []
        """Jobs and their seconds of work that are left, the oldest first. The first ones run."""
        self._at = self.ended = 0.0
        self.waits: list[float] = []

    def step(self, now: float) -> Counter[str]:
        """Let the first jobs work, one on each running machine, and return the number of jobs that are left."""
        passed, self._at = now - self._at, now
        running = len(self._stage.ledger.running)
        worked = [(job, left - passed * (place < running)) for place, (job, left) in enumerate(self._left)]
        self.waits += [now - passed - job.at for job, left in self._left[:running] if left == job.seconds]
        self._left = [(job, left) for job, left in worked if left > 0]
        self.ended = now if len(self._left) < len(worked) else self.ended
        arrived = [job for job in self._coming if job.at <= now]
        self._coming = self._coming[len(arrived) :]
        self._left += [(job, job.seconds) for job in arrived]
        return Counter({"T": len(self._left)})

    @property
    def is_done(self) -> bool:
        """Return True if no job is left."""
        return not self._left and not self._coming


Kind = TypeVar("Kind", bound=Controller)


def serve(jobs: Sequence[Job], made: list[Queue], decide: Callable[[Stage], Kind], stage: Stage) -> Kind:
    """Make a queue of these jobs, and append it to ``made``. Return a controller that wants a machine for each job of
    the queue."""
    controller: Any = decide(stage)
    made.append(Queue(jobs, stage))
    (controller.grid if isinstance(controller, DemandService) else controller)._levels = made[0]
    return controller  # type: ignore[no-any-return]


@cache
def compare(name: str) -> Mapping[str, tuple[float, float]]:
    """Return the measures of demand and of PRP, by name.

    The measures are: the number of machines made, idle machine-hours, hours until the last job ends, and the seconds
    within which nine of ten jobs start. The run uses no chance, so one seed is enough.
    """
    scenario = scenarios({"q": {"about": name, "hours": 18, "pools": {"a": {}}, "demand": [{"machines": 1}]}}, "q")["q"]
    columns = []
    for decide in (DemandService, Prp):
        made: list[Queue] = []
        result = play(scenario, 1, partial(serve, QUEUES[name], made, decide))
        queue = made[0]
        assert queue.is_done
        assert not result.broken
        wait = sorted(queue.waits)[math.ceil(0.9 * len(queue.waits)) - 1]
        idle, created = result.measures["idle_hours"], result.measures["created"]
        assert idle is not None
        assert created is not None
        columns.append((wait, queue.ended / HOUR, idle, created))
    names = ("wait", "end", "idle_hours", "created")
    return {name: (ours, prp) for name, ours, prp in zip(names, *columns, strict=True)}


@pytest.mark.parametrize("name", QUEUES)
def test_jobs_wait_no_longer_and_end_no_later_than_with_prp(name: str) -> None:
    measures = compare(name)
    assert measures["wait"][0] <= measures["wait"][1]
    assert measures["end"][0] <= measures["end"][1] + 5 * MINUTE / HOUR


@pytest.mark.parametrize("name", LONG)
def test_for_long_jobs_no_more_machines_are_made_and_they_idle_half_as_long(name: str) -> None:
    measures = compare(name)
    assert measures["created"][0] <= measures["created"][1]
    assert measures["idle_hours"][0] <= measures["idle_hours"][1] / 2


@pytest.mark.parametrize("name", SHORT)
def test_for_short_jobs_more_machines_are_made(name: str) -> None:
    """PRP makes fewer machines because its jobs wait until other jobs leave their machines."""
    measures = compare(name)
    assert measures["created"][0] > measures["created"][1]
    assert measures["idle_hours"][0] <= measures["idle_hours"][1] * (1.5 if name == "1,000 jobs of 6 minutes" else 0.7)


@pytest.mark.parametrize("name", QUEUES)
def test_the_page_has_the_measured_numbers(name: str) -> None:
    wait, end, idle, made = compare(name).values()
    row = f"| {name} | {wait[0]:,.0f} / {wait[1]:,.0f} | {end[0]:.1f} / {end[1]:.1f} "
    row += f"| {idle[0]:,.0f} / {idle[1]:,.0f} | {made[0]:,.0f} / {made[1]:,.0f} |"
    assert row in PAGE.read_text()
