"""Demand of an HTCondor pool: its idle jobs, and the machines of ours that work there.

The questions are asked by ``condor_q`` and ``condor_status``, or by ``htcondor_bindings`` as a program of its own,
which prints the same lines. Options and words of the commands: versions 23 to 25 of HTCondor.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from provisioner.demand.packing import Jobs, Member, pack
from provisioner.demand.simple_sources import run_program_of_source
from provisioner.demand.sources import Fleet, Reading, Shape, SourceError, SourceSettings
from provisioner.schema.setting_types import Duration, OptionalText, Text
from provisioner.schema.validation import Expects

IDLE_JOBS = "JobStatus == 1 && JobUniverse =!= 7 && JobUniverse =!= 9 && JobUniverse =!= 12"
"""Idle jobs that need a slot. Jobs of the universes scheduler (7), grid (9) and local (12) need none."""
OUR_SLOTS = "HFMachine =!= undefined"
"""Slots of machines of ours, which publish their names as this attribute."""
JOB_ATTRIBUTES = ("JobCount", "RequestCpus", "RequestMemory", "RequestGPUs")
"""``JobCount`` is defined for groups of equal jobs, and undefined for a single job."""
SLOT_ATTRIBUTES = (
    "HFMachine",
    "State",
    "Activity",
    "EnteredCurrentActivity",
    "MyCurrentTime",
    "Cpus",
    "Memory",
    "GPUs",
)

MEMORY_STEP = 128
"""MB to whose multiples HTCondor rounds up the memory of a job's slot (MODIFY_REQUEST_EXPR_REQUESTMEMORY)."""
MOST_BYTES = 64 << 20
"""A line of a job has about 30 bytes."""

Texts = Annotated[tuple[Text, ...], Field(strict=False), Expects("a list of texts")]


class HTCondorSettings(SourceSettings):
    """Idle jobs of an HTCondor pool."""

    kind: Literal["htcondor"] = "htcondor"
    """Kind of the source."""
    pool: OptionalText = None
    """Central manager, HOST or HOST:PORT; default that of HTCondor's own configuration (``COLLECTOR_HOST``)."""
    schedds: Texts = ()
    """Names of the schedds whose jobs count. If a named schedd is unknown, the read fails. Default: all schedds that
    the central manager knows; the jobs of a schedd that it does not know then count as gone."""
    additional_requirements: OptionalText = None
    """ClassAd expression of jobs that count, for example ``RequestGPUs > 0``; default all. The pilots need the same
    expression in their START (``HF_ADDITIONAL_REQUIREMENTS``), else they run other jobs."""
    only_templates: Texts = ()
    """Templates whose machines may run the jobs; default all. Two sources of the same pool need different templates,
    else each counts the machines of the other."""
    client: Annotated[Literal["commands", "htcondor2"], Expects("'commands' or 'htcondor2'")] = "commands"
    """``commands`` (default): HTCondor's commands, found by PATH. ``htcondor2``: PyPI's package htcondor, which lets
    the schedds group equal jobs."""
    timeout_seconds: Duration = 60.0
    """Seconds that a question may take; default 60. A read asks two questions."""

    def open(self) -> HTCondor:
        """Return the source."""
        return HTCondor(self)

    def templates(self) -> set[str]:
        """Return the named templates."""
        return set(self.only_templates)

    def constraint(self) -> str:
        """Return the ClassAd expression of the jobs that count."""
        return IDLE_JOBS + (f" && ({self.additional_requirements})" if self.additional_requirements else "")


class _Slot(NamedTuple):
    """A slot of a machine, as the central manager lists it."""

    is_free: bool
    """True if the slot is unclaimed, and no job is about to start."""
    is_usable: bool
    """True if a job may start here: in a slot that is free, matched, or claimed without a job yet."""
    seconds: float
    """Seconds since the slot's activity changed, by its own clock."""
    shape: tuple[float, float, float]
    """CPUs, memory (MB) and GPUs. Those of a partitionable slot are the unclaimed rest."""


