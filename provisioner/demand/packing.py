"""Packing of waiting jobs onto machines: first-fit-decreasing by processors, memory and GPUs. No I/O, no clock.

The jobs first fill the unclaimed capacity of machines that work. Then they fill machines without work. Then they fill
new machines of the smallest template that fits.

Equal jobs and equal machines are packed together. So the time does not depend on the number of jobs.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import PrivateAttr

from provisioner.demand.sources import Fleet, Reading, Shape, SourceSettings
from provisioner.schema.setting_types import Texts

JOIN_SECONDS = 600.0
"""Seconds after its start within which a machine must join its cluster. A machine that has not joined by then, or has
left the cluster, takes no jobs. Such a machine is replaced while jobs need new machines. After as many seconds in which
no read has listed it, the machine is among the first that are returned."""

LONGEST_GAP = 150.0
"""Seconds between two reads, at most, that count as time in which the cluster did not list a machine. A longer time
without a read proves nothing, because the machine may have been listed and at work."""

REPLACED_SHARE = 0.1
"""Largest share of a template's running machines that are replaced at the same time; at least one machine may be
replaced. The share is small, because more machines do not help if no machine can join."""

MANY, STEPS = 1000, (0.1, 128.0, 1.0)
"""``MANY``: the number of different jobs above which needs are rounded up to multiples of ``STEPS``. The time of
packing grows with the square of this number. ``STEPS``: processors, memory (MB) and GPUs."""

TOLERANCE = 1e-6
"""Fraction of a job's need by which a machine may be too small, because sums of fractions such as 0.1 are inexact."""


class Jobs(NamedTuple):
    """Equal jobs that wait for a machine."""

    number: int
    cpus: float
    memory_mb: float
    gpus: float = 0.0
    templates: frozenset[str] | None = None
    """Templates whose machines may run the jobs; None: all templates."""
    oddity: str = ""
    """Description of jobs whose need is unknown, so that they fit no template; empty for other jobs."""

    def fits(self, template: str, shape: Shape) -> bool:
        """Return True if an empty machine of the template can run one of these jobs.

        A job without GPUs does not fit a machine with GPUs, because the job would waste the GPUs.
        """
        is_large_enough = all(need <= size for need, size in zip(self[1:4], shape, strict=True))
        is_allowed = not self.oddity and (self.templates is None or template in self.templates)
        return is_large_enough and is_allowed and bool(self.gpus) == bool(shape.gpus)

    def format_need(self) -> str:
        """Return the need of a job as a text for operators."""
        gpus = f", {self.gpus:g} GPUs" if self.gpus else ""
        places = "" if self.templates is None else f", on {' or '.join(sorted(self.templates)) or 'no template'}"
        return self.oddity or f"{self.cpus:g} CPUs, {self.memory_mb:g} MB{gpus}{places}"


class Member(NamedTuple):
    """A machine of ours that has joined a cluster, as the cluster lists the machine."""

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
        """Return the number of these jobs that one machine can take."""
        pairs = zip(self[1:], jobs[1:4], strict=True)
        return min([jobs.number, *(math.floor(free / need + TOLERANCE) for free, need in pairs if need)])

    def without(self, jobs: Jobs, number: int) -> _Room:
        """Return the capacity that is left after ``number`` of these jobs have been placed on each machine."""
        pairs = zip(self[1:], jobs[1:4], strict=True)
        return _Room(self.template, *(round(free - number * need, 6) for free, need in pairs))


