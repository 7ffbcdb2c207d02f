"""Slurm's ResumeProgram, SuspendProgram and ResumeFailProgram. Slurm calls these programs in HostFactory's place.

Each program gets a hostlist. The program records requests or return requests, and notes the request of each node. The
demand service does the rest (``demand/slurm_power.py``). Slurm may repeat a call; the repetition records nothing. Slurm
reads only the exit code: 0 if all nodes were served, else 1.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping

from hf_scripts.commands import ScriptCall
from hf_scripts.input_documents import Refused
from provisioner.hostfactory import slurm_file
from provisioner.hostfactory.provider_config import TemplatesError, read_json
from provisioner.names import SLURM_ACCOUNT
from provisioner.state.directory import SLURM_NODES_FILE
from provisioner.state.refused_calls import SLURM_PROGRAMS
from provisioner.state.slurm_nodes import NodeRecord, SlurmNodes

MOST = 100
"""Maximum number of nodes of a request. One shard alone serves a request of this size, so the request has the same id
in intent and in the records."""

RESUME_FILE = "SLURM_RESUME_FILE"
"""Environment variable with the path of the file in which Slurm names the jobs of the nodes."""


def make_document(arguments: list[str]) -> list[str]:
    """Return the arguments for a script call: one JSON document, which contains the arguments that Slurm gave to the
    program."""
    return [json.dumps({"hostlists": arguments})]


def resume(call: ScriptCall) -> str:
    """Request a machine for each node without a record. One request has at most 100 nodes of one template. Return JSON
    with the template of each new request.

    Raises TemplatesError if a file has mistakes or a node has no template. The error is raised only after all other
    nodes have been served.
    """
    records = SlurmNodes(os.path.join(call.directories.state, SLURM_NODES_FILE))
    known, ids = records.read(), [one.id for one in call.provider().templates if one.max_number]
    settings, mistakes = slurm_file.load(call.directories.conf, ids)
    if settings is None:
        raise Refused(f"{slurm_file.FILE}: no such file in {call.directories.conf}")
    problems = [*map("{0.file}: {0}".format, mistakes)]
    partitions, wanted = _read_partitions(call, problems), dict[str, list[str]]()
    for node in [node for node in _nodes(call) if node not in known]:
        wanted.setdefault(settings.template(node, partitions.get(node, ())), []).append(node)
    name, now, requests = call.directories.name, time.time(), dict[str, str]()
    for template, start in [(one, first) for one in filter(None, wanted) for first in range(0, len(wanted[one]), MOST)]:
        with records.changing() as current:
            if new := [node for node in wanted[template][start : start + MOST] if node not in current]:
                made = call.state().record_request(name, template, len(new), created_wall=now, rc_account=SLURM_ACCOUNT)
                current |= dict.fromkeys(new, NodeRecord(made.id))
                requests[made.id] = template
    call.facts.update(requests=requests)
    problems += [f"{slurm_file.FILE}: has no template for node {node}" for node in wanted.get("", ())]
    if problems:
        raise TemplatesError("slurm_resume", "; ".join(problems))
    return json.dumps(requests)


def suspend(call: ScriptCall) -> str:
    """Request the return of the nodes' machines, and remove the nodes' records. Return the machines' names as JSON.

    If a node's machine does not run yet, no return is requested. The demand service returns the machine as soon as it
    runs.
    """
    with SlurmNodes(os.path.join(call.directories.state, SLURM_NODES_FILE)).changing() as records:
        machines = [*filter(None, [records.pop(node).machine for node in _nodes(call) if node in records])]
        if machines:
            call.state().record_return(call.directories.name, machines, created_wall=time.time())
    call.facts.update(machines=machines)
    return json.dumps(machines)


def _nodes(call: ScriptCall) -> list[str]:
    call.facts.update(call.document.root)
    try:
        (hostlist,) = json.loads(call.document.content)["hostlists"]
        return slurm_file.expand(hostlist)
    except ValueError as error:
        raise Refused(f"expected one argument, a hostlist: {error}") from error


def _read_partitions(call: ScriptCall, problems: list[str]) -> Mapping[str, Iterable[str]]:
    """Return the partitions of each node's jobs, as Slurm's resume file lists them. If this file is malformed, add the
    problem to ``problems``.

    In some cases Slurm makes no such file, for example if an operator resumed the node. The result is then empty.
    """
    found: dict[str, list[str]] = {}
    try:
        document = read_json(path) if (path := call.directories.environment.get(RESUME_FILE)) else {"jobs": ()}
        for job in document["jobs"]:  # type: ignore[index]
            for node in slurm_file.expand(job.get("nodes_resume", "")):  # Slurm 22.05 names no partition
                found.setdefault(node, []).append(str(job["partition"]))
    except (TemplatesError, LookupError, AttributeError, TypeError, ValueError) as error:
        problems.append(f"{RESUME_FILE}: {error!r}")
    return found


PROGRAMS: Mapping[str, Callable[[ScriptCall], str]] = dict(zip(SLURM_PROGRAMS, (resume, suspend, suspend), strict=True))
"""Slurm's programs. A node that did not resume in time returns its machine, like a node that is suspended."""
