"""Pending jobs of a Slurm cluster as demand, by Slurm's own commands. A node is a machine of ours if its name or its
host name is the machine's name.

With the option ``--array``, ``squeue`` prints one line for each pending element of a job array. Without this option,
``squeue`` would print all elements in one line, and would cut off a long list.

Nodes are read before jobs. So a job that starts between these reads is not counted twice.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Annotated

from pydantic import Field

from provisioner.demand.packing import ClusterSource, Jobs, Member
from provisioner.demand.simple_sources import run_program_of_source
from provisioner.demand.sources import Fleet, source_errors
from provisioner.schema.setting_types import Duration, Texts
from provisioner.schema.validation import Expects

LONG = ("Partition", "Reason", "tres-alloc", "tres-per-node", "tres-per-task", "tres-per-job")
FIELDS = dict.fromkeys(("NumNodes", "NumTasks", "OverSubscribe"), 16) | dict.fromkeys(LONG, 100)
"""Columns of ``squeue --Format`` with their widths in characters."""
FORMAT = ",".join(f"{name}:{width}" for name, width in FIELDS.items())
SQUEUE = ("squeue", "--all", "--local", "--array", "--noheader", "--states=PENDING", f"--Format={FORMAT}")
NODES, CONFIG = ("scontrol", "--oneliner", "show", "nodes"), ("scontrol", "show", "config")
ALLOCATES_MEMORY = re.compile(r"^SelectTypeParameters\s*=.*MEMORY", re.MULTILINE)
"""Pattern of a configuration in which Slurm allocates memory to jobs. Without it, ``squeue`` shows a node's whole
memory for each job."""
MOST_BYTES = 100 << 20
"""Maximum number of bytes of a command's output. A hundred thousand jobs have 65 MB."""

