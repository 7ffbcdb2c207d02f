"""The embedded cloud answers each request as the real server does. Where the two differ, the embedded cloud is
wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import urllib3

from provisioner.lab.cloud.server import Simulator
from tests.kube.space import Space
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.kube

NAMESPACE = "symphony"
MERGE = "application/merge-patch+json"
SERVER_ONLY = {"managedFields", "generation", "tolerations", "volumes"}
"""Fields that the embedded cloud leaves out on purpose: no client of ours reads them, and they are most of a pod."""
CHANGING = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\bg-[a-z0-9]{5}\b|(?<=record \()\d+|(?<=current: )\d+"
    r"|\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
)
"""Uids, generated names, versions and times: other values on each side."""


@dataclass
class Side:
    """A server: the real one, or that of the embedded cloud."""

    server: str
    namespace: str
    ca: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: object, kind: str) -> object:
        """Return the comparable part of the response."""
        pool = urllib3.PoolManager(ca_certs=self.ca, retries=False)
        sent = body if isinstance(body, str) else json.dumps(body)
        response = pool.request(
            method,
            f"{self.server}/api/v1/namespaces/{self.namespace}/pods{path}",
            body=None if body is None else sent.encode(),
            headers={"Content-Type": kind, "Accept": "application/json", **self.headers},
            timeout=10 * PATIENCE,
        )
        document = json.loads(response.data)
        return response.status, _comparable(document, self.namespace)

    def stream(self, query: str) -> object:
        """Return the comparable part of a watch that lasts a second."""
        pool = urllib3.PoolManager(ca_certs=self.ca, retries=False)
        url = f"{self.server}/api/v1/namespaces/{self.namespace}/pods?{query}&timeoutSeconds=1"
        response = pool.request("GET", url, headers=self.headers, timeout=10 * PATIENCE)
        events = [json.loads(line) for line in response.data.splitlines()]
        return response.status, [_heard(event, self.namespace) for event in events if not _is_progress(event)]


def _is_progress(event: dict[str, Any]) -> bool:
    """Return True for a bookmark that only reports the progress of the watch. Each server sends such bookmarks at its
    own pace."""
    return event["type"] == "BOOKMARK" and "annotations" not in event["object"]["metadata"]


def _heard(event: dict[str, Any], namespace: str) -> object:
    """Return the comparable part of an event: a pod's name, or the whole of a bookmark or refusal."""
    thing, metadata = event["object"], event["object"]["metadata"]
    if thing["kind"] == "Status":
        return event["type"], _comparable(thing, namespace)
    return event["type"], metadata.get("name") or {**thing, "metadata": {**metadata, "resourceVersion": "*"}}


def _comparable(document: dict[str, Any], namespace: str) -> object:
    if document["kind"] == "Status":
        text = json.dumps({key: document.get(key) for key in ("status", "reason", "message", "code", "details")})
        return CHANGING.sub("*", text.replace(namespace, "NS"))
    if document["kind"] == "PodList":
        return [_comparable({"kind": "Pod", **item}, namespace) for item in document["items"]]
    metadata = document["metadata"]
    return {
        "keys": sorted(document),
        "metadata": sorted(metadata.keys() - SERVER_ONLY),
        "spec": sorted(document["spec"].keys() - SERVER_ONLY),
        "status": CHANGING.sub("*", json.dumps(document["status"], sort_keys=True)),
        "grace": (document["spec"]["terminationGracePeriodSeconds"], metadata.get("deletionGracePeriodSeconds")),
        "labels": metadata.get("labels"),
    }


def pod(name: str = "a", *, metadata: Mapping[str, object] | None = None, **spec: object) -> dict[str, Any]:
    """Return a pod that does not change by itself, because its scheduler does not exist."""
    containers = [{"name": "main", "image": "busybox"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"schedulerName": "none", "containers": containers, **spec},
    }


def container(**more: object) -> list[dict[str, object]]:
    return [{"name": "main", "image": "busybox", **more}]


def labelled(**labels: object) -> dict[str, Any]:
    return pod(metadata={"labels": labels})


def resources(**amounts: object) -> dict[str, Any]:
    return pod(containers=container(resources=amounts))


def gates(*names: str) -> dict[str, Any]:
    return {"spec": {"schedulingGates": [{"name": name} for name in names]}}


def gated(*names: str) -> dict[str, Any]:
    return pod(**gates(*names)["spec"])


Request = tuple[str, str, object]

TRIED = "?dryRun=All&fieldValidation=Strict"

