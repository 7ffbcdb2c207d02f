"""Tests of the machines of Slurm's nodes: what is concluded from records, nodes, answers and losses."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.demand import slurm_power
from provisioner.demand.slurm_power import (
    CALL_SECONDS,
    MOST_NODES,
    OFF,
    OUR_REASON,
    Condition,
    Decision,
    SlurmNode,
    SlurmPower,
    SlurmRequest,
    Update,
    decide,
    parse_nodes,
)
from provisioner.demand.sources import SourceError
from provisioner.hostfactory import Loss
from provisioner.hostfactory.script_calls import HostFactory
from provisioner.hostfactory.slurm_file import SlurmFile
from provisioner.names import SLURM_ACCOUNT
from provisioner.state.directory import SLURM_NODES_FILE, StateDir
from provisioner.state.slurm_nodes import NodeRecord, SlurmNodes
from tests.support.hostfactory.provider import ROOT

A, B = "aaaaaaaaaa", "bbbbbbbbbb"
A0, A1, B0 = f"hf-{A}-000000", f"hf-{A}-000001", f"hf-{B}-000000"


def node(name: str, states: str = "IDLE+CLOUD+POWERING_UP", host: str = "", address: str = "") -> SlurmNode:
    return SlurmNode(name, frozenset(states.split("+")), host or name, address or host or name, "", "Small")


def request(
    id_: str, *machines: str, ended: bool = False, message: str = "", template: str = "Small", coming: int = 0
) -> tuple[str, SlurmRequest]:
    addresses = {name: f"10.0.0.{number}" for number, name in enumerate(machines)}
    return id_, SlurmRequest(ended, message, addresses, template, coming)


def concluded(
    records: Mapping[str, NodeRecord],
    nodes: list[SlurmNode],
    requests: list[tuple[str, SlurmRequest]],
    lost: Mapping[str, Loss] | None = None,
    returned: Set[str] = frozenset(),
    unserved: Set[str] = frozenset(),
) -> Decision:
    by_name = {one.name: one for one in nodes}
    return decide(Condition(records, by_name, dict(requests), lost or {}, returned, unserved))


def test_a_machine_that_runs_becomes_the_nodes_machine() -> None:
    records = {"n1": NodeRecord(A), "n2": NodeRecord(A), "n3": NodeRecord(B)}
    decision = concluded(records, [node("n1"), node("n2"), node("n3")], [request(A, A0), request(B)])
    assert decision.records == records | {"n1": NodeRecord(A, A0)}
    assert decision.updates == [Update("n1", address="10.0.0.0", host=A0)]
    assert decision.returns == []


def test_an_address_that_slurm_has_is_not_sent_again() -> None:
    records = {"n1": NodeRecord(A, A0)}
    done = concluded(records, [node("n1", host=A0, address="10.0.0.0")], [request(A, A0)])
    assert done == Decision([], records, [])
    lost_update = concluded(records, [node("n1")], [request(A, A0)])
    assert lost_update.updates == [Update("n1", address="10.0.0.0", host=A0)]


def test_a_machine_without_an_address_is_reached_by_its_name() -> None:
    nameless = A, SlurmRequest(False, "", {A0: ""})
    decision = concluded({"n1": NodeRecord(A)}, [node("n1")], [nameless])
    assert decision.updates == [Update("n1", address=A0, host=A0)]
    assert concluded(decision.records, [node("n1", host=A0)], [nameless]).updates == []


def test_a_node_that_gets_no_machine_goes_down_with_our_reason_and_then_powers_down() -> None:
    records = {"n1": NodeRecord(A), "n2": NodeRecord(A)}
    ended = request(A, A0, ended=True, message="stockout: zone\nhas no room")
    decision = concluded(records, [node("n1"), node("n2")], [ended])
    reason = OUR_REASON + "stockout: zone has no room"
    assert decision.updates == [
        Update("n1", address="10.0.0.0", host=A0),
        Update("n2", "DOWN", reason),
        Update("n2", "POWER_DOWN", reason),
    ]
    on_its_way = concluded(records, [node("n1"), node("n2", "DOWN+CLOUD+POWER_DOWN")], [ended])
    assert [update.node for update in on_its_way.updates] == ["n1"]


@pytest.mark.parametrize(
    ("states", "lost", "updates"),
    [
        ("ALLOCATED+CLOUD", Loss(0, "preempted"), ["POWER_DOWN_FORCE"]),
        ("ALLOCATED+CLOUD+DRAIN+POWER_DOWN", Loss(0, "preempted"), ["POWER_DOWN_FORCE"]),
        ("ALLOCATED+CLOUD+POWERING_UP", Loss(0, "preempted"), ["DOWN", "POWER_DOWN"]),
        ("ALLOCATED+CLOUD", Loss(3600, "aged"), ["POWER_DOWN_ASAP"]),
        ("ALLOCATED+CLOUD+DRAIN+POWER_DOWN", Loss(3600, "aged"), []),
        ("IDLE+CLOUD+POWERING_DOWN", Loss(0, "preempted"), []),
    ],
)
def test_a_node_ends_with_its_machine(states: str, lost: Loss, updates: list[str]) -> None:
    decision = concluded({"n1": NodeRecord(A, A0)}, [node("n1", states, A0)], [request(A, A0)], {A0: lost})
    assert [update.state for update in decision.updates] == updates
    page = (ROOT / "docs" / "slurm-caller.md").read_text()
    assert all(f"Reason `{one.reason}`" in page for one in decision.updates if one.state.startswith("POWER_DOWN_"))


def test_a_machine_that_an_operator_returned_ends_its_node() -> None:
    records = {"n1": NodeRecord(A, A0)}
    decision = concluded(records, [node("n1", "IDLE+CLOUD", A0)], [request(A, A0)], returned=frozenset({A0}))
    assert [(update.state, update.reason) for update in decision.updates] == [
        ("POWER_DOWN_FORCE", f"{OUR_REASON}machine lost: returned")
    ]
    assert decision.returns == []


def test_a_node_that_boots_gets_the_machine_that_replaces_its_own() -> None:
    records, replaced = {"n1": NodeRecord(A, A0)}, [request(A, A1)]
    decision = concluded(records, [node("n1", host=A0)], replaced)
    assert decision.records == {"n1": NodeRecord(A, A1)}
    assert decision.updates == [Update("n1", address="10.0.0.0", host=A1)]
    at_work = concluded(records, [node("n1", "ALLOCATED+CLOUD", A0)], replaced)
    assert [(one.state, one.reason) for one in at_work.updates] == [
        ("POWER_DOWN_FORCE", f"{OUR_REASON}machine lost: gone")
    ]
    assert at_work.returns == [A1]


def test_a_request_that_has_left_the_files_ends_its_nodes() -> None:
    """If a request has left the files, its nodes must be powered down. A request leaves the files only after its
    machines are gone."""
    records = {"n1": NodeRecord(A), "n2": NodeRecord(B, B0)}
    left = [request(A, ended=True, message="unknown"), request(B, ended=True, message="unknown")]
    decision = concluded(records, [node("n1"), node("n2", "ALLOCATED+CLOUD", B0)], left)
    assert [(one.node, one.state, one.reason) for one in decision.updates] == [
        ("n1", "DOWN", f"{OUR_REASON}unknown"),
        ("n1", "POWER_DOWN", f"{OUR_REASON}unknown"),
        ("n2", "POWER_DOWN_FORCE", f"{OUR_REASON}machine lost: gone"),
    ]


def test_an_answer_that_waits_to_be_published_again_ends_no_node() -> None:
    """If the status file was lost, the script reports the request as running and names no machines until the loop has
    published the answer again. Meanwhile, the recorded machines must not count as lost."""
    records = {"n1": NodeRecord(A, A0), "n2": NodeRecord(A, A1)}
    decision = concluded(records, [node("n1", "ALLOCATED+CLOUD", A0), node("n2", host=A1)], [request(A, coming=2)])
    assert decision == Decision([], records, [])


def test_machines_that_are_lost_together_end_their_nodes_for_one_reason() -> None:
    names = [f"hf-{A}-{number:06d}" for number in range(500)]
    records = {f"c{number}": NodeRecord(A, name) for number, name in enumerate(names)}
    nodes = [node(f"c{number}", "ALLOCATED+CLOUD", name) for number, name in enumerate(names)]
    decision = concluded(records, nodes, [request(A, *names)], dict.fromkeys(names, Loss(0, "preempted")))
    assert len(decision.updates) == 500
    assert {one.reason for one in decision.updates} == {f"{OUR_REASON}machine lost: preempted"}


# --- nodes that boot without a record -------------------------------------------------------------------------------


def test_a_node_without_a_record_gets_a_spare_machine_of_its_template() -> None:
    """If slurm_resume was killed after its request and before its records, a node without a record must get a spare
    machine of its template."""
    requests = [request(B, B0, template="Big"), request(A, A0, A1)]
    decision = concluded({"n1": NodeRecord(A)}, [node("n1"), node("n2")], requests, unserved={"n2"})
    assert decision.records == {"n1": NodeRecord(A, A0), "n2": NodeRecord(A, A1)}
    assert decision.returns == [B0]
    assert [(one.node, one.host) for one in decision.updates] == [("n1", A0), ("n2", A1)]


def test_a_node_without_a_record_waits_for_a_machine_that_no_other_node_will_get() -> None:
    requests = [request(A, coming=2), request(B, coming=1, template="Big")]
    nodes = [node("n1"), node("n2"), node("n3")]
    decision = concluded({"n1": NodeRecord(A)}, nodes, requests, unserved={"n2", "n3"})
    assert decision.records == {"n1": NodeRecord(A), "n2": NodeRecord(A)}
    assert [(one.node, one.state) for one in decision.updates] == [("n3", "DOWN"), ("n3", "POWER_DOWN")]


@pytest.mark.parametrize("lost", [{A0: Loss(0, "preempted")}, {}])
def test_an_unserved_node_without_a_usable_machine_powers_down_with_the_reason(lost: Mapping[str, Loss]) -> None:
    """A node without a record must be powered down if no machine can serve it. In one case, the only machine was lost.
    In the other, its slurmd has started under the name n2, which cannot change."""
    nodes = [node("n1"), node("n2", "IDLE+CLOUD+POWERING_DOWN", A0 if not lost else "")]
    decision = concluded({}, nodes, [request(A, A0, ended=True)], lost, unserved={"n1"})
    reason = f"{OUR_REASON}slurm_resume recorded no request; see its log"
    assert decision == Decision([A0], {}, [Update("n1", "DOWN", reason), Update("n1", "POWER_DOWN", reason)])


def test_a_node_without_a_record_has_time_until_the_next_step() -> None:
    """A node without a record must be left alone until the next step, because a process of slurm_resume may be about to
    write the record."""
    assert concluded({}, [node("n1")], [request(A, coming=1)]) == Decision([], {}, [])


@pytest.mark.parametrize("states", ["IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERING_DOWN", ""])
def test_a_node_that_slurm_powered_down_or_does_not_have_gives_its_machine_back(states: str) -> None:
    """If Slurm has powered down a node or does not have it, the node's machine must be returned. For example, Slurm
    called slurm_suspend for the node, but the call had no effect."""
    nodes = [node("n1", states), node("n2")] if states else [node("n2")]
    decision = concluded({"n1": NodeRecord(A, A0), "n2": NodeRecord(A)}, nodes, [request(A, A0)])
    assert (decision.returns, decision.records, decision.updates) == ([A0], {"n2": NodeRecord(A)}, [])


def test_a_machine_that_no_node_waits_for_is_returned_once() -> None:
    decision = concluded({}, [node("n1", "IDLE+CLOUD+POWERED_DOWN")], [request(A, A0, A1)], {A1: Loss(0, "preempted")})
    assert decision.returns == [A0, A1]
    assert concluded({}, [], [request(A, A0)], returned=frozenset({A0})).returns == []


def test_a_machine_that_is_about_to_end_is_given_to_no_node() -> None:
    decision = concluded({"n1": NodeRecord(A)}, [node("n1")], [request(A, A0)], {A0: Loss(30, "preempted")})
    assert (decision.records, decision.returns) == ({"n1": NodeRecord(A)}, [A0])


def test_records_that_were_lost_are_made_again_from_the_host_names() -> None:
    nodes = [node("n1", "ALLOCATED+CLOUD", A0, "10.0.0.0"), node("n2", "IDLE+CLOUD+POWERING_DOWN", A1)]
    decision = concluded({}, nodes, [request(A, A0, A1)])
    assert decision == Decision([A1], {"n1": NodeRecord(A, A0)}, [])


def test_an_older_copy_of_the_records_costs_no_node_its_machine() -> None:
    nodes = [node("n1", "ALLOCATED+CLOUD", A1, "10.0.0.1"), node("n2")]
    decision = concluded({"n1": NodeRecord(A), "n2": NodeRecord(A)}, nodes, [request(A, A0, A1)])
    assert (decision.records, decision.returns) == ({"n1": NodeRecord(A, A1), "n2": NodeRecord(A, A0)}, [])


def test_a_node_is_used_again_unless_an_operator_set_it_down() -> None:
    when = "[slurm@2026-11-27T20:40:00]"
    reasons = [f"{words} {when}" for words in ("ResumeTimeout reached", "Not responding", "Node unexpectedly rebooted")]
    reasons += [f"{OUR_REASON}stockout", "bad disk [root@x]"]
    nodes = [
        SlurmNode(f"n{number}", frozenset({"DOWN", "CLOUD", "POWERED_DOWN"}), "n", "n", reason)
        for number, reason in enumerate(reasons)
    ]
    assert concluded({}, nodes, []).updates == [Update(f"n{number}", "RESUME") for number in range(4)]
    still = [one._replace(states=one.states - {"POWERED_DOWN"} | {"POWERING_DOWN"}) for one in nodes]
    assert concluded({}, still, []).updates == []


# --- properties -------------------------------------------------------------------------------------------------------

NAMES = [f"n{number}" for number in range(4)]
MACHINES = {A: [A0, A1], B: [B0]}
STATES = ["IDLE+CLOUD+POWERING_UP", "ALLOCATED+CLOUD", "IDLE+CLOUD+POWERING_DOWN", "DOWN+CLOUD+POWERED_DOWN"]
ALL = [A0, A1, B0]


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    requests = dict[str, SlurmRequest]()
    for id_, names in MACHINES.items():
        running = draw(st.sets(st.sampled_from(names)))
        ended, coming = draw(st.booleans()), draw(st.integers(0, 2))
        requests |= [request(id_, *sorted(running), ended=ended, coming=0 if ended else coming)]
    machines = iter(draw(st.permutations(ALL)))
    records = {}
    for name in draw(st.sets(st.sampled_from(NAMES))):
        machine = next(machines, "") if draw(st.booleans()) else ""
        records[name] = NodeRecord(machine.split("-")[1] if machine else draw(st.sampled_from([A, B])), machine)
    nodes = {
        name: node(name, draw(st.sampled_from(STATES)), draw(st.sampled_from(["", *ALL])))
        for name in draw(st.sets(st.sampled_from(NAMES)))
    }
    lost = {name: Loss(draw(st.sampled_from([0, 60])), "preempted") for name in draw(st.sets(st.sampled_from(ALL)))}
    unserved = {name for name, one in nodes.items() if name not in records and "POWERING_UP" in one.states}
    again = unserved & draw(st.sets(st.sampled_from(NAMES)))
    return Condition(records, nodes, requests, lost, draw(st.sets(st.sampled_from(ALL))), again)


@given(conditions())
def test_no_machine_has_two_nodes_and_none_is_forgotten(now: Condition) -> None:
    decision = decide(now)
    held = [record.machine for record in decision.records.values() if record.machine]
    assert len(held) == len(set(held))
    assert not set(held) & set(decision.returns)
    assert not now.returned & set(decision.returns)
    running = {name for one in now.requests.values() for name in one.machines}
    assert running <= set(held) | set(decision.returns) | now.returned


@given(conditions())
def test_a_node_that_goes_on_keeps_its_machine(now: Condition) -> None:
    decision = decide(now)
    for name, record in now.records.items():
        is_listed = record.machine in now.requests[record.request].machines
        if record.machine and is_listed and name in now.nodes and not now.nodes[name].states & OFF:
            assert decision.records[name] == record


@given(conditions())
def test_a_second_step_in_the_same_condition_changes_no_record(now: Condition) -> None:
    """A second step in the same condition must change no record. So if the service crashes after it has written the
    records, its next step only repeats updates."""
    first = decide(now)
    unserved = now.unserved - first.records.keys()
    again = decide(now._replace(records=first.records, returned=now.returned | set(first.returns), unserved=unserved))
    assert again.records == first.records
    assert again.returns == []


# --- the listing ------------------------------------------------------------------------------------------------------

LISTING = (
    "NodeName=c1 Arch=x86_64 CoresPerSocket=1    CPUAlloc=0 CPUTot=1 CPULoad=0.10 AvailableFeatures=(null) "
    "NodeAddr=10.0.0.7 NodeHostName=hf-aaaaaaaaaa-000000 Version=22.05.8 State=DOWN*+CLOUD+POWERED_DOWN "
    "ThreadsPerCore=1 Partitions=grid,night  BootTime=None "
    "Reason=ResumeTimeout reached State=x [slurm@2026-11-27T20:40:00]\n"
    "NodeName=c2 CoresPerSocket=1 State=FUTURE Partitions= BootTime=None Comment=was State=DOWN\n"
)


def test_nodes_are_read_from_scontrols_lines() -> None:
    one, two = parse_nodes(LISTING + "\nNo nodes in the system\n", SlurmFile({}, {"night": "Small"}))
    assert one == SlurmNode(
        "c1",
        frozenset({"DOWN", "CLOUD", "POWERED_DOWN"}),
        A0,
        "10.0.0.7",
        "ResumeTimeout reached State=x [slurm@2026-11-27T20:40:00]",
        "Small",
    )
    assert (two.host, two.address, two.states, two.template) == ("c2", "c2", frozenset({"FUTURE"}), "")


# --- the step ---------------------------------------------------------------------------------------------------------


class Scripts(HostFactory):
    """HostFactory's scripts, with the given answers."""

    def __init__(self) -> None:
        super().__init__({})
        self.entries: dict[str, dict[str, Any]] = {}
        self.asked: list[list[str]] = []
        self.returned: list[str] = []

    def call(self, script: str, document: Mapping[str, Any]) -> dict[str, Any]:
        if script == "requestReturnMachines":
            self.returned += [machine["name"] for machine in document["machines"]]
            return {"requestId": "ret-cccccccccc"}
        assert script == "getRequestStatus"
        self.asked.append([one["requestId"] for one in document["requests"]])
        unknown = {"status": "complete_with_error", "message": "unknown", "machines": []}
        return {"requests": [self.entries.get(id_, {"requestId": id_, **unknown}) for id_ in self.asked[-1]]}


