"""Demand of an HTCondor pool: its idle jobs, and the machines of ours that work there.

The questions are asked by ``condor_q`` and ``condor_status``, or by ``htcondor_bindings`` as a program of its own,
which prints the same lines. Options and words of the commands: versions 23 to 25 of HTCondor.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from provisioner.demand.packing import IdleTimes, Jobs, Member
from provisioner.demand.simple_sources import run_program_of_source
from provisioner.demand.sources import Fleet, Reading, Shape, SourceError, SourceSettings, source_errors
from provisioner.schema.setting_types import Duration, OptionalText, Text
from provisioner.schema.validation import Expects

IDLE_JOBS = "JobStatus == 1 && JobUniverse =!= 7 && JobUniverse =!= 9 && JobUniverse =!= 12"
"""Idle jobs that need a slot. Jobs of the universes scheduler (7), grid (9) and local (12) need none."""
OUR_SLOTS = "HFMachine =!= undefined"
"""Slots of machines of ours, which publish their names as this attribute."""
JOB_ATTRIBUTES = ("JobCount", "RequestCpus", "RequestMemory", "RequestGPUs")
"""``JobCount`` is defined for groups of equal jobs, and undefined for a single job."""
SLOT_ATTRIBUTES = ("HFMachine", "State", "Activity", "Cpus", "Memory", "GPUs")

MEMORY_STEP = 128
"""MB to whose multiples HTCondor rounds up the memory of a job's slot (MODIFY_REQUEST_EXPR_REQUESTMEMORY)."""
MOST_BYTES = 64 << 20
"""A line of a job has about 30 bytes."""

Texts = Annotated[tuple[Text, ...], Field(strict=False), Expects("a list of texts")]


class HTCondor(SourceSettings):
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

    _idle: IdleTimes = PrivateAttr(default_factory=IdleTimes)

    def templates(self) -> set[str]:
        """Return the named templates."""
        return set(self.only_templates)

    def constraint(self) -> str:
        """Return the ClassAd expression of the jobs that count."""
        return IDLE_JOBS + (f" && ({self.additional_requirements})" if self.additional_requirements else "")

    def read(self, fleet: Fleet) -> Reading:
        """Return the machines that work or are needed by idle jobs. Raise SourceError if an answer is incomplete.

        Jobs are read before machines: a job that starts in between then counts twice, and its machine as working.
        """
        if only := self.templates():
            ours = {name: machine for name, machine in fleet.running.items() if machine.template in only}
            fleet = fleet._replace(running=ours)
        jobs = list(self._read_jobs(frozenset(only) or None))
        members = self._read_members(fleet)
        return self._idle.pack(jobs, members, fleet._replace(shapes=_real_shapes(fleet, members)))

    def _read_jobs(self, templates: frozenset[str] | None) -> Iterator[Jobs]:
        """Yield the idle jobs."""
        for row in self._ask("jobs", self.constraint(), JOB_ATTRIBUTES):
            count, cpus, memory, gpus = map(_number, row)
            rounded = MEMORY_STEP * math.ceil((memory or 1) / MEMORY_STEP)
            yield Jobs(int(count or 1), 1 if cpus is None else cpus, rounded, gpus or 0, templates)

    def _read_members(self, fleet: Fleet) -> dict[str, Member]:
        """Return our running machines that the pool lists, with the sums of their usable slots.

        A slot is usable if a job may start there. A slot that is claimed without a job yet is usable, because the job
        for which it was claimed is still idle in the queue. A machine works unless all its slots are unclaimed.
        """
        members: dict[str, Member] = {}
        for name, state, activity, *texts in self._ask("slots", OUR_SLOTS, SLOT_ATTRIBUTES):
            if name in fleet.running:
                is_usable = activity == "Idle" and state in ("Unclaimed", "Matched", "Claimed")
                before = members.get(name, Member(0.0, 0.0, 0.0, works=False))
                sums = [old + is_usable * (_number(text) or 0.0) for old, text in zip(before[:3], texts, strict=True)]
                works = before.works or not (is_usable and state == "Unclaimed")
                members[name] = Member(sums[0], sums[1], sums[2], works)
        return members

    def _ask(self, what: str, constraint: str, attributes: Sequence[str]) -> Iterator[list[str]]:
        """Yield the values of the attributes, evaluated, for each job or slot (``what``).

        ``-autoformat`` is used because ``-json`` does not evaluate: RequestMemory is an expression unless the user set
        it. ``-autocluster`` would count running jobs, too. Each schedd has a command of its own, because the exit code
        of ``condor_q -global`` is that of the last schedd.
        """
        pool = ["-pool", self.pool] if self.pool else []
        asked = ["-constraint", constraint, "-autoformat", *attributes]
        if self.client == "htcondor2":
            program = [sys.executable, "-m", "provisioner.demand.htcondor_bindings", what]
            argvs = [[*program, self.pool or "", ",".join(self.schedds), constraint, *attributes]]
        elif what == "slots":
            argvs = [["condor_status", *pool, "-startd", *asked]]
        else:
            known = self.schedds or self._lines(["condor_status", *pool, "-schedd", "-autoformat", "Name"])
            argvs = [["condor_q", *pool, "-name", name, "-allusers", *asked] for name in known]
        for argv in argvs:
            for line in self._lines(argv):
                values = line.split()
                if len(values) != len(attributes):
                    raise SourceError(f"{argv[0]} printed an unknown line: {line[:200]}")
                yield values

    def _lines(self, argv: Sequence[str]) -> list[str]:
        return run_program_of_source(argv, self.timeout_seconds, MOST_BYTES).splitlines()


def _number(text: str) -> float | None:
    """Return a value as a number; None if it is undefined or cannot be evaluated."""
    with source_errors(f"not a number in an answer of HTCondor: {text[:200]}"):
        return None if text in ("undefined", "error") else float(text)


def _real_shapes(fleet: Fleet, members: Mapping[str, Member]) -> dict[str, Shape]:
    """Return the shapes of the templates. A template counts as no more than its largest machine without work, else
    jobs that fit HostFactory's file and no machine would ask for machines for ever."""
    shapes = dict(fleet.shapes)
    for template, shape in fleet.shapes.items():
        idle = [one[:3] for name, one in members.items() if fleet.running[name].template == template and not one.works]
        cpus, memory, gpus = map(min, shape[:3], max(idle, default=shape[:3]))
        shapes[template] = Shape(cpus, memory, gpus, shape.attributes)
    return shapes
