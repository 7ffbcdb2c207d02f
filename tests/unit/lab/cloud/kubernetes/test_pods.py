"""The simulated cluster's pods in virtual time: their lives, their ends, their refusals, and changes for watchers."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.lab.cloud.kubernetes import pod_status
from provisioner.lab.cloud.kubernetes.pods import Cluster
from provisioner.lab.cloud.kubernetes.settings import PodTimings
from provisioner.lab.cloud.kubernetes.store import FIRST_VERSION, Stored
from provisioner.lab.cloud.world import Fault, World

QUICK = PodTimings.parse({"schedule": 1, "start": 2, "ready": 3, "stop": 4, "confirm": 1, "reschedule": 10})
RUNNING_AFTER = 6.0
SPACE = "symphony"
CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


@pytest.fixture
def world() -> World:
    return World(seed=1)


@pytest.fixture
def cluster(world: World) -> Cluster:
    return Cluster(world, [SPACE, "other"], QUICK)


def make(cluster: Cluster, name: str = "a", namespace: str = SPACE, **spec: Any) -> Stored:
    containers = [{"name": "main", "image": "image:1"}]
    return cluster.create(namespace, {"metadata": {"name": name}, "spec": {"containers": containers, **spec}})


def pod(cluster: Cluster, name: str = "a") -> dict[str, Any]:
    return cluster.get("pods", SPACE, name).document


def phases(cluster: Cluster) -> dict[str, str]:
    return {machine["name"]: machine["phase"] for machine in cluster.state()}


def reasons(cluster: Cluster) -> set[str]:
    return {event.document["reason"] for event in cluster.stores["events"].select(SPACE)}


def condition(cluster: Cluster, kind: str, name: str = "a") -> dict[str, Any]:
    return pod_status.condition_of(pod(cluster, name), kind) or {}


# --- life -------------------------------------------------------------------------------------------------------------


def test_a_pod_is_bound_runs_with_an_address_and_becomes_ready_each_at_its_time(world: World, cluster: Cluster) -> None:
    make(cluster)
    assert pod(cluster)["status"]["phase"] == "Pending"
    world.advance(1.0)
    assert pod(cluster)["spec"]["nodeName"]
    assert condition(cluster, "PodScheduled")["status"] == "True"
    assert "podIP" not in pod(cluster)["status"]
    world.advance(3.0)
    assert pod(cluster)["status"]["phase"] == "Running"
    assert pod(cluster)["status"]["podIP"] == "10.4.0.1"
    assert phases(cluster) == {"a": "pending"}, "a pod that is not Ready is not a running machine"
    world.advance(RUNNING_AFTER)
    assert phases(cluster) == {"a": "running"}
    assert all(condition(cluster, kind)["status"] == "True" for kind in CONDITIONS)
    assert {"Scheduled", "Pulling", "Pulled", "Created", "Started"} <= reasons(cluster)


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_deleted_pod_stays_terminating_until_its_kubelet_confirms(world: World, cluster: Cluster) -> None:
    make(cluster)
    world.advance(RUNNING_AFTER)
    asked = cluster.delete(cluster.get("pods", SPACE, "a"))
    assert asked.document["metadata"]["deletionGracePeriodSeconds"] == 30
    assert phases(cluster) == {"a": "stopping"}
    world.advance(RUNNING_AFTER + 4.5)
    assert pod(cluster)["status"]["phase"] == "Failed", "its containers have ended, but the object still exists"
    world.advance(RUNNING_AFTER + 5.0)
    assert phases(cluster) == {}
    assert "Killing" in reasons(cluster)


def test_a_preempted_pod_has_the_condition_and_has_gone_after_all_of_its_grace(world: World, cluster: Cluster) -> None:
    make(cluster)
    make(cluster, "b")
    world.advance(RUNNING_AFTER)
    assert cluster.preempt(["a", "unknown"]) == ["a"]
    disruption = condition(cluster, "DisruptionTarget")
    assert (disruption["status"], disruption["reason"]) == ("True", "TerminationByKubelet")
    assert pod(cluster)["metadata"]["deletionGracePeriodSeconds"] == 15
    assert cluster.preempt(["a"]) == [], "the pod is already ending"
    world.advance(RUNNING_AFTER + 15.0)
    assert pod(cluster)["status"]["phase"] == "Failed"
    assert pod(cluster)["status"]["reason"] == "Terminated"
    world.advance(RUNNING_AFTER + 26.0)
    assert phases(cluster) == {"b": "running"}


def test_the_pods_of_a_lost_node_are_failed_after_a_while_and_collected(world: World, cluster: Cluster) -> None:
    for number in range(3):
        make(cluster, f"p{number}")
    world.advance(RUNNING_AFTER)
    node = cluster.get("nodes", "", pod(cluster, "p0")["spec"]["nodeName"])
    cluster.fail_node(node)
    world.advance(RUNNING_AFTER + 49.0)
    assert phases(cluster)["p0"] == "running", "the loss is not noticed yet"
    world.advance(RUNNING_AFTER + 50.0)
    assert phases(cluster)["p0"] == "failed"
    assert condition(cluster, "DisruptionTarget", "p0")["reason"] == "DeletionByPodGC"
    world.advance(RUNNING_AFTER + 52.0)
    assert phases(cluster) == {"p1": "running", "p2": "running"}


# --- refusals ---------------------------------------------------------------------------------------------------------


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "restart", "phase", "ended"),
    [
        ({}, "Never", "Failed", (1, "Error")),
        ({"exit_code": 137, "reason": "OOMKilled"}, "Never", "Failed", (137, "OOMKilled")),
        ({"exit_code": 0}, "Never", "Succeeded", (0, "Completed")),
        ({"exit_code": 0}, "OnFailure", "Succeeded", (0, "Completed")),
        ({"exit_code": 0}, "Always", "Running", None),
        ({}, "OnFailure", "Running", None),
    ],
)
def test_how_a_container_ends_and_whether_it_is_restarted_decide_the_phase(
    world: World, cluster: Cluster, params: dict[str, Any], restart: str, phase: str, ended: tuple[int, str] | None
) -> None:
    world.set_faults([Fault("crash", params=params)])
    make(cluster, restartPolicy=restart)
    world.advance(5.0)
    status = pod(cluster)["status"]
    state = status["containerStatuses"][0]["state"].get("terminated")
    assert status["phase"] == phase
    assert ((state["exitCode"], state["reason"]) if state else None) == ended


# --- changes ----------------------------------------------------------------------------------------------------------


def test_every_change_has_a_version_of_its_own_in_order(world: World, cluster: Cluster) -> None:
    make(cluster)
    world.advance(RUNNING_AFTER)
    cluster.delete(cluster.get("pods", SPACE, "a"), grace=0)
    changes = cluster.pods.since(FIRST_VERSION) or ()
    assert [change.type for change in changes] == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
    versions = [change.version for change in changes]
    assert versions == sorted(set(versions))
    assert [change.stored.document["metadata"]["resourceVersion"] for change in changes] == [str(v) for v in versions]
    assert list(cluster.pods.since(versions[1]) or ()) == list(changes[2:])
