"""The machines of Slurm's nodes. Slurm calls ``slurm_resume`` and ``slurm_suspend`` to request and return these
machines.

This helper of the demand service tells slurmctld the machine of each node. It also reports nodes that get no machine.

``SlurmPower`` reads the present condition, and makes the changes. ``decide`` derives the changes from the condition. If
a crash interrupts a step, the next step repeats it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from provisioner.demand.plan import ENDED
from provisioner.demand.service import read_requests
from provisioner.demand.simple_sources import run_program_of_source
from provisioner.demand.sources import SourceError
from provisioner.hostfactory import Loss
from provisioner.hostfactory.script_calls import HostFactory
from provisioner.hostfactory.slurm_file import SlurmFile
from provisioner.model import Request
from provisioner.names import SLURM_ACCOUNT, format_printable
from provisioner.state.errors import StateMissing
from provisioner.state.protocols import State
from provisioner.state.slurm_nodes import NodeRecord, SlurmNodes

log = logging.getLogger(__name__)

OUR_REASON = "provisioner: "
"""First part of each reason that this module gives Slurm."""

REVERSIBLE = (OUR_REASON, "ResumeTimeout reached", "Not responding", "Node unexpectedly rebooted")
"""First parts of the reasons of down nodes that may be used again with another machine: our own reasons, and Slurm's
reasons after the loss of a machine. A node that an operator has set down stays down."""

OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN"})
"""States of a node whose machine Slurm has asked to end."""

MOST_NODES = 100
"""Maximum number of nodes of a call of scontrol, so that its arguments stay short."""

LONGEST_REASON = 200
CALL_SECONDS = 30.0
"""Maximum seconds of a call of scontrol. A step that has made changes for so many seconds begins no further call."""

MOST_BYTES = 256 << 20


class SlurmNode(NamedTuple):
    """A node as slurmctld lists it."""

    name: str
    states: frozenset[str]
    host: str
    """NodeHostName: the machine of the node. If the node has no machine, this is the node's own name."""
    address: str
    reason: str
    template: str = ""
    """Template of the node's machines; empty if slurm.json names none."""


class SlurmRequest(NamedTuple):
    """A request that ``slurm_resume`` has made, and its answer."""

    has_ended: bool
    message: str
    machines: Mapping[str, str]
    """Address of each machine that runs or has run, by the machine's name."""
    template: str = ""
    """Template of the request; empty if intent does not have the request."""
    coming: int = 0
    """Number of machines that may still begin to run."""


class Condition(NamedTuple):
    """The inputs of ``decide``."""

    records: Mapping[str, NodeRecord]
    nodes: Mapping[str, SlurmNode]
    """The nodes that have a record or a template. They are read after the records."""
    requests: Mapping[str, SlurmRequest]
    """Requests that intent has or a record names. The answer to a request that has left the files has no machines."""
    lost: Mapping[str, Loss]
    returned: Set[str]
    """Machines that a return request names."""
    unserved: Set[str] = frozenset()
    """Nodes that boot without a record, now and in the step before. Possible causes: ``slurm_resume`` was refused or
    has crashed, or the file of the records was lost."""


class Update(NamedTuple):
    """A change of a node by ``scontrol update``: a new state, or else a new address and host name."""

    node: str
    state: str = ""
    reason: str = ""
    address: str = ""
    host: str = ""


class Decision(NamedTuple):
    """Changes, in the order in which they are made."""

    returns: list[str]
    """Machines to return."""
    records: dict[str, NodeRecord]
    """All records after the step."""
    updates: list[Update]


def decide(now: Condition) -> Decision:
    """Return the changes.

    A node with a record gets a machine of the request that the record names. If this request makes no machine for the
    node, or if the machine is lost, the node is set to DOWN or powered down. Machines that no node needs any more are
    returned.
    """
    on = {name: node for name, node in now.nodes.items() if not node.states & OFF}
    taken = {record.machine for record in now.records.values()} | now.returned
    spare = {one: id_ for id_, request in now.requests.items() for one in request.machines if one not in taken}
    records = _find_records(now, on, spare)
    _give(now, records, spare.keys() - now.lost.keys() - {node.host for node in now.nodes.values()})
    unneeded = {record.machine for name, record in now.records.items() if name not in on} | spare.keys()
    needed = {record.machine for record in records.values()} | now.returned | {""}
    return Decision(sorted(unneeded - needed), records, [*_updates(now, records)])


def _find_records(now: Condition, on: Mapping[str, SlurmNode], spare: Mapping[str, str]) -> dict[str, NodeRecord]:
    """Return the records of the nodes that are on.

    If a node has a machine, but its record is lost or names no machine yet, make the record from the node's host name,
    which is the machine's name.
    """
    found = {node.host: name for name, node in on.items() if node.host in spare}
    older = {name: NodeRecord(spare[host], host) for host, name in found.items()}
    return older | {name: one for name, one in now.records.items() if name in on and (one.machine or name not in older)}


