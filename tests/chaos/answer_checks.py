"""Checks that compare each script's output with earlier answers to HostFactory and with the cloud's chronicle. The
checks do not use the loop's own reports. Methods that change a ledger hold its lock, because several threads use the
ledger. ``Ledger.broken`` has a line for each broken law, with the law's name."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jsonschema import ValidationError

from provisioner.backends.gke.own_pods import ID_LABEL, REQUEST_LABEL
from provisioner.names import get_request_id
from tests.simulation.laws import Law
from tests.support.hostfactory.provider import Called
from tests.support.hostfactory.schemas import check_output

PREFIX, PROVISIONER = "hf", "chaos"
ENDED = ("complete", "complete_with_error")
MUTATING = ("requestMachines", "requestReturnMachines")
STILL_WELL = frozenset(
    {"denied", "empty_page", "hang", "http_error", "invalid", "list_error", "list_lag", "lost_response", "moved_page"}
    | {"no_watchlist", "op_error", "op_gone", "op_stuck", "paginated", "partial_list", "precondition", "reset"}
    | {"throttled", "token_expired", "unavailable", "watch_cut", "watch_gone"}
    | {"attempt_error", "clock_skew", "false_start", "ip_exhausted", "no_ip", "quota", "size_limit", "slow_start"}
    | {"no_node_fits", "stockout", "unknown_words"}
)
"""Faults that do not harm a running machine. They are no reason to report a machine as lost."""


@dataclass(eq=False)
class Call:
    """A run of a script."""

    number: int
    script: str
    document: Mapping[str, Any]
    began: float
    life: int
    """The number of HF's life in which the call was made. If that life has ended, HF has never read the output."""
    called: Called | None = None
    killed: bool = False

    @property
    def is_cut(self) -> bool:
        """Return True if the script may have recorded an id without printing it."""
        return self.killed or (self.called is not None and "no usable response" in self.called.out)

    @property
    def asked(self) -> list[str]:
        """Return the ids of the requests that the call asks about."""
        return [entry["requestId"] for entry in self.document.get("requests", ())]

    @property
    def names(self) -> list[str]:
        """Return the names of the machines in the call's input."""
        return [entry["name"] for entry in self.document.get("machines", ())]


@dataclass
class HfView:
    """The content of HF's database. When HF loses its database, a new and empty view replaces this one."""

    hosts: set[str] = field(default_factory=set)
    requests: set[str] = field(default_factory=set)
    """Requests whose end was not reported to HF yet."""
    returns: dict[str, list[str]] = field(default_factory=dict)
    """The machines of each return that has not ended."""
    to_return: set[str] = field(default_factory=set)
    """Hosts that the provisioner has asked HF to return, and hosts whose return failed."""


