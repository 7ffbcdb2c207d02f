"""Pods that real controllers keep waiting or end. HostFactory must get the cause.

``tests/contract/test_why.py`` checks the causes that the embedded cloud can show, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.model import LossCause, Machine, Phase
from provisioner.testing.place import PREFIX, REQUEST
from tests.kube.cluster import Cluster
from tests.kube.kubelets import LABEL, STUCK
from tests.kube.place import KubePlace
from tests.kube.provider_instance import POD, TEMPLATE, Grid
from tests.kube.proxy import Proxy
from tests.kube.space import Space
from tests.support.waiting import until

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("cluster")]

ONE, TWO = (f"{PREFIX}-{REQUEST}-{number:06}" for number in (1, 2))
GATE = "queue.example.com/wait"


def manifest(kubelet: str = "", **spec: Any) -> dict[str, Any]:
    """Return the manifest of pods that get the behaviour ``kubelet`` from their kubelet."""
    metadata = {"labels": {LABEL: kubelet}} if kubelet else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**POD, **spec}}


@pytest.fixture
def place(space: Space, proxy: Proxy, tmp_path: Path) -> Iterator[KubePlace]:
    made = KubePlace(space, proxy, tmp_path, watched=True)
    yield made
    made.close()


def start(place: KubePlace, number: int, pod: Mapping[str, Any]) -> None:
    place.rewrite(yaml.safe_dump(dict(pod)))
    place.create(number)


def seen(place: KubePlace, name: str, condition: Callable[[Machine], bool], what: str) -> Machine:
    def matching() -> Machine | None:
        machine = place.observe().machines.get(name)
        return machine if machine is not None and condition(machine) else None

    machine = until(matching, place.patience, what=what)
    assert machine is not None
    return machine


# --- init containers, restarts ----------------------------------------------------------------------------------------

SETUP = {"initContainers": [{"name": "setup", "image": "busybox"}]}


# --- what scheduler and taint manager do ------------------------------------------------------------------------------


@contextmanager
def own_node(cluster: Cluster, space: Space) -> Iterator[dict[str, Any]]:
    """Add a node for these pods alone. Yield the fields of a pod's spec that place the pod there."""
    name = f"node-{space.name}"
    cluster.add_node(name, taint=space.name, own=space.name)
    yield {
        "nodeSelector": {"own": space.name},
        "tolerations": [{"key": space.name, "operator": "Exists", "effect": "NoSchedule"}],
    }
    cluster.remove_node(name)


def test_a_taint_ends_the_pods_that_do_not_tolerate_it(cluster: Cluster, space: Space, place: KubePlace) -> None:
    with own_node(cluster, space) as there:
        tolerant = {**there, "tolerations": [{"key": space.name, "operator": "Exists"}]}
        start(place, 1, manifest(STUCK, **there))
        start(place, 2, manifest(STUCK, **tolerant))
        for name in (ONE, TWO):
            place.until_seen(name)
        cluster.expel(f"node-{space.name}", space.name)
        ended = seen(place, ONE, lambda machine: machine.phase is Phase.STOPPING, "the end")
        assert ended.cause is LossCause.NODE
        assert ended.notice is not None
        assert ended.failure is not None
        assert ended.failure.text.startswith("DeletionByTaintManager: ")
        assert place.observe().machines[TWO].phase is Phase.RUNNING


def test_a_pod_of_higher_priority_takes_the_room(cluster: Cluster, space: Space, place: KubePlace) -> None:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    space.admin.create(path, {"metadata": {"name": space.name}, "value": 1000})
    most = [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "600"}}}]
    with own_node(cluster, space) as there:
        start(place, 1, manifest(STUCK, **{**there, "containers": most}))
        place.until_seen(ONE)
        space.add_pod("important", **{**there, "containers": most, "priorityClassName": space.name})
        ended = seen(place, ONE, lambda machine: machine.phase is Phase.STOPPING, "the end")
        assert ended.cause is LossCause.PREEMPTED
        assert ended.notice is not None
        assert ended.failure is not None
        assert ended.failure.text.startswith("PreemptionByScheduler: ")
    space.admin.delete(f"{path}/{space.name}")


# --- what HostFactory hears -------------------------------------------------------------------------------------------

SOON = {"first_seconds": 1, "last_seconds": 2}


@pytest.mark.parametrize(
    ("kubelet", "spec", "words"),
    [
        pytest.param("never-ready", {}, "containers with unready status: [main]", id="never ready: its boot deadline"),
        pytest.param("init-fails", SETUP, "setup: Error: no disk: exit code 3", id="failed: replaced, and again"),
        pytest.param("image-pull", {}, "ImagePullBackOff", id="an image that cannot be pulled"),
        pytest.param(
            "",
            {"nodeSelector": {"cloud.google.com/gke-accelerator": "none-here"}},
            "node(s) didn't match Pod's node affinity/selector",
            id="no node takes it",
        ),
    ],
)
def test_a_request_that_fails_says_why_in_the_servers_words(
    space: Space, tmp_path: Path, kubelet: str, spec: Mapping[str, Any], words: str
) -> None:
    settings = {"request_deadline_minutes": 0.15, "backoff": SOON}
    pool = {"boot_deadline_seconds": 4}
    with Grid(tmp_path / "grid", space, pod=manifest(kubelet, **spec), pool=pool, settings=settings).start() as grid:
        answer = grid.ended(grid.hf.request(TEMPLATE, 1))
        assert answer["status"] == "complete_with_error"
        assert words in answer["message"]
        assert [words in machine["message"] for machine in answer["machines"]] == [True]
        closed = [line.get("text", "") for line in grid.journal() if line["event"] == "close"]
        assert not kubelet or any(words in text for text in closed)
        until(lambda: space.names() == set(), 20, what="the leftovers are deleted")