def entry(id_: str, status: str, *machines: tuple[str, str, str]) -> dict[str, Any]:
    return {
        "requestId": id_,
        "status": status,
        "message": "",
        "machines": [
            {"machineId": name, "result": result, "privateIpAddress": "10.0.0.9", "message": message}
            for name, result, message in machines
        ],
    }


class Slurm:
    """A stand-in for scontrol, which lists nodes and records its other arguments."""

    def __init__(self, directory: Path) -> None:
        self.listing, self.refusal = "", ""
        self.seconds, self.call_seconds = 0.0, 0.0
        """Virtual time, and how much of it a change takes."""
        self.changes: list[str] = []
        self.hf = Scripts()
        self.records = SlurmNodes(str(directory / SLURM_NODES_FILE))
        self.state = StateDir(directory)
        settings = SlurmFile({}, {"grid": "Small"})
        self.power = SlurmPower(settings, self.records, self.hf, [self.state])

    def run(self, argv: list[str], seconds: float, most_bytes: int) -> str:
        assert argv[0] == "scontrol"
        if self.refusal:
            raise SourceError(self.refusal)
        if argv[1:] == ["--all", "--oneliner", "show", "nodes"]:
            return self.listing
        self.changes.append(" ".join(argv[1:]))
        self.seconds += self.call_seconds
        if "nodename=bad" in argv:
            raise SourceError("Invalid node name")
        return ""

    def ask(self, id_: str, account: str = SLURM_ACCOUNT, count: int = 1) -> None:
        """Record a request in intent."""
        row = {"template": "Small", "count": count, "created_wall": 0.0, "rc_account": account}
        self.state.intent.add({"requests": {id_: row}}, create_for="demoinst")

    def list(self, *nodes: tuple[str, str]) -> None:
        lines = (f"NodeName={name} NodeAddr={name} State={state} Partitions=grid \n" for name, state in nodes)
        self.listing = "".join(lines)

    def record(self, **records: NodeRecord) -> None:
        with self.records.changing() as current:
            current |= records


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm(tmp_path)
    monkeypatch.setattr(slurm_power, "run_program_of_source", made.run)
    monkeypatch.setattr(slurm_power, "monotonic", lambda: made.seconds)
    return made


