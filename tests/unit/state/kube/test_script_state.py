"""The state of the scripts in a Kubernetes API."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from provisioner.hostfactory import Answer, Loss
from provisioner.hostfactory.provider_config import Digests
from provisioner.model import BrakeReason
from provisioner.state.errors import StateError, StateExists, StateStale, StateUnreachable, StateUnreadable
from provisioner.state.kube import objects, script_notes, script_state
from provisioner.state.kube.objects import ANSWERS, CYCLE, NOTES, READ, REQUESTS, RETURNS, STATES
from provisioner.state.kube.script_state import KubeEntries, KubeScriptState
from tests.support.kube_state_server import Call, MemoryApiServer, ObjectServer

NOW = 1_000_000.0
INSTANCE = "gcp1"


class Grid:
    """A server, the loop's writes to it, and a script's state."""

    def __init__(self) -> None:
        self.now = NOW
        self.server = ObjectServer("hf", lambda: self.now)
        self.loop = MemoryApiServer(self.server)

    def script(self, directory: str = "") -> tuple[KubeScriptState, MemoryApiServer]:
        api = MemoryApiServer(self.server)
        return KubeScriptState(api, INSTANCE, directory), api

    def write(self, method: str, path: str, body: object) -> dict[str, Any]:
        reply = self.loop.call(
            method, path, body, content=script_notes.MERGE if method == "PATCH" else "application/json"
        )
        assert reply.status in (200, 201), reply.document
        return reply.document

    def publish(self, resource: str, id_: str, phase: str, text: str = "", *, ended: bool = False) -> None:
        status = {"phase": phase, "epoch": 1, "generation": 1}
        status |= {"answer": objects.pack({"text": text, "ended": ended})} if text else {}
        self.write("PATCH", objects.item("hf", resource, id_, "status"), {"status": status})

    def state(self, **status: object) -> None:
        spec = {"provisioner": INSTANCE}
        self.write("POST", objects.collection("hf", STATES), objects.body(STATES, INSTANCE, spec))
        whole = {"status": {"epoch": 1, "generation": 1, **status}}
        self.write("PATCH", objects.item("hf", STATES, INSTANCE, "status"), whole)

    def lease(self, cycle: str) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": f"{INSTANCE}.loop", "annotations": {CYCLE: cycle}},
            "spec": {},
        }
        self.write("POST", objects.leases("hf"), lease)

    def get(self, resource: str, name: str) -> dict[str, Any]:
        return self.write("GET", objects.item("hf", resource, name), None)

    def note(self, part: str = "") -> dict[str, Any]:
        spec: dict[str, Any] = self.get(NOTES, f"{INSTANCE}{part}")["spec"]
        return spec


@pytest.fixture
def grid() -> Grid:
    return Grid()


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every new request the same id."""
    monkeypatch.setattr("provisioner.state.new_ids.new_id", lambda: "aaaaaaaaaa")


def request(grid: Grid, count: int = 1) -> str:
    return grid.script()[0].record_request(INSTANCE, "T", count, created_wall=5.5, rc_account="").id


def methods(api: MemoryApiServer) -> list[str]:
    return [call.method for call in api.calls]


# --- requests and returns ---------------------------------------------------------------------------------------------


def test_request_is_one_object_and_two_calls(grid: Grid) -> None:
    grid.lease(str(NOW - 61))
    script, api = grid.script()
    script.note_read(Digests("0000000a", "0000000b"))
    recorded = script.record_request(INSTANCE, "T", 7, created_wall=5.5, rc_account="a" * 300)
    made = grid.get(REQUESTS, recorded.id)
    assert made["spec"] == {"provisioner": INSTANCE, "template": "T", "count": 7, "created": 5.5, "account": "a" * 255}
    assert made["metadata"]["annotations"] == {READ: "0000000a-0000000b"}
    assert (methods(api), recorded.silent_seconds) == (["POST", "GET"], 61.0)


def test_return_keeps_names_that_are_not_ours_apart(grid: Grid) -> None:
    script, api = grid.script()
    ours = f"hf-{'a' * 60}"
    recorded = script.record_return(INSTANCE, ["hf-1", ours, f"{ours}.bank.test"], created_wall=5.5)
    assert recorded.id.startswith("ret-")
    assert grid.get(RETURNS, recorded.id)["spec"]["names"] == ["hf-1", ours, f"{ours[:62]}~"]
    assert (methods(api), recorded.silent_seconds) == (["POST", "GET"], None)