REQUESTS: Mapping[str, list[Request]] = {
    "a pod that is not there": [("GET", "/x", None), ("DELETE", "/x", None), ("PATCH", "/x", {"metadata": {}})],
    "create, read, create again": [("POST", "", pod()), ("GET", "/a", None), ("POST", "", pod())],
    "no containers": [("POST", "", pod(containers=[]))],
    "no image": [("POST", "", pod(containers=[{"name": "main"}]))],
    "no container name": [("POST", "", pod(containers=[{"image": "busybox"}]))],
    "two containers of one name": [("POST", "", pod(containers=container() + container()))],
    "a bad name": [("POST", "", pod("A_b"))],
    "a long name": [("POST", "", pod("a" * 254))],
    "no name": [("POST", "", pod(""))],
    "a generated name": [("POST", "", pod("", metadata={"generateName": "g-"}))],
    "a bad label": [("POST", "", labelled(x="bad value!"))],
    "a long label": [("POST", "", labelled(x="v" * 64))],
    "a bad label key": [("POST", "", labelled(**{"a/b/c": "v"}))],
    "a bad hostname": [("POST", "", pod(hostname="Bad_Host"))],
    "a long hostname": [("POST", "", pod(hostname="h" * 64))],
    "a bad restart policy": [("POST", "", pod(restartPolicy="Sometimes"))],
    "a negative grace period": [("POST", "", pod(terminationGracePeriodSeconds=-1))],
    "another namespace": [("POST", "", pod(metadata={"namespace": "other"}))],
    "a negative amount": [("POST", "", resources(requests={"cpu": "-1"}))],
    "no amount at all": [("POST", "", resources(requests={"cpu": "lots"}))],
    "cores in words": [("POST", "", resources(requests={"cpu": "4 cores"}))],
    "a unit that is none": [("POST", "", resources(requests={"memory": "8GB"}))],
    "a pod that is only tried": [
        ("POST", TRIED, pod()),
        ("GET", "/a", None),
        ("POST", "", pod()),
        ("POST", TRIED, pod()),
    ],
    "an amount that is none, and is only tried": [("POST", TRIED, resources(requests={"cpu": "4 cores"}))],
    "fields that no pod has, refused strictly": [
        ("POST", TRIED, pod(nodeSelektor={"a": "b"})),
        ("POST", TRIED, pod(containers=container(resources={"request": {"cpu": "1"}}, imag="x"), zzz=1)),
        ("POST", TRIED, pod(metadata={"label": {"a": "b"}})),
        ("POST", TRIED, pod(containers=container(env=[{"name": "A", "values": "b"}]), volumes=[{"nam": "v"}])),
    ],
    "fields that no pod has, dropped unless the request is strict": [
        ("POST", "", pod(metadata={"label": {"a": "b"}, "labels": {"a": "b"}}, nodeSelektor={"a": "b"}, zzz=1)),
        ("GET", "/a", None),
        ("PATCH", "/a", {"metadata": {"label": {}}, "spec": {"tolerations": [{"key": "x", "efect": "y"}]}}),
        ("GET", "/a", None),
        ("POST", "?fieldValidation=Ignore", pod("b", containers=container(imag="x", env=[{"name": "A", "valu": "1"}]))),
        ("GET", "/b", None),
    ],
    "more than its limit": [("POST", "", resources(requests={"cpu": "2"}, limits={"cpu": "1"}))],
    "a volume that is not there": [
        ("POST", "", pod(containers=container(volumeMounts=[{"name": "v", "mountPath": "/v"}])))
    ],
    "an empty body": [("POST", "", "")],
    "a spec that is a text": [("POST", "", {"metadata": {"name": "a"}, "spec": "x"})],
    "labels are patched": [
        ("POST", "", pod()),
        ("PATCH", "/a", {"metadata": {"labels": {"x": "y"}}}),
        ("GET", "?labelSelector=x%3Dy", None),
        ("GET", "?labelSelector=x%21%3Dy", None),
    ],
    "lists that are refused": [
        ("GET", "?fieldSelector=spec.foo%3Dy", None),
        ("GET", "?limit=x", None),
        ("GET", "?resourceVersion=x", None),
        ("GET", "?resourceVersionMatch=Exact", None),
        ("GET", "?resourceVersionMatch=Exact&resourceVersion=0", None),
        ("GET", "?resourceVersion=99999999", None),
    ],
    "a list with a negative limit": [("POST", "", pod()), ("GET", "?limit=-1", None)],
    "watches that are refused": [
        ("GET", "?watch=1&sendInitialEvents=true&allowWatchBookmarks=true", None),
        ("GET", "?watch=1&resourceVersionMatch=NotOlderThan", None),
    ],
    "deletes with preconditions": [
        ("POST", "", pod()),
        ("DELETE", "/a", {"preconditions": {"uid": "1234"}}),
        ("DELETE", "/a", {"preconditions": {"resourceVersion": "1"}}),
        ("GET", "/a", None),
    ],
    "deletes with wrong options": [
        ("POST", "", pod()),
        ("DELETE", "/a", {"propagationPolicy": "Nope"}),
        ("DELETE", "/a", {"propagationPolicy": "Background", "orphanDependents": True}),
        ("DELETE", "/a", {"gracePeriodSeconds": -5}),
    ],
    "an unscheduled pod goes at once": [("POST", "", pod()), ("DELETE", "/a", None), ("GET", "/a", None)],
    "a delete of what is gone": [("DELETE", "/a", {"preconditions": {"uid": "1234"}})],
    "evictions": [
        ("POST", "", pod()),
        ("POST", "/zz/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "zz"}}),
        ("POST", "/a/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "zz"}}),
        ("POST", "/a/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}),
    ],
    "a pod that has ended and whose deletion is not confirmed": [
        ("POST", "", pod(nodeName="nowhere")),
        ("DELETE", "/a", None),
        ("PATCH", "/a/status", {"status": {"phase": "Failed"}}),
        ("DELETE", "/a", None),
        ("DELETE", "/a", {"gracePeriodSeconds": 30}),
        ("GET", "/a", None),
        ("DELETE", "/a", {"gracePeriodSeconds": 0}),
        ("GET", "/a", None),
    ],
    "gates are removed one by one, and never put back": [
        ("POST", "", gated("example.com/a", "b")),
        ("GET", "/a", None),
        ("PATCH", "/a", gates("b")),
        ("PATCH", "/a", gates("b", "c")),
        ("PATCH", "/a", gates()),
        ("PATCH", "/a", gates("b")),
        ("GET", "/a", None),
    ],
    "a gate without a name": [("POST", "", gated(""))],
    "a gate with a bad name": [("POST", "", gated("a b"))],
    "two gates of one name": [("POST", "", gated("a", "a"))],
    "a gated pod that names its node": [("POST", "", gated("a") | {"spec": gated("a")["spec"] | {"nodeName": "n"}})],
    "a pod that is being deleted": [
        ("POST", "", pod(metadata={"finalizers": ["example.com/wait"]})),
        ("DELETE", "/a", None),
        ("POST", "", pod()),
        ("PATCH", "/a", {"metadata": {"finalizers": None}}),
        ("GET", "/a", None),
    ],
}


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with Simulator(namespaces=[NAMESPACE]) as running:
        yield running


@pytest.mark.parametrize("requests", REQUESTS.values(), ids=REQUESTS)
def test_it_answers_as_the_real_server(simulator: Simulator, space: Space, requests: list[Request]) -> None:
    real = Side(space.admin.server, space.name, space.admin.ca, space.admin.headers)
    embedded = Side(simulator.kubernetes, NAMESPACE)
    embedded.ask("DELETE", "", {"gracePeriodSeconds": 0}, "application/json")
    for method, path, body in requests:
        kind = MERGE if method == "PATCH" else "application/json"
        assert embedded.ask(method, path, body, kind) == real.ask(method, path, body, kind), (method, path)


def test_it_makes_pods_in_a_namespace_only(simulator: Simulator, space: Space) -> None:
    sides = (
        Side(simulator.kubernetes, "nowhere"),
        Side(space.admin.server, "nowhere", space.admin.ca, space.admin.headers),
    )
    embedded, real = (side.ask("POST", "", pod(), "application/json") for side in sides)
    assert embedded == real


STREAMED = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
STREAMS = {
    "a streamed list": f"{STREAMED}&allowWatchBookmarks=true",
    "a streamed list without bookmarks": STREAMED,
    "a streamed list, as new as a version": f"{STREAMED}&allowWatchBookmarks=true&resourceVersion=1",
    "a streamed list of the future": f"{STREAMED}&allowWatchBookmarks=true&resourceVersion=99999999",
    "no initial events": "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
    "a watch without a version": "watch=1&allowWatchBookmarks=true",
    "a watch without a version or bookmarks": "watch=1",
    "a selector": f"{STREAMED}&allowWatchBookmarks=true&labelSelector=x%3Dy",
}


@pytest.mark.parametrize("query", STREAMS.values(), ids=STREAMS)
def test_it_streams_as_the_real_server(simulator: Simulator, space: Space, query: str) -> None:
    real = Side(space.admin.server, space.name, space.admin.ca, space.admin.headers)
    embedded = Side(simulator.kubernetes, NAMESPACE)
    embedded.ask("DELETE", "", {"gracePeriodSeconds": 0}, "application/json")
    for side in (embedded, real):
        for made in (pod("c"), pod("a", metadata={"labels": {"x": "y"}}), pod("b")):
            assert side.ask("POST", "", made, "application/json")
    assert embedded.stream(query) == real.stream(query)


def test_it_reviews_rights_as_the_real_server(simulator: Simulator, space: Space) -> None:
    attributes = {"namespace": NAMESPACE, "verb": "create", "resource": "pods"}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    real = space.admin.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    url = f"{simulator.kubernetes}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    response = urllib3.PoolManager().request("POST", url, json=review)
    embedded = json.loads(response.data)
    assert response.status == 201
    for side in (real, embedded):
        assert side["status"]["allowed"] is True
    assert embedded["spec"] == real["spec"]
    assert embedded.keys() == real.keys()
