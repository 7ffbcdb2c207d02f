"""The embedded Kubernetes API over HTTP, driven by the official client and by raw requests."""

from __future__ import annotations

from typing import Any

import pytest
import requests
import urllib3
from kubernetes import client
from kubernetes.client import ApiException

from provisioner.simulator.server import Simulator
from provisioner.simulator.world import Fault
from tests.support.clouds.kube_cloud import (
    PARTIAL,
    SPACE,
    TABLE,
    impose,
    manifest,
    phases,
    refusal,
    run_pods,
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


def test_deletecollection_ends_what_its_selector_matches(simulator: Simulator, api: Any) -> None:
    for name, app in (("a", "x"), ("b", "x"), ("c", "y")):
        api.create_namespaced_pod(SPACE, manifest(name, {"app": app}))
    reply = requests.delete(url(simulator, "?labelSelector=app=x"), timeout=5).json()
    assert [item["metadata"]["name"] for item in reply["items"]] == ["a", "b"]
    until(lambda: set(phases(simulator)) == {"c"}, 30)


def test_an_eviction_is_a_delete_that_says_so(simulator: Simulator, api: Any) -> None:
    run_pods(simulator, api, "a")
    metadata = client.V1ObjectMeta(name="a", namespace=SPACE)
    api.create_namespaced_pod_eviction("a", SPACE, client.V1Eviction(metadata=metadata))
    pod = api.read_namespaced_pod("a", SPACE)
    reasons = [c.reason for c in pod.status.conditions if c.type == "DisruptionTarget"]
    assert reasons == ["EvictionByEvictionAPI"]
    until(lambda: phases(simulator) == {}, 30)


def test_a_delete_of_another_pod_of_that_name_is_a_conflict(simulator: Simulator, api: Any) -> None:
    made = api.create_namespaced_pod(SPACE, manifest())
    wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    status = refusal(409, api.delete_namespaced_pod, "a", SPACE, body=wrong)
    assert status["reason"] == "Conflict"
    assert "the UID in the precondition (another) does not match" in status["message"]
    right = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=made.metadata.uid))
    api.delete_namespaced_pod("a", SPACE, body=right)
    until(lambda: phases(simulator) == {}, 30)


def test_labels_and_status_can_be_patched_and_a_stale_update_is_a_conflict(api: Any) -> None:
    old = api.create_namespaced_pod(SPACE, manifest("a", {"app": "x"}))
    patched = api.patch_namespaced_pod("a", SPACE, {"metadata": {"labels": {"more": "1"}}})
    assert patched.metadata.labels == {"app": "x", "more": "1"}
    failed = api.patch_namespaced_pod_status("a", SPACE, {"status": {"phase": "Failed", "reason": "Evicted"}})
    assert (failed.status.phase, failed.status.reason) == ("Failed", "Evicted")
    status = refusal(409, api.replace_namespaced_pod, "a", SPACE, old)
    assert "the object has been modified" in status["message"]


def test_a_patch_that_changes_nothing_makes_no_new_version(simulator: Simulator, api: Any) -> None:
    impose(simulator, schedule=3600)
    made = api.create_namespaced_pod(SPACE, manifest("a", {"app": "x"}))
    again = api.patch_namespaced_pod("a", SPACE, {"metadata": {"labels": {"app": "x"}}})
    assert again.metadata.resource_version == made.metadata.resource_version


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


def test_events_tell_a_pods_story_by_field_selector(simulator: Simulator, api: Any) -> None:
    run_pods(simulator, api, "a", "b")
    uid = api.read_namespaced_pod("a", SPACE).metadata.uid
    events = api.list_namespaced_event(SPACE, field_selector=f"involvedObject.name=a,involvedObject.uid={uid}").items
    assert {event.reason for event in events} == {"Scheduled", "Pulling", "Pulled", "Created", "Started"}
    assert {event.involved_object.name for event in events} == {"a"}


def test_a_clients_own_event_is_stored(api: Any) -> None:
    reference = client.V1ObjectReference(kind="Pod", name="a", namespace=SPACE)
    metadata = client.V1ObjectMeta(generate_name="note-")
    api.create_namespaced_event(SPACE, client.CoreV1Event(metadata=metadata, involved_object=reference, reason="Noted"))
    assert [e.reason for e in api.list_namespaced_event(SPACE).items] == ["Noted"]


def test_a_deleted_node_takes_its_pods_along(simulator: Simulator, api: Any) -> None:
    impose(simulator, node_gone=0.2)
    run_pods(simulator, api, "a")
    api.delete_node(api.read_namespaced_pod("a", SPACE).spec.node_name)
    until(lambda: not phases(simulator), 30)
    assert api.list_namespaced_pod(SPACE).items == []


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


