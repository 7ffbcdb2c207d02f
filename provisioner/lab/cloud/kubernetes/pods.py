"""The model of a Kubernetes cluster: namespaces, nodes, Events and the whole life of pods, in simulated time.

A method refuses a call by raising :class:`~provisioner.lab.cloud.kubernetes.errors.ApiError`. The model does no I/O.

Faults of the model. Targets: the pod's namespace and its name.

* ``quota``: a create gets 403 if at least ``params.limit`` (default 0) pods of the namespace have not ended
* ``invalid``: a create gets 422
* ``altered``: a created pod has ``params.labels`` and ``params.spec``, as if an admission policy had changed the pod.
  In ``params.labels``, null removes a label. By default, no label is left.
* ``stockout``: an attempt to schedule fails: Pending, Unschedulable, FailedScheduling and FailedScaleUp with
  ``params.words`` (default ``GCE out of resources``). The fault may strike at each attempt. An attempt follows every
  ``reschedule`` seconds.
* ``no_node_fits``: no node of any size has room for the pod: Unschedulable, FailedScheduling and NotTriggerScaleUp with
  ``params.words`` (default ``3 Insufficient cpu``)
* ``spot_node``: the pod is bound to a Spot node although its spec does not ask for one, as with a compute class
* ``unprepared``: the node fails to make volumes or network ready: ContainerCreating, and an Event with
  ``params.reason`` (default FailedMount) and ``params.words``. The fault may strike at each attempt. An attempt follows
  every ``reschedule`` seconds.
* ``slow_start``: the pod runs ``params.seconds`` (default 60) later
* ``image_pull``: the image is never pulled: ErrImagePull and ImagePullBackOff in turn
* ``bad_config``: containers are never created: CreateContainerConfigError with ``params.words``
* ``crash``: containers end each time they have run ``params.seconds`` (default 1). They have ``params.exit_code``
  (default 1) and ``params.reason`` (such as OOMKilled). CrashLoopBackOff follows, or the phase Failed or Succeeded if
  ``restartPolicy`` demands it.
* ``never_ready``: the pod runs and its readiness probe fails for ever
* ``stuck``: a deleted pod stays, terminating, for as long as the fault is set

The model checks the faults ``stockout``, ``no_node_fits``, ``stuck`` and ``unprepared`` again and again. Their effect
ends with the fault. The other faults are checked once for each pod.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import Any

from provisioner.lab.cloud.kubernetes import pod_status
from provisioner.lab.cloud.kubernetes.errors import Cause, Json, already_exists, invalid, not_found, over_quota
from provisioner.lab.cloud.kubernetes.events import KUBELET, Recorder
from provisioner.lab.cloud.kubernetes.gates import without_empty_gates
from provisioner.lab.cloud.kubernetes.nodes import Nodes
from provisioner.lab.cloud.kubernetes.pod_end import PodEnd
from provisioner.lab.cloud.kubernetes.pod_start import PodStart
from provisioner.lab.cloud.kubernetes.pod_steps import Steps
from provisioner.lab.cloud.kubernetes.settings import PodTimings
from provisioner.lab.cloud.kubernetes.store import Kind, Store, Stored, Versions
from provisioner.lab.cloud.kubernetes.validation import check_update, generated_base, validate_pod, with_defaults
from provisioner.lab.cloud.world import World

HISTORY = 10_000
"""Number of stored changes of each kind of object. A watch from a version before the oldest stored change gets 410."""

_ALWAYS_THERE = ("default", "kube-system")
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_READ = ("get", "list", "watch")
_ALL = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

KINDS = (
    Kind("Event", "events", "event", ("ev",), True, ("create", "get", "list", "watch")),
    Kind("Namespace", "namespaces", "namespace", ("ns",), False, _READ),
    Kind("Node", "nodes", "node", ("no",), False, ("delete", *_READ)),
    Kind("Pod", "pods", "pod", ("po",), True, _ALL, ("all",)),
)

PREEMPTIONS = {
    "TerminationByKubelet": "Pod was terminated in response to imminent node shutdown.",
    "PreemptionByScheduler": "default-scheduler: preempting to accommodate a higher priority pod",
}
"""Google's reasons for a preemption, each with its message. A pod is preempted because its Spot node is lost, or
because a pod of higher priority needs its room."""


class Cluster:
    """A cluster. Call its methods only in the thread in which the ``World`` advances."""

    def __init__(
        self,
        world: World,
        namespaces: Sequence[str] = (),
        timings: PodTimings | None = None,
        *,
        history: int = HISTORY,
    ) -> None:
        self.world = world
        self.versions = Versions()
        self.stores = {kind.resource: Store(self.versions, kind, history) for kind in KINDS}
        self.pods = self.stores["pods"]
        self._recorder = Recorder(world, self.stores["events"], 0.0)
        nodes = Nodes(world, self.stores["nodes"])
        self._steps = Steps(world, self.pods, nodes, self._recorder, PodTimings())
        self._end = PodEnd(self._steps)
        self._start = PodStart(self._steps, self._end)
        self.timings = timings or PodTimings()
        for name in dict.fromkeys([*_ALWAYS_THERE, *namespaces]):
            self._add_namespace(name)

    @property
    def timings(self) -> PodTimings:
        """The durations of the steps of a pod's life. New values apply only to steps that begin later."""
        return self._steps.timings

    @timings.setter
    def timings(self, timings: PodTimings) -> None:
        self._steps.timings = timings
        self._recorder.ttl = timings.event_ttl

    def _add_namespace(self, name: str) -> None:
        metadata = {**self._identity(name), "labels": {"kubernetes.io/metadata.name": name}}
        spec = {"finalizers": ["kubernetes"]}
        self.stores["namespaces"].put({"metadata": metadata, "spec": spec, "status": {"phase": "Active"}})

    def _identity(self, name: str) -> Json:
        """Return the metadata that the server gives to a new object."""
        uid = str(uuid.UUID(int=self.world.random.getrandbits(128), version=4))
        return {"name": name, "uid": uid, "creationTimestamp": pod_status.timestamp(self.world.wall())}

    # --- objects ------------------------------------------------------------------------------------------------------

    def get(self, resource: str, namespace: str, name: str) -> Stored:
        """Return the object. Raise 404 if the object does not exist."""
        stored = self.stores[resource].get(namespace, name)
        if stored is None:
            raise not_found(resource, name)
        return stored

    def create(self, namespace: str, document: Json, *, manager: str = "", dry_run: bool = False) -> Stored:
        """Create a pod; with ``dry_run``, only check the pod. Raise 403, 404, 409 and 422 as the real server does.

        ``manager``: the creator, which the server notes in ``managedFields``. This model does not note the fields
        themselves.
        """
        pod = with_defaults(document)
        metadata = self._new_metadata("pods", namespace, pod["metadata"])
        if fault := self.world.strikes("altered", namespace, metadata.get("name", "")):
            pod, metadata = pod_status.admitted(pod, metadata, fault.params)
        noted = {"manager": manager or "unknown", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
        metadata["managedFields"] = [{**noted, "time": metadata["creationTimestamp"], "fieldsV1": {}}]
        pod = pod_status.created({**pod, "metadata": metadata}, pod_status.quality_of_service(pod["spec"]))
        self._refuse(namespace, metadata.get("name", ""))
        validate_pod(pod)
        self._check_quota(namespace, metadata["name"])
        existing = self.pods.get(namespace, metadata["name"])
        if existing is not None:
            raise already_exists("pods", existing.name, ending="deletionTimestamp" in existing.document["metadata"])
        if dry_run:
            return Stored(self.pods.kind, pod, 0)
        stored = self.pods.put(pod)
        self._start.begin(stored)
        return stored

    def create_event(self, namespace: str, document: Json) -> Stored:
        """Store an Event that a client has sent."""
        metadata = self._new_metadata("events", namespace, document.get("metadata") or {})
        if self.stores["events"].get(namespace, metadata["name"]) is not None:
            raise already_exists("events", metadata["name"])
        rest = {key: value for key, value in document.items() if key not in ("kind", "apiVersion", "metadata")}
        return self.stores["events"].put({"metadata": metadata, **rest})

    def _new_metadata(self, resource: str, namespace: str, metadata: Json) -> Json:
        self.get("namespaces", "", namespace)
        name = metadata.get("name") or ""
        if not name and metadata.get("generateName"):
            name = self._generate(resource, namespace, metadata["generateName"])
        kept = {key: value for key, value in metadata.items() if key not in ("deletionTimestamp", "resourceVersion")}
        return {**kept, **self._identity(name), "namespace": namespace}

    def _generate(self, resource: str, namespace: str, base: str) -> str:
        """Return a random name that begins with ``base``. It is free, unless eight attempts found no free name."""
        for _ in range(8):
            suffix = "".join(self.world.random.choice(_SUFFIX_LETTERS) for _ in range(5))
            name = generated_base(base) + suffix
            if self.stores[resource].get(namespace, name) is None:
                break
        return name

    def _refuse(self, namespace: str, name: str) -> None:
        fault = self.world.strikes("invalid", namespace, name)
        if fault is not None:
            words = str(fault.params.get("message", "Forbidden: refused by the fault 'invalid'"))
            raise invalid("Pod", name, [Cause("spec", "FieldValueForbidden", words)])

    def _check_quota(self, namespace: str, name: str) -> None:
        fault = self.world.strikes("quota", namespace, name)
        if fault is None:
            return
        limit = int(fault.params.get("limit", 0))
        used = sum(not pod_status.is_ended(pod.document) for pod in self.pods.select(namespace))
        if used >= limit:
            raise over_quota(name, used, limit)

    def update(self, pod: Stored, document: Json, *, status_only: bool, dry_run: bool = False) -> Stored:
        """Store a client's change of a pod: of the status if ``status_only`` is True, else of all other fields."""
        changed = {**pod.document, "status": document.get("status") or {}} if status_only else _changed(pod, document)
        if dry_run or changed == pod.document:
            return Stored(self.pods.kind, changed, pod.version)
        stored = self.pods.put(changed)
        self._end.left(pod.document, stored.document)
        self._start.start_ungated(pod.document, stored)
        metadata = changed["metadata"]
        if metadata.get("deletionGracePeriodSeconds") == 0 and not metadata.get("finalizers"):
            return self._end.remove(stored)
        return stored

    # --- ends ---------------------------------------------------------------------------------------------------------

    def delete(self, pod: Stored, grace: int | None = None) -> Stored:
        """Request the end of a pod within ``grace`` seconds; None for the pod's own grace period. Remove the pod now if
        it is on no node or has ended, unless it has finalizers. If the pod is already ending, a new request can only
        shorten the time."""
        spec, metadata = pod.document["spec"], pod.document["metadata"]
        granted = metadata.get("deletionGracePeriodSeconds")
        if granted is not None:
            if grace is None or grace >= granted:
                return pod
        elif not spec.get("nodeName") or pod_status.is_ended(pod.document):
            grace = 0
        elif grace is None:
            grace = int(spec["terminationGracePeriodSeconds"])
        if grace == 0 and not metadata.get("finalizers"):
            last = self._end.remove(pod)
            return Stored(last.kind, self._deleting(last.document, 0), last.version)
        asked = self.pods.put(self._deleting(pod.document, grace))
        if grace > 0:
            self._end.say_killing(asked)
            self._end.stop(asked, self._end.stop_delay(grace))
        return asked

    def _deleting(self, pod: Json, grace: int) -> Json:
        return pod_status.deleting(pod, grace, pod_status.timestamp(self.world.wall() + grace))

    def evict(self, pod: Stored, grace: int | None = None) -> Stored:
        """Evict a pod: set the condition of an eviction, then delete the pod."""
        now = pod_status.timestamp(self.world.wall())
        disrupted = pod_status.disrupted(pod.document, "EvictionByEvictionAPI", "Eviction API: evicting", now)
        return self.delete(self.pods.put(disrupted), grace)

    def preempt(self, names: Collection[str], reason: str = "TerminationByKubelet") -> list[str]:
        """Preempt the named pods. Skip a pod that is on no node, is ending or has ended. Return the names of the
        preempted pods."""
        wanted = set(names)
        doomed = [pod for pod in self.pods.select("") if pod.name in wanted and _can_be_preempted(pod.document)]
        for pod in doomed:
            self._preempt(pod, reason, PREEMPTIONS[reason])
        return [pod.name for pod in doomed]

    def _preempt(self, pod: Stored, reason: str, message: str) -> None:
        now = pod_status.timestamp(self.world.wall())
        grace = self.timings.preempt_grace
        disrupted = self.pods.put(self._deleting(pod_status.disrupted(pod.document, reason, message, now), int(grace)))
        by_node = reason == "TerminationByKubelet"
        self._recorder.say(disrupted, KUBELET, "NodeShutdown" if by_node else "Preempted", message)
        self._end.stop(disrupted, grace, reason="Terminated" if by_node else "Preempting", message=message)

    def fail_node(self, node: Stored) -> Stored:
        """Remove the node at once. The pods of the node fail and are removed some time later."""
        for pod in self.pods.select(""):
            if pod.document["spec"].get("nodeName") == node.name:
                self._end.lose_node(pod)
        return self._steps.nodes.remove(node)

    # --- the whole cluster --------------------------------------------------------------------------------------------

    def state(self) -> list[dict[str, Any]]:
        """Return every pod in the form in which the control API shows machines."""
        return [_machine(pod) for pod in self.pods.select("")]

    def reset(self) -> None:
        """Remove every pod and Event. Watches report the removals."""
        for pod in self.pods.select(""):
            self._end.remove(pod)
        for event in self.stores["events"].select(""):
            self.stores["events"].remove(event)


def _machine(pod: Stored) -> dict[str, Any]:
    return {
        "name": pod.name,
        "pool": pod.namespace,
        "kind": "gke",
        "phase": pod_status.machine_phase(pod.document),
        "labels": pod.labels,
        "created": pod.document["metadata"]["creationTimestamp"],
        "ip": pod.document["status"].get("podIP", ""),
    }


def _can_be_preempted(pod: Json) -> bool:
    on_node = bool(pod["spec"].get("nodeName"))
    return on_node and "deletionTimestamp" not in pod["metadata"] and not pod_status.is_ended(pod)


def _changed(pod: Stored, document: Json) -> Json:
    """Return the pod with the metadata and spec that a client wrote. Raise 422 if the client changed a field that
    cannot change."""
    check_update(pod.document, document)
    metadata = {**pod.document["metadata"]}
    for key in ("labels", "annotations", "finalizers", "ownerReferences"):
        metadata.pop(key, None)
        if document["metadata"].get(key):
            metadata[key] = document["metadata"][key]
    changed = {**pod.document, "metadata": metadata, "spec": without_empty_gates(document["spec"])}
    validate_pod(changed)
    return changed
