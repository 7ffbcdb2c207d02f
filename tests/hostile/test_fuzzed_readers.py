"""Responses that are almost right. After any error in a response, the observation has only valid values, or it has
failed."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.backends import BackendError
from provisioner.backends.gke import shared_connections
from provisioner.backends.gke.api import KubeApi, refusal
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.failures_from_events import PodEvents
from provisioner.backends.gke.own_pods import Identity, Wait
from provisioner.backends.gke.pod_cache import PodCache
from provisioner.backends.gke.pod_watch import Disordered, NoStreamedLists, PodWatch
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_pod_caches import PodCaches
from provisioner.backends.gke.spot_nodes import SpotNodes
from provisioner.backends.http import Request
from provisioner.backends.mig.api import ComputeApi
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.errors import http_error, raised
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.proxies_and_authorities import seconds_until
from provisioner.backends.responses import ODD_RESPONSES, json_object, translated_errors
from provisioner.model import Create, Snapshot
from provisioner.schema.setting_types import Site
from tests.hostile.fuzzing import JUNK, SEEDS, fuzzed, mutated
from tests.support.clients.kube_access import Plain

FUZZED = fuzzed(250)
REQUEST = "abcdefghij"
NAMES = [f"hf-{REQUEST}-{number:06}" for number in range(4)]
IDENTITY = Identity("demo", "gke")
TIME = "2026-11-26T10:00:00Z"


def sound(value: Any) -> bool:
    """Return True if all parts of a value have the right type. Numbers must be finite, and texts short enough for an
    operator."""
    if is_dataclass(value):
        return all(
            sound(getattr(value, field.name)) and fits(getattr(value, field.name), str(field.type))
            for field in fields(value)
        )
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and sound(one) for key, one in value.items())
    if isinstance(value, tuple | frozenset):
        return all(map(sound, value))
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) < 1e12
    return not isinstance(value, str) or len(value) <= 1500


TYPES: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "float | None": (int, float, type(None)),
}


def fits(value: Any, declared: str) -> bool:
    return isinstance(value, TYPES.get(declared, object))


# --- Kubernetes -------------------------------------------------------------------------------------------------------


ENDS = {"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 30, "finalizers": ["f"]}


def pod(number: int, **status: Any) -> dict[str, Any]:
    name = NAMES[number]
    own = IDENTITY.labels(Create(name, "gke", "small", REQUEST))
    condition = {"type": "Ready", "status": "True", "reason": "r", "message": "m"}
    terminated = {"exitCode": 1, "reason": "Error", "message": "m"}
    return {
        "metadata": {
            "name": name,
            "namespace": "grid",
            "uid": f"uid-{number}",
            "resourceVersion": str(10 + number),
            "creationTimestamp": TIME,
            "labels": own,
            "annotations": {"k8s.io/initial-events-end": "true", "hf-provisioner/containers": "main"},
            "managedFields": [{"manager": IDENTITY.manager}],
            **(
                {"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 30, "finalizers": ["f"]}
                if number == 2
                else {}
            ),
        },
        "spec": {
            "nodeName": "node",
            "restartPolicy": "Never",
            "activeDeadlineSeconds": 600,
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "main", "restartPolicyRules": [{"exitCodes": {"operator": "In", "values": [1]}}]}],
            "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "k"}],
            "schedulingGates": [{"name": "g"}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "startTime": TIME,
            "reason": "",
            "conditions": [condition, {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
            "containerStatuses": [{"name": "main", "state": {"terminated": terminated}, "lastState": {}}],
            **status,
        },
    }


PODS = [pod(0), pod(1, phase="Pending", podIP=""), pod(2), pod(3, phase="Failed", reason="Evicted")]
POD_LIST = {"kind": "PodList", "metadata": {"resourceVersion": "20"}, "items": PODS}
NAMESPACE = {"kind": "Namespace", "metadata": {"name": "grid", "uid": "n"}}
EVENT = {
    "reason": "FailedScaleUp",
    "message": "GCE quota exceeded",
    "involvedObject": {"uid": "uid-1"},
    "lastTimestamp": TIME,
    "series": {"lastObservedTime": TIME},
}
EVENTS = {"kind": "EventList", "metadata": {}, "items": [EVENT, {**EVENT, "reason": "NotTriggerScaleUp"}]}
NODES = {"kind": "PartialObjectMetadataList", "metadata": {}, "items": [{"metadata": {"name": "node"}}]}


class CannedKube(KubeApi):
    """An API server with fixed responses. ``alter`` changes each response."""

    alter: Callable[[Any], Any] = staticmethod(lambda document: document)

    def _exchange(self, request: Request) -> Any:
        found = {"pods": POD_LIST, "events": EVENTS, "nodes": NODES, "grid": NAMESPACE}
        content = json.dumps(self.alter(found.get(request.path.rpartition("/")[2], PODS[0]))).encode()
        return SimpleNamespace(status=200, headers={}), content


def kube() -> CannedKube:
    return CannedKube(Plain("http://127.0.0.1:1"))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "pod.yaml").write_text("containers: [{name: main, image: busybox}]\n")
    return tmp_path / "pod.yaml"


def observations(
    backend: Any, alter: Callable[[Callable[[Any], Any]], None], changed: Callable[[Any], Any]
) -> Iterator[Any]:
    """Observe a server once with unchanged documents and twice with changed documents. Yield the observations that
    succeeded."""
    for number, change in enumerate((copy.deepcopy, changed, changed)):
        alter(change)
        with suppress(BackendError):
            yield backend.observe(1000.0 + number, {NAMES[0]: "uid-0", NAMES[3]: "", "other": "u"})


@FUZZED
@given(SEEDS)
def test_a_look_at_pods(spec: Path, seed: int) -> None:
    api, chance = kube(), random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_connections, "connect", lambda *_: api)
        pool = GkePool(name="gke", endpoint="http://x", pod_spec=spec, namespace="grid")
        backend = GkeBackend(pool, shared_connections.Namespaces(), provisioner="demo")
    seen = list(observations(backend, lambda change: setattr(api, "alter", change), lambda one: mutated(one, chance)))
    assert seen, "the first is right"
    assert isinstance(seen[0], Snapshot)
    assert len(seen[0].machines) == len(PODS)
    assert [one for one in seen if not sound(one)] == []
    (outcome,) = backend.create([Create(NAMES[0], "gke", "small", REQUEST)], lambda: True)
    assert outcome.failure is None or "Error" not in outcome.failure.text.partition(":")[0]


@FUZZED
@given(SEEDS)
def test_a_watch(seed: int) -> None:
    cache, chance = PodCache(IDENTITY), random.Random(seed)
    caches = PodCaches()
    caches.add(cache)
    lines = [
        json.dumps(mutated({"type": kind, "object": one}, chance)).encode() + b"\n"
        for kind, one in [("ADDED", PODS[0]), ("MODIFIED", PODS[1]), ("BOOKMARK", PODS[2]), ("DELETED", PODS[0])]
    ]
    api = kube()
    stream = SimpleNamespace(
        stream=lambda _: iter(lines), close=lambda: None, allowance=SimpleNamespace(renew=lambda _: None)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CannedKube, "stream", lambda *_: stream)
        watch = PodWatch(api, "grid", "a=b", caches)
        watch._closing.wait = lambda *_: True  # type: ignore[method-assign]
        for begin in (None, caches.empty_list()):
            with suppress(BackendError, Disordered, NoStreamedLists, *ODD_RESPONSES):
                watch._follow({}, begin)
    assert all(map(sound, cache.machines(1.0).values()))


@FUZZED
@given(SEEDS)
def test_failures_of_pods_and_nodes_are_sound(seed: int) -> None:
    api, chance = kube(), random.Random(seed)
    api.alter = lambda one: mutated(one, chance)
    caches, explained = PodCaches(), []
    caches.explain = lambda words: explained.append(words) is None  # type: ignore[method-assign]
    PodEvents(api, "grid", caches)._read([Wait("uid-1", False), Wait("uid-1", True)])
    nodes = SpotNodes(api)
    nodes.is_spot("node")
    nodes._read()
    assert nodes.is_spot("node") in (None, True, False)
    assert all(sound(failure) for words in explained for failure in words.values())


@FUZZED
@given(
    st.integers(300, 599),
    st.binary(max_size=20) | st.sampled_from(JUNK).map(lambda one: json.dumps({"message": one}).encode()),
)
def test_a_refusal_of_an_api_server(status: int, body: bytes) -> None:
    assert sound(refusal(status, body, None).failure)


@FUZZED
@given(st.text(max_size=60) | st.from_regex(r"[A-Z][a-z]{2}, \d{1,4} [A-Z][a-z]{2} \d{1,6} \d{1,4}:\d\d:\d\d \w{0,4}"))
def test_headers(text: str) -> None:
    clock = PlaceClock()
    clock.hear(text, 0.1)
    assert (clock.now() is None) is (clock.ahead() is None)
    assert 0.0 <= (seconds_until(text) or 0.0) <= 300.0


# --- Compute Engine ---------------------------------------------------------------------------------------------------

PROJECT = "projects/demo-project"
TEMPLATE = f"https://x/{PROJECT}/global/instanceTemplates/t"
GROUP = {
    "kind": "compute#instanceGroupManager",
    "name": "hf-a",
    "targetSize": 3,
    "currentActions": {"none": 2, "creating": 1},
    "instanceTemplate": TEMPLATE,
    "versions": [{"instanceTemplate": TEMPLATE}],
    "updatePolicy": {"type": "OPPORTUNISTIC"},
    "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING", "forceUpdateOnRepair": "NO"},
    "distributionPolicy": {"targetShape": "ANY", "zones": [{"zone": "https://x/zones/us-central1-a"}]},
    "autoHealingPolicies": [{"healthCheck": "h"}],
    "status": {"autoscaler": f"https://x/{PROJECT}/zones/us-central1-a/autoscalers/a"},
}
ERRORS = {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "m"}]}


def member(number: int, action: str, status: str) -> dict[str, Any]:
    return {
        "name": NAMES[number],
        "instance": f"https://x/{PROJECT}/zones/us-central1-a/instances/{NAMES[number]}",
        "id": str(100 + number),
        "instanceStatus": status,
        "currentAction": action,
        "lastAttempt": {"errors": ERRORS},
        "scheduling": {"terminationTimestamp": TIME},
    }


def instance(number: int, status: str) -> dict[str, Any]:
    return {
        "kind": "compute#instance",
        "name": NAMES[number],
        "id": str(100 + number),
        "status": status,
        "creationTimestamp": TIME,
        "lastStartTimestamp": TIME,
        "networkInterfaces": [
            {"networkIP": "10.0.0.1", "accessConfigs": [{"natIP": "1.2.3.4"}], "ipv6AccessConfigs": [{}]}
        ],
        "scheduling": {
            "provisioningModel": "SPOT",
            "terminationTime": TIME,
            "maxRunDuration": {"seconds": "600"},
            "preemptionNoticeDuration": {"seconds": "30"},
        },
        "resourceStatus": {"scheduling": {"terminationTimestamp": TIME}},
    }


OPERATION = {"name": "o", "status": "DONE", "error": ERRORS, "httpErrorStatusCode": 400, "httpErrorMessage": "BAD"}
COMPUTE: Mapping[str, dict[str, Any]] = {
    "instanceGroupManagers": {"kind": "compute#instanceGroupManagerList", "items": [GROUP]},
    "hf-a": GROUP,
    "a": {"kind": "compute#autoscaler", "name": "a", "autoscalingPolicy": {"mode": "ON", "maxNumReplicas": 9}},
    "listManagedInstances": {
        "managedInstances": [member(0, "NONE", "RUNNING"), member(1, "CREATING", ""), member(2, "DELETING", "STOPPING")]
    },
    "instances": {
        "kind": "compute#instanceList",
        "items": [instance(0, "RUNNING"), instance(2, "STOPPING"), instance(3, "RUNNING")],
    },
    "operations": {
        "kind": "compute#operationList",
        "items": [{"targetId": "100", "targetLink": f"https://x/instances/{NAMES[0]}"}],
    },
    "o": OPERATION,
}


@FUZZED
@given(SEEDS)
def test_a_look_at_a_group(seed: int) -> None:
    changes: list[Callable[[Any], Any]] = [copy.deepcopy]
    chance = random.Random(seed)

    def send(_: ComputeApi, __: str, url: str, ___: float, kind: str = "", **____: Any) -> Any:
        response = json_object(json.dumps(changes[-1](COMPUTE[url.rpartition("/")[2]])).encode())
        if kind and response.get("kind") != kind:
            raise BackendError(raised(http_error(400, None, "")).failure.error, "another kind")
        return response

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ComputeApi, "_send", send)
        place = {"project": "demo-project", "zone": "us-central1-a", "group": "hf-a", "endpoint": "http://x"}
        backend = MigBackend(
            MigPool(name="mig", observe_seconds=0.001, lag_seconds=0.0, **place), Projects(Site("demo", "hf"))
        )
        backend._admissions.expect("o", [NAMES[1]])
        seen = list(observations(backend, changes.append, lambda one: mutated(one, chance)))
        for ask in (backend.check, backend.size):
            with suppress(BackendError):
                ask(5.0)
        backend.close()
    assert seen, "the first is right"
    assert len(seen[0].machines) == 3
    assert [one for one in seen if not sound(one)] == []


@FUZZED
@given(st.integers(300, 599), SEEDS)
def test_a_refusal_of_compute(status: int, seed: int) -> None:
    error = {"error": {"message": "m", "errors": [{"reason": "quotaExceeded"}], "details": [{"reason": "r"}]}}
    body = mutated(error, random.Random(seed))
    with suppress(BackendError), translated_errors():
        assert sound(raised(http_error(status, body, "text"), None).failure)
