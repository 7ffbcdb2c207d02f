"""Packing of waiting jobs onto machines: first-fit-decreasing by processors, memory and GPUs. No I/O, no clock.

The jobs first fill the unclaimed capacity of machines that work, then that of machines without work, and then new
machines of the smallest template that fits. Equal jobs and equal machines are packed together, so that the time does
not depend on the number of jobs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from provisioner.demand.sources import Fleet, Reading, Shape

JOIN_SECONDS = 600.0
"""Seconds after its start within which a machine must join its cluster. A machine that has not joined by then, or has
left the cluster, takes no jobs. It is replaced, and it is among the first to be returned."""

TOLERANCE = 1e-6
"""Fraction of a job that may be missing, because sums of fractions such as 0.1 are inexact."""


class Jobs(NamedTuple):
    """Equal jobs that wait for a machine."""

    number: int
    cpus: float
    memory_mb: float
    gpus: float = 0.0
    templates: frozenset[str] | None = None
    """Templates whose machines may run the jobs; None: all templates."""

    def fits(self, template: str, shape: Shape) -> bool:
        """Return True if an empty machine of the template can run such a job. A job without GPUs does not fit a machine
        with GPUs, because that would be a waste."""
        is_large_enough = all(need <= size for need, size in zip(self[1:4], shape[:3], strict=True))
        is_allowed = self.templates is None or template in self.templates
        return is_large_enough and is_allowed and bool(self.gpus) == bool(shape.gpus)

    def format_need(self) -> str:
        """Return what a job needs, for operators."""
        parts = [f"{self.cpus:g} CPUs, {self.memory_mb:g} MB", f"{self.gpus:g} GPUs" if self.gpus else ""]
        parts += [] if self.templates is None else [f"on {' or '.join(sorted(self.templates)) or 'no template'}"]
        return ", ".join(filter(None, parts))


class Member(NamedTuple):
    """A machine of ours as the cluster that it has joined lists it."""

    cpus: float
    """Unclaimed processors; 0 if the machine takes no jobs."""
    memory_mb: float
    gpus: float
    works: bool


class _Room(NamedTuple):
    """The unclaimed capacity of one or several equal machines."""

    template: str
    cpus: float
    memory_mb: float
    gpus: float

    def jobs_that_fit(self, jobs: Jobs) -> int:
        """Return how many of the jobs one machine can take, at most all."""
        pairs = zip(self[1:], jobs[1:4], strict=True)
        return min([jobs.number, *(math.floor(free / need + TOLERANCE) for free, need in pairs if need)])

    def without(self, jobs: Jobs, number: int) -> _Room:
        """Return the room that is left after some of the jobs have been placed."""
        pairs = zip(self[1:], jobs[1:4], strict=True)
        return _Room(self.template, *(round(free - number * need, 6) for free, need in pairs))


class IdleTimes:
    """The times since which machines have been seen idle, for clusters that do not say so themselves."""

    def __init__(self) -> None:
        """Start without any machine."""
        self._since: dict[str, float] = {}

    def pack(self, jobs: Iterable[Jobs], members: Mapping[str, Member], fleet: Fleet) -> Reading:
        """Return the result of ``pack`` with the machines that are idle."""
        return pack(jobs, members, fleet)._replace(idle=self.update(members, fleet))

    def update(self, members: Mapping[str, Member], fleet: Fleet) -> dict[str, float]:
        """Return the seconds for which each machine has been seen idle, in two reads or more: a single read may be of a
        moment between two jobs. A machine that has not joined in time is idle, too."""
        joins = {name: fleet.now - machine.since <= JOIN_SECONDS for name, machine in fleet.running.items()}
        works = joins | {name: member.works for name, member in members.items()}
        self._since = {name: self._since.get(name, fleet.now) for name in fleet.running if not works[name]}
        return {name: fleet.now - since for name, since in self._since.items() if since < fleet.now}


def pack(jobs: Iterable[Jobs], members: Mapping[str, Member], fleet: Fleet) -> Reading:
    """Return the machines that work, take jobs, or have not joined in time; and the jobs that fit no template.

    ``members``: our machines that have joined the cluster, by name. The result does not say which machines are idle.
    """
    taken, idle, wanted, unfit = Counter[_Room](), Counter[_Room](), Counter[str](), Counter[str]()
    for name, machine in fleet.running.items():
        if member := members.get(name):
            (taken if member.works else idle)[_Room(machine.template, *member[:3])] += 1
        elif fleet.now - machine.since > JOIN_SECONDS:
            wanted[machine.template] += 1
    sizes = sorted(fleet.shapes, key=lambda name: (fleet.shapes[name].gpus, *fleet.shapes[name][:2], name))
    equal, placed = Counter[Jobs](), []
    for job in jobs:
        equal[job._replace(number=1)] += job.number
    for job in [job._replace(number=number) for job, number in equal.items() if number > 0]:
        if templates := [name for name in sizes if job.fits(name, fleet.shapes[name])]:
            # Large jobs first: by the size of their template, and by the share of its machine that a job takes.
            shares = [need / size for need, size in zip(job[1:4], fleet.shapes[templates[0]][:3], strict=True) if size]
            order = (sizes.index(templates[0]), max(shares), *job[1:4], -len(templates), job.format_need())
            placed.append((order, job, templates))
        else:
            unfit[job.format_need()] += job.number
    for _, job, templates in sorted(placed, key=lambda one: one[0], reverse=True):
        new = Counter({_Room(templates[0], *fleet.shapes[templates[0]][:3]): job.number})
        _place(job, templates, taken, (taken, idle, new))
    for room, machines in taken.items():
        wanted[room.template] += machines
    return Reading(wanted, None, unfit)


def _place(jobs: Jobs, templates: list[str], taken: Counter[_Room], machines: tuple[Counter[_Room], ...]) -> None:
    """Place jobs into the first of ``machines`` that fit, and move these machines to ``taken``."""
    left = jobs.number
    for found in machines:
        for room in [room for room in found if room.cpus + TOLERANCE >= jobs.cpus and room.template in templates]:
            if each := room.jobs_that_fit(jobs):
                here = min(left, found[room] * each)
                full, rest = divmod(here, each)
                found[room] -= full + bool(rest)
                if not found[room]:
                    del found[room]
                for number, placed in ((full, each), (1, rest)):
                    if number and placed:
                        taken[room.without(jobs, placed)] += number
                if not (left := left - here):
                    return
