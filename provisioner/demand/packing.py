"""Packing of waiting jobs onto machines: first-fit-decreasing by processors, memory and GPUs. No I/O, no clock.

The jobs first fill the unclaimed capacity of machines that work, then that of machines without work, and then new
machines of the smallest template that fits. Equal jobs and equal machines are packed together, so that the time does
not depend on the number of jobs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
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
    attributes: Mapping[str, str] = {}
    """Attributes that the template must have with these values."""
    templates: Collection[str] | None = None
    """Templates whose machines may run the jobs; None: all templates."""

    def fits(self, template: str, shape: Shape) -> bool:
        """Return True if an empty machine of the template can run such a job. A job without GPUs does not fit a machine
        with GPUs, because that would be a waste."""
        is_large_enough = self.cpus <= shape.cpus and self.memory_mb <= shape.memory_mb and self.gpus <= shape.gpus
        is_allowed = self.templates is None or template in self.templates
        has_attributes = self.attributes.items() <= shape.attributes.items()
        return is_large_enough and is_allowed and has_attributes and bool(self.gpus) == bool(shape.gpus)

    def format_need(self) -> str:
        """Return what a job needs, for operators."""
        parts = [f"{self.cpus:g} CPUs, {self.memory_mb:g} MB", f"{self.gpus:g} GPUs" if self.gpus else ""]
        parts += [f"{name}={value}" for name, value in sorted(self.attributes.items())]
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
        parts = ((self.cpus, jobs.cpus), (self.memory_mb, jobs.memory_mb), (self.gpus, jobs.gpus))
        return min([jobs.number, *(math.floor(free / need + TOLERANCE) for free, need in parts if need)])

    def without(self, jobs: Jobs, number: int) -> _Room:
        """Return the room that is left after some of the jobs have been placed."""
        left = self.cpus - number * jobs.cpus, self.memory_mb - number * jobs.memory_mb, self.gpus - number * jobs.gpus
        return _Room(self.template, *(round(part, 6) for part in left))


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
    sizes = sorted(fleet.shapes, key=lambda name: (*_size(fleet.shapes[name]), name))
    placed = [(job, [name for name in sizes if job.fits(name, fleet.shapes[name])]) for job in jobs if job.number > 0]
    for job, templates in sorted(placed, key=lambda pair: _rank(pair[0], pair[1], sizes, fleet.shapes), reverse=True):
        if templates:
            _place(job, templates, (taken, idle), fleet.shapes[templates[0]])
        else:
            unfit[job.format_need()] += job.number
    for room, machines in taken.items():
        wanted[room.template] += machines
    return Reading(wanted, None, unfit)


def _size(shape: Shape) -> tuple[float, float, float]:
    return shape.gpus, shape.cpus, shape.memory_mb


def _rank(job: Jobs, templates: list[str], sizes: list[str], shapes: Mapping[str, Shape]) -> tuple[object, ...]:
    """Return the position of jobs in the order of packing, which begins with the highest: by the size of their smallest
    template, and by the largest share of its machine that a job takes. The order of the queue does not matter."""
    if not templates:
        return (-1,)
    need, whole = (job.gpus, job.cpus, job.memory_mb), _size(shapes[templates[0]])
    shares = [part / size for part, size in zip(need, whole, strict=True) if size]
    return (sizes.index(templates[0]), max(shares), *need, -len(templates), job.format_need())


def _place(jobs: Jobs, templates: list[str], rooms: tuple[Counter[_Room], Counter[_Room]], smallest: Shape) -> None:
    """Place jobs into ``rooms``: machines that are taken, and machines without work, which become taken. Take new
    machines of the smallest template for the jobs that are left."""
    taken, _ = rooms
    for found in rooms:
        for room in [room for room in found if room.cpus + TOLERANCE >= jobs.cpus and room.template in templates]:
            if each := room.jobs_that_fit(jobs):
                here = min(jobs.number, found[room] * each)
                _fill(jobs._replace(number=here), room, each, taken, found)
                if not (jobs := jobs._replace(number=jobs.number - here)).number:
                    return
    room = _Room(templates[0], smallest.cpus, smallest.memory_mb, smallest.gpus)
    _fill(jobs, room, room.jobs_that_fit(jobs), taken, Counter())


def _fill(jobs: Jobs, room: _Room, each: int, taken: Counter[_Room], found: Counter[_Room]) -> None:
    """Place jobs, ``each`` into a machine, and move the machines from ``found`` to ``taken``."""
    full, rest = divmod(jobs.number, each)
    found[room] -= full + bool(rest)
    if found[room] <= 0:
        del found[room]
    for machines, number in ((full, each), (1, rest)):
        if machines and number:
            taken[room.without(jobs, number)] += machines
