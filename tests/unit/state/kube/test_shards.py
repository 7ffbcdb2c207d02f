"""The scripts' state of a provider instance whose pools several loops share."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from provisioner.hostfactory import Answer, Loss
from provisioner.hostfactory.provider_config import Digests
from provisioner.state.kube import objects
from provisioner.state.kube.objects import NOTES, REQUESTS, RETURNS, STATES
from provisioner.state.kube.shards import PART, ShardedScriptState
from tests.support.kube_state_server import MemoryApiServer, ObjectServer

POOLS = {"Wide": ("a", "b", "c"), "Narrow": ("b",), "Two": ("a", "b")}


class Grid:
    """A server with three shards, each with a pool, and what their loops write."""

    def __init__(self) -> None:
        self.server = ObjectServer("hf", lambda: 1e6)
        self.api = MemoryApiServer(self.server)
        self.state = ShardedScriptState(self.api, "demo", [["a"], ["b"], ["c"]], lambda: POOLS)

    def request(self, template: str, count: int) -> str:
        return self.state.record_request("demo", template, count, created_wall=1.0, rc_account="acc").id

    def give_back(self, *names: str) -> str:
        return self.state.record_return("demo", names, created_wall=1.0).id

    def stored(self, resource: str) -> dict[str, dict[str, Any]]:
        listed = self.api.call("GET", objects.collection("hf", resource)).document["items"]
        return {one["metadata"]["name"]: one["spec"] for one in listed}

    def publish(self, id_: str, status: str, *machines: str, message: str = "") -> None:
        """Write the answer of a shard's loop."""
        resource = RETURNS if id_.startswith("ret-") else REQUESTS
        ended = status != "running"
        entry = {
            "requestId": id_,
            "status": status,
            "message": message,
            "machines": [{"name": one} for one in machines],
        }
        answer = objects.pack({"text": json.dumps(entry), "ended": ended})
        written = {"phase": "Ended" if ended else "Running", "epoch": 1, "generation": 1, "answer": answer}
        path = objects.item("hf", resource, id_, "status")
        assert self.api.call("PATCH", path, {"status": written}, content="application/merge-patch+json").status == 200

    def poll(self, id_: str) -> dict[str, Any] | None:
        answer = self.state.poll([id_]).answers[id_]
        return None if answer is None else json.loads(answer.text)

    def of_shard(self, shard: int, **status: object) -> None:
        name = f"demo-s{shard}"
        self.api.call("POST", objects.collection("hf", STATES), objects.body(STATES, name, {"provisioner": name}))
        whole = {"status": {"epoch": 1, "generation": 1, **status}}
        path = objects.item("hf", STATES, name, "status")
        assert self.api.call("PATCH", path, whole, content="application/merge-patch+json").status == 200


@pytest.fixture
def grid() -> Grid:
    return Grid()


def test_a_small_request_is_one_shards_and_its_id_shows_the_shard(grid: Grid) -> None:
    ids = [grid.request("Two", PART) for _ in range(40)] + [grid.request("Narrow", 5000)]
    stored = grid.stored(REQUESTS)
    assert stored.keys() == set(ids)
    assert {id_[0]: spec["provisioner"] for id_, spec in stored.items()} == {"0": "demo-s0", "1": "demo-s1"}
    assert stored[ids[-1]]["count"] == 5000
    assert min(Counter(id_[0] for id_ in ids).values()) > 5


def test_a_large_request_spans_the_shards_and_is_answered_whole(grid: Grid) -> None:
    id_ = grid.request("Wide", PART + 1)
    parts = {f"{symbol}{id_[1:]}": spec for symbol, spec in zip("012", [*grid.stored(REQUESTS).values()], strict=True)}
    assert id_[0] == "z"
    assert grid.stored(REQUESTS) == parts
    assert [spec["count"] for spec in parts.values()] == [34, 34, 33]
    assert [spec["account"] for spec in parts.values()] == ["acc"] * 3
    first, second, third = parts
    assert grid.poll(id_) is None
    grid.publish(first, "complete", "hf-1")
    assert grid.poll(id_) == {"requestId": id_, "status": "running", "message": "", "machines": [{"name": "hf-1"}]}
    grid.publish(second, "complete_with_error", "hf-2", message="no room")
    grid.publish(third, "running", "hf-3", message="no room")
    whole = grid.poll(id_)
    assert whole is not None
    assert (whole["status"], whole["message"], len(whole["machines"])) == ("running", "no room", 3)
    grid.publish(third, "complete", "hf-3")
    answers = [grid.state.poll([id_]).answers[id_] for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0] is not None
    assert answers[0].ended
    assert json.loads(answers[0].text)["status"] == "complete_with_error"