def _give(now: Condition, records: dict[str, NodeRecord], usable: Set[str]) -> None:
    """Give the usable machines to the nodes that wait for a machine.

    An unserved node gets a record if a request of its template has a spare machine.
    """
    free = {id_: sorted(usable & one.machines.keys()) + [""] * one.coming for id_, one in now.requests.items()}
    for name, record in records.items():
        if not record.machine or (_is_replaced(now, record) and "POWERING_UP" in now.nodes[name].states):
            records[name] = record._replace(machine=(free[record.request] or [""]).pop(0))
    for name in sorted(now.unserved - records.keys()):
        fitting = (id_ for id_ in free if free[id_] and now.requests[id_].template == now.nodes[name].template)
        if id_ := next(fitting, ""):
            records[name] = NodeRecord(id_, free[id_].pop(0))


def _is_replaced(now: Condition, record: NodeRecord) -> bool:
    """Return True if the answer to the request no longer names the record's machine.

    There are two causes. The machine may have ended while the request was open, so that the request makes another
    machine. Or the request's machines have all ended, and the files no longer contain the request.

    If the request is open and its answer has no machines, return False, because the loop may not have published the
    answer again.
    """
    request = now.requests[record.request]
    return bool(record.machine and (request.has_ended or request.machines)) and record.machine not in request.machines


def _find_end(now: Condition, record: NodeRecord | None) -> tuple[str, str]:
    """Return the state that a node must get if it has no machine or will lose its machine. Also return the reason. If
    the node needs no new state, both texts are empty.

    The reason contains no machine's name, so that one call can change all nodes with the same reason.
    """
    if record is None:
        return "DOWN", "slurm_resume recorded no request; see its log"
    machine, request, loss = record.machine, now.requests[record.request], now.lost.get(record.machine)
    if not machine:
        return ("DOWN", request.message or "no machine was made") if request.has_ended else ("", "")
    if machine in now.returned or _is_replaced(now, record) or (loss and loss.grace == 0):
        cause = "returned" if machine in now.returned else loss.cause if loss else "gone"
        return "POWER_DOWN_FORCE", f"machine lost: {cause}"
    return ("POWER_DOWN_ASAP", f"machine ends in {loss.grace} s: {loss.cause}") if loss else ("", "")


def _updates(now: Condition, records: Mapping[str, NodeRecord]) -> Iterator[Update]:
    for name in [*records, *sorted(now.unserved - records.keys())]:
        yield from _update(now, now.nodes[name], records.get(name))
    down = [node for node in now.nodes.values() if {"DOWN", "POWERED_DOWN"} <= node.states]
    yield from (Update(node.name, "RESUME") for node in down if node.reason.startswith(REVERSIBLE))


def _update(now: Condition, node: SlurmNode, record: NodeRecord | None) -> Iterator[Update]:
    """Yield the updates that a node still needs."""
    state, cause = _find_end(now, record)
    reason = (OUR_REASON + format_printable(cause))[:LONGEST_REASON]
    if state == "DOWN" or (state == "POWER_DOWN_FORCE" and "POWERING_UP" in node.states):
        # DOWN requeues the job and forgets the boot, which POWER_DOWN alone does not.
        if not {"DOWN", "POWER_DOWN"} <= node.states:
            yield from (Update(node.name, one, reason) for one in ("DOWN", "POWER_DOWN"))
    elif state == "POWER_DOWN_FORCE" or (state and node.states.isdisjoint({"DRAIN", "POWER_DOWN"})):
        yield Update(node.name, state, reason)
    elif not state and record and record.machine in now.requests[record.request].machines:
        address = now.requests[record.request].machines[record.machine] or record.machine
        if (node.host, node.address) != (record.machine, address):
            yield Update(node.name, address=address, host=record.machine)


def parse_nodes(listing: str, settings: SlurmFile) -> Iterator[SlurmNode]:
    """Yield the nodes in the output of ``scontrol --oneliner show nodes``."""
    for line in filter(lambda line: line.startswith("NodeName="), listing.splitlines()):
        shown, _, reason = line.partition(" Reason=")
        # A comment at the end of the line may contain anything, so the first value counts.
        fields: dict[str, str] = dict(reversed(re.findall(r"(\w+)=(\S*)", shown)))
        name, states = fields["NodeName"], frozenset(re.findall(r"[A-Z_]+", fields.get("State", "")))
        template = settings.template(name, fields.get("Partitions", "").split(","))
        yield SlurmNode(name, states, fields.get("NodeHostName", name), fields.get("NodeAddr", name), reason, template)


