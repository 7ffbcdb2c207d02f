"""The embedded cloud in virtual time. Its places are backends that call the model directly, without HTTP or threads.

The real backends' functions read what a place shows. A test sets the faults between the loop and a place (``Line``).
Faults inside a place are faults of the model.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from provisioner.backends import BackendError, MayStart
from provisioner.backends.gke.api import KubeError, refusal
from provisioner.backends.gke.own_pods import Identity, alteration
from provisioner.backends.gke.pod_cache import PodCache
from provisioner.backends.gke.pod_status import is_terminating
from provisioner.backends.mig.compute_fields import Instance, Member, instance_url, read_instance, read_member
from provisioner.backends.mig.errors import ComputeError, operation_error
from provisioner.backends.mig.instance_states import machine
from provisioner.lab.cloud.compute import operations
from provisioner.lab.cloud.compute.group import Mig
from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.kubernetes import errors
from provisioner.lab.cloud.kubernetes.pods import Cluster
from provisioner.lab.cloud.kubernetes.store import Stored
from provisioner.lab.cloud.world import World
from provisioner.model import Action, Create, Delete, ErrorClass, Failure, Machine, MachineEnd, Outcome, Snapshot
from provisioner.names import name_pattern


@dataclass(frozen=True, slots=True)
class Mishap:
    """A fault of one call on its way to the place. The loop gets ``failure`` as the outcome."""

    failure: Failure | None
    """The failure that the loop gets; None if the call is not even started."""
    applied_after: float | None = None
    """Seconds after which the place carries out the action although the call failed; None: never."""


@dataclass(slots=True)
class Line:
    """The line between the loop and one place. By default the line has no faults."""

    blind: Failure | None = None
    """The reason why every observation fails: an error, a missing page, an unreachable part of the place."""
    lag: float = 0.0
    """Age of the lists in seconds: a list shows the place as it was at that time. Only a MIG's lists can lag."""
    mishaps: deque[Mishap] = field(default_factory=deque)
    """Faults of the next calls, in order. A call acts on one machine."""


