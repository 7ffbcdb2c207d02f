"""The machines of Slurm's nodes. Slurm calls ``slurm_resume`` and ``slurm_suspend``, and this helper of the demand
service tells slurmctld which machine a node has, and which nodes get none.

``decide`` concludes from the present condition what has to change. ``SlurmPower`` reads the condition and acts. A step
that a crash interrupts is repeated.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from provisioner.demand.plan import ENDED
from provisioner.demand.service import read_requests
from provisioner.demand.simple_sources import run_program_of_source
from provisioner.demand.sources import SourceError
from provisioner.hostfactory import Loss
from provisioner.hostfactory.script_calls import HostFactory
from provisioner.hostfactory.slurm_file import RC_ACCOUNT, SlurmFile
from provisioner.names import format_printable
from provisioner.state.errors import StateMissing
from provisioner.state.protocols import State
from provisioner.state.slurm_nodes import NodeRecord, SlurmNodes

log = logging.getLogger(__name__)

OUR_REASON = "provisioner: "
"""First part of each reason that this module gives Slurm."""

REVERSIBLE = (OUR_REASON, "ResumeTimeout reached")
"""First parts of the reasons of nodes that may be used again. An operator's node that is down stays down."""

OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN"})
"""States of a node whose machine Slurm has asked to end."""

MOST_NODES = 100
"""Most nodes of a call of scontrol, so that its arguments stay short."""

LONGEST_REASON = 200
CALL_SECONDS = 30.0
MOST_BYTES = 256 << 20


class SlurmNode(NamedTuple):
    """A node as slurmctld lists it."""

    name: str
    states: frozenset[str]
    host: str
    """NodeHostName: the machine of the node. If the node has no machine, this is the node's own name."""
    address: str
    reason: str


class SlurmRequest(NamedTuple):
    """A request that ``slurm_resume`` has made, and its answer."""

    id: str
    has_ended: bool
    message: str
    machines: Mapping[str, str]
    """Address of each machine that runs or has run, by the machine's name."""


class Condition(NamedTuple):
    """All that ``decide`` knows."""

    records: Mapping[str, NodeRecord]
    nodes: Mapping[str, SlurmNode]
    """The nodes that have a record or a template, as read after the records."""
    requests: Mapping[str, SlurmRequest]
    """Requests in intent, which was read before the records."""
    lost: Mapping[str, Loss]
    returned: frozenset[str]
    """Machines that a return request names."""


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
    """Return what has to change: each node with a record gets a machine of its request, or its end. Machines that no
    node needs any more are returned."""
    off = {name for name in now.records if name not in now.nodes or now.nodes[name].states & OFF}
    records, spare = _with_lost_records(now, {name: one for name, one in now.records.items() if name not in off})
    for name, record in records.items():
        if not record.machine or (_is_replaced(now, record) and "POWERING_UP" in now.nodes[name].states):
            usable = (one for one, id_ in spare.items() if id_ == record.request and one not in now.lost)
            records[name] = record._replace(machine=next(usable, ""))
            spare.pop(records[name].machine, None)
    returns = {now.records[name].machine for name in off} - now.returned - {""}
    return Decision(sorted(returns | spare.keys()), records, [*_updates(now, records)])


def _with_lost_records(now: Condition, records: dict[str, NodeRecord]) -> tuple[dict[str, NodeRecord], dict[str, str]]:
    """Return the records with those that were lost with their file, which follow from the host names. Return also the
    request of each machine that no node has."""
    taken = {record.machine for record in now.records.values()} | now.returned
    spare = {one: request.id for request in now.requests.values() for one in request.machines if one not in taken}
    lost = {
        node.name: NodeRecord(spare.pop(node.host), node.host)
        for node in now.nodes.values()
        if node.name not in now.records and not node.states & OFF and node.host in spare
    }
    return records | lost, spare


def _is_replaced(now: Condition, record: NodeRecord) -> bool:
    """Return True if the machine ended before its request, so that the request makes another machine."""
    request = now.requests.get(record.request)  # a request that has left intent is unknown
    return bool(record.machine) and request is not None and record.machine not in request.machines


def _find_end(now: Condition, record: NodeRecord) -> tuple[str, str]:
    """Return the state by which a node ends, and the reason; empty texts if the node goes on."""
    machine, request, loss = record.machine, now.requests.get(record.request), now.lost.get(record.machine)
    if not machine:
        return ("DOWN", request.message or "no machine was made") if request and request.has_ended else ("", "")
    if machine in now.returned or _is_replaced(now, record) or (loss and loss.grace == 0):
        cause = "returned" if machine in now.returned else loss.cause if loss else "gone"
        return "POWER_DOWN_FORCE", f"machine {machine}: {cause}"
    return ("POWER_DOWN_ASAP", f"machine {machine} ends in {loss.grace} s: {loss.cause}") if loss else ("", "")


def _updates(now: Condition, records: Mapping[str, NodeRecord]) -> Iterator[Update]:
    for name, record in records.items():
        yield from _update(now, now.nodes[name], record)
    for node in now.nodes.values():
        if {"DOWN", "POWERED_DOWN"} <= node.states and node.reason.startswith(REVERSIBLE):
            yield Update(node.name, "RESUME")