UP = "IDLE+CLOUD+POWERING_UP"


def test_a_step_reads_acts_and_asks_only_for_what_has_not_ended(slurm: Slurm) -> None:
    slurm.record(c1=NodeRecord(A), c2=NodeRecord(B), c3=NodeRecord(B))
    slurm.list(("c1", UP), ("c2", UP), ("c3", UP))
    slurm.hf.entries = {
        A: entry(A, "running", (A0, "succeed", ""), (A1, "executing", "waits")),
        B: entry(B, "complete_with_error", (B0, "fail", "stockout: no room")),
    }
    slurm.ask(A)
    slurm.ask(B)
    slurm.ask("dddddddddd", account="demand")
    slurm.power.step()
    reason = f"{OUR_REASON}stockout: no room"
    assert slurm.changes == [
        f"update nodename=c1 nodeaddr=10.0.0.9 nodehostname={A0}",
        f"update nodename=c2,c3 state=DOWN reason={reason}",
        f"update nodename=c2,c3 state=POWER_DOWN reason={reason}",
    ]
    assert slurm.records.read()["c1"] == NodeRecord(A, A0)
    slurm.hf.entries[A] = entry(A, "running", (A0, "succeed", ""), (A1, "succeed", ""))
    slurm.power.step()
    assert [sorted(asked) for asked in slurm.hf.asked] == [[A, B], [A]]
    assert slurm.hf.returned == [A1]


