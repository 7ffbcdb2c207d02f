"""Places where machines can be made, as the contract suite needs them: a backend, and what others can do there."""

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
"""A whole life of a pod in half a second."""

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
    """One pool in a cloud that a test owns. Times are loop times that go on with each call of :meth:`now`."""

    pool: str
    backend: Backend
    patience: float
    """Seconds within which anything that the cloud does by itself has happened."""
    call: float = QUICK_WATCH.call
    """Seconds after which a simulated cloud's response is no longer waited for."""

    def __init__(self) -> None:
        self._times = count(1000.0)

    # --- what the suite uses ------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The next moment of loop time."""
        return next(self._times)

    def create_of(self, number: int, template: str = "small") -> Create:
        """The create of one slot."""
        return Create(machine_name(PREFIX, REQUEST, number), self.pool, template, REQUEST)

    def create(self, *numbers: int) -> list[Outcome]:
        """Create the machines of these slots."""
        return self.backend.create([self.create_of(number) for number in numbers], always)

    def delete(self, name: str, uid: str = "", *, force: bool = False, adopted: bool = False) -> Outcome:
        """Delete one machine."""
        delete = Delete(name, self.pool, DeleteReason.RETURNED, uid, force=force, adopted=adopted)
        (outcome,) = self.backend.delete([delete], always)
        return outcome

    def observe(self, names: Collection[str] = ()) -> Snapshot:
        """What the pool holds now."""
        return self.backend.observe(self.now(), dict.fromkeys(names, ""))

    def until_seen(self, name: str, phase: Phase = Phase.RUNNING) -> Machine:
        """The machine once it is in this phase."""

        def seen() -> Machine | None:
            machine = self.observe().machines.get(name)
            return machine if machine is not None and machine.phase is phase else None

        machine = until(seen, self.patience, what=f"{name} is {phase}")
        assert machine is not None
        return machine

    def until_gone(self, name: str) -> None:
        """Wait until an observation lacks the machine."""
        until(lambda: name not in self.observe().machines, self.patience, what=f"{name} is gone")

    # --- what others do -----------------------------------------------------------------------------------------------

    @abstractmethod
    def another(self) -> Backend:
        """A second backend of the same pool, as a successor or an operator's tool has it. Closed with the place."""

    @abstractmethod
    def present(self) -> set[str]:
        """The names of everything that exists in the place, as the cloud itself knows it."""

    @abstractmethod
    def creates(self) -> int:
        """Create calls that reached the cloud."""

    @abstractmethod
    def spawn_foreign(self, name: str) -> None:
        """Somebody else makes a machine of this name."""

    @abstractmethod
    def copy(self, name: str, as_name: str) -> None:
        """Somebody else makes a machine that bears all marks of one of ours, but its name."""

    @abstractmethod
    def stray(self, name: str) -> None:
        """Somebody takes from a machine what makes it ours."""

    def remove_stray(self, name: str) -> None:
        """A person deletes a machine that strayed."""
        raise NotImplementedError(f"the backend deletes {name} itself")

    @abstractmethod
    def remove(self, name: str) -> None:
        """Somebody else deletes a machine, and waits until it is gone."""

    @abstractmethod
    def recreate(self, name: str) -> None:
        """A machine is replaced by another of the same name and the same identity."""

    @abstractmethod
    def fail_creates(self, error: ErrorClass) -> None:
        """From now on creates are refused for this reason."""

    @abstractmethod
    def lose_responses(self) -> None:
        """From now on creates and deletes are applied, and their responses lost."""

    @abstractmethod
    def hang(self) -> None:
        """From now on nothing is answered."""

    @abstractmethod
    def black_out(self) -> None:
        """From now on the cloud answers everything with its own failure."""

    @abstractmethod
    def heal(self) -> None:
        """End all faults."""


def always() -> bool:
    """True for every call: there is time."""
    return True


class GkePlace(Place):
    """A namespace of the simulated cluster."""

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
