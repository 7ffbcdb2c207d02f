"""Tests of the machines of Slurm's nodes: what is concluded from records, nodes, answers and losses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.demand import slurm_power
from provisioner.demand.slurm_power import (
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
from provisioner.hostfactory.slurm_file import RC_ACCOUNT, SlurmFile
from provisioner.state.directory import SLURM_NODES_FILE, StateDir
from provisioner.state.slurm_nodes import NodeRecord, SlurmNodes

A, B = "aaaaaaaaaa", "bbbbbbbbbb"
A0, A1, B0 = f"hf-{A}-000000", f"hf-{A}-000001", f"hf-{B}-000000"


def node(name: str, states: str = "IDLE+CLOUD+POWERING_UP", host: str = "", address: str = "") -> SlurmNode:
    return SlurmNode(name, frozenset(states.split("+")), host or name, address or host or name, "")


def request(id_: str, *machines: str, ended: bool = False, message: str = "") -> SlurmRequest:
    return SlurmRequest(id_, ended, message, {name: f"10.0.0.{number}" for number, name in enumerate(machines)})


def concluded(
    records: Mapping[str, NodeRecord],
    nodes: list[SlurmNode],
    requests: list[SlurmRequest],
    lost: Mapping[str, Loss] | None = None,
    returned: frozenset[str] = frozenset(),
) -> Decision:
    by_id = {one.id: one for one in requests}
    return decide(Condition(records, {one.name: one for one in nodes}, by_id, lost or {}, returned))


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
    nameless = SlurmRequest(A, False, "", {A0: ""})
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
    assert all(lost.cause in update.reason for update in decision.updates)


def test_a_machine_that_an_operator_returned_ends_its_node() -> None:
    records = {"n1": NodeRecord(A, A0)}
    decision = concluded(records, [node("n1", "IDLE+CLOUD", A0)], [request(A, A0)], returned=frozenset({A0}))
    assert [(update.state, update.reason) for update in decision.updates] == [
        ("POWER_DOWN_FORCE", f"{OUR_REASON}machine {A0}: returned")
    ]
    assert decision.returns == []


def test_a_node_that_boots_gets_the_machine_that_replaces_its_own() -> None:
    records, replaced = {"n1": NodeRecord(A, A0)}, [request(A, A1)]
    decision = concluded(records, [node("n1", host=A0)], replaced)
    assert decision.records == {"n1": NodeRecord(A, A1)}
    assert decision.updates == [Update("n1", address="10.0.0.0", host=A1)]
    at_work = concluded(records, [node("n1", "ALLOCATED+CLOUD", A0)], replaced)
    assert [(one.state, one.reason) for one in at_work.updates] == [
        ("POWER_DOWN_FORCE", f"{OUR_REASON}machine {A0}: gone")
    ]
    assert at_work.returns == [A1]


def test_nodes_of_a_request_that_intent_does_not_have_are_left_alone() -> None:
    """The request is newer than what was read of intent, or has left the files."""
    records = {"n1": NodeRecord(A), "n2": NodeRecord(B, B0)}
    assert concluded(records, [node("n1"), node("n2", "ALLOCATED+CLOUD", B0)], []) == Decision([], records, [])


@pytest.mark.parametrize("states", ["IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERING_DOWN", ""])
def test_a_node_that_slurm_powered_down_or_does_not_have_gives_its_machine_back(states: str) -> None:
    """The call of slurm_suspend was lost."""
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


def test_a_node_is_used_again_unless_an_operator_set_it_down() -> None:
    reasons = ["ResumeTimeout reached [slurm@2026-11-27T20:40:00]", f"{OUR_REASON}stockout", "bad disk [root@x]"]
    nodes = [
        SlurmNode(f"n{number}", frozenset({"DOWN", "CLOUD", "POWERED_DOWN"}), "n", "n", reason)
        for number, reason in enumerate(reasons)
    ]
    assert concluded({}, nodes, []).updates == [Update("n0", "RESUME"), Update("n1", "RESUME")]
    still = [one._replace(states=one.states - {"POWERED_DOWN"} | {"POWERING_DOWN"}) for one in nodes]
    assert concluded({}, still, []).updates == []


# --- properties -------------------------------------------------------------------------------------------------------

NAMES = [f"n{number}" for number in range(4)]
MACHINES = {A: [A0, A1], B: [B0]}
STATES = ["IDLE+CLOUD+POWERING_UP", "ALLOCATED+CLOUD", "IDLE+CLOUD+POWERING_DOWN", "DOWN+CLOUD+POWERED_DOWN"]
ALL = [A0, A1, B0]


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    requests = {}
    for id_, names in MACHINES.items():
        running = draw(st.sets(st.sampled_from(names)))
        requests[id_] = request(id_, *sorted(running), ended=draw(st.booleans()))
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
    return Condition(records, nodes, requests, lost, frozenset(draw(st.sets(st.sampled_from(ALL)))))


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
    """A crash after the records were written repeats only updates."""
    first = decide(now)
    again = decide(now._replace(records=first.records, returned=now.returned | set(first.returns)))
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
    (one, partitions), (two, none) = parse_nodes(LISTING + "\nNo nodes in the system\n")
    assert one == SlurmNode(
        "c1",
        frozenset({"DOWN", "CLOUD", "POWERED_DOWN"}),
        A0,
        "10.0.0.7",
        "ResumeTimeout reached State=x [slurm@2026-11-27T20:40:00]",
    )
    assert partitions == ["grid", "night"]
    assert (two.host, two.address, two.states, none) == ("c2", "c2", {"FUTURE"}, [""])


# --- the step ---------------------------------------------------------------------------------------------------------


class Scripts(HostFactory):
    """HostFactory's scripts, with the given answers."""

    def __init__(self, directory: Path) -> None:
        super().__init__({}, directory)
        self.entries: dict[str, dict[str, Any]] = {}
        self.asked: list[list[str]] = []
        self.returned: list[str] = []

    def call(self, script: str, document: Mapping[str, Any]) -> dict[str, Any]:
        if script == "requestReturnMachines":
            self.returned += [machine["name"] for machine in document["machines"]]
            return {"requestId": "ret-cccccccccc"}
        assert script == "getRequestStatus"
        self.asked.append([one["requestId"] for one in document["requests"]])
        return {"requests": [self.entries[id_] for id_ in self.asked[-1]]}


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
        self.changes: list[str] = []
        self.hf = Scripts(directory)
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
        if "nodename=bad" in argv:
            raise SourceError("Invalid node name")
        return ""

    def ask(self, id_: str, account: str = RC_ACCOUNT) -> None:
        """Record a request in intent."""
        row = {"template": "Small", "count": 1, "created_wall": 0.0, "rc_account": account}
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
    assert slurm.hf.asked == [[A, B], [A]]
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
    assert slurm.changes[-1] == f"update nodename=c1 state=POWER_DOWN_FORCE reason={OUR_REASON}machine {B0}: deleted"


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


def test_a_silent_slurmctld_ends_the_step(slurm: Slurm) -> None:
    slurm.ask(A)
    slurm.refusal = "Unable to contact slurm controller"
    with pytest.raises(SourceError, match="Unable to contact slurm controller"):
        slurm.power.step()
    assert slurm.hf.asked == []
