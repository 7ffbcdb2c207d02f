"""Slurm's ResumeProgram, SuspendProgram and ResumeFailProgram: Slurm as the caller in HostFactory's place.

Each program gets a hostlist, records requests or return requests as HostFactory's scripts do, and notes the request of
each node. The demand service does the rest (``demand/slurm_power.py``). Slurm may call a program twice, and reads only
the exit code: 0 if all nodes were served, and 1 if not.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial

from hf_scripts import commands, log
from hf_scripts.commands import ScriptCall
from hf_scripts.input_documents import Document, Refused
from provisioner.hostfactory import slurm_file, templates
from provisioner.hostfactory.provider_config import Directories, DirectoryError, TemplatesError, read_json
from provisioner.names import format_printable
from provisioner.state.directory import SLURM_NODES_FILE
from provisioner.state.errors import StateError
from provisioner.state.opening import open_script_state
from provisioner.state.slurm_nodes import NodeRecord, SlurmNodes

RESUME_FILE = "SLURM_RESUME_FILE"
"""Environment variable with the path of the file in which Slurm names the jobs of the nodes."""


class SlurmCall:
    """A call of one of Slurm's programs, with the problems that it has met."""

    def __init__(self, program: str, environment: Mapping[str, str]) -> None:
        self.directories = Directories(environment)
        self.program = program
        self.problems: list[str] = []
        self.recorded: list[Mapping[str, object]] = []
        """The facts about each recorded request, for the log."""
        self._state = cache(partial(open_script_state, self.directories))

    @property
    def records(self) -> SlurmNodes:
        """Return the file with the record of each node. Raises DirectoryError."""
        return SlurmNodes(os.path.join(self.directories.state, SLURM_NODES_FILE))

    def call(self, command: Callable[[ScriptCall], str], document: object) -> str:
        """Call one of HostFactory's scripts in this process. Return the id of the request that the script recorded;
        empty if the call was refused, which is then one of the problems."""
        sent = Document(self.program, json.dumps(document).encode())
        facts: dict[str, object] = {}
        try:
            answer = json.loads(command(ScriptCall(sent, self.directories, facts, self._state)))
        except (Refused, TemplatesError, StateError) as error:
            self.problems.append(str(error))
            return ""
        self.recorded.append(facts)
        return str(answer["requestId"])


def resume(call: SlurmCall, nodes: Sequence[str]) -> None:
    """Request a machine for each node without a record: one request for each template."""
    provider = templates.load(call.directories.conf, call.directories.environment, call.directories.config_file)
    settings, problems = slurm_file.load(call.directories.conf, [template.id for template in provider.templates])
    if settings is None:
        raise Refused(f"{slurm_file.FILE}: no such file in {call.directories.conf}")
    call.problems += [f"{problem.file}: {problem}" for problem in problems]
    partitions = _read_partitions(call)
    with call.records.changing() as records:
        wanted: dict[str, list[str]] = {}
        for node in nodes:
            if node not in records:
                wanted.setdefault(settings.template(node, partitions.get(node, ())), []).append(node)
        for node in wanted.pop("", ()):
            call.problems.append(f"{slurm_file.FILE}: has no template for node {node}")
        for template, names in wanted.items():
            document = {
                "template": {"templateId": template, "machineCount": len(names)},
                "rc_account": slurm_file.RC_ACCOUNT,
            }
            if id_ := call.call(commands.request_machines, document):
                records |= dict.fromkeys(names, NodeRecord(id_))


def _read_partitions(call: SlurmCall) -> Mapping[str, Iterable[str]]:
    """Return the partitions of each node's jobs; empty if Slurm has made no such file, as for a node that an operator
    has resumed."""
    found: dict[str, list[str]] = {}
    try:
        document = read_json(call.directories.environment[RESUME_FILE])
        for job in document["jobs"]:  # type: ignore[index]
            for node in slurm_file.expand(job.get("nodes_resume", "")):  # Slurm 22.05 names no partition
                found.setdefault(node, []).append(job["partition"])
    except KeyError as error:
        if error.args != (RESUME_FILE,):
            call.problems.append(f"{RESUME_FILE}: lacks {error}")
    except (TemplatesError, AttributeError, TypeError, ValueError) as error:
        call.problems.append(f"{RESUME_FILE}: {error}")
    return found


def suspend(call: SlurmCall, nodes: Sequence[str]) -> None:
    """Return the machines of the nodes, and remove the records of the nodes.

    A machine that is still on its way is returned by the demand service when it runs, because no node has it then.
    """
    with call.records.changing() as records:
        known = {node: records[node].machine for node in nodes if node in records}
        machines = [{"name": name, "machineId": name} for name in known.values() if name]
        if machines and not call.call(commands.request_return_machines, {"machines": machines}):
            return
        for node in known:
            del records[node]


PROGRAMS: Mapping[str, Callable[[SlurmCall, Sequence[str]], None]] = {
    "slurm_resume": resume,
    "slurm_suspend": suspend,
    "slurm_resume_fail": suspend,
}
"""Slurm's programs. A node that failed to resume in time gives its machine back like a node that is suspended."""


def run(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program with Slurm's arguments, log the call, and return the exit code."""
    started = time.monotonic()
    call = SlurmCall(program, environment)
    try:
        if len(arguments) != 1:
            raise Refused(f"usage: {program}.sh HOSTLIST")
        PROGRAMS[program](call, slurm_file.expand(arguments[0]))
    except (Refused, DirectoryError, TemplatesError, StateError, ValueError) as error:
        call.problems.append(str(error))
    facts: dict[str, object] = {"command": program, "nodes": arguments, "requests": call.recorded}
    problem = format_printable("; ".join(call.problems))
    if problem:
        facts["problem"] = problem
        print(problem, flush=True)
    facts["seconds"] = round(time.monotonic() - started, 4)
    level, message = ("ERROR", "Refused nodes of Slurm") if problem else ("INFO", "Answered Slurm")
    log.append(call.directories, level, message, facts)
    return int(bool(problem))
