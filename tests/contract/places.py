"""A namespace of the simulated cluster as a place of the contract suite."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from provisioner.backends.gke.api import KubeTimes
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.kubernetes.kubeconfig import kubeconfig
from provisioner.lab.cloud.kubernetes.pods import Cluster
from provisioner.lab.cloud.kubernetes.settings import PodTimings
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import ErrorClass
from provisioner.testing.place import How, Place
from tests.kube.client import Client
from tests.kube.space import Pods
from tests.support.clients.wire import Wire

T = TypeVar("T")

QUICK_PODS = PodTimings(
    schedule=(0.02, 0.04),
    start=(0.02, 0.04),
    ready=(0.02, 0.04),
    stop=(0.05, 0.1),
    confirm=(0.02, 0.04),
    reschedule=0.2,
    backoff_first=0.2,
    backoff_last=1.0,
    preempt_grace=2.0,
    node_gone=1.0,
    bookmark=0.2,
)
"""Timings with which a pod's whole life takes half a second."""

QUICK_WATCH = KubeTimes(
    call=3.0,
    silence=2.0,
    blind=0.3,
    first_observation=5.0,
    stream=30.0,
    first_retry=0.02,
    last_retry=0.2,
    waiting=0.2,
    events=0.3,
)


def end_pod(pods: Pods, name: str, how: How) -> None:
    """End a pod in the way ``how``: its program exits, an operator deletes it, or its time limit passes."""
    if how is How.EXIT:
        pods.exit(name, 1)
    elif how is How.KILL:
        pods.delete(name)
    else:
        pods.set_status(name, phase="Failed", reason="DeadlineExceeded", message="Pod was active longer than allowed")


class GkePlace(Place):
    """A pool in a namespace of the simulated cluster."""

    pool = "gke-main"
    _namespace = "symphony"
    _faults: ClassVar = {ErrorClass.QUOTA: "quota", ErrorClass.DENIED: "denied", ErrorClass.INVALID: "invalid"}

    def __init__(self, simulator: Simulator, wire: Wire, directory: Path, *, watched: bool) -> None:
        super().__init__()
        self._simulator, self._wire, self._watched = simulator, wire, watched
        simulator.call(lambda cloud: cloud.impose(Conditions(gke=QUICK_PODS)))
        spec = directory / "pod.yaml"
        spec.write_text("terminationGracePeriodSeconds: 1\ncontainers: [{name: main, image: busybox}]\n")
        config = directory / "kubeconfig"
        config.write_text(json.dumps(kubeconfig(wire.address, self._namespace, {})))
        self._settings = GkePool(name=self.pool, namespace=self._namespace, pod_spec=spec, kubeconfig=config)
        self._opened: list[GkeBackend] = []
        self.backend = self.another()
        if watched:
            self.backend.start(lambda: None)

    def another(self) -> GkeBackend:
        return self._another(self._settings, "demo")

    def _another(self, settings: GkePool, provisioner: str) -> GkeBackend:
        times = replace(QUICK_WATCH, call=self.call)
        self._opened.append(GkeBackend(settings, Namespaces(times), provisioner=provisioner))
        return self._opened[-1]

    def close(self) -> None:
        """End all backends."""
        for backend in self._opened:
            backend.close()

    def other_pool(self) -> GkeBackend:
        return self._another(self._settings.model_copy(update={"name": "gke-other"}), "demo")

    def other_provisioner(self) -> GkeBackend:
        return self._another(self._settings, "other")

    def present(self) -> list[str]:
        return self._in_cluster(lambda cluster: [pod.name for pod in cluster.pods.select(self._namespace)])

    def creates(self) -> int:
        return self._simulator.call(lambda cloud: cloud.world.calls["pods.create"])

    def spawn_foreign(self, name: str) -> None:
        self._add({"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "nginx"}]}})

    def copy(self, name: str, as_name: str) -> None:
        self._add_like(self._in_cluster(lambda cluster: cluster.get("pods", self._namespace, name).document), as_name)

    def stray(self, name: str) -> None:
        def act(cluster: Cluster) -> None:
            pod = cluster.get("pods", self._namespace, name)
            metadata = {**pod.document["metadata"], "labels": {}}
            cluster.update(pod, {**pod.document, "metadata": metadata}, status_only=False)

        self._in_cluster(act)

    def remove(self, name: str) -> None:
        self._in_cluster(lambda cluster: cluster.delete(cluster.get("pods", self._namespace, name), 0))

    def recreate(self, name: str) -> None:
        original = self._in_cluster(lambda cluster: cluster.get("pods", self._namespace, name).document)
        self.remove(name)
        self._add_like(original, name)

    def end(self, name: str, how: How) -> bool:
        if how is How.PREEMPTION:
            self._in_cluster(lambda cluster: cluster.preempt([name]))
        elif how is How.HOST:
            self._in_cluster(lambda cluster: cluster.fail_node(cluster.get("nodes", "", _node_of(cluster, name))))
        else:
            end_pod(Pods(Client(self._simulator.kubeconfig), self._namespace), name, how)
        return True

    def starve(self, reason: ErrorClass) -> bool:
        """Let no pod be scheduled. Return False if the backend was not started, because it then does not read the
        autoscaler's events."""
        words = {ErrorClass.STOCKOUT: "GCE out of resources", ErrorClass.QUOTA: "GCE quota exceeded"}[reason]
        self._fault(Fault("stockout", params={"words": words}))
        return self._watched

    def fail_creates(self, error: ErrorClass) -> None:
        target = "pods.create" if error is ErrorClass.DENIED else self._namespace
        self._fault(Fault(self._faults[error], target=target))

    def lose_responses(self) -> None:
        self._fault(*(Fault("lost_response", target=f"pods.{verb}") for verb in ("create", "delete")))

    def hang(self) -> None:
        self._fault(Fault("hang", target=self._namespace))
        self._wire.cut()

    def black_out(self) -> None:
        self._fault(Fault("unavailable", target=self._namespace))
        self._wire.cut()

    def heal(self) -> None:
        self._fault()

    def _fault(self, *faults: Fault) -> None:
        self._simulator.call(lambda cloud: cloud.impose(Conditions(faults=faults)))

    def _in_cluster(self, act: Callable[[Cluster], T]) -> T:
        return self._simulator.call(lambda cloud: act(cloud.cluster))

    def _add_like(self, original: Mapping[str, Any], name: str) -> None:
        metadata = {"name": name, "labels": original["metadata"]["labels"]}
        self._add({"metadata": metadata, "spec": {"containers": original["spec"]["containers"]}})

    def _add(self, pod: dict[str, Any]) -> None:
        self._in_cluster(lambda cluster: cluster.create(self._namespace, {"apiVersion": "v1", "kind": "Pod", **pod}))


def _node_of(cluster: Cluster, name: str) -> str:
    return str(cluster.get("pods", GkePlace._namespace, name).document["spec"]["nodeName"])