class SlurmPower:
    """Slurm's nodes and their machines, in steps. Only one process may take steps."""

    def __init__(self, settings: SlurmFile, records: SlurmNodes, calls: HostFactory, states: Sequence[State]) -> None:
        """Store the arguments. ``states``: the state of each shard."""
        self._settings, self._records, self._calls, self._states = settings, records, calls, states
        self._ended, self._unserved = dict[str, SlurmRequest](), set[str]()
        """``_ended``: requests in intent that have ended. Their answers never change (law: a terminal answer stays)."""

    def step(self) -> None:
        """Read the condition, and make the changes that ``decide`` names. Raises SourceError if slurmctld does not
        respond or is slow. Raises ScriptFailed if a script fails, and StateError if the state cannot be read."""
        now = self._read()
        decision = decide(now)
        if decision.returns:
            self._calls.return_machines(decision.returns)
        after = self._records.change(now.records, decision.records)
        # A node whose record differs now was suspended or resumed meanwhile.
        updates = [one for one in decision.updates if after.get(one.node) == decision.records.get(one.node)]
        begin = monotonic()
        for key in dict.fromkeys((update.state, update.reason) for update in updates):
            group = [update for update in updates if (update.state, update.reason) == key]
            for start in range(0, len(group), MOST_NODES):
                if monotonic() - begin >= CALL_SECONDS:
                    raise SourceError("scontrol is slow, so the next step makes the other changes")
                _change_nodes(group[start : start + MOST_NODES])

    def _read(self) -> Condition:
        """Return the present condition.

        The requests are polled first, because slurmctld may not respond for long. If the requests were polled after
        slurmctld's response, they might count as forgotten in the meantime.
        """
        with self._records.changing() as current:  # Slurm's programs write both under this lock
            records, (known, returns) = dict(current), read_requests(self._states, SLURM_ACCOUNT)
        requests, lost = self._read_requests(known, records), dict[str, Loss]()
        listed = parse_nodes(_scontrol("--all", "--oneliner", "show", "nodes"), self._settings)
        nodes = {node.name: node for node in listed if node.template or node.name in records}
        if not nodes:
            raise SourceError("scontrol lists no node of slurm.json; set PrivateData=cloud in slurm.conf")
        for state in self._states:
            with suppress(StateMissing):  # the loop has not written it yet
                lost |= state.status.read_lost()
        unserved = {name for name, node in nodes.items() if name not in records and "POWERING_UP" in node.states}
        again, self._unserved = self._unserved & unserved, unserved
        return Condition(records, nodes, requests, lost, set[str]().union(*returns.values()), again)

    def _read_requests(self, known: Mapping[str, Request], named: Mapping[str, NodeRecord]) -> dict[str, SlurmRequest]:
        """Return the requests that intent has or a record names. Raises ScriptFailed."""
        read = {id_: self._ended[id_] for id_ in known if id_ in self._ended}
        if asked := [*(known.keys() | {record.request for record in named.values()}) - read.keys()]:
            answers = self._calls.statuses(asked)
            read |= {one["requestId"]: _request(one, known.get(one["requestId"])) for one in answers}
        self._ended = {id_: request for id_, request in read.items() if request.has_ended and id_ in known}
        return read


def _change_nodes(updates: Sequence[Update]) -> None:
    """Call scontrol once for a group of nodes.

    The nodes all get the same state, or each node gets its own address. If Slurm refuses the change, log the refusal.
    Other changes still follow, and the next step tries again.
    """
    names, (state, *_), (reason, *_), addresses, hosts = zip(*updates, strict=True)
    fields = {"nodename": names, "state": [state], "reason": [reason], "nodeaddr": addresses, "nodehostname": hosts}
    change = [f"{key}={','.join(values)}" for key, values in fields.items() if all(values)]
    try:
        _scontrol("update", *change)
        log.info("Changed nodes of Slurm", extra={"change": change})
    except SourceError as error:
        log.warning("Slurm refused a change", extra={"change": change, "error": str(error)})


def _scontrol(*arguments: str) -> str:
    """Return the output of scontrol. Raises SourceError."""
    return run_program_of_source(["scontrol", *arguments], CALL_SECONDS, MOST_BYTES)


def _request(entry: Mapping[str, Any], request: Request | None) -> SlurmRequest:
    """Return a request and its answer, from an entry of getRequestStatus. ``request``: the request in intent; None if
    intent does not have it."""
    machines, has_ended = entry["machines"], entry["status"] in ENDED
    failed = [one["message"] for one in machines if one["result"] == "fail"]
    running = {one["machineId"]: one["privateIpAddress"] or "" for one in machines if one["result"] == "succeed"}
    template, count = (request.template, request.count) if request else ("", 0)
    coming = 0 if has_ended else max(0, count - len(failed) - len(running))
    return SlurmRequest(has_ended, entry["message"] or next(filter(None, failed), ""), running, template, coming)
