"""Demand of an HTCondor pool: its idle jobs, and our machines that work in the pool.

The commands ``condor_q`` and ``condor_status`` ask HTCondor. The program ``htcondor_bindings`` can replace them, and
prints the same lines. The commands' options and words are those of HTCondor 23 to 25.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

from provisioner.demand.packing import ClusterSource, Jobs, Member
from provisioner.demand.simple_sources import run_program_of_source
from provisioner.demand.sources import Fleet, SourceError, source_errors
from provisioner.schema.setting_types import Duration, OptionalText, Texts
from provisioner.schema.validation import Expects

IDLE_JOBS = "JobStatus == 1 && JobUniverse =!= 7 && JobUniverse =!= 9 && JobUniverse =!= 12"
"""Idle jobs that need a slot. Jobs of the universes scheduler (7), grid (9) and local (12) need none."""
OUR_SLOTS = "HFMachine =!= undefined"
"""Slots of our machines. Each of our machines publishes its name as this attribute."""
JOB_ATTRIBUTES = ("JobCount", "RequestCpus", "RequestMemory", "RequestGPUs")
"""Attributes of a group of equal jobs. A single job counts as 1, even if its user gave it an attribute ``JobCount``."""
DEFAULTS = (1.0, 1.0, 1.0, 0.0)
"""Values that replace undefined ``JOB_ATTRIBUTES``, in the same order."""
SLOT_ATTRIBUTES = ("HFMachine", "State", "Activity", "Cpus", "Memory", "GPUs")

MEMORY_STEP = 128
"""HTCondor rounds the memory of a job's slot up to a multiple of this number of MB
(MODIFY_REQUEST_EXPR_REQUESTMEMORY)."""
MOST_BYTES = 64 << 20
"""Maximum number of bytes that a command may print. The line of a job has about 30 bytes."""


class HTCondor(ClusterSource):
    """Idle jobs of an HTCondor pool."""

    pool: OptionalText = None
    """Central manager, HOST or HOST:PORT; default that of HTCondor's own configuration (``COLLECTOR_HOST``)."""
    schedds: Texts = ()
    """Names of the schedds whose jobs count. If a named schedd is unknown, the read fails. Default: all schedds that
    the central manager knows; the jobs of a schedd that it does not know then count as gone."""
    additional_requirements: OptionalText = None
    """ClassAd expression of jobs that count, for example ``RequestGPUs > 0``; default all. The pilots need the same
    expression in their START (``HF_ADDITIONAL_REQUIREMENTS``), else they run other jobs."""
    client: Annotated[Literal["commands", "htcondor2"], Expects("'commands' or 'htcondor2'")] = "commands"
    """``commands`` (default): HTCondor's commands, found by PATH. ``htcondor2``: PyPI's package htcondor, which lets
    the schedds group equal jobs."""
    timeout_seconds: Duration = 60.0
    """Seconds that a question may take; default 60. A read asks for the schedds, the jobs of each schedd, and the
    machines."""

    def constraint(self) -> str:
        """Return the ClassAd expression of the jobs that count."""
        return IDLE_JOBS + (f" && ({self.additional_requirements})" if self.additional_requirements else "")

    def ask(self, fleet: Fleet) -> tuple[Iterable[Jobs], Mapping[str, Member]]:
        """Return the idle jobs, and our machines that the pool lists. Raise SourceError if an answer is incomplete.

        Jobs are read before machines. So a job that starts between the two reads is not missed. It counts as idle, and
        its machine as working.
        """
        return list(map(_read_job, self._ask("jobs", self.constraint(), JOB_ATTRIBUTES))), self._read_members(fleet)

    def _read_members(self, fleet: Fleet) -> dict[str, Member]:
        """Return our running machines that the pool lists, with the sums of their usable slots.

        A slot is usable if a job may start there. A claimed slot is usable, too, until its job starts, because this job
        still counts as idle. A machine works unless all its slots are unclaimed.
        """
        members: dict[str, Member] = {}
        for name, state, activity, *texts in self._ask("slots", OUR_SLOTS, SLOT_ATTRIBUTES):
            if name in fleet.running:
                is_usable = activity == "Idle" and state in ("Unclaimed", "Matched", "Claimed")
                before = members.get(name, Member(0.0, 0.0, 0.0, works=False))
                sums = [old + is_usable * _number(text) for old, text in zip(before[:3], texts, strict=True)]
                works = before.works or not (is_usable and state == "Unclaimed")
                members[name] = Member(sums[0], sums[1], sums[2], works)
        return members

    def _ask(self, what: str, constraint: str, attributes: Sequence[str]) -> Iterator[list[str]]:
        """Yield the evaluated values of the attributes for each job or slot (``what``).

        The commands print with ``-autoformat``, because ``-json`` does not evaluate expressions such as RequestMemory.
        ``-autocluster`` would count running jobs, too.

        Each schedd gets a separate command, because ``condor_q -global`` returns the exit code of the last schedd.
        HTCondor prints ``error`` if a user wrote a text in place of a number.
        """
        pool = ["-pool", self.pool] if self.pool else []
        numbers = ["real(1)", *(f"real({name})" for name in attributes[1:])]
        asked = ["-constraint", constraint, "-autoformat", *(attributes if what == "slots" else numbers)]
        if self.client == "htcondor2":
            program = [sys.executable, "-m", "provisioner.demand.htcondor_bindings", what]
            argvs = [[*program, self.pool or "", ",".join(self.schedds), constraint, *attributes]]
        elif what == "slots":
            argvs = [["condor_status", *pool, "-startd", *asked]]
        else:
            known = self.schedds or self._lines(["condor_status", *pool, "-schedd", "-autoformat", "Name"])
            argvs = [["condor_q", *pool, "-name", name, "-allusers", *asked] for name in dict.fromkeys(known)]
        for argv in argvs:
            for line in self._lines(argv):
                values = line.split()
                if len(values) != len(attributes):
                    raise SourceError(f"{argv[0]} printed an unknown line: {line[:200]}")
                yield values

    def _lines(self, argv: Sequence[str]) -> list[str]:
        return run_program_of_source(argv, self.timeout_seconds, MOST_BYTES).splitlines()


def _read_job(values: Sequence[str]) -> Jobs:
    """Return the job, or the group of equal jobs, that a line describes.

    If a requested amount is not a number of at least 0, the need of the jobs is unknown.
    """
    count, cpus, memory, gpus = (_number(text, default) for text, default in zip(values, DEFAULTS, strict=True))
    if not all(0 <= need < math.inf for need in (cpus, memory, gpus)):
        return Jobs(int(count), 0, 0, oddity=f"RequestCpus, RequestMemory, RequestGPUs: {', '.join(values[1:])}")
    return Jobs(int(count), cpus, MEMORY_STEP * math.ceil((memory or 1) / MEMORY_STEP), gpus)


def _number(text: str, default: float = 0.0) -> float:
    """Return a value as a number; NaN if the value cannot be evaluated. ``default``: the number for an undefined
    value."""
    with source_errors("HTCondor"):
        return default if text == "undefined" else math.nan if text == "error" else float(text)
