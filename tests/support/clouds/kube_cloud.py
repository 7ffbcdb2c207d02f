"""Names, short timings and queries that the tests of the embedded Kubernetes API share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client import ApiException

from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from tests.support.waiting import until

SPACE = "symphony"
QUICK = {"schedule": 0.02, "start": 0.02, "ready": 0.02, "stop": 0.05, "confirm": 0.02, "reschedule": 0.1}


def impose(simulator: Simulator, *faults: Fault, **timings: float) -> None:
    """Impose these faults and the short timings of ``QUICK``. ``timings``: values that replace some of the short
    timings."""
    simulator.impose(faults, {"gke": {**QUICK, **timings}})


@contextmanager
def official_client(simulator: Simulator) -> Iterator[Any]:
    """Yield the official client's CoreV1Api with the simulator's kubeconfig. The client does not retry failed calls."""
    settings = client.Configuration()
    load: Any = config.load_kube_config
    load(str(simulator.kubeconfig), client_configuration=settings)
    settings.retries = False
    with client.ApiClient(settings) as connection:
        yield client.CoreV1Api(connection)


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
    until(lambda: list(phases(simulator).values()) == ["running"] * len(names), 30)


def refusal(code: int, call: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    with pytest.raises(ApiException) as caught:
        call(*arguments, **options)
    assert caught.value.status == code, caught.value.body
    status: dict[str, Any] = json.loads(caught.value.body or "")
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", code)
    return status