def test_a_refused_change_does_not_hinder_the_others(slurm: Slurm) -> None:
    slurm.record(bad=NodeRecord(A), c1=NodeRecord(B, B0))
    slurm.list(("bad", "IDLE+CLOUD"), ("c1", "IDLE+CLOUD"))
    slurm.hf.entries = {A: entry(A, "complete_with_error"), B: entry(B, "complete", (B0, "succeed", ""))}
    slurm.ask(A)
    slurm.ask(B)
    slurm.state.status.write({}, {B0: Loss(0, "deleted")})
    slurm.power.step()
    assert len(slurm.changes) == 3
    assert slurm.changes[-1] == f"update nodename=c1 state=POWER_DOWN_FORCE reason={OUR_REASON}machine lost: deleted"


def test_many_nodes_are_changed_in_several_calls(slurm: Slurm) -> None:
    names = [f"c{number}" for number in range(MOST_NODES + 1)]
    slurm.record(**dict.fromkeys(names, NodeRecord(A)))
    slurm.list(*((name, UP) for name in names))
    machines = [(f"hf-{A}-{number:06d}", "succeed", "") for number in range(len(names))]
    slurm.hf.entries = {A: entry(A, "complete", *machines)}
    slurm.ask(A)
    slurm.power.step()
    assert [call.count("10.0.0.9") for call in slurm.changes] == [MOST_NODES, 1]