NODE_FIELD = re.compile(r"(?:^|\s)(NodeName|NodeHostName|Gres|State|CfgTRES|AllocTRES)=(\S*)")
TAKES_JOBS = frozenset({"IDLE", "MIXED", "ALLOCATED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "PLANNED"})
"""Words of the state of a node that takes jobs. ``PLANNED``: backfill plans the node for a job that waits for more
nodes."""
WITHOUT_WORK = TAKES_JOBS - {"MIXED", "ALLOCATED", "PLANNED"} | {"DRAIN"}
"""Words of the state of a node that has no work and is not meant for a certain job."""
LOST = frozenset({"DOWN", "FUTURE", "POWERED_DOWN"})
"""Words of the state of a node whose jobs Slurm has given up."""
GPU = re.compile(r"\bgpu(?::(?!\d+(?:[,(]|$))[^:=,(]+)?(?:[:=](\d+))?(?=[,(]|$)")
"""Pattern of the number of GPUs in ``gres/gpu=2``, ``gres:gpu:2`` or ``gpu:a100-80gb:2(S:0)``. A missing number means
1."""
UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}

Partitions = Annotated[Mapping[str, Texts], Expects("a mapping of partitions to lists of templates")]
Reasons = Annotated[frozenset[str], Field(strict=False), Expects("a list of Slurm's reasons")]


class Slurm(ClusterSource):
    """The pending jobs of a Slurm cluster, as ``squeue`` lists them. The user needs the right to see all jobs, if
    ``PrivateData`` hides the jobs of others."""

    partitions: Partitions = Field(default_factory=dict)
    """Templates whose machines join each partition; an empty list means all templates. Jobs of other partitions do not
    count. Default all partitions and all templates."""
    reasons: Reasons = frozenset({"Resources", "Priority", "PartitionConfig", "Nodes required for job are DOWN"})
    """Beginnings of the reasons of the pending jobs that count; default those of jobs that wait for nodes: Resources,
    Priority, PartitionConfig (no node yet) and "Nodes required for job are DOWN" (no node left). Held jobs, jobs before
    their begin time and jobs with a dependency have other reasons, and so have jobs at a limit."""
    prefix: Texts = ()
    """Beginning of each command, for example [ssh, login-node]; default none."""
    timeout_seconds: Duration = 30.0
    """Seconds within which each command must end; default 30."""

    def templates(self) -> set[str]:
        """Return the templates that the partitions name. If there are no partitions, or a partition allows all
        templates, return ``only_templates``."""
        of_partitions = {template for templates in self.partitions.values() for template in templates}
        return of_partitions if of_partitions and all(self.partitions.values()) else super().templates()

    def ask(self, fleet: Fleet) -> tuple[Iterable[Jobs], Mapping[str, Member]]:
        """Return the pending jobs, and our machines among the nodes. Raise SourceError if a command fails, or if its
        output is not understood."""
        members = read_members(self._run(*NODES), fleet) if fleet.running else {}
        has_memory = bool(ALLOCATES_MEMORY.search(self._run(*CONFIG)))
        return read_jobs(self._run(*SQUEUE), self, fleet, has_memory), members

    def _run(self, *argv: str) -> str:
        return run_program_of_source((*self.prefix, *argv), self.timeout_seconds, MOST_BYTES)


def read_jobs(output: str, settings: Slurm, fleet: Fleet, has_memory: bool) -> list[Jobs]:
    """Return those jobs in the output of ``squeue`` that count as demand. Raise SourceError for a line that is not
    understood. ``has_memory``: False if Slurm does not allocate memory to jobs."""
    found = []
    for line, number in Counter(output.splitlines()).items():
        with source_errors(f"squeue: {line}"):
            columns = _columns(line)
            if columns["Reason"].startswith(tuple(settings.reasons)):
                cut = [f"squeue cuts {key} off: {columns[key]}" for key in LONG if len(columns[key]) == FIELDS[key]]
                if not has_memory:
                    columns["tres-alloc"] = re.sub(r"\bmem=[^,]*", "mem=0", columns["tres-alloc"])
                odd = [Jobs(number, 0, 0, oddity=text) for text in cut[:1]]
                found += odd or _read_job(columns, number, settings.partitions, fleet)
    return found


def _columns(line: str) -> dict[str, str]:
    """Return the columns of a line by their names. Raise ValueError if the line has an unexpected length."""
    if len(line) != sum(FIELDS.values()):
        raise ValueError("another length")
    ends = zip(FIELDS.items(), accumulate(FIELDS.values()), strict=True)
    return {name: line[end - width : end].strip() for (name, width), end in ends}


def _read_job(columns: Mapping[str, str], number: int, partitions: Mapping[str, Texts], fleet: Fleet) -> list[Jobs]:
    """Divide each of ``number`` equal jobs into parts, one part for each node of the job. Return all parts.

    If such a part fits no template, return one part for each task instead, because Slurm may spread the tasks over more
    nodes. If the jobs are in none of ``partitions``, return an empty list; without ``partitions`` all jobs count.
    """
    ours = [name for name in columns["Partition"].split(",") if name in partitions]
    if partitions and not ours:
        return []
    templates = frozenset(template for name in ours for template in partitions[name]) or None
    nodes, tasks = max(1, int(columns["NumNodes"])), int(columns["NumTasks"])
    cpus, memory_mb, gpus = read_resources(columns["tres-alloc"])
    requests = {"tres-per-node": nodes, "tres-per-task": tasks, "tres-per-job": 1}
    gpus = gpus or max(times * _count_gpus(columns[name]) for name, times in requests.items())
    for parts in (nodes, max(nodes, tasks)):
        job = Jobs(number * parts, cpus / parts, memory_mb / parts, gpus / parts, templates)
        if fitting := [shape.cpus for name, shape in fleet.shapes.items() if job.fits(name, shape)]:
            # A job that shares its nodes with no other takes all processors of a machine.
            return [job._replace(cpus=min(fitting)) if columns["OverSubscribe"] == "NO" else job]
    return [Jobs(number * nodes, cpus / nodes, memory_mb / nodes, gpus / nodes, templates)]


def _count_gpus(written: str) -> float:
    return sum(float(number.rjust(1, "1")) for number in GPU.findall(written))


def read_resources(text: str) -> tuple[float, float, float]:
    """Return processors, memory in MB and GPUs from a list such as ``cpu=4,mem=16G,node=1,gres/gpu=2``. Raise
    ValueError for a text of another form."""
    parts = [] if text in ("", "N/A", "(null)") else text.split(",")
    found = {"cpu": "0", "mem": "0M", "gres/gpu": "0"} | dict(part.split("=", 1) for part in parts if part)
    number, unit = found["mem"].rstrip("KMGTP"), found["mem"][-1:]
    return float(found["cpu"]), math.ceil(float(number) * UNITS.get(unit, 1.0)), float(found["gres/gpu"])


def read_members(output: str, fleet: Fleet) -> dict[str, Member]:
    """Return our machines among the nodes that ``scontrol`` prints. Leave out lost nodes on which no job holds
    resources. Raise SourceError if the output is not understood."""
    members = {}
    for line in output.splitlines():
        # A reason at the end of the line may contain anything, so the first value counts.
        fields = dict(reversed(NODE_FIELD.findall(line)))
        names = [fields.get(key, "").partition(".")[0] for key in ("NodeName", "NodeHostName")]
        name = next((name for name in names if name in fleet.running), None)
        if name is None:
            continue
        with source_errors(f"scontrol: {line}"):
            state = frozenset(re.findall(r"[A-Z_]+|\*", fields["State"]))
            (*whole, gpus), used = read_resources(fields["CfgTRES"]), read_resources(fields["AllocTRES"])
        # Without GPUs in AccountingStorageTRES, it is unknown which GPUs of a node are in use.
        whole.append(gpus or _count_gpus(fields.get("Gres", "")) * (not any(used)))
        free = [total - taken if state <= TAKES_JOBS else 0.0 for total, taken in zip(whole, used, strict=True)]
        if not state & LOST or any(used):
            members[name] = Member(free[0], free[1], free[2], works=not state <= WITHOUT_WORK or any(used))
    return members