@pytest.mark.parametrize("fault", ["before", "after"])
def test_unanswered_request_is_recorded_once(grid: Grid, fault: str) -> None:
    script, api = grid.script()
    setattr(api, fault, lambda call: 0 if call.number == 1 else None)
    recorded = script.record_request(INSTANCE, "T", 1, created_wall=5.5, rc_account="")
    found = grid.write("GET", objects.collection("hf", REQUESTS), None)["items"]
    assert [one["metadata"]["name"] for one in found] == [recorded.id]


@pytest.mark.usefixtures("ids")
def test_id_of_another_request_is_refused(grid: Grid) -> None:
    request(grid)
    with pytest.raises(StateExists, match="another request has this id"):
        request(grid, 2)


def test_recorded_request_is_answered_although_the_silence_is_unknown(grid: Grid) -> None:
    script, api = grid.script()
    api.before = lambda call: 0 if call.method == "GET" else None
    recorded = script.record_request(INSTANCE, "T", 1, created_wall=5.5, rc_account="")
    assert recorded.silent_seconds is None
    assert grid.get(REQUESTS, recorded.id)


def test_refused_and_unreachable_requests_raise(grid: Grid) -> None:
    script, api = grid.script()
    with pytest.raises(StateError, match="HTTP 422"):
        script.record_request(INSTANCE, "T", 0, created_wall=5.5, rc_account="")
    api.set_unreachable()
    with pytest.raises(StateUnreachable):
        script.record_request(INSTANCE, "T", 1, created_wall=5.5, rc_account="")


# --- answers ----------------------------------------------------------------------------------------------------------


def test_poll_is_noted_before_the_answer_is_read(grid: Grid) -> None:
    id_ = request(grid)
    grid.lease(str(NOW - 1))
    grid.publish(REQUESTS, id_, "Running", "A")
    grid.script()[0].poll([id_])
    script, api = grid.script()
    grid.now += 9
    assert script.poll([id_]) == ({id_: Answer("A", False)}, 10.0)
    assert grid.note(".polls")["polled"] == {id_: NOW + 9}
    assert methods(api) == ["GET", "PATCH", "GET"]
    assert script.poll([]) == ({}, None)


def test_poll_of_many_reads_a_list_and_writes_one_note(grid: Grid) -> None:
    requests = [request(grid) for _ in range(script_state.FEW + 1)]
    returned = grid.script()[0].record_return(INSTANCE, ["hf-1"], created_wall=5.5).id
    for id_ in requests[1:]:
        grid.publish(REQUESTS, id_, "Running", id_)
    grid.publish(RETURNS, returned, "Running", "R")
    script, api = grid.script()
    answers = script.poll([*requests, returned]).answers
    assert answers == {requests[0]: None, returned: Answer("R", False)} | {
        id_: Answer(id_, False) for id_ in requests[1:]
    }
    assert methods(api) == ["GET", "PATCH", "POST", "PATCH", "GET", "GET"]
    assert grid.note(".polls")["polled"].keys() == {*requests, returned}


def test_unknown_id_is_left_out_and_not_noted(grid: Grid) -> None:
    known, other = request(grid), KubeScriptState(MemoryApiServer(grid.server), "gcp2")
    foreign = other.record_request("gcp2", "T", 1, created_wall=5.5, rc_account="").id
    answers = grid.script()[0].poll(["bbbbbbbbbb", known, foreign]).answers
    assert answers == {known: None}
    assert grid.note(".polls")["polled"] == {known: NOW}


@pytest.mark.parametrize("reason", BrakeReason)
def test_a_lost_request_runs_on_while_a_recovery_may_make_it_again(grid: Grid, reason: BrakeReason) -> None:
    known = request(grid)
    grid.state(brake=f"{reason}: restored")
    is_awaited = reason in (BrakeReason.INTENT_OLDER, BrakeReason.REQUEST_LOST)
    answers = grid.script()[0].poll(["bbbbbbbbbb", known]).answers
    assert answers == {known: None} | ({"bbbbbbbbbb": None} if is_awaited else {})
    is_noted = "bbbbbbbbbb" in grid.note(".polls")["polled"]
    assert is_noted is is_awaited, "so that it is not cancelled as forgotten"