class Ledger:
    """A record of one run, by which the laws are checked."""

    def __init__(self, caps: Mapping[str, int]) -> None:
        """Begin an empty ledger. ``caps``: the number of machines of one template that a namespace or group may have at
        most."""
        self._caps = caps
        self.lock = threading.RLock()
        self.hf = HfView()
        self.life = 0
        self.calls: list[Call] = []
        self.broken: list[str] = []
        self.templates: dict[str, tuple[str, int]] = {}
        """Template and number of machines of each request that a script printed or that was found in intent."""
        self.printed: set[str] = set()
        """Ids of requests and returns that a script printed."""
        self.recorded: set[str] = set()
        """Ids that were ever seen in intent."""
        self.terminal: dict[str, str] = {}
        """The terminal entry of each request as it was first printed, by id."""
        self.known_since: dict[str, float] = {}
        """Machines of terminal answers, and the time since which HF has them."""
        self.returned: dict[str, float] = {}
        """Machines that HF asked to return, and the time of HF's first such call."""
        self.perhaps_reported: set[str] = set()
        """Ids of requests that may have ended in an answer which HF never read: its script was killed, or HF lost its
        database meanwhile."""
        self.unreported: set[str] = set()
        """Requests whose end was not reported to HF before HF forgot them."""
        self.memory_made_again = False
        """True if the provisioner's memory was damaged. A rebuilt memory may assume that running machines were reported
        to HF."""
        self.forgotten: dict[str, float] = {}
        """Hosts that HF forgot with its database and that no operator has returned yet, with the time of the loss."""
        self.taken: set[str] = set()
        """Machines that the harness itself took away."""
        self.struck: dict[str, set[str]] = {}
        """The modes of the faults that struck each target."""
        self.made: Counter[str] = Counter()
        self.foreign: set[str] = set()

    def breaks(self, law: Law, words: str) -> None:
        """Record that a law is broken."""
        with self.lock:
            line = f"{law}: {words}"
            if line not in self.broken:
                self.broken.append(line)

    # --- calls --------------------------------------------------------------------------------------------------------

    def begins(self, script: str, document: Mapping[str, Any]) -> Call:
        """Record that a script is about to run. Return the record of this call."""
        with self.lock:
            call = Call(len(self.calls), script, document, time.time(), self.life)
            self.calls.append(call)
            if script == "requestReturnMachines":
                for name in call.names:
                    self.returned.setdefault(name, call.began)
            return call

    def ends(self, call: Call, called: Called, *, killed: bool = False) -> None:
        """Record that a script ended by itself, or that the harness killed it. Check the script's output."""
        with self.lock:
            call.called, call.killed = called, killed and called.code < 0
            if call.killed or call.life != self.life:
                self.perhaps_reported.update(call.asked)
            if call.killed:
                return
            document = self._well_formed(call, called)
            if document is not None:
                self._record_output(call, document)

    def _well_formed(self, call: Call, called: Called) -> Any:
        """Return the printed document. Return None for a refusal, or for an output that breaks the interface."""
        try:
            if called.code:
                assert called.refusal
                return None
            document = called.document
            check_output(call.script, document)
        except (AssertionError, ValidationError, ValueError) as error:
            self.breaks(Law.ANSWERED, f"call {call.number}, {call.script}, ended so: {called}: {error}")
            return None
        return document

    def _record_output(self, call: Call, document: Any) -> None:
        if call.script in MUTATING:
            self._accepted(call, str(document["requestId"]))
        elif call.script == "getRequestStatus":
            for entry in document["requests"]:
                self._record_entry(call, entry)
        elif call.script == "getReturnRequests" and call.life == self.life:
            under_way = {name for names in self.hf.returns.values() for name in names}
            self.hf.to_return |= {entry["machine"] for entry in document["requests"]} & self.hf.hosts - under_way

    def _accepted(self, call: Call, id_: str) -> None:
        if id_ in self.printed:
            self.breaks(Law.NAMED_ONCE, f"{id_} was printed twice")
        self.printed.add(id_)
        lives = call.life == self.life
        if call.script == "requestMachines":
            template = call.document["template"]
            self.templates[id_] = template["templateId"], template["machineCount"]
            if lives:
                self.hf.requests.add(id_)
        elif lives:
            self.hf.returns[id_] = call.names
            self.hf.to_return -= set(call.names)
            self.forgotten = {name: at for name, at in self.forgotten.items() if name not in call.names}

    def _record_entry(self, call: Call, entry: Mapping[str, Any]) -> None:
        id_, status = entry["requestId"], entry["status"]
        before, text = self.terminal.get(id_), json.dumps(entry, sort_keys=True)
        if before not in (None, text):
            self.breaks(Law.STAYS, f"call {call.number}: {id_} was reported as {before}, now as {text}")
        if status in ENDED and before is None:
            self.terminal[id_] = text
            self._check_end(id_, entry)
        if status in ENDED and call.life == self.life:
            self._act_on(id_, entry)

    def _check_end(self, id_: str, entry: Mapping[str, Any]) -> None:
        if id_ not in self.templates:
            return
        succeeded, (_, count) = succeeded_of(entry), self.templates[id_]
        if len(succeeded) > count or (entry["status"] == "complete" and len(succeeded) != count):
            self.breaks(Law.PROVEN, f"{id_} of {count} is {entry['status']} with {len(succeeded)}")
        for name in succeeded:
            if get_request_id(PREFIX, name) != id_:
                self.breaks(Law.NAMED_ONCE, f"{name} is reported as a machine of {id_}")
            self.known_since.setdefault(name, time.time())

    def _act_on(self, id_: str, entry: Mapping[str, Any]) -> None:
        """Change HF's database as HF does when it gets a terminal answer for the first time. A repeated answer has no
        effect."""
        hf = self.hf
        if id_ in hf.requests:
            hf.requests.discard(id_)
            hf.hosts |= set(succeeded_of(entry))
        elif (names := hf.returns.pop(id_, None)) is not None:
            failed = {machine["name"] for machine in entry["machines"] if machine["result"] == "fail"}
            hf.hosts -= set(names) - failed
            hf.to_return |= failed & hf.hosts

    def restarted(self) -> None:
        """Record that HF has lost its database and begins with an empty one."""
        with self.lock:
            self.life += 1
            self.forgotten |= dict.fromkeys(self.hf.hosts, time.time())
            self.unreported |= self.hf.requests
            self.hf = HfView()

    def records(self, requests: Mapping[str, tuple[str, int]], returns: Collection[str]) -> None:
        """Record what intent contains now. ``requests``: template and number of machines by request id. ``returns``:
        the ids of return requests."""
        with self.lock:
            self.recorded |= requests.keys() | set(returns)
            for id_, wanted in requests.items():
                self.templates.setdefault(id_, wanted)

    # --- the cloud ----------------------------------------------------------------------------------------------------

    def disturbed(self, name: str) -> bool:
        """Return True if something other than the provisioner took this machine away or made it fail."""
        return name in self.taken or bool(self.struck.get(name, set()) - STILL_WELL)

    def happens(self, event: Mapping[str, Any]) -> None:
        """Record an event from the cloud's chronicle, and check it."""
        with self.lock:
            if event["what"] == "struck":
                for target in event["targets"]:
                    self.struck.setdefault(target, set()).add(event["mode"])
            elif event["what"] == "made":
                self._is_made(event)
            elif event["name"] not in self.taken:
                self._is_deleted(event)

    def _is_made(self, event: Mapping[str, Any]) -> None:
        name, pool = event["name"], event["pool"]
        if not is_ours(name, event["labels"]):
            return
        self.made[name] += 1
        # A call that hung may take effect after another call's machine has gone; a group's call has no names.
        late = "hang" in self.struck.get(name if event["labels"] else "instanceGroupManagers.createInstances", set())
        excused = late or (self.disturbed(name) and name not in self.known_since)
        if self.made[name] > 1 and not excused:
            self.breaks(Law.NAMED_ONCE, f"{name} is made {self.made[name]} times, now in {pool}")
        held = [(one, labels) for one, labels in event["held"] if labels or not self._is_unknowable(one)]
        present = Counter(self._template_of(one, labels) for one, labels in held if is_ours(one, labels))
        for template, count in present.items():
            if template and count > self._caps[pool]:
                self.breaks(Law.PROVEN, f"{count} machines of {template} in {pool}, cap {self._caps[pool]}, by {name}")

    def _template_of(self, name: str, labels: Mapping[str, str]) -> str:
        return self.templates.get(labels.get(REQUEST_LABEL) or get_request_id(PREFIX, name), ("", 0))[0]

    def _is_deleted(self, event: Mapping[str, Any]) -> None:
        name, pool = event["name"], event["pool"]
        if not is_ours(name, event["labels"]):
            self.breaks(Law.REASONED, f"{name} in {pool} is not ours and is deleted")
        elif event["phase"] == "running" and self._is_hosts(name, event["at"]) and not self.disturbed(name):
            self.breaks(Law.PROVEN, f"{name} in {pool} runs, HF has it, and it is deleted")

    def _is_hosts(self, name: str, at: float) -> bool:
        """Return True if HF got the machine before ``at`` and had not requested its return by then. This also holds if
        HF has lost its database since."""
        return self.known_since.get(name, at) < at and self.returned.get(name, at) >= at

    def reclaims(self, names: Collection[str], machines: Mapping[str, str]) -> None:
        """Check that each machine that getReturnRequests has named as lost was really lost. ``machines``: the phase of
        each machine in the cloud after the script ended."""
        with self.lock:
            for name in names:
                if machines.get(name) == "running" and not self.disturbed(name) and name not in self.returned:
                    self.breaks(Law.PROVEN, f"{name} is healthy and is reported lost")

    # --- the end ------------------------------------------------------------------------------------------------------

    def unsettled(self, machines: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return a sentence for each request and machine that has not reached its final state yet. Call this after all
        faults have ended. ``machines``: the cloud's own list of machines."""
        with self.lock:
            hf = self.hf
            returns = {id_ for id_, names in hf.returns.items() if not any(map(self._cannot_go, names))}
            problems = [f"{Law.ENDS}: {id_} has not ended" for id_ in sorted(hf.requests | returns)]
            unreturned = sorted(name for name in hf.to_return if not self._cannot_go(name))
            problems += [f"{name} is not returned yet" for name in unreturned]
            ours = {one["name"]: one["phase"] for one in of_ours(machines)}
            problems += [
                f"{Law.PROVEN}: HF has {name}, which is {ours.get(name, 'not there')}, and is not reported as lost"
                for name in sorted(hf.hosts)
                if ours.get(name) != "running" and not self._cannot_go(name)
            ]
            problems += [
                f"{Law.PROVEN}: {name} exists ({ours[name]}) and is not wanted"
                for name in sorted(ours.keys() - hf.hosts)
                if not self._may_stay(name)
            ]
            return problems

    def _may_stay(self, name: str) -> bool:
        """Return True if only an operator may delete a machine. For example, the machine is stuck, or HF has perhaps
        forgotten it."""
        id_ = get_request_id(PREFIX, name)
        perhaps = self.perhaps_reported | self.unreported if self.memory_made_again else self.perhaps_reported
        reported = name in self.known_since or (id_ in perhaps and self.life > 0)
        return reported or self._cannot_go(name) or self._is_unknowable(name)

    def _is_unknowable(self, name: str) -> bool:
        """Return True if a policy removed a pod's labels and the pod's record was in lost memory."""
        return self.memory_made_again and "altered" in self.struck.get(name, ())

    def _cannot_go(self, name: str) -> bool:
        """Return True if a fault keeps the cloud from ending the machine."""
        return "stuck_stopping" in self.struck.get(name, set())

    def wound_up(self) -> None:
        """Check those laws that can be checked only at the end of a run."""
        with self.lock:
            if lost := self.printed - self.recorded:
                self.breaks(Law.INTENT, f"printed and never recorded: {sorted(lost)}")
            unreported = self.recorded - self.printed
            cut = sum(call.is_cut for call in self.calls if call.script in MUTATING)
            if len(unreported) > cut:
                words = f"{len(unreported)} were recorded and never printed, {cut} calls were killed or cut off"
                self.breaks(Law.INTENT, f"{words}: {sorted(unreported)}")


def is_ours(name: str, labels: Mapping[str, str]) -> bool:
    """Return True if the machine has our identity. A pod has it as a label. An instance has no labels, and its name
    shows the identity."""
    return labels[ID_LABEL] == PROVISIONER if ID_LABEL in labels else bool(get_request_id(PREFIX, name)) and not labels


def of_ours(machines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the cloud's machines that carry our identity and are in a pool."""
    return [one for one in machines if one["pool"] and is_ours(one["name"], one["labels"])]


def succeeded_of(entry: Mapping[str, Any]) -> list[str]:
    """Return the machines of an answer that HF may use."""
    return [machine["name"] for machine in entry["machines"] if machine["result"] == "succeed"]