def test_a_list_spans_namespaces_and_takes_both_selectors(simulator: Simulator, api: Any) -> None:
    impose(simulator, schedule=3600)
    api.create_namespaced_pod(SPACE, manifest("a", {"app": "x", "tier": "1"}))
    api.create_namespaced_pod(SPACE, manifest("b", {"app": "y"}))
    api.create_namespaced_pod("other", manifest("c", {"app": "x"}))

    def names(**options: str) -> list[str]:
        return [pod.metadata.name for pod in api.list_pod_for_all_namespaces(**options).items]

    assert names() == ["c", "a", "b"]
    assert names(label_selector="app in (x),!tier") == ["c"]
    assert names(field_selector=f"metadata.namespace={SPACE},status.phase=Pending") == ["a", "b"]
    assert names(field_selector="spec.nodeName!=") == []


def test_versions_of_lists(simulator: Simulator, api: Any) -> None:
    for name in "abc":
        api.create_namespaced_pod(SPACE, manifest(name))
    assert len(api.list_namespaced_pod(SPACE, resource_version="0", limit=1).items) == 3, "0 ignores the limit"
    refusal(504, api.list_namespaced_pod, SPACE, resource_version="99999999")
    options = {"resource_version": "1001", "resource_version_match": "Exact"}
    assert refusal(410, api.list_namespaced_pod, SPACE, **options)["reason"] == "Expired"
    refusal(422, api.list_namespaced_pod, SPACE, resource_version_match="Exact")
    refusal(400, api.list_namespaced_pod, SPACE, resource_version="latest")


def test_objects_come_as_table_and_as_metadata_when_asked(simulator: Simulator, api: Any) -> None:
    run_pods(simulator, api, "a")
    table = requests.get(url(simulator), headers={"Accept": TABLE}, timeout=5).json()
    assert (table["kind"], [column["name"] for column in table["columnDefinitions"]][:3]) == (
        "Table",
        ["Name", "Ready", "Status"],
    )
    assert table["rows"][0]["cells"][:4] == ["a", "1/1", "Running", "0"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    partial = requests.get(url(simulator), headers={"Accept": PARTIAL}, timeout=5).json()
    assert partial["kind"] == "PartialObjectMetadataList"
    assert set(partial["items"][0]) == {"kind", "apiVersion", "metadata"}


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


@pytest.mark.parametrize("path", ["/api/v1/services", "/apis/apps/v1/deployments", "/api/v2", "/api/v1/pods/a"])
def test_unknown_paths_are_404_status_objects(simulator: Simulator, path: str) -> None:
    reply = requests.get(simulator.kubernetes + path, timeout=5)
    assert (reply.status_code, reply.json()["reason"]) == (404, "NotFound")


@pytest.mark.parametrize(
    ("mode", "code", "reason"),
    [
        ("throttled", 429, "TooManyRequests"),
        ("unavailable", 503, "ServiceUnavailable"),
        ("denied", 403, "Forbidden"),
        ("quota", 403, "Forbidden"),
        ("invalid", 422, "Invalid"),
    ],
)
def test_a_fault_refuses_a_create_and_applies_nothing(
    simulator: Simulator, api: Any, mode: str, code: int, reason: str
) -> None:
    impose(simulator, Fault(mode, target=SPACE, limit=1))
    assert refusal(code, api.create_namespaced_pod, SPACE, manifest())["reason"] == reason
    assert phases(simulator) == {}
    api.create_namespaced_pod(SPACE, manifest())


def test_throttled_says_when_to_come_back(simulator: Simulator, api: Any) -> None:
    impose(simulator, Fault("throttled", params={"seconds": 3}))
    with pytest.raises(ApiException) as caught:
        api.list_namespaced_pod(SPACE)
    assert (caught.value.headers or {})["Retry-After"] == "3"


def test_a_fault_can_aim_at_one_verb_of_one_namespace(simulator: Simulator, api: Any) -> None:
    impose(simulator, Fault("denied", target=rf"{SPACE}/pods\.create"))
    words = refusal(403, api.create_namespaced_pod, SPACE, manifest())["message"]
    assert 'cannot create resource "pods" in API group "" in the namespace "symphony"' in words
    assert api.list_namespaced_pod(SPACE).items == []
    api.create_namespaced_pod("other", manifest())


def test_a_lost_response_has_been_applied(simulator: Simulator, api: Any) -> None:
    impose(simulator, Fault("lost_response", target=r"pods\.create", limit=1))
    with pytest.raises(urllib3.exceptions.ProtocolError):
        api.create_namespaced_pod(SPACE, manifest())
    assert set(phases(simulator)) == {"a"}


def test_a_hanging_call_is_answered_late_and_is_applied(simulator: Simulator, api: Any) -> None:
    impose(simulator, Fault("hang", target=r"pods\.create", params={"seconds": 0.5}))
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        api.create_namespaced_pod(SPACE, manifest(), _request_timeout=0.1)
    assert phases(simulator) == {}
    until(lambda: set(phases(simulator)) == {"a"}, 30)


def test_a_list_error_is_an_internal_error(simulator: Simulator, api: Any) -> None:
    impose(simulator, Fault("list_error", limit=1))
    assert refusal(500, api.list_namespaced_pod, SPACE)["reason"] == "InternalError"