@pytest.mark.parametrize("listing", ["", "No nodes in the system\n"])
def test_a_listing_without_nodes_is_no_reason_to_return_machines(slurm: Slurm, listing: str) -> None:
    slurm.record(c1=NodeRecord(A, A0))
    slurm.listing = listing
    with pytest.raises(SourceError, match="lists no node of slurm"):
        slurm.power.step()
    assert slurm.records.read() == {"c1": NodeRecord(A, A0)}


def test_requests_are_polled_while_slurmctld_is_silent(slurm: Slurm) -> None:
    """Requests must be polled even while slurmctld is silent. A request that is not polled counts as forgotten, and its
    machines are deleted."""
    slurm.ask(A)
    slurm.hf.entries = {A: entry(A, "running")}
    slurm.refusal = "Unable to contact slurm controller"
    for _ in range(2):
        with pytest.raises(SourceError, match="Unable to contact slurm controller"):
            slurm.power.step()
    assert slurm.hf.asked == [[A], [A]]


def test_a_request_that_left_intent_is_asked_for_again_although_it_had_ended(slurm: Slurm) -> None:
    """A request must be polled again after it has left intent. If its machine is lost after that, no list names the
    machine as lost. Only the request's answer, which then has no machines, shows that the machine is gone."""
    slurm.record(c1=NodeRecord(A, A0))
    slurm.list(("c1", "ALLOCATED+CLOUD"))
    slurm.hf.entries = {A: entry(A, "complete", (A0, "succeed", ""))}
    slurm.ask(A)
    slurm.power.step()
    slurm.changes.clear()
    slurm.state.intent.remove([A])
    slurm.hf.entries.clear()
    slurm.power.step()
    assert slurm.changes == [f"update nodename=c1 state=POWER_DOWN_FORCE reason={OUR_REASON}machine lost: gone"]