def test_terminal_answer_is_settled_before_it_is_returned(grid: Grid) -> None:
    id_ = request(grid)
    grid.publish(REQUESTS, id_, "Ended", "first", ended=True)
    assert grid.script()[0].poll([id_]).answers == {id_: Answer("first", True)}
    made = grid.get(ANSWERS, f"{id_}.0")["spec"]
    assert (made["kind"], objects.unpack(made["answer"])) == ("Reported", "first")
    for phase, text, ended in (("Ended", "second", True), ("Ended", "cancelling", False)):
        grid.publish(REQUESTS, id_, phase, text, ended=ended)
        assert grid.script()[0].poll([id_]).answers == {id_: Answer("first", True)}
    grid.publish(REQUESTS, id_, "Complete", "first", ended=True)
    script, api = grid.script()
    assert script.poll([id_]).answers == {id_: Answer("first", True)}
    assert "POST" not in methods(api)
    grid.write("DELETE", objects.item("hf", REQUESTS, id_), None)
    assert grid.script()[0].poll([id_]).answers == {id_: Answer("first", True)}


def test_claimed_answer_replaces_the_published_one(grid: Grid) -> None:
    id_ = request(grid)
    grid.publish(REQUESTS, id_, "Ended", "old", ended=True)
    loop = KubeEntries(grid.loop, INSTANCE)
    assert loop.settle_revised(id_, "new")
    assert loop.settled(id_) == Answer("new", True)
    assert grid.script()[0].poll([id_]).answers == {id_: Answer("new", True)}
    assert not loop.settle_revised(id_, "newer")


def test_assumed_answer_takes_the_first_text(grid: Grid) -> None:
    entries = KubeEntries(grid.loop, INSTANCE)
    entries.assume_reported("aaaaaaaaaa")
    entries.assume_reported("aaaaaaaaaa")
    assert entries.settled("aaaaaaaaaa") is None
    assert not entries.settle_revised("aaaaaaaaaa", "x")
    assert entries.settle_reported("aaaaaaaaaa", "y") == "y"
    assert entries.settled("aaaaaaaaaa") == Answer("y", True)


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_lost_response_to_an_entry_keeps_one_answer(grid: Grid, fault: str) -> None:
    id_ = request(grid)
    grid.publish(REQUESTS, id_, "Ended", "A", ended=True)
    script, api = grid.script()
    lost: list[Call] = []

    def lose(call: Call) -> int | None:
        if ANSWERS not in call.path or lost:
            return None
        lost.append(call)
        return 0

    setattr(api, fault, lose)
    assert script.poll([id_]).answers == {id_: Answer("A", True)}
    assert len(grid.write("GET", objects.collection("hf", ANSWERS), None)["items"]) == 1


def test_endless_conflicts_end_with_an_error(grid: Grid) -> None:
    grid.loop.before = lambda call: 409 if call.method == "POST" else None
    with pytest.raises(StateStale, match="Ask again"):
        KubeEntries(grid.loop, INSTANCE).settle_reported("aaaaaaaaaa", "x")


def test_refused_or_damaged_answers_raise(grid: Grid) -> None:
    id_ = request(grid)
    with pytest.raises(StateError, match="HTTP 422"):
        KubeEntries(grid.loop, INSTANCE).settle_reported(
            id_, "\ud800" + "x" * 3 and "".join(map(chr, range(40_000))) * 80
        )
    status = {"phase": "Running", "epoch": 1, "generation": 1, "answer": "AAAA"}
    grid.write("PATCH", objects.item("hf", REQUESTS, id_, "status"), {"status": status})
    with pytest.raises(StateUnreadable, match="damaged"):
        grid.script()[0].poll([id_])


@pytest.mark.parametrize(("cycle", "silent"), [("999990", 10.0), ("2000000", 0.0), ("soon", None)])
def test_silence_is_measured_by_the_servers_clock_alone(grid: Grid, cycle: str, silent: float | None) -> None:
    grid.lease(cycle)
    assert grid.script()[0].poll([request(grid)]).silent_seconds == silent


# --- losses and templates ---------------------------------------------------------------------------------------------


