"""The embedded Kubernetes API over HTTP, driven by the official client and by raw requests."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from kubernetes import client

from provisioner.simulator.server import Simulator
from tests.support.clouds.kube_cloud import (
    SPACE,
    impose,
    manifest,
    phases,
    refusal,
    url,
)
from tests.support.waiting import until

# --- the life of a pod, through the official client -------------------------------------------------------------------


def test_a_pod_is_created_runs_and_is_deleted(simulator: Simulator, api: Any) -> None:
    made = api.create_namespaced_pod(SPACE, manifest("a", {"app": "x"}))
    assert (made.status.phase, made.metadata.namespace) == ("Pending", SPACE)
    pod = until(lambda: (p := api.read_namespaced_pod("a", SPACE)).status.container_statuses and p, 30)
    until(lambda: phases(simulator) == {"a": "running"}, 30)
    pod = api.read_namespaced_pod("a", SPACE)
    assert pod.status.pod_ip.startswith("10.4.")
    assert {c.type: c.status for c in pod.status.conditions}["Ready"] == "True"
    assert pod.metadata.uid == made.metadata.uid
    ending = api.delete_namespaced_pod("a", SPACE, body=client.V1DeleteOptions(grace_period_seconds=7))
    assert ending.metadata.deletion_timestamp is not None
    assert ending.metadata.deletion_grace_period_seconds == 7
    until(lambda: phases(simulator) == {}, 30)
    status = refusal(404, api.read_namespaced_pod, "a", SPACE)
    assert status["message"] == 'pods "a" not found'


def test_labels_and_status_can_be_patched_and_a_stale_update_is_a_conflict(api: Any) -> None:
    old = api.create_namespaced_pod(SPACE, manifest("a", {"app": "x"}))
    patched = api.patch_namespaced_pod("a", SPACE, {"metadata": {"labels": {"more": "1"}}})
    assert patched.metadata.labels == {"app": "x", "more": "1"}
    failed = api.patch_namespaced_pod_status("a", SPACE, {"status": {"phase": "Failed", "reason": "Evicted"}})
    assert (failed.status.phase, failed.status.reason) == ("Failed", "Evicted")
    status = refusal(409, api.replace_namespaced_pod, "a", SPACE, old)
    assert "the object has been modified" in status["message"]


def test_fields_that_no_pod_has_are_dropped_unless_the_caller_is_strict(simulator: Simulator) -> None:
    pods = f"{simulator.kubernetes}/api/v1/namespaces/{SPACE}/pods"
    wrong = manifest("a")
    image = wrong["spec"]["containers"][0]["image"]
    wrong["spec"] |= {"nodeSelektor": {"a": "b"}}
    wrong["spec"]["containers"][0] |= {"imag": "x"}

    refused = requests.post(pods, params={"fieldValidation": "Strict"}, json=wrong, timeout=10)
    assert refused.status_code == 400
    assert 'unknown field "spec.nodeSelektor"' in refused.json()["message"]

    assert requests.post(pods, json=wrong, timeout=10).status_code == 201
    stored = requests.get(f"{pods}/a", timeout=10).json()["spec"]
    assert "nodeSelektor" not in stored
    assert "imag" not in stored["containers"][0]
    assert stored["containers"][0]["image"] == image


# --- lists ------------------------------------------------------------------------------------------------------------


def test_pages_show_one_moment_although_pods_come_and_go(simulator: Simulator, api: Any) -> None:
    impose(simulator, schedule=3600)
    for number in range(10):
        api.create_namespaced_pod(SPACE, manifest(f"p{number}"))
    first = api.list_namespaced_pod(SPACE, limit=4)
    assert first.metadata.remaining_item_count == 6
    api.delete_namespaced_pod("p5", SPACE)
    api.create_namespaced_pod(SPACE, manifest("p55"))
    names = [pod.metadata.name for pod in first.items]
    page = first
    while page.metadata._continue:
        page = api.list_namespaced_pod(SPACE, limit=4, _continue=page.metadata._continue)
        names += [pod.metadata.name for pod in page.items]
        assert page.metadata.resource_version == first.metadata.resource_version
    assert names == [f"p{number}" for number in range(10)]
    now = [pod.metadata.name for pod in api.list_namespaced_pod(SPACE).items]
    assert now == [f"p{number}" for number in range(5)] + ["p55"] + [f"p{number}" for number in range(6, 10)]


def test_a_page_asked_for_too_late_is_gone(simulator: Simulator, api: Any) -> None:
    impose(simulator, continue_ttl=0)
    for name in "abc":
        api.create_namespaced_pod(SPACE, manifest(name))
    token = api.list_namespaced_pod(SPACE, limit=1).metadata._continue
    page = url(simulator, f"?limit=1&continue={token}")
    until(lambda: requests.get(page, timeout=5).status_code == 410, 30)
    assert requests.get(page, timeout=5).json()["reason"] == "Expired"


def test_versions_of_lists(simulator: Simulator, api: Any) -> None:
    for name in "abc":
        api.create_namespaced_pod(SPACE, manifest(name))
    assert len(api.list_namespaced_pod(SPACE, resource_version="0", limit=1).items) == 3, "0 ignores the limit"
    refusal(504, api.list_namespaced_pod, SPACE, resource_version="99999999")
    options = {"resource_version": "1001", "resource_version_match": "Exact"}
    assert refusal(410, api.list_namespaced_pod, SPACE, **options)["reason"] == "Expired"
    refusal(422, api.list_namespaced_pod, SPACE, resource_version_match="Exact")
    refusal(400, api.list_namespaced_pod, SPACE, resource_version="latest")


# --- refusals and faults ----------------------------------------------------------------------------------------------


def test_refusals_are_status_objects_in_the_servers_words(simulator: Simulator, api: Any) -> None:
    api.create_namespaced_pod(SPACE, manifest())
    assert refusal(409, api.create_namespaced_pod, SPACE, manifest())["reason"] == "AlreadyExists"
    assert refusal(404, api.create_namespaced_pod, "nowhere", manifest())["details"]["kind"] == "namespaces"
    status = refusal(422, api.create_namespaced_pod, SPACE, {"metadata": {"name": "b"}, "spec": {"containers": []}})
    assert status["details"]["causes"][0]["field"] == "spec.containers"
    wrong = requests.post(url(simulator), json=manifest("b") | {"spec": "x"}, timeout=5)
    assert wrong.status_code == 400
    assert "cannot unmarshal string into Go struct field Pod.spec" in wrong.json()["message"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "code"),
    [
        ("POST", "", {"Content-Type": "text/plain"}, "x", 415),
        ("POST", "", {"Content-Type": "application/json"}, "{", 400),
        ("POST", "", {"Content-Type": "application/json"}, "[]", 400),
        ("POST", "", {"Content-Type": "application/json"}, '{"kind":"Service","apiVersion":"v1"}', 400),
        ("POST", "/a", {}, "{}", 405),
        ("PATCH", "/a", {"Content-Type": "application/apply-patch+yaml"}, "{}", 415),
        ("GET", "/a", {"Accept": "application/vnd.kubernetes.protobuf"}, "", 406),
        ("GET", "/a/log", {}, "", 405),
        ("GET", "/a/nothing", {}, "", 404),
        ("GET", "?labelSelector=a%20b", {}, "", 400),
        ("GET", "?fieldSelector=spec.x=1", {}, "", 400),
        ("GET", "?continue=%C3%A4", {}, "", 400),
        ("DELETE", "/a?gracePeriodSeconds=1", {"Content-Type": "application/json"}, '{"gracePeriodSeconds":"x"}', 400),
        ("DELETE", "/a", {"Content-Type": "application/json"}, '{"propagationPolicy":"Soon"}', 422),
    ],
)
def test_what_is_not_understood_is_refused_with_its_code(
    simulator: Simulator, api: Any, method: str, path: str, headers: dict[str, str], body: str, code: int
) -> None:
    api.create_namespaced_pod(SPACE, manifest())
    reply = requests.request(method, url(simulator, path), headers=headers, data=body, timeout=5)
    assert (reply.status_code, reply.json()["code"], reply.json()["kind"]) == (code, code, "Status")