class Direct(ABC):
    """A pool that implements ``provisioner.backends.Backend``. It carries out each action at once, one after the
    other."""

    def __init__(self, pool: str, world: World, *, line: Line | None = None) -> None:
        self.pool = pool
        self.pace = 1.0
        self.line = line or Line()
        self._world = world
        self._hears = True

    def start(self, wake: Callable[[], None]) -> None:  # noqa: B027 - nothing to do is meant
        """Ignore the call, because in virtual time the driver decides when the loop observes."""

    def close(self) -> None:  # noqa: B027 - nothing to do is meant
        """Close nothing."""

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return a snapshot of all our machines in the place."""
        if self.line.blind is not None:
            raise BackendError(self.line.blind.error, self.line.blind.text)
        return self._observe(now, sought)

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Create machines in order. After a failure that would also meet further creates of the same template, skip
        these creates."""
        outcomes: list[Outcome] = []
        stopped: set[str] = set()
        for create in creates:
            if create.template not in stopped and may_start():
                outcome = self._send(create, partial(self._create, create))
                outcomes += outcome
                stopped |= {create.template for done in outcome if done.failure and done.failure.error.stops_batch}
        return outcomes

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Delete machines, in order."""
        outcomes: list[Outcome] = []
        for delete in deletes:
            if may_start():
                outcomes += self._send(delete, partial(self._delete, delete))
        return outcomes

    def _send(self, action: Action, do: Callable[[], Failure | None]) -> list[Outcome]:
        """Carry out an action unless a fault is due. Return its outcome; an empty list if the call was not started."""
        mishap = self.line.mishaps.popleft() if self.line.mishaps else None
        if mishap is None:
            return [Outcome(action, do())]
        if mishap.applied_after == 0.0:
            self._unheard(do)
        elif mishap.applied_after is not None:
            self._world.after(mishap.applied_after, partial(self._unheard, do))
        return [] if mishap.failure is None else [Outcome(action, mishap.failure)]

    def _unheard(self, do: Callable[[], Failure | None]) -> None:
        """Carry out a call whose response is lost."""
        self._hears = False
        do()
        self._hears = True

    @abstractmethod
    def _observe(self, now: float, sought: Mapping[str, str]) -> Snapshot: ...

    @abstractmethod
    def _create(self, create: Create) -> Failure | None: ...

    @abstractmethod
    def _delete(self, delete: Delete) -> Failure | None: ...


class DirectGke(Direct):
    """The pods of one provisioner in one namespace."""

    def __init__(
        self, pool: str, cluster: Cluster, namespace: str, *, provisioner: str, line: Line | None = None
    ) -> None:
        super().__init__(pool, cluster.world, line=line)
        self.spec = "pod"
        """Fingerprint of the pod spec."""
        self._cluster = cluster
        self._namespace = namespace
        self._identity = Identity(provisioner, pool)
        self._cache = PodCache(self._identity, clock=lambda: cluster.world.now)

    def _observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        readings = [
            reading
            for pod in self._cluster.pods.select(self._namespace)
            if (reading := self._identity.read(pod.document)) is not None
        ]
        self._cache.replace(readings, str(self._cluster.pods.version))
        pods = {name: self._cluster.pods.get(self._namespace, name) for name in sought}
        there = {name: pod.document for name, pod in pods.items() if pod is not None}
        machines = self._cache.with_strayed(there, sought, now)
        others = there.keys() - machines.keys()
        ours = {name for name in others if self._identity.is_of_provisioner(there[name])}
        return Snapshot(
            self.pool,
            now,
            machines,
            foreign=frozenset(others - ours),
            name_collisions=frozenset(ours),
            spec=self.spec,
            ends={name: MachineEnd(cause) for name, cause in self._cache.causes().items()},
        )

    def _create(self, create: Create) -> Failure | None:
        document = {
            "metadata": {"name": create.name, "labels": self._identity.labels(create)},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example/image:1"}]},
        }
        asked = {"metadata": document["metadata"], "spec": {"restartPolicy": "Never"}}
        try:
            pod = self._cluster.create(self._namespace, document, manager=self._identity.manager)
        except errors.ApiError as error:
            refused = _refusal(error)
            standing = self._cluster.pods.get(self._namespace, create.name)
            if refused.reason != "AlreadyExists" or standing is None or not self._is_ours_and_stays(standing):
                return refused.failure
            pod = standing
        if self._hears and (text := alteration(asked, pod.document)):
            self._cluster.delete(pod)
            return Failure(ErrorClass.INVALID, text)
        self._cache.add_created(pod.document)
        return None

    def _is_ours_and_stays(self, pod: Stored) -> bool:
        ours = self._identity.owns(pod.document) or self._identity.made(pod.document, "")
        return ours and not is_terminating(pod.document)

    def _delete(self, delete: Delete) -> Failure | None:
        pod = self._cluster.pods.get(self._namespace, delete.name)
        if pod is not None and self._is_meant(delete, pod):
            self._cluster.delete(pod, 0 if delete.is_forced else None)
        return None

    def _is_meant(self, delete: Delete, pod: Stored) -> bool:
        return pod.uid == delete.uid if delete.uid else delete.is_adopted or self._identity.owns(pod.document)


def _refusal(error: errors.ApiError) -> KubeError:
    """Return the error that the gke backend would raise for this response."""
    return refusal(error.code, json.dumps(error.status).encode(), None)


class DirectMig(Direct):
    """The members of one MIG whose names have our shape."""

    def __init__(self, pool: str, groups: Groups, mig: Mig, *, prefix: str, line: Line | None = None) -> None:
        super().__init__(pool, groups.world, line=line)
        self._groups = groups
        self._mig = mig
        self._shape = name_pattern(prefix)
        self._machines: Mapping[str, Machine] = {}

    def _observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        members = self._members(self.line.lag)
        instances = {
            name: read_instance(document)
            for zone in self._mig.spec.all_zones
            for name, document in self._groups.vms.shelf(self._mig.spec.project, zone).after("", self.line.lag)
        }
        ours = {name: member for name, member in members.items() if self._shape.fullmatch(name)}
        for name, uid in sought.items():
            if name not in members and name in instances and instances[name].id == uid:
                ours[name] = Member(name, uid, self._mig.spec.zone, "", "ABANDONING", None)
        machines = {
            name: machine(member, instances.get(name, Instance()), self._machines.get(name), now)
            for name, member in ours.items()
        }
        if machines != self._machines:
            self._machines = machines
        return Snapshot(
            self.pool,
            now,
            self._machines,
            foreign=frozenset(name for name in sought if name in members and name not in machines),
            name_collisions=frozenset(name for name in sought if name in instances and name not in machines),
            spec=self._mig.spec.template,
        )

    def _members(self, lag: float) -> dict[str, Member]:
        shown = self._mig.shelf.after("", lag)
        return {name: read_member(document, self._mig.spec.zone) for name, document in shown}

    def _create(self, create: Create) -> Failure | None:
        try:
            operation = self._mig.create([create.name], f"create {create.name}")
        except operations.ApiError as error:
            failure: Failure | None = ComputeError(error.status, error.reason, error.message).failure()
        else:
            failure = _result(operation)
        return None if failure and create.name in self._members(0.0) else failure

    def _delete(self, delete: Delete) -> Failure | None:
        member = self._members(0.0).get(delete.name)
        if member is None:
            outside = any(str(vm.id) == delete.uid for vm in self._groups.vms.named(delete.name))
            return Failure(ErrorClass.DENIED, "it was taken out of its group") if outside else None
        if delete.uid and member.id and delete.uid != member.id:
            return Failure(ErrorClass.OTHER, f"instance {member.id} now has the name, not {delete.uid}")
        url = instance_url(member.zone, member.name)
        return _result(self._mig.delete([url], skip_invalid=True))


def _result(operation: operations.Operation) -> Failure | None:
    """Return the failure of an operation, as the caller gets it; None if it succeeded. The caller does not wait for an
    operation that is not done at once, and gets a time-out."""
    if not operation.done:
        return Failure(ErrorClass.TIMEOUT, "not accepted in time")
    error = operation_error(operation.document())
    return error.failure() if error else None