class HTCondor:
    """The source of an HTCondor pool."""

    def __init__(self, settings: HTCondorSettings) -> None:
        """Prepare the questions."""
        self._settings = settings
        self._idle_since: dict[str, float] = {}
        """Moment of the first of all successive reads that saw a machine without work, by machine. A partitionable slot
        itself does not report when its last job ended."""

    def read(self, fleet: Fleet) -> Reading:
        """Return the machines that work or are needed by idle jobs. Raise SourceError if an answer is incomplete.

        Jobs are read before machines: a job that starts in between then counts twice, and its machine as working.
        """
        if only := self._settings.templates():
            ours = {name: machine for name, machine in fleet.running.items() if machine.template in only}
            fleet = fleet._replace(running=ours)
        jobs = [row._replace(templates=only or None) for row in self._read_jobs()]
        slots = self._read_slots(fleet)
        members = {name: _member(some) for name, some in slots.items()}
        reading = pack(jobs, members, fleet._replace(shapes=_real_shapes(fleet, slots)))
        return reading._replace(idle=self._idle(slots, fleet.now))

    def _idle(self, slots: Mapping[str, Sequence[_Slot]], now: float) -> dict[str, float]:
        free = {name: min(slot.seconds for slot in some) for name, some in slots.items() if _is_idle(some)}
        self._idle_since = {name: self._idle_since.get(name, now) for name in free}
        return {name: max(0.0, min(seconds, now - self._idle_since[name])) for name, seconds in free.items()}

    def _read_jobs(self) -> list[Jobs]:
        """Return the idle jobs, equal ones together."""
        found = Counter[tuple[float, float, float]]()
        for row in self._ask("jobs", self._settings.constraint(), JOB_ATTRIBUTES):
            count, cpus, memory, gpus = (_number(text) for text in row)
            rounded = MEMORY_STEP * math.ceil((memory or 1) / MEMORY_STEP)
            found[1 if cpus is None else cpus, rounded, gpus or 0] += 1 if count is None else int(count)
        return [Jobs(number, *need) for need, number in found.items()]

    def _read_slots(self, fleet: Fleet) -> dict[str, list[_Slot]]:
        """Return the slots of our running machines, by machine."""
        slots: dict[str, list[_Slot]] = defaultdict(list)
        for name, state, activity, *texts in self._ask("slots", OUR_SLOTS, SLOT_ATTRIBUTES):
            if name in fleet.running:
                since, now, cpus, memory, gpus = (_number(text) or 0.0 for text in texts)
                is_idle = activity == "Idle"
                usable = is_idle and state in ("Unclaimed", "Matched", "Claimed")
                slots[name].append(_Slot(is_idle and state == "Unclaimed", usable, now - since, (cpus, memory, gpus)))
        return slots

    def _ask(self, what: str, constraint: str, attributes: Sequence[str]) -> Iterator[list[str]]:
        """Yield the values of the attributes, evaluated, for each job or slot (``what``).

        ``-autoformat`` is used because ``-json`` does not evaluate: RequestMemory is an expression unless the user set
        it. ``-autocluster`` would count running jobs, too. Each schedd has a command of its own, because the exit code
        of ``condor_q -global`` is that of the last schedd.
        """
        settings = self._settings
        pool = ["-pool", settings.pool] if settings.pool else []
        asked = ["-constraint", constraint, "-autoformat", *attributes]
        if settings.client == "htcondor2":
            program = [sys.executable, "-m", "provisioner.demand.htcondor_bindings", what]
            argvs = [[*program, settings.pool or "", ",".join(settings.schedds), constraint, *attributes]]
        elif what == "slots":
            argvs = [["condor_status", *pool, "-startd", *asked]]
        else:
            known = settings.schedds or self._lines(["condor_status", *pool, "-schedd", "-autoformat", "Name"])
            argvs = [["condor_q", *pool, "-name", name, "-allusers", *asked] for name in known]
        for argv in argvs:
            for line in self._lines(argv):
                values = line.split()
                if len(values) != len(attributes):
                    raise SourceError(f"{argv[0]} printed an unknown line: {line[:200]}")
                yield values

    def _lines(self, argv: Sequence[str]) -> list[str]:
        return run_program_of_source(argv, self._settings.timeout_seconds, MOST_BYTES).splitlines()


def _number(text: str) -> float | None:
    """Return a value as a number; None if it is undefined or cannot be evaluated."""
    if text in ("undefined", "error"):
        return None
    try:
        return float(text)
    except ValueError as error:
        raise SourceError(f"not a number in an answer of HTCondor: {text[:200]}") from error


def _is_idle(slots: Sequence[_Slot]) -> bool:
    return all(slot.is_free for slot in slots)


def _member(slots: Sequence[_Slot]) -> Member:
    """Return a machine with its usable capacity. A slot that is claimed without a job yet is usable, because the job
    for which it was claimed is still idle in the queue."""
    return Member(*_sum([slot.shape for slot in slots if slot.is_usable]), works=not _is_idle(slots))


def _sum(shapes: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    cpus, memory, gpus = (sum(parts) for parts in zip((0.0, 0.0, 0.0), *shapes, strict=True))
    return cpus, memory, gpus


def _real_shapes(fleet: Fleet, slots: Mapping[str, Sequence[_Slot]]) -> dict[str, Shape]:
    """Return the shapes of the templates. A template counts as no more than its largest machine without work, else
    jobs that fit HostFactory's file and no machine would ask for machines for ever."""
    largest: dict[str, tuple[float, float, float]] = {}
    for name, some in slots.items():
        template = fleet.running[name].template
        if _is_idle(some):
            largest[template] = max(largest.get(template, (0.0, 0.0, 0.0)), _sum([slot.shape for slot in some]))
    shapes = {}
    for template, shape in fleet.shapes.items():
        cpus, memory, gpus = map(min, shape[:3], largest.get(template, shape[:3]))
        shapes[template] = Shape(cpus, memory, gpus, shape.attributes)
    return shapes