def test_all_parts_complete_make_a_complete_whole(grid: Grid) -> None:
    id_ = grid.request("Two", 1000)
    for part in grid.stored(REQUESTS):
        grid.publish(part, "complete", f"hf-{part}")
    assert grid.poll(id_) == {
        "requestId": id_,
        "status": "complete",
        "message": "",
        "machines": [{"name": f"hf-{symbol}{id_[1:]}"} for symbol in "01"],
    }


def test_machines_are_returned_to_their_shards(grid: Grid) -> None:
    own = grid.give_back("hf-1aaaaaaaaa-000001", "hf-1aaaaaaaaa-000002")
    assert grid.stored(RETURNS) == {
        own: {"provisioner": "demo-s1", "names": ["hf-1aaaaaaaaa-000001", "hf-1aaaaaaaaa-000002"], "created": 1.0}
    }
    assert own.startswith("ret-1")
    id_ = grid.give_back("hf-1aaaaaaaaa-000003", "hf-0aaaaaaaaa-000001", "elsewhere")
    stored = grid.stored(RETURNS)
    assert id_.startswith("ret-z")
    assert stored[f"ret-0{id_[5:]}"]["names"] == ["hf-0aaaaaaaaa-000001", "elsewhere"]
    assert stored[f"ret-1{id_[5:]}"]["names"] == ["hf-1aaaaaaaaa-000003"]
    grid.publish(f"ret-0{id_[5:]}", "complete", "x")
    grid.publish(f"ret-1{id_[5:]}", "complete", "y")
    whole = grid.poll(id_)
    assert whole is not None
    assert (whole["status"], whole["machines"]) == ("complete", [{"name": "x"}, {"name": "y"}])


@pytest.mark.parametrize("id_", ["0aaaaaaaaa", "5aaaaaaaaa", "zaaaaaaaaa", "ret-1aaaaaaaaa", "ret-zaaaaaaaaa", ""])
def test_an_unknown_id_has_no_answer(grid: Grid, id_: str) -> None:
    assert grid.state.poll([id_]).answers == {}


def test_losses_and_free_numbers_are_those_of_all_shards(grid: Grid) -> None:
    grid.of_shard(0, lost=objects.pack({"m0": [0, "gone"]}), available={"Wide": 3, "Two": 4})
    grid.of_shard(1, lost=objects.pack({"m1": [30, "preempted"]}), available={"Wide": 5, "Narrow": 0, "Two": 6})
    grid.of_shard(2)
    assert grid.state.lost(["m0", "m1", "m2"]) == {"m0": Loss(0, "gone"), "m1": Loss(30, "preempted")}
    assert grid.state.available() == {"Narrow": 0, "Two": 10}, "no cap for Wide in the third shard"


def test_each_shard_gets_its_own_hosts_and_the_first_gets_the_other_notes(grid: Grid) -> None:
    grid.state.note_hosts(dict.fromkeys(["hf-0aaaaaaaaa-000001", "hf-2aaaaaaaaa-000001", "elsewhere"]))
    grid.state.note_read(Digests("00000000", "11111111"))
    assert grid.state.note_shown({"Wide": 7})[0] == {"Wide": 7}
    assert grid.state.note_shown({"Wide": 5})[0] == {"Wide": 7}
    notes = grid.stored(NOTES)
    hosts = {name: sorted(objects.unpack(spec["hosts"])) for name, spec in notes.items() if name.endswith(".hosts")}
    assert hosts == {
        "demo-s0.hosts": ["elsewhere", "hf-0aaaaaaaaa-000001"],
        "demo-s1.hosts": [],
        "demo-s2.hosts": ["hf-2aaaaaaaaa-000001"],
    }
    assert notes["demo-s0"]["shown"] == {"Wide": 7}
    assert [one["digests"] for one in notes["demo-s0"]["read"]] == ["00000000-11111111"]


def test_the_longest_silence_of_the_asked_shards_counts(grid: Grid) -> None:
    for shard, cycle in ((0, 1e6 - 90), (1, 1e6 - 5)):
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": f"demo-s{shard}.loop", "annotations": {objects.CYCLE: str(cycle)}},
            "spec": {},
        }
        assert created(grid, lease)
    assert grid.state.record_request("demo", "Two", 200, created_wall=1.0, rc_account="").silent_seconds == 90
    only = grid.request("Narrow", 1)
    assert grid.state.poll([only]).silent_seconds == 5
    assert isinstance(grid.state.poll([only]).answers[only], Answer | None)


def created(grid: Grid, lease: dict[str, Any]) -> bool:
    return grid.api.call("POST", objects.leases("hf"), lease).status == 201