def test_losses_are_those_of_machines_that_are_not_returned(grid: Grid) -> None:
    script, _ = grid.script()
    assert script.lost(["hf-1"]) == {}
    grid.state(lost=objects.pack({"hf-1": [0, "gone"], "hf-2": [30, "ends"], "hf-3": [0, "gone"]}))
    script.record_return(INSTANCE, ["hf-3"], created_wall=5.5)
    assert script.lost(["hf-1", "hf-3", "hf-4"]) == {"hf-1": Loss(0, "gone")}
    script, api = grid.script()
    assert script.lost(["hf-4"]) == {}
    assert methods(api) == ["GET"]


def test_available_is_what_the_loop_published(grid: Grid) -> None:
    assert grid.script()[0].available() == {}
    grid.state(available={"T": 3})
    assert grid.script()[0].available() == {"T": 3}


# --- notes ------------------------------------------------------------------------------------------------------------


def test_shown_numbers_never_sink(grid: Grid) -> None:
    script, api = grid.script()
    shown, path = script.note_shown({"T": 5, "U": 1})
    assert (shown, path) == ({"T": 5, "U": 1}, objects.item("hf", NOTES, INSTANCE))
    assert methods(api) == ["GET", "PATCH", "POST", "PATCH"]
    assert grid.script()[0].note_shown({"T": 3, "V": 2})[0] == {"T": 5, "V": 2}
    assert grid.note()["shown"] == {"T": 5, "U": 1, "V": 2}
    script, api = grid.script()
    assert script.note_shown({"T": 5})[0] == {"T": 5}
    assert methods(api) == ["GET"]


def test_read_contents_are_noted_newest_first(grid: Grid) -> None:
    for config in ("a", "b", "c", "b", "d"):
        grid.now += 1
        script, _ = grid.script()
        script.note_read(Digests(config, "t"))
        script.note_shown({"T": 1})
    assert grid.note()["read"] == [
        {"at": NOW + 5, "digests": "d-t"},
        {"at": NOW + 4, "digests": "b-t"},
        {"at": NOW + 3, "digests": "c-t"},
    ]


def test_hosts_are_replaced_or_joined_and_each_list_counts(grid: Grid) -> None:
    def listed(*names: str) -> tuple[list[str], int]:
        grid.script()[0].note_hosts(dict.fromkeys(names))
        spec = grid.note(".hosts")
        return objects.unpack(spec["hosts"]), spec["listed"]

    assert listed("a", "b") == (["a", "b"], NOW)
    assert listed("a", "b") == (["a", "b"], NOW + 1)
    assert listed("b", "c") == (["b", "c"], NOW + 2)
    assert listed("d") == (["b", "c", "d"], NOW + 3)
    grid.now += 60
    assert listed() == ([], NOW + 60)
    with pytest.raises(StateError, match="a list of 40000 hosts does not fit"):
        listed(*(hashlib.sha256(b"%d" % number).hexdigest()[:40] for number in range(40_000)))


def test_refusals_are_noted_and_end_with_an_answer(grid: Grid, tmp_path: Path) -> None:
    script, api = grid.script(str(tmp_path))
    script.note_refusal("requestMachines", "")
    assert api.calls == []
    script.note_refusal("requestMachines", "no way")
    noted = grid.note()["refused"]["requestMachines"]
    assert (noted["total"], noted["recent"], noted["text"]) == (1, 1, "no way")
    script.note_refusal("requestMachines", "")
    noted = grid.note()["refused"]["requestMachines"]
    assert (noted["total"], noted["recent"], noted["text"]) == (1, 0, "")
    before = len(api.calls)
    script.note_refusal("requestMachines", "")
    assert len(api.calls) == before


def test_refusals_by_an_unreachable_server_are_sent_later(grid: Grid, tmp_path: Path) -> None:
    script, api = grid.script(str(tmp_path))
    api.set_unreachable()
    with pytest.raises(StateUnreachable):
        script.available()
    calls = len(api.calls)
    with pytest.raises(StateUnreachable):
        script.lost([])
    script.note_refusal("requestMachines", "unreachable")
    assert len(api.calls) == calls
    grid.script(str(tmp_path))[0].note_refusal("requestMachines", "")
    assert grid.note()["refused"]["requestMachines"]["total"] == 1


def test_note_that_another_script_creates_first_is_changed(grid: Grid) -> None:
    script, api = grid.script()

    def create(call: Call) -> None:
        if call.method == "POST":
            api.before = lambda call: None
            grid.script()[0].note_shown({"U": 9})

    api.before = create
    script.note_shown({"T": 1})
    assert grid.note()["shown"] == {"T": 1, "U": 9}