def _update(now: Condition, node: SlurmNode, record: NodeRecord) -> Iterator[Update]:
    """Yield the updates of a node that is not as it has to be."""
    state, cause = _find_end(now, record)
    reason = (OUR_REASON + format_printable(cause))[:LONGEST_REASON]
    if state == "DOWN" or (state == "POWER_DOWN_FORCE" and "POWERING_UP" in node.states):
        # DOWN requeues the job and forgets the boot, which POWER_DOWN alone does not.
        if not {"DOWN", "POWER_DOWN"} <= node.states:
            yield Update(node.name, "DOWN", reason)
            yield Update(node.name, "POWER_DOWN", reason)
    elif state == "POWER_DOWN_FORCE" or (state and node.states.isdisjoint({"DRAIN", "POWER_DOWN"})):
        yield Update(node.name, state, reason)
    elif not state and record.machine and record.request in now.requests:
        address = now.requests[record.request].machines[record.machine] or record.machine
        if (node.host, node.address) != (record.machine, address):
            yield Update(node.name, address=address, host=record.machine)


def parse_nodes(listing: str) -> Iterator[tuple[SlurmNode, Sequence[str]]]:
    """Yield the nodes in the output of ``scontrol --oneliner show nodes``, each with its partitions."""
    for line in filter(lambda line: line.startswith("NodeName="), listing.splitlines()):
        shown, _, reason = line.partition(" Reason=")
        # A comment at the end of the line may contain anything, so the first value counts.
        fields: dict[str, str] = dict(reversed(re.findall(r"(\w+)=(\S*)", shown)))
        name, states = fields["NodeName"], frozenset(re.findall(r"[A-Z_]+", fields.get("State", "")))
        host, address = fields.get("NodeHostName", name), fields.get("NodeAddr", name)
        yield SlurmNode(name, states, host, address, reason), fields.get("Partitions", "").split(",")


class SlurmPower:
    """Slurm's nodes and their machines, in steps. Only one process may take steps."""

    def __init__(self, settings: SlurmFile, records: SlurmNodes, calls: HostFactory, states: Sequence[State]) -> None:
        """Store the arguments. ``states``: the state of each shard."""
        self._settings, self._records, self._calls, self._states = settings, records, calls, states
        self._ended: dict[str, SlurmRequest] = {}
        """Requests that have ended. Their answers never change (law: a terminal answer stays)."""

    def step(self) -> None:
        """Read the condition, and make the changes that ``decide`` names. Raises SourceError if slurmctld does not
        answer, ScriptFailed, and StateError."""
        now = self._read()
        decision = decide(now)
        if decision.returns:
            self._calls.return_machines(decision.returns)
        self._records.change(now.records, decision.records)
        for key in dict.fromkeys((update.state, update.reason) for update in decision.updates):
            group = [update for update in decision.updates if (update.state, update.reason) == key]
            for start in range(0, len(group), MOST_NODES):
                _change_nodes(group[start : start + MOST_NODES])

    def _read(self) -> Condition:
        """Return the present condition. Intent comes before the records, and the records before the nodes."""
        requests, returns = read_requests(self._states, RC_ACCOUNT)
        with self._records.changing() as current:  # a program that has recorded a request has recorded its nodes, too
            records = dict(current)
        nodes = {
            node.name: node
            for node, partitions in parse_nodes(_scontrol("--all", "--oneliner", "show", "nodes"))
            if node.name in records or self._settings.template(node.name, partitions)
        }
        if not nodes:
            raise SourceError("scontrol lists no node of slurm.json; set PrivateData=cloud in slurm.conf")
        lost: dict[str, Loss] = {}
        for state in self._states:
            with suppress(StateMissing):  # the loop has not written it yet
                lost |= state.status.read_lost()
        return Condition(records, nodes, self._read_requests(requests), lost, frozenset[str]().union(*returns.values()))

    def _read_requests(self, ids: Iterable[str]) -> dict[str, SlurmRequest]:
        read = {id_: self._ended[id_] for id_ in ids if id_ in self._ended}
        if asked := [id_ for id_ in ids if id_ not in read]:
            read |= {entry["requestId"]: _request(entry) for entry in self._calls.statuses(asked)}
        self._ended = {id_: request for id_, request in read.items() if request.has_ended}
        return read


def _change_nodes(updates: Sequence[Update]) -> None:
    """Call scontrol for nodes that get the same state, or an address each. If Slurm refuses, log the refusal: the next
    step tries again, and the other nodes go on."""
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


def _request(entry: Mapping[str, Any]) -> SlurmRequest:
    """Return the request in an entry of getRequestStatus."""
    machines = entry["machines"]
    failed = (one["message"] for one in machines if one["result"] == "fail" and one["message"])
    running = {one["machineId"]: one["privateIpAddress"] or "" for one in machines if one["result"] == "succeed"}
    return SlurmRequest(entry["requestId"], entry["status"] in ENDED, entry["message"] or next(failed, ""), running)
