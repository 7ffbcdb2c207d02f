"""The five scripts, as HostFactory runs them, on a real API server that keeps the state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.hostfactory import Answer
from provisioner.state.kube import objects
from provisioner.state.kube.objects import ANSWERS, CYCLE, NOTES, REQUESTS, RETURNS, STATES
from tests.kube.client import Document
from tests.kube.cluster import kubeconfig
from tests.kube.proxy import Proxy, Trouble
from tests.kube.space import Space
from tests.support.hostfactory.provider import COMMANDS, HostFactory

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("state_kinds")]


class Grid:
    """A provider instance whose state is in a namespace. The test writes there what a loop would write."""

    def __init__(self, space: Space, directory: Path) -> None:
        self.space, self.admin = space, space.admin
        self.hf = HostFactory(directory)
        self.token = self.admin.headers["Authorization"].removeprefix("Bearer ")
        self.lead(self.admin.server, self.admin.ca)

    def lead(self, server: str, ca: str | Path | None, **user: str) -> None:
        """Give the scripts a kubeconfig with this address of the server. ``user``: the login; empty to keep the
        login."""
        config = kubeconfig(server, self.token, ca=ca and Path(ca))
        config["users"][0]["user"] = user or config["users"][0]["user"]
        (self.hf.conf / "state.kubeconfig").write_text(json.dumps(config))
        chosen = {"STATE": f"kubernetes:{self.space.name}", "STATE_KUBECONFIG": "state.kubeconfig"}
        (self.hf.conf / f"{self.hf.instance}prov_config.json").write_text(json.dumps(chosen))

    def items(self, resource: str) -> list[Document]:
        found: list[Document] = self.admin.get(objects.collection(self.space.name, resource))["items"]
        return found

    def note(self, part: str = "") -> Any:
        return self.admin.get(objects.item(self.space.name, NOTES, f"{self.hf.instance}{part}"))["spec"]

    def publish(self, resource: str, id_: str, phase: str, answer: Answer) -> None:
        status = {"phase": phase, "epoch": 1, "generation": 1, "answer": objects.pack(answer._asdict())}
        self.admin.patch(objects.item(self.space.name, resource, id_, "status"), {"status": status})

    def publish_losses(self, **lost: list[object]) -> None:
        state = objects.body(STATES, self.hf.instance, {"provisioner": self.hf.instance})
        self.admin.create(objects.collection(self.space.name, STATES), state)
        status = {"epoch": 1, "generation": 1, "lost": objects.pack(lost), "available": {"T1": 4}}
        self.admin.patch(objects.item(self.space.name, STATES, self.hf.instance, "status"), {"status": status})

    def beat(self, at: float) -> None:
        metadata = {"name": f"{self.hf.instance}.loop", "annotations": {CYCLE: str(at)}}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        self.admin.create(objects.leases(self.space.name), lease)

    def refusal(self, name: str, document: object) -> str:
        return self.hf.run(self.hf.command(name, document)).refusal


REQUEST = {"template": {"templateId": "T1", "machineCount": 3}}
DOCUMENTS: dict[str, object] = {
    "getAvailableTemplates": {},
    "requestMachines": REQUEST,
    "getRequestStatus": {"requests": [{"requestId": "aaaaaaaaaa"}]},
    "requestReturnMachines": {"machines": [{"name": "a", "machineId": "a"}]},
    "getReturnRequests": {"machines": [{"name": "a", "machineId": "a"}]},
}


@pytest.fixture
def grid(space: Space, tmp_path: Path) -> Grid:
    return Grid(space, tmp_path)


@pytest.fixture
def through(grid: Grid) -> Iterator[Proxy]:
    """Yield a proxy between the scripts and the server. A test can make it fail."""
    with Proxy(grid.admin.server, grid.admin.ca) as proxy:
        grid.lead(proxy.address, proxy.ca)
        yield proxy


def answer(request: str, status: str, message: str = "") -> Answer:
    text = json.dumps({"requestId": request, "status": status, "message": message, "machines": []})
    return Answer(text, status != "running")


def test_request_lives_from_its_record_to_its_settled_answer(grid: Grid) -> None:
    hf = grid.hf
    request = hf.request("T1", 3)
    [made] = grid.items(REQUESTS)
    assert made["metadata"]["name"] == request
    assert (made["spec"]["template"], made["spec"]["count"]) == ("T1", 3)
    assert made["metadata"]["annotations"][objects.READ]
    assert hf.status(request)[0]["message"] == "Waiting for the provisioner."
    grid.publish(REQUESTS, request, "Running", answer(request, "running", "half"))
    assert hf.status(request)[0]["message"] == "half"
    grid.beat(0.0)
    assert hf.status(request)[0]["message"].startswith("The provisioner has not run for ")
    grid.publish(REQUESTS, request, "Ended", answer(request, "complete", "first"))
    first = hf.status(request)
    grid.publish(REQUESTS, request, "Ended", answer(request, "complete_with_error", "second"))
    assert hf.status(request) == first
    [settled] = grid.items(ANSWERS)
    assert (settled["metadata"]["name"], settled["spec"]["kind"]) == (f"{request}.0", "Reported")
    assert grid.note(".polls")["polled"].keys() == {request}
    grid.admin.delete(objects.item(grid.space.name, REQUESTS, request))
    assert hf.status(request) == first
    assert hf.status("aaaaaaaaaa")[0]["status"] == "complete_with_error"


def test_returns_losses_and_templates(grid: Grid) -> None:
    hf = grid.hf
    grid.publish_losses(a=[0, "gone"], b=[30, "preempted"])
    back = hf.return_machines("b")
    [made] = grid.items(RETURNS)
    assert (made["metadata"]["name"], made["spec"]["names"]) == (back, ["b"])
    hosts = {"machines": [{"name": f"{name}.bank", "machineId": name} for name in "abc"]}
    [lost] = hf.call("getReturnRequests", hosts)["requests"]
    assert (lost["machineId"], lost["gracePeriod"]) == ("a", 0)
    assert objects.unpack(grid.note(".hosts")["hosts"]) == ["a", "b", "c"]
    templates = hf.call("getAvailableTemplates", {})["templates"]
    assert {one["templateId"]: one.get("availableNumber") for one in templates}["T1"] == 4
    assert grid.note()["shown"]["T1"] == 10
    assert len(grid.note()["read"]) == 1


def test_many_requests_are_polled_with_five_calls(grid: Grid, through: Proxy) -> None:
    requests = [grid.hf.request("T2", 1) for _ in range(12)]
    for request in requests:
        grid.publish(REQUESTS, request, "Running", answer(request, "running", request))
    through.calls.clear()
    assert [entry["message"] for entry in grid.hf.status(*requests)] == requests
    assert [call.method for call in through.calls] == ["GET", "PATCH", "POST", "PATCH", "GET"]
    assert grid.note(".polls")["polled"].keys() == set(requests)


def test_lost_response_is_repeated_without_harm(grid: Grid, through: Proxy) -> None:
    through.trouble = Trouble.LOSE_ONCE
    request = grid.hf.request("T1", 3)
    assert [one["metadata"]["name"] for one in grid.items(REQUESTS)] == [request]
    assert [call.status for call in through.calls if call.method == "POST"] == [201, 409]
    grid.publish(REQUESTS, request, "Ended", answer(request, "complete"))
    grid.hf.status(request)
    through.trouble = Trouble.LOSE_ONCE
    assert grid.hf.status(request)[0]["status"] == "complete"
    assert len(grid.items(ANSWERS)) == 1


def test_busy_server_is_asked_again(grid: Grid, through: Proxy) -> None:
    through.trouble = Trouble.BUSY_ONCE
    request = grid.hf.request("T1", 3)
    assert [call.status for call in through.calls] == [429, 201, 404]
    assert [one["metadata"]["name"] for one in grid.items(REQUESTS)] == [request]


@pytest.mark.parametrize("name", COMMANDS[1:])  # HF would drop a provider without templates, so these are listed
def test_server_that_is_down_refuses_each_call_and_nothing_is_lost(grid: Grid, through: Proxy, name: str) -> None:
    through.trouble = Trouble.FAIL
    assert "no usable response: HTTP 503: out of service. The call may be repeated" in grid.refusal(
        name, DOCUMENTS[name]
    )
    grid.lead("https://127.0.0.1:1", grid.admin.ca)
    assert "Connection refused. The call may be repeated without any loss." in grid.refusal(name, DOCUMENTS[name])
    assert grid.items(REQUESTS) == grid.items(RETURNS) == []
    grid.lead(grid.admin.server, grid.admin.ca)
    assert grid.hf.call(name, DOCUMENTS[name])
    assert grid.note()["refused"][name]["recent"] == 0
    assert grid.note()["refused"][name]["total"] == 2


def test_token_is_read_from_its_file_at_each_call(grid: Grid) -> None:
    token = grid.hf.conf / "token"
    grid.lead(grid.admin.server, grid.admin.ca, tokenFile="token")
    token.write_text("old")
    assert "HTTP 401: Unauthorized. Renew the token" in grid.refusal("requestMachines", REQUEST)
    token.write_text(grid.token)
    assert grid.hf.request("T1", 1)


def test_login_by_a_plugin_is_refused_with_what_to_do(grid: Grid) -> None:
    grid.lead(grid.admin.server, grid.admin.ca)
    config = json.loads((grid.hf.conf / "state.kubeconfig").read_text())
    config["users"][0]["user"] = {"exec": {"command": "gke-gcloud-auth-plugin"}}
    (grid.hf.conf / "state.kubeconfig").write_text(json.dumps(config))
    assert "the login by `exec` is refused" in grid.refusal("requestMachines", REQUEST)


def test_account_without_rights_is_named(grid: Grid) -> None:
    config = kubeconfig(grid.admin.server, "", ca=grid.admin.ca and Path(grid.admin.ca))
    config["users"][0]["user"] = {}
    (grid.hf.conf / "state.kubeconfig").write_text(json.dumps(config))
    refusal = grid.refusal("requestMachines", REQUEST)
    assert 'User "system:anonymous" cannot create resource "machinerequests"' in refusal
    assert "Bind this account to its Role" in refusal


def test_check_install_checks_the_server_instead_of_files(grid: Grid) -> None:
    done = grid.hf.run([str(grid.hf.scripts / "check_install.sh")])
    assert f"fine: {grid.admin.server}: the API server answers" in done.out
    assert f"the scripts may use the state in namespace {grid.space.name}" in done.out
    assert "no loop has run here yet" in done.out
    assert done.out.count(": answers") == len(COMMANDS)
    assert done.code == 1
    grid.lead("https://127.0.0.1:1", grid.admin.ca)
    done = grid.hf.run([str(grid.hf.scripts / "check_install.sh")])
    assert "Connection refused" in done.out
    assert "state directory" not in done.out