class ClusterSource(SourceSettings):
    """The settings of a source that knows the jobs and the machines of a cluster."""

    only_templates: Texts = ()
    """Templates whose machines join the cluster; default all. If machines of other templates join another cluster, name
    the templates of each."""
    _idle_since: dict[str, float] = PrivateAttr(default_factory=dict)
    """The time since which each read has seen a machine without work, by machine."""
    _read_at: float = PrivateAttr(default=0.0)
    """The time of the last successful read."""
    _missed: dict[str, float] = PrivateAttr(default_factory=dict)
    """Seconds for which no read has listed a running machine, by machine."""
    _largest: dict[str, tuple[float, ...]] = PrivateAttr(default_factory=dict)
    """Processors, memory (MB) and GPUs of the largest machine that was seen without work, by template."""

    @abstractmethod
    def ask(self, fleet: Fleet) -> tuple[Iterable[Jobs], Mapping[str, Member]]:
        """Return the waiting jobs, and our machines that have joined the cluster. Raise SourceError."""

    def templates(self) -> set[str]:
        """Return the templates whose machines join the cluster; empty for all templates."""
        return set(self.only_templates)

    def read(self, fleet: Fleet) -> Reading:
        """Return the wanted machines and the idle machines. Raise SourceError.

        A machine is wanted if it works or if waiting jobs need it. A machine is idle if it has no work.

        HostFactory's file may promise larger machines than a template makes. A job that fits only the promised size
        would then cause requests for ever. Therefore the real size counts if it is smaller: the size of the largest
        machine seen without work.
        """
        others = fleet.shapes.keys() - (self.templates() or fleet.shapes.keys())
        running = {name: machine for name, machine in fleet.running.items() if machine.template not in others}
        shapes = {name: shape for name, shape in fleet.shapes.items() if name not in others}
        fleet = self._with_real_shapes(Fleet(fleet.now, shapes, running))
        jobs, members = self.ask(fleet)
        for name, member in members.items():
            template, since = running[name]
            # Kubernetes learns a node's GPUs up to minutes after the node has joined.
            has_gpus = member.gpus >= bool(shapes.get(template, member).gpus) or fleet.now - since > JOIN_SECONDS
            if member.cpus and not member.works and has_gpus:
                self._largest[template] = tuple(map(max, self._largest.get(template, member[:3]), member[:3]))
        return pack(jobs, members, self._with_real_shapes(fleet))._replace(idle=self._find_idle(members, fleet))

    def _with_real_shapes(self, fleet: Fleet) -> Fleet:
        shapes = {name: Shape(*map(min, shape, self._largest.get(name, shape))) for name, shape in fleet.shapes.items()}
        return fleet._replace(shapes=shapes)

    def _find_idle(self, members: Mapping[str, Member], fleet: Fleet) -> dict[str, float]:
        """Return the seconds for which each idle machine has been idle.

        A machine is idle if at least two reads in a row show no work, because a single read may fall between two jobs.
        A machine that no read has listed for ``JOIN_SECONDS`` also counts as a machine without work. A shorter time
        proves nothing, because HTCondor's collector lists no machine for minutes after its restart.
        """
        now, missed = fleet.now, fleet.running.keys() - members.keys()
        step, self._read_at = min(max(now - self._read_at, 0.0), LONGEST_GAP), now
        self._missed = {name: self._missed.get(name, -step) + step for name in missed}
        is_idle = {name: seconds > JOIN_SECONDS for name, seconds in self._missed.items()}
        is_idle |= {name: not member.works for name, member in members.items()}
        self._idle_since = {one: min(self._idle_since.get(one, now), now) for one in is_idle if is_idle[one]}
        return {name: now - since for name, since in self._idle_since.items() if since < now}


def pack(jobs: Iterable[Jobs], members: Mapping[str, Member], fleet: Fleet) -> Reading:
    """Return the wanted machines, and the jobs that fit no template. The result does not say which machines are idle.

    The wanted machines are machines that work, machines that take jobs, and replacements for machines that have not
    joined in time. ``members``: our machines that have joined the cluster, by name.
    """
    taken, idle, absent = Counter[_Room](), Counter[_Room](), Counter[str]()
    for name, machine in fleet.running.items():
        if member := members.get(name):
            (taken if member.works else idle)[_Room(machine.template, *member[:3])] += 1
        elif fleet.now - machine.since > JOIN_SECONDS:
            absent[machine.template] += 1
    placed, unfit = _sort(jobs, fleet)
    wanted, added = Counter[str](), Counter[str]()
    for job, templates in placed:
        new = Counter({_Room(templates[0], *fleet.shapes[templates[0]]): job.number})
        _place(job, templates, taken, (taken, idle, new))
        added[templates[0]] += job.number - new.total()
    running = Counter(machine.template for machine in fleet.running.values())
    for template, number in absent.items():
        wanted[template] += min(number, added[template], max(1, int(REPLACED_SHARE * running[template])))
    for room, machines in taken.items():
        wanted[room.template] += machines
    return Reading(+wanted, None, unfit)


def _sort(jobs: Iterable[Jobs], fleet: Fleet) -> tuple[list[tuple[Jobs, tuple[str, ...]]], Counter[str]]:
    """Return the jobs that fit a template, and the numbers of all other jobs by their need.

    Equal jobs are added up. Each job comes with all templates that the job fits, the smallest template first.

    Jobs that need a larger template come before the others. Among jobs that need the same template, jobs that take a
    larger share of a machine come first.
    """
    sizes = sorted(fleet.shapes, key=lambda name: (fleet.shapes[name].gpus, *fleet.shapes[name], name))
    jobs = [job for job in jobs if job.number > 0]
    steps = STEPS if len({job[1:] for job in jobs}) > MANY else (0, 0, 0)
    equal, unfit = Counter[tuple[Any, ...]](), Counter[str]()
    for job in jobs:
        if templates := tuple(name for name in sizes if job.fits(name, fleet.shapes[name])):
            shape = fleet.shapes[templates[0]]
            needs = tuple(map(_round_up, job[1:4], steps, shape))
            share = max(need / size for need, size in zip(needs, shape, strict=True) if size)
            equal[sizes.index(templates[0]), share, needs, -len(templates), templates] += job.number
        else:
            unfit[job.format_need()] += job.number
    ordered = sorted(equal.items(), reverse=True)
    return [(Jobs(number, *needs), templates) for (*_, needs, _, templates), number in ordered], unfit


def _round_up(need: float, step: float, most: float) -> float:
    return min(most, step * math.ceil(need / step)) if step else need


def _place(jobs: Jobs, templates: tuple[str, ...], taken: Counter[_Room], machines: tuple[Counter[_Room], ...]) -> None:
    """Place the jobs on the first machines that fit, in the order of ``machines``. Move these machines to ``taken``."""
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
