"""Places for the contract suite: a backend, and actions of others at the same place."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from provisioner.backends import Backend
from provisioner.backends.gke.api import KubeTimes
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.settings import GkePool
from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.kubernetes.kubeconfig import kubeconfig
from provisioner.lab.cloud.kubernetes.pods import Cluster
from provisioner.lab.cloud.kubernetes.settings import PodTimings
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import Create, Delete, DeleteReason, ErrorClass, Machine, Outcome, Phase, Snapshot
from provisioner.names import machine_name
from tests.support.clients.wire import Wire
from tests.support.waiting import until

T = TypeVar("T")

PREFIX = "hf"
REQUEST = "abcdefghij"
OTHER_REQUEST = "klmnopqrst"

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


class Place(ABC):
    """A pool in a cloud that a test owns. Loop time advances with each call of :meth:`now`."""

    pool: str
    backend: Backend
    patience: float
    """Seconds within which all effects in the cloud have happened."""
    call: float = QUICK_WATCH.call
    """Seconds of the time-out of a simulated cloud's call."""

    def __init__(self) -> None:
        self._times = count(1000.0)

    # --- the suite's methods ------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the next moment of loop time."""
        return next(self._times)

    def create_of(self, number: int, template: str = "small") -> Create:
        """Return the create of one slot."""
        return Create(machine_name(PREFIX, REQUEST, number), self.pool, template, REQUEST)

    def create(self, *numbers: int) -> list[Outcome]:
        """Create the machines of these slots."""
        return self.backend.create([self.create_of(number) for number in numbers], always)

    def delete(self, name: str, uid: str = "", *, force: bool = False, adopted: bool = False) -> Outcome:
        """Delete one machine."""
        delete = Delete(name, self.pool, DeleteReason.RETURNED, uid, is_forced=force, is_adopted=adopted)
        (outcome,) = self.backend.delete([delete], always)
        return outcome

    def observe(self, names: Collection[str] = ()) -> Snapshot:
        """Return a snapshot of the pool."""
        return self.backend.observe(self.now(), dict.fromkeys(names, ""))

    def until_seen(self, name: str, phase: Phase = Phase.RUNNING) -> Machine:
        """Wait until the machine is in this phase. Return the machine."""

        def seen() -> Machine | None:
            machine = self.observe().machines.get(name)
            return machine if machine is not None and machine.phase is phase else None

        machine = until(seen, self.patience, what=f"{name} is {phase}")
        assert machine is not None
        return machine

    def until_gone(self, name: str) -> None:
        """Wait until an observation lacks the machine."""
        until(lambda: name not in self.observe().machines, self.patience, what=f"{name} is gone")

    # --- actions of others --------------------------------------------------------------------------------------------

    @abstractmethod
    def another(self) -> Backend:
        """Return a second backend of the pool, as for a successor or an operator's tool. The place closes it."""

    @abstractmethod
    def present(self) -> set[str]:
        """Return the names of all machines in the place, from the cloud itself."""

    @abstractmethod
    def creates(self) -> int:
        """Return the number of create calls that reached the cloud."""

    @abstractmethod
    def spawn_foreign(self, name: str) -> None:
        """Make a machine of this name as another user."""

    @abstractmethod
    def copy(self, name: str, as_name: str) -> None:
        """Make a machine as another user, with all marks of one of ours except its name."""

    @abstractmethod
    def stray(self, name: str) -> None:
        """Remove the marks that make a machine ours."""

    def remove_stray(self, name: str) -> None:
        """Delete a strayed machine as an operator."""
        raise NotImplementedError(f"the backend deletes {name} itself")

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a machine as another user, and wait until it is gone."""

    @abstractmethod
    def recreate(self, name: str) -> None:
        """Replace a machine by another with the same name and identity."""

    def hold(self) -> bool:
        """Hold machines that are created from now on in the place's queue. Return False if the place has no queue."""
        return False

    def release(self) -> None:
        """Release all machines from the queue."""
        raise NotImplementedError("the place has no queue")

    def end(self, name: str) -> bool:
        """Let a machine end by itself so that only a record stays. Return False if the place keeps no such records."""
        return False

    def double(self, name: str) -> bool:
        """Make a second object of this name with our identity. Return False if the place keeps names unique."""
        return False

    @abstractmethod
    def fail_creates(self, error: ErrorClass) -> None:
        """Refuse all creates from now on for this reason."""

    @abstractmethod
    def lose_responses(self) -> None:
        """Apply all creates and deletes from now on, and lose their responses."""

    @abstractmethod
    def hang(self) -> None:
        """Answer no call from now on."""

    @abstractmethod
    def black_out(self) -> None:
        """Answer each call from now on with a failure of the cloud."""

    @abstractmethod
    def heal(self) -> None:
        """End all faults."""


def always() -> bool:
    """Return True, because a test's time is never over."""
    return True


class GkePlace(Place):
    """A pool in a namespace of the simulated cluster."""

    pool = "gke-main"
    patience = 30.0
    _namespace = "symphony"
    _faults: ClassVar = {ErrorClass.QUOTA: "quota", ErrorClass.DENIED: "denied", ErrorClass.INVALID: "invalid"}

    def __init__(self, simulator: Simulator, wire: Wire, directory: Path, *, watched: bool) -> None:
        super().__init__()
        self._simulator, self._wire = simulator, wire
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
        self._opened.append(GkeBackend(self._settings, provisioner="demo", times=replace(QUICK_WATCH, call=self.call)))
        return self._opened[-1]

    def close(self) -> None:
        """End all backends."""
        for backend in self._opened:
            backend.close()

    def present(self) -> set[str]:
        return self._in_cluster(lambda cluster: {pod.name for pod in cluster.pods.select(self._namespace)})

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
