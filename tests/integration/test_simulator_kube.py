"""The embedded Kubernetes API over HTTP, driven by the official client and by raw requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
import urllib3
from kubernetes import client, config, watch
from kubernetes.client import ApiException, CoreV1Api

from provisioner.simulator.compute_settings import MigSpec
from provisioner.simulator.server import Simulator
from provisioner.simulator.world import Fault
from tests.waiting import until

SPACE = "symphony"
QUICK = {"schedule": 0.02, "start": 0.02, "ready": 0.02, "stop": 0.05, "confirm": 0.02, "reschedule": 0.1}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def impose(simulator: Simulator, *faults: Fault, **timings: float) -> None:
    """These faults, and short timings but for those given."""
    simulator.impose(faults, {"gke": {**QUICK, **timings}})


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulator]:
    mig = MigSpec(project="p", name="group", zone="us-central1-a")
    with Simulator(namespaces=[SPACE, "other"], migs=[mig]) as running:
        yield running


@pytest.fixture
def simulator(shared: Simulator) -> Simulator:
    """Empty, quick and without faults."""
    shared.reset()
    impose(shared)
    return shared


@pytest.fixture
def api(simulator: Simulator) -> Iterator[Any]:
    settings = client.Configuration()
    load: Any = config.load_kube_config
    load(str(simulator.kubeconfig), client_configuration=settings)
    settings.retries = False
    with client.ApiClient(settings) as connection:
        yield CoreV1Api(connection)


def manifest(name: str = "a", labels: dict[str, str] | None = None) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels or {}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "image:1"}]}}


def url(simulator: Simulator, rest: str = "", space: str = SPACE) -> str:
    return f"{simulator.kubernetes}/api/v1/namespaces/{space}/pods{rest}"


def phases(simulator: Simulator) -> dict[str, str]:
    return {machine["name"]: machine["phase"] for machine in simulator.state()["machines"]}


def run_pods(simulator: Simulator, api: Any, *names: str) -> None:
    for name in names:
        api.create_namespaced_pod(SPACE, manifest(name))
    until(lambda: list(phases(simulator).values()) == ["running"] * len(names), 5)


def refusal(code: int, call: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    with pytest.raises(ApiException) as caught:
        call(*arguments, **options)
    assert caught.value.status == code, caught.value.body
    status: dict[str, Any] = json.loads(caught.value.body or "")
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", code)
    return status


# --- the life of a pod, through the official client -------------------------------------------------------------------


def test_a_pod_is_created_runs_and_is_deleted(simulator: Simulator, api: Any) -> None:
    made = api.create_namespaced_pod(SPACE, manifest("a", {"app": "x"}))
    assert (made.status.phase, made.metadata.namespace) == ("Pending", SPACE)
    pod = until(lambda: (p := api.read_namespaced_pod("a", SPACE)).status.container_statuses and p, 5)
    until(lambda: phases(simulator) == {"a": "running"}, 5)
    pod = api.read_namespaced_pod("a", SPACE)
    assert pod.status.pod_ip.startswith("10.4.")
    assert {c.type: c.status for c in pod.status.conditions}["Ready"] == "True"
    assert pod.metadata.uid == made.metadata.uid
    ending = api.delete_namespaced_pod("a", SPACE, body=client.V1DeleteOptions(grace_period_seconds=7))
    assert ending.metadata.deletion_timestamp is not None
    assert ending.metadata.deletion_grace_period_seconds == 7
    until(lambda: phases(simulator) == {}, 5)
    status = refusal(404, api.read_namespaced_pod, "a", SPACE)
    assert status["message"] == 'pods "a" not found'


def test_deletecollection_ends_what_its_selector_matches(simulator: Simulator, api: Any) -> None:
    for name, app in (("a", "x"), ("b", "x"), ("c", "y")):
        api.create_namespaced_pod(SPACE, manifest(name, {"app": app}))
    reply = requests.delete(url(simulator, "?labelSelector=app=x"), timeout=5).json()
    assert [item["metadata"]["name"] for item in reply["items"]] == ["a", "b"]
    until(lambda: set(phases(simulator)) == {"c"}, 5)


def test_an_eviction_is_a_delete_that_says_so(simulator: Simulator, api: Any) -> None:
    run_pods(simulator, api, "a")
    metadata = client.V1ObjectMeta(name="a", namespace=SPACE)
    api.create_namespaced_pod_eviction("a", SPACE, client.V1Eviction(metadata=metadata))
    pod = api.read_namespaced_pod("a", SPACE)
    reasons = [c.reason for c in pod.status.conditions if c.type == "DisruptionTarget"]
    assert reasons == ["EvictionByEvictionAPI"]
    until(lambda: phases(simulator) == {}, 5)


def test_a_delete_of_another_pod_of_that_name_is_a_conflict(simulator: Simulator, api: Any) -> None:
    made = api.create_namespaced_pod(SPACE, manifest())
    wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    status = refusal(409, api.delete_namespaced_pod, "a", SPACE, body=wrong)
    assert status["reason"] == "Conflict"
    assert "Precondition failed: UID in precondition: another" in status["message"]
    right = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=made.metadata.uid))
    api.delete_namespaced_pod("a", SPACE, body=right)
    until(lambda: phases(simulator) == {}, 5)


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


def test_events_tell_a_pods_story_by_field_selector(simulator: Simulator, api: Any) -> None:
    run_pods(simulator, api, "a", "b")
    uid = api.read_namespaced_pod("a", SPACE).metadata.uid
    found = api.list_namespaced_event(SPACE, field_selector=f"involvedObject.name=a,involvedObject.uid={uid}").items
    assert {event.reason for event in found} == {"Scheduled", "Pulling", "Pulled", "Created", "Started"}
    assert {event.involved_object.name for event in found} == {"a"}


def test_a_clients_own_event_is_stored(api: Any) -> None:
    reference = client.V1ObjectReference(kind="Pod", name="a", namespace=SPACE)
    metadata = client.V1ObjectMeta(generate_name="note-")
    api.create_namespaced_event(SPACE, client.CoreV1Event(metadata=metadata, involved_object=reference, reason="Noted"))
    assert [e.reason for e in api.list_namespaced_event(SPACE).items] == ["Noted"]


def test_a_deleted_node_takes_its_pods_along(simulator: Simulator, api: Any) -> None:
    impose(simulator, node_gone=0.2)
    run_pods(simulator, api, "a")
    api.delete_node(api.read_namespaced_pod("a", SPACE).spec.node_name)
    until(lambda: phases(simulator) == {}, 5)


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
    until(lambda: requests.get(page, timeout=5).status_code == 410, 5)
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


# --- watches ----------------------------------------------------------------------------------------------------------


def lines(simulator: Simulator, query: str, **headers: str) -> Generator[dict[str, Any], None, None]:
    """The lines of a watch as they come, until its end."""
    with requests.get(url(simulator, f"?watch=1&{query}"), stream=True, timeout=10, headers=headers) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            yield json.loads(line)


def kinds(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(line["type"], line["object"]["metadata"].get("name", "")) for line in found]


def test_the_official_watch_sees_a_whole_life(simulator: Simulator, api: Any) -> None:
    version = api.list_namespaced_pod(SPACE).metadata.resource_version
    seen = []
    api.create_namespaced_pod(SPACE, manifest())
    following: Any = watch.Watch()  # type: ignore[no-untyped-call]
    for event in following.stream(api.list_namespaced_pod, SPACE, resource_version=version, timeout_seconds=10):
        pod = event["object"]
        seen.append((event["type"], pod.status.phase))
        ready = any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or [])
        if ready and ("DELETE", "asked") not in seen:
            seen.append(("DELETE", "asked"))
            api.delete_namespaced_pod("a", SPACE)
        if event["type"] == "DELETED":
            following.stop()
    assert seen[0] == ("ADDED", "Pending")
    assert ("MODIFIED", "Running") in seen
    assert seen[-1] == ("DELETED", "Failed")


def test_a_watch_resumed_from_any_version_loses_and_repeats_nothing(simulator: Simulator, api: Any) -> None:
    begin = api.list_namespaced_pod(SPACE).metadata.resource_version
    run_pods(simulator, api, "a", "b")
    whole = list(lines(simulator, f"resourceVersion={begin}&timeoutSeconds=0"))
    assert not whole, "a watch of no time ends at once"
    whole = list(lines(simulator, f"resourceVersion={begin}&timeoutSeconds=1"))
    versions = [line["object"]["metadata"]["resourceVersion"] for line in whole]
    assert len(versions) == 8
    rest = list(lines(simulator, f"resourceVersion={versions[2]}&timeoutSeconds=1"))
    assert rest == whole[3:]


def test_a_streamed_list_ends_with_its_bookmark_and_goes_on(simulator: Simulator, api: Any) -> None:
    impose(simulator, schedule=3600)
    for name in "ab":
        api.create_namespaced_pod(SPACE, manifest(name))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=10"
    following = lines(simulator, query)
    first = [next(following) for _ in range(3)]
    assert kinds(first) == [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", "")]
    assert first[2]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    api.create_namespaced_pod(SPACE, manifest("c"))
    assert kinds([next(following)]) == [("ADDED", "c")]
    following.close()


def test_a_streamed_list_needs_its_match(simulator: Simulator) -> None:
    reply = requests.get(url(simulator, "?watch=1&sendInitialEvents=true"), timeout=5)
    assert reply.status_code == 422
    assert "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan" in reply.json()["message"]


def test_bookmarks_tell_the_version_at_their_interval(simulator: Simulator, api: Any) -> None:
    impose(simulator, bookmark=0.2)
    api.create_namespaced_pod("other", manifest("elsewhere"))
    following = lines(simulator, f"resourceVersion={_version(api)}&allowWatchBookmarks=true&timeoutSeconds=10")
    first, second = next(following), next(following)
    following.close()
    assert (first["type"], second["type"]) == ("BOOKMARK", "BOOKMARK")
    assert int(second["object"]["metadata"]["resourceVersion"]) >= int(first["object"]["metadata"]["resourceVersion"])


def test_a_watch_without_version_begins_with_what_is_there(simulator: Simulator, api: Any) -> None:
    impose(simulator, schedule=3600)
    api.create_namespaced_pod(SPACE, manifest())
    assert kinds(list(lines(simulator, "timeoutSeconds=1"))) == [("ADDED", "a")]


def test_a_pod_that_leaves_the_selector_is_deleted_to_its_watcher(simulator: Simulator, api: Any) -> None:
    impose(simulator, schedule=3600)
    api.create_namespaced_pod(SPACE, manifest("a", {"app": "x"}))
    begin = _version(api)
    for value in ("y", "x"):
        api.patch_namespaced_pod("a", SPACE, {"metadata": {"labels": {"app": value}}})
    api.create_namespaced_pod(SPACE, manifest("b", {"app": "y"}))
    found = list(lines(simulator, f"resourceVersion={begin}&labelSelector=app=x&timeoutSeconds=1"))
    assert kinds(found) == [("DELETED", "a"), ("ADDED", "a")]


def test_a_version_that_is_no_longer_known_ends_the_stream_with_410(simulator: Simulator) -> None:
    found = list(lines(simulator, "resourceVersion=7"))
    assert [(line["type"], line["object"]["code"], line["object"]["reason"]) for line in found] == [
        ("ERROR", 410, "Expired")
    ]
    assert found[0]["object"]["message"].startswith("too old resource version: 7 (")


def test_a_watch_as_table_carries_rows(simulator: Simulator, api: Any) -> None:
    impose(simulator, schedule=3600)
    api.create_namespaced_pod(SPACE, manifest())
    (line,) = lines(simulator, "timeoutSeconds=1", Accept=TABLE)
    assert line["object"]["rows"][0]["cells"][0] == "a"


def test_many_watchers_get_every_change(simulator: Simulator, api: Any) -> None:
    begin = _version(api)

    def follow(_: int) -> list[tuple[str, str]]:
        return kinds(list(lines(simulator, f"resourceVersion={begin}&timeoutSeconds=2")))

    with ThreadPoolExecutor(8) as threads:
        streams = [threads.submit(follow, number) for number in range(8)]
        for number in range(20):
            api.create_namespaced_pod(SPACE, manifest(f"p{number}"))
        results = [stream.result() for stream in streams]
    assert len(results[0]) == 80
    assert all(result == results[0] for result in results)


def _version(api: Any) -> str:
    version: str = api.list_namespaced_pod(SPACE).metadata.resource_version
    return version


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
        ("DELETE", "/a", {"Content-Type": "application/json"}, '{"gracePeriodSeconds":-1}', 422),
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
    until(lambda: set(phases(simulator)) == {"a"}, 5)


def test_a_list_error_is_an_internal_error(simulator: Simulator, api: Any) -> None:
    impose(simulator, Fault("list_error", limit=1))
    assert refusal(500, api.list_namespaced_pod, SPACE)["reason"] == "InternalError"


@pytest.mark.parametrize("event", [False, True], ids=["as HTTP status", "as event"])
def test_a_watch_that_is_gone(simulator: Simulator, event: bool) -> None:
    impose(simulator, Fault("watch_gone", params={"event": event}))
    reply = requests.get(url(simulator, "?watch=1&resourceVersion=1001"), timeout=5)
    assert reply.status_code == (200 if event else 410)
    assert (reply.json()["object"] if event else reply.json())["reason"] == "Expired"


def test_a_watch_cut_cleanly_just_ends(simulator: Simulator) -> None:
    impose(simulator, Fault("watch_cut", params={"seconds": 0.1}))
    began = time.monotonic()
    assert list(lines(simulator, "timeoutSeconds=60")) == []
    assert time.monotonic() - began < 5


def test_a_watch_cut_in_mid_stream_is_a_broken_connection(simulator: Simulator) -> None:
    impose(simulator, Fault("watch_cut", params={"seconds": 0.1, "abort": True}))
    with pytest.raises(requests.exceptions.RequestException):
        list(lines(simulator, "timeoutSeconds=60"))


# --- discovery, control, the server -----------------------------------------------------------------------------------


def test_the_official_client_finds_versions_and_resources(simulator: Simulator, api: Any) -> None:
    assert client.VersionApi(api.api_client).get_code().git_version.startswith("v1.")
    assert client.CoreApi(api.api_client).get_api_versions().versions == ["v1"]
    resources = {resource.name: resource for resource in api.get_api_resources().resources}
    assert set(resources) == {"events", "namespaces", "nodes", "pods", "pods/eviction", "pods/status"}
    assert [space.metadata.name for space in api.list_namespace().items] == ["default", "kube-system", "other", SPACE]
    assert all(node.status.conditions[0].status == "True" for node in api.list_node().items)
    for path in ("healthz", "livez", "readyz"):
        assert requests.get(f"{simulator.kubernetes}/{path}", timeout=5).text == "ok"


def test_the_control_face_shows_every_machine_and_counts_calls(simulator: Simulator, api: Any) -> None:
    run_pods(simulator, api, "a")
    state = requests.get(f"{simulator.control}state", timeout=5).json()
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
    assert abs(state["time"] - time.time()) < 5
    assert state["calls"] == {"pods.create": 1}


def test_the_control_face_preempts_by_name(simulator: Simulator, api: Any) -> None:
    impose(simulator, preempt_grace=0.1)
    run_pods(simulator, api, "a", "b")
    reply = requests.post(f"{simulator.control}preempt", json={"names": ["a", "z"]}, timeout=5)
    assert reply.json() == {"preempted": ["a"], "unknown": ["z"]}
    until(lambda: phases(simulator) == {"b": "running"}, 5)


def test_the_control_face_sets_faults_and_timings_and_resets(simulator: Simulator, api: Any) -> None:
    document: Any = {"faults": [{"mode": "denied", "target": SPACE}], "timings": {"gke": QUICK, "mig": {"boot": 1}}}
    assert requests.put(f"{simulator.control}faults", json=document, timeout=5).json() == {"faults": 1}
    refusal(403, api.create_namespaced_pod, SPACE, manifest())
    api.create_namespaced_pod("other", manifest())
    assert requests.post(f"{simulator.control}reset", timeout=5).json() == {}
    assert simulator.state()["machines"] == []
    assert simulator.state()["calls"] == {}
    api.create_namespaced_pod(SPACE, manifest())


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("PUT", "faults", '{"faults": [{"mode": "qota"}]}', "faults[0]: mode: unknown mode 'qota'"),
        ("PUT", "faults", "{", "the body is not JSON"),
        ("POST", "preempt", '{"names": "a"}', 'expected {"names": [NAME, …]}'),
        ("POST", "preempt", "[]", 'expected {"names": [NAME, …]}'),
    ],
)
def test_a_mistake_on_the_control_face_is_answered_400_with_words(
    simulator: Simulator, method: str, path: str, body: str, words: str
) -> None:
    reply = requests.request(method, simulator.control + path, data=body, timeout=5)
    assert reply.status_code == 400
    assert words in reply.json()["error"]


def test_all_faces_answer_at_one_address(simulator: Simulator) -> None:
    assert simulator.compute == f"{simulator.kubernetes}/compute/v1/"
    group = "projects/p/zones/us-central1-a/instanceGroupManagers/group"
    assert requests.get(simulator.compute + group, timeout=5).json()["name"] == "group"


def test_time_runs_as_fast_as_asked() -> None:
    slow = {"gke": {"schedule": 100, "start": 100, "ready": 100}}
    with Simulator(namespaces=[SPACE], speed=1000.0, timings=slow) as simulator:
        requests.post(url(simulator), json=manifest(), timeout=5).raise_for_status()
        until(lambda: phases(simulator) == {"a": "running"}, 5)


def test_a_simulator_ends_with_its_thread_and_its_kubeconfig_while_a_watch_is_open() -> None:
    before = set(threading.enumerate())
    with Simulator(namespaces=[SPACE]) as simulator:
        reply = requests.get(url(simulator, "?watch=1&timeoutSeconds=600"), stream=True, timeout=10)
        assert simulator.kubeconfig.exists()
    reply.close()
    assert not simulator.kubeconfig.exists()
    assert set(threading.enumerate()) <= before
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(simulator.kubernetes, timeout=2)


def test_a_port_that_is_taken_is_an_error_at_once(simulator: Simulator) -> None:
    port = int(simulator.address.rpartition(":")[2])
    with pytest.raises(OSError, match="address already in use"), Simulator(port=port):
        pass


# --- size -------------------------------------------------------------------------------------------------------------


def test_a_thousand_creates_and_a_list_of_ten_thousand_are_fast(simulator: Simulator) -> None:
    impose(simulator, schedule=3600)
    body = json.dumps(manifest() | {"metadata": {"generateName": "p-"}}).encode()
    pool = urllib3.HTTPConnectionPool("127.0.0.1", int(simulator.address.rpartition(":")[2]), maxsize=16)
    path, headers = f"/api/v1/namespaces/{SPACE}/pods", {"Content-Type": "application/json"}
    began = time.monotonic()
    with ThreadPoolExecutor(16) as threads:
        replies = list(threads.map(lambda _: pool.request("POST", path, body=body, headers=headers), range(1000)))
    created = time.monotonic() - began
    assert {reply.status for reply in replies} == {201}
    simulator.call(lambda cloud: [cloud.cluster.create(SPACE, manifest(f"q{number:05}")) for number in range(9000)])
    began = time.monotonic()
    answer = requests.get(url(simulator), timeout=30).content
    listed = time.monotonic() - began
    assert len(json.loads(answer)["items"]) == 10_000
    assert created < 10, f"1,000 creates took {created:.1f} s"
    assert listed < 3, f"the list took {listed:.1f} s"