def machine_words(grid: Grid, id_: str) -> str:
    """Return the message of the request's only machine."""
    return "".join(machine["message"] for machine in grid.hf.status(id_)["machines"])


def test_a_machine_behind_a_gate_outlives_its_boot_deadline_and_boots_when_the_gate_is_removed(
    space: Space, tmp_path: Path
) -> None:
    gated, pool = manifest(schedulingGates=[{"name": GATE}]), {"boot_deadline_seconds": 3}
    with Grid(tmp_path / "grid", space, pod=gated, pool=pool).start() as grid:
        id_ = grid.hf.request(TEMPLATE, 1)
        until(lambda: "SchedulingGated" in machine_words(grid, id_), 20, every=0.2, what="the gate is reported")
        (name,) = space.names()
        grid.until_seen(time.time() + 2 * pool["boot_deadline_seconds"])
        assert space.names() == {name}
        assert grid.hf.status(id_)["status"] == "running"
        space.lift(name)
        answer = grid.ended(id_)
        assert answer["status"] == "complete"
        assert space.names() == {name}


def test_a_gate_that_is_never_removed_fails_the_machine_at_the_deadline_of_its_request(
    space: Space, tmp_path: Path
) -> None:
    pod, settings = manifest(schedulingGates=[{"name": GATE}]), {"request_deadline_minutes": 0.12, "backoff": SOON}
    with Grid(tmp_path / "grid", space, pod=pod, settings=settings).start() as grid:
        answer = grid.ended(grid.hf.request(TEMPLATE, 1))
        assert answer["status"] == "complete_with_error"
        assert "SchedulingGated" in answer["message"]
        assert GATE in answer["message"]
        created = [line for line in grid.journal() if line["event"] == "create"]
        assert len(created) == 1, "it kept its position in the queue"
        until(lambda: space.names() == set(), 20, what="nothing is left")


def test_a_machine_that_waits_for_a_node_says_what_the_autoscaler_says(space: Space, tmp_path: Path) -> None:
    with Grid(tmp_path / "grid", space, pod=manifest(nodeSelector={"disk": "huge"})).start() as grid:
        id_ = grid.hf.request(TEMPLATE, 1)
        until(lambda: machine_words(grid, id_).startswith("stockout: Unschedulable: 0/"), 20, every=0.2)
        (name,) = space.names()
        said = "Node scale up in zones us-central1-a associated with this pod failed: GCE quota exceeded."
        space.say(name, "FailedScaleUp", said)
        until(lambda: machine_words(grid, id_).startswith(f"quota: FailedScaleUp: {said}"), 30, every=0.2)
        assert "didn't match Pod's node affinity/selector" in machine_words(grid, id_)


def test_the_cause_of_each_loss_reaches_hostfactory_and_the_journal(space: Space, tmp_path: Path) -> None:
    with Grid(tmp_path / "grid", space).start() as grid:
        names = grid.complete(5)
        exited, failed, evicted, deleted, unready = names
        space.set_condition(unready, "Ready", "False", reason="ContainersNotReady", message="main is not ready")
        space.exit(exited, 0)
        space.exit(failed, 137, "OOMKilled")
        space.evict(evicted)
        space.delete(deleted)
        lost = dict.fromkeys(names[:4], 0)
        until(lambda: grid.hf.reclaimed(names) == lost, 30, every=0.2, what="all losses are reported, and no other")
        message = grid.hf.reclaim(names)["message"]
        causes = {exited: "exited", failed: "exited", evicted: "evicted", deleted: "deleted"}
        assert all(f"{name}: {cause}" in message for name, cause in causes.items()), message

        def closed() -> dict[str, dict[str, Any]]:
            return {line["machine"]: line for line in grid.journal() if line.get("verdict") == "lost"}

        until(lambda: closed().keys() == causes.keys(), 20, every=0.2, what="all are closed")
        assert {name: line["cause"] for name, line in closed().items()} == causes
        assert closed()[exited]["text"] == "Lost in its first 300 s: main: Completed: exit code 0"
        assert closed()[failed]["text"] == "Lost in its first 300 s: main: OOMKilled: exit code 137"
        until(lambda: space.names() == {unready}, 20, what="the leftovers are deleted, and the unready one stays")
        space.set_condition(unready, "Ready", "True")
        assert grid.ended(grid.hf.return_machines([unready]))["status"] == "complete"
