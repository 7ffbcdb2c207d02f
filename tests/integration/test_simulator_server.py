"""The embedded cloud as a whole: discovery, the control interface, its server and thread, and its size."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from kubernetes import client

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Serving, Simulator
from tests.support.clouds.kube_cloud import (
    QUICK,
    SPACE,
    manifest,
    phases,
    refusal,
    run_pods,
    url,
)
from tests.support.clouds.specs import advised
from tests.support.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulator]:
    mig = advised(project="p", name="group", zone="us-central1-a")
    with Simulator(namespaces=[SPACE, "other"], migs=[mig]) as running:
        yield running


def test_the_official_client_finds_versions_and_resources(simulator: Simulator, api: Any) -> None:
    assert client.VersionApi(api.api_client).get_code().git_version.startswith("v1.")
    assert client.CoreApi(api.api_client).get_api_versions().versions == ["v1"]
    resources = {resource.name: resource for resource in api.get_api_resources().resources}
    assert set(resources) == {"events", "namespaces", "nodes", "pods", "pods/eviction", "pods/status"}
    assert [space.metadata.name for space in api.list_namespace().items] == ["default", "kube-system", "other", SPACE]
    assert all(node.status.conditions[0].status == "True" for node in api.list_node().items)
    for path in ("healthz", "livez", "readyz"):
        assert requests.get(f"{simulator.kubernetes}/{path}", timeout=30).text == "ok"


def test_the_control_face_shows_every_machine_and_counts_calls(simulator: Simulator, api: Any) -> None:
    run_pods(simulator, api, "a")
    state = requests.get(f"{simulator.control}state", timeout=30).json()
    (machine,) = state["machines"]
    assert machine == {
        "name": "a",
        "pool": SPACE,
        "kind": "gke",
        "phase": "running",
        "labels": {},
        "created": machine["created"],
        "ip": machine["ip"],
    }
    assert state["calls"] == {"pods.create": 1}


def test_the_control_face_sets_faults_and_timings_and_resets(simulator: Simulator, api: Any) -> None:
    document: Any = {"faults": [{"mode": "denied", "target": SPACE}], "timings": {"gke": QUICK, "mig": {"boot": 1}}}
    assert requests.put(f"{simulator.control}faults", json=document, timeout=30).json() == {"faults": 1}
    refusal(403, api.create_namespaced_pod, SPACE, manifest())
    api.create_namespaced_pod("other", manifest())
    assert requests.post(f"{simulator.control}reset", timeout=30).json() == {}
    assert simulator.state()["machines"] == []
    assert simulator.state()["calls"] == {}
    api.create_namespaced_pod(SPACE, manifest())


def test_the_control_interface_switches_undocumented_behaviours() -> None:
    """Expect that a switch can be set at the start, and again while the cloud runs."""
    mig = advised(project="p", name="group", zone="us-central1-a")
    timings = {"mig": {"operation": 0, "schedule": 0, "boot": 1000}}
    conditions = Conditions.of(timings=timings, switches={"ip_before_running": True})
    with Simulator(migs=[mig], conditions=conditions) as simulator:
        switches = {"ip_before_running": False}
        requests.put(f"{simulator.control}faults", json={"switches": switches}, timeout=30).raise_for_status()
        simulator.call(lambda cloud: cloud.groups.mig("p", mig.scope, "group").create(["vm"]))
        until(lambda: simulator.state()["machines"], 30)
        until(lambda: simulator.state()["machines"][0]["phase"] == "pending", 30)
        assert not simulator.state()["machines"][0]["ip"]


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("PUT", "faults", '{"faults": [{"mode": "qota"}]}', "faults[0]: mode: unknown mode 'qota'"),
        ("PUT", "faults", "{", "the body is not JSON"),
        ("PUT", "faults", '{"switches": {"cancel": true}}', "cancel: unknown switch; known: cancel_creating, "),
        ("PUT", "faults", '{"switches": {"duplicate_name": "x"}}', "duplicate_name: expected one of operation_error, "),
        ("PUT", "faults", '{"switches": {"request_id_seconds": -1}}', "request_id_seconds: expected seconds ≥ 0"),
        ("POST", "preempt", '{"names": "a"}', 'expected {"names": [NAME, …]}'),
    ],
)
def test_a_mistake_on_the_control_face_is_answered_400_with_words(
    simulator: Simulator, method: str, path: str, body: str, words: str
) -> None:
    reply = requests.request(method, simulator.control + path, data=body, timeout=30)
    assert reply.status_code == 400
    assert words in reply.json()["error"]


def test_a_simulator_ends_with_its_thread_and_its_kubeconfig_while_a_watch_is_open() -> None:
    before = set(threading.enumerate())
    with Simulator(namespaces=[SPACE]) as simulator:
        reply = requests.get(url(simulator, "?watch=1&timeoutSeconds=600"), stream=True, timeout=30)
        assert simulator.kubeconfig.exists()
    reply.close()
    assert not simulator.kubeconfig.exists()
    assert set(threading.enumerate()) <= before
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(simulator.kubernetes, timeout=2)


def test_a_port_that_is_taken_is_an_error_at_once(simulator: Simulator) -> None:
    port = int(simulator.address.rpartition(":")[2])
    with pytest.raises(OSError, match="address already in use"), Simulator(serving=Serving(port=port)):
        pass


# --- size -------------------------------------------------------------------------------------------------------------


def test_an_event_that_fails_does_not_stop_the_world(simulator: Simulator, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("this event fails")

    simulator.call(lambda cloud: cloud.world.after(0.0, fail))
    requests.post(url(simulator), json=manifest(), timeout=30).raise_for_status()
    until(lambda: phases(simulator) == {"a": "running"}, 30)
    assert "An event in the simulated world failed" in caplog.text


def test_the_control_face_answers_to_no_other_host_s_name() -> None:
    with Simulator() as simulator:
        url = f"{simulator.control}state"
        port = urlsplit(url).port
        codes = {
            host: requests.get(url, headers={"Host": host}, timeout=10 * PATIENCE).status_code
            for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"attacker.example:{port}", "attacker.example")
        }
    assert list(codes.values()) == [200, 200, 421, 421]
