"""Watches and lists of the embedded Kubernetes API, through the official client and by raw requests."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest
import requests
from kubernetes import watch

from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from tests.support.clouds.kube_cloud import (
    SPACE,
    impose,
    manifest,
    refusal,
    run_pods,
    url,
)
from tests.support.waiting import until


def lines(simulator: Simulator, query: str, **headers: str) -> Generator[dict[str, Any], None, None]:
    """Yield the lines of a watch as they come, until its end."""
    with requests.get(url(simulator, f"?watch=1&{query}"), stream=True, timeout=30, headers=headers) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            yield json.loads(line)


def kinds(streamed: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(line["type"], line["object"]["metadata"].get("name", "")) for line in streamed]


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


@pytest.mark.parametrize("gate", [True, False], ids=["as HTTP status", "as event"])
def test_a_streamed_list_that_is_refused(simulator: Simulator, gate: bool) -> None:
    impose(simulator, Fault("no_watchlist", params={"gate": gate}))
    query = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    reply = requests.get(url(simulator, query), timeout=30)
    assert reply.status_code == (422 if gate else 200)
    status = reply.json() if gate else reply.json()["object"]
    assert (status["code"], status["reason"]) == ((422, "Invalid") if gate else (500, "InternalError"))
    assert ("feature gate" if gate else "RequestWatchProgress is disabled") in status["message"]
    assert requests.get(url(simulator, "?watch=1&timeoutSeconds=0"), timeout=30).status_code == 200


def test_bookmarks_tell_the_version_at_their_interval(simulator: Simulator, api: Any) -> None:
    impose(simulator, bookmark=0.2)
    api.create_namespaced_pod("other", manifest("elsewhere"))
    following = lines(simulator, f"resourceVersion={_version(api)}&allowWatchBookmarks=true&timeoutSeconds=10")
    first, second = next(following), next(following)
    following.close()
    assert (first["type"], second["type"]) == ("BOOKMARK", "BOOKMARK")
    assert int(second["object"]["metadata"]["resourceVersion"]) >= int(first["object"]["metadata"]["resourceVersion"])


def test_a_pod_that_leaves_the_selector_is_deleted_to_its_watcher(simulator: Simulator, api: Any) -> None:
    impose(simulator, schedule=3600)
    api.create_namespaced_pod(SPACE, manifest("a", {"app": "x"}))
    begin = _version(api)
    for value in ("y", "x"):
        api.patch_namespaced_pod("a", SPACE, {"metadata": {"labels": {"app": value}}})
    api.create_namespaced_pod(SPACE, manifest("b", {"app": "y"}))
    streamed = list(lines(simulator, f"resourceVersion={begin}&labelSelector=app=x&timeoutSeconds=1"))
    assert kinds(streamed) == [("DELETED", "a"), ("ADDED", "a")]


def test_a_version_that_is_no_longer_known_ends_the_stream_with_410(simulator: Simulator) -> None:
    streamed = list(lines(simulator, "resourceVersion=7"))
    assert [(line["type"], line["object"]["code"], line["object"]["reason"]) for line in streamed] == [
        ("ERROR", 410, "Expired")
    ]
    assert streamed[0]["object"]["message"].startswith("too old resource version: 7 (")


def _version(api: Any) -> str:
    version: str = api.list_namespaced_pod(SPACE).metadata.resource_version
    return version


@pytest.mark.parametrize("event", [False, True], ids=["as HTTP status", "as event"])
def test_a_watch_that_is_gone(simulator: Simulator, event: bool) -> None:
    impose(simulator, Fault("watch_gone", params={"event": event}))
    reply = requests.get(url(simulator, "?watch=1&resourceVersion=1001"), timeout=30)
    assert reply.status_code == (200 if event else 410)
    assert (reply.json()["object"] if event else reply.json())["reason"] == "Expired"


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
    until(lambda: requests.get(page, timeout=30).status_code == 410, 30)
    assert requests.get(page, timeout=30).json()["reason"] == "Expired"


def test_versions_of_lists(simulator: Simulator, api: Any) -> None:
    for name in "abc":
        api.create_namespaced_pod(SPACE, manifest(name))
    assert len(api.list_namespaced_pod(SPACE, resource_version="0", limit=1).items) == 3, "0 ignores the limit"
    refusal(504, api.list_namespaced_pod, SPACE, resource_version="99999999")
    options = {"resource_version": "1001", "resource_version_match": "Exact"}
    assert refusal(410, api.list_namespaced_pod, SPACE, **options)["reason"] == "Expired"
    refusal(422, api.list_namespaced_pod, SPACE, resource_version_match="Exact")
    refusal(400, api.list_namespaced_pod, SPACE, resource_version="latest")