def test_nodes_whose_records_were_lost_while_they_booted_get_the_machines_of_their_request(slurm: Slurm) -> None:
    slurm.list(("c1", UP), ("c2", UP))
    slurm.ask(A, count=2)
    slurm.hf.entries = {A: entry(A, "running", (A1, "executing", ""))}
    slurm.power.step()
    assert slurm.records.read() == {}
    slurm.power.step()
    assert slurm.records.read() == {"c1": NodeRecord(A), "c2": NodeRecord(A)}
    slurm.hf.entries = {A: entry(A, "running", (A0, "succeed", ""), (A1, "executing", ""))}
    slurm.power.step()
    assert (slurm.records.read()["c1"], slurm.hf.returned) == (NodeRecord(A, A0), [])


def test_a_node_that_slurm_resume_refused_powers_down_in_the_second_step(slurm: Slurm) -> None:
    slurm.list(("c1", UP))
    slurm.power.step()
    assert slurm.changes == []
    slurm.power.step()
    reason = f"{OUR_REASON}slurm_resume recorded no request; see its log"
    assert slurm.changes == [f"update nodename=c1 state={state} reason={reason}" for state in ("DOWN", "POWER_DOWN")]


def test_a_node_that_slurm_suspends_during_the_step_is_not_changed(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.record(c1=NodeRecord(A), c2=NodeRecord(A))
    slurm.list(("c1", UP), ("c2", UP))
    slurm.ask(A)
    slurm.hf.entries = {A: entry(A, "complete", (A0, "succeed", ""), (A1, "succeed", ""))}
    change = SlurmNodes.change

    def change_late(records: SlurmNodes, *both: Mapping[str, NodeRecord]) -> Mapping[str, NodeRecord]:
        with records.changing() as current:
            current["c1"] = NodeRecord(B)
        return change(records, *both)

    monkeypatch.setattr(SlurmNodes, "change", change_late)
    slurm.power.step()
    assert [text.split()[1] for text in slurm.changes] == ["nodename=c2"]


@pytest.mark.parametrize(("seconds", "changes"), [(CALL_SECONDS, 1), (CALL_SECONDS / 2, 2)])
def test_a_slow_slurmctld_ends_the_step_after_a_call_of_the_longest_time(
    slurm: Slurm, seconds: float, changes: int
) -> None:
    slurm.call_seconds = seconds
    ids = [f"{letter}bbbbbbbbb" for letter in "abcde"]
    for number, id_ in enumerate(ids):
        slurm.record(**{f"c{number}": NodeRecord(id_)})
        slurm.ask(id_)
        slurm.hf.entries[id_] = entry(id_, "complete_with_error", ("", "fail", f"stockout: {id_}"))
    slurm.list(*((f"c{number}", UP) for number in range(len(ids))))
    with pytest.raises(SourceError, match="the next step makes the other changes"):
        slurm.power.step()
    assert len(slurm.changes) == changes
