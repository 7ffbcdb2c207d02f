"""Unschedulable pods of a Kubernetes cluster as demand. A machine is a node with the machine's name.

Bound pods and nodes are read before unschedulable pods, so that a pod that is bound in between is not counted twice.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from provisioner.backends import BackendError
from provisioner.backends.gke.pod_spec import MEBIBYTE, quantity
from provisioner.backends.gke.settings import GkePool, Namespace
from provisioner.demand.packing import ClusterSource, Jobs, Member
from provisioner.demand.sources import Fleet, Source, SourceError, source_errors
from provisioner.optional_packages import extra, require_packages
from provisioner.schema.setting_types import OptionalSecretFile, OptionalText
from provisioner.schema.validation import Expects

Amounts = tuple[float, float, float]
"""Processors, memory in MB, and GPUs."""
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources that count as GPUs."""
COMMON_LABELS = frozenset({"kubernetes.io/os", "kubernetes.io/arch"})
"""Labels that each node has. A pod's node selector for them does not decide on the template."""
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a pod that its node's kubelet runs from a file."""

NodeLabels = Annotated[Mapping[str, Mapping[str, str]], Expects("a mapping of templates to labels")]


class Kubernetes(ClusterSource):
    """The unschedulable pods of a Kubernetes cluster. Pods that wait for anything but processors, memory and GPUs (a
    volume, a taint, an affinity) count, too, unless ``selector`` leaves them out."""

    kind: Literal["kubernetes"] = "kubernetes"
    """Kind of the source."""
    namespaces: Annotated[tuple[Namespace, ...], Field(strict=False), Expects("a list of namespaces")] = ()
    """Namespaces of the pods that count; default all."""
    selector: str = ""
    """Selector of the pods that count by their labels, for example team=risk; default all."""
    node_labels: NodeLabels = Field(default_factory=dict)
    """Labels of the nodes of each template. A pod with a node selector fits only templates with these labels; default
    none."""
    kubeconfig: OptionalSecretFile = None
    """File that names cluster and credentials; default the environment's ``KUBECONFIG``, then the service account of
    the pod that ``provisioner demand`` runs in."""
    context: OptionalText = None
    """Context within the kubeconfig; default its current one."""

    _api: Any = PrivateAttr()

    def open(self) -> Source:
        """Read the files of the login, and return the source. Raise SourceError if they name no usable cluster."""
        with require_packages(extra("gke")):
            from provisioner.backends.gke.login import connect

        named = self.kubeconfig or os.environ.get("KUBECONFIG")
        file, unused = Path(named) if named else None, Path(os.devnull)
        try:
            self._api = connect(GkePool(name="demand", pod_spec=unused, kubeconfig=file, context=self.context))
        except BackendError as error:
            raise SourceError(error.failure.text.partition(";")[0]) from error
        return self

    def ask(self, fleet: Fleet) -> tuple[Iterable[Jobs], Mapping[str, Member]]:
        """Return the unschedulable pods, and our machines among the nodes. Raise SourceError if a list fails."""
        waiting = {"fieldSelector": "spec.nodeName=,status.phase=Pending", "labelSelector": self.selector}
        bound = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
        places = [f"/api/v1/namespaces/{name}/pods" for name in self.namespaces] or ["/api/v1/pods"]
        items, members = self._api.items, dict[str, Member]()
        with source_errors("Kubernetes"):
            if fleet.running:
                members = read_members(items("/api/v1/nodes", {}), items("/api/v1/pods", bound), fleet)
            pods = [pod for place in places for pod in items(place, waiting)]
            return [job for pod in pods for job in read_pod(pod, self.node_labels, fleet)], members


def read_pod(pod: Mapping[str, Any], node_labels: Mapping[str, Mapping[str, str]], fleet: Fleet) -> list[Jobs]:
    """Return a pod as a job; empty if a new node would not help, because the scheduler has not tried the pod, the pod
    is gated or being deleted, or others are preempted for the pod."""
    status = pod.get("status") or {}
    reasons = [one.get("reason") for one in status.get("conditions") or () if one["type"] == "PodScheduled"]
    if reasons != ["Unschedulable"] or pod["metadata"].get("deletionTimestamp") or status.get("nominatedNodeName"):
        return []
    written = pod["spec"].get("nodeSelector") or {}
    selector = {name: value for name, value in written.items() if name not in COMMON_LABELS}
    fitting = frozenset(name for name in fleet.shapes if selector.items() <= node_labels.get(name, {}).items())
    return [Jobs(1, *_amounts(partial(requested, pod["spec"])), templates=fitting if selector else None)]


def requested(spec: Mapping[str, Any], resource: str) -> float:
    """Return the effective request of a pod for a resource, as the scheduler computes it.

    Init containers run one by one, each beside the sidecars that were started before it; the other containers run
    beside all sidecars. A request of the whole pod replaces the result. The overhead of its runtime is added.
    """
    sidecars = peak = 0.0
    for container in spec.get("initContainers") or ():
        alone = _amount(container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars, alone = sidecars + alone, 0.0
        peak = max(peak, sidecars + alone)
    together = sidecars + sum(_amount(container, resource) for container in spec["containers"])
    overhead = quantity((spec.get("overhead") or {}).get(resource, 0))
    return (_amount(spec, resource) or max(peak, together)) + overhead


def _amount(part: Mapping[str, Any], resource: str) -> float:
    """Return the request of a container, or of a pod as a whole. A limit without a request counts as a request."""
    resources = part.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return quantity(amounts.get(resource, 0))


def _amounts(amount: Callable[[str], float]) -> Amounts:
    """Return the amounts of all resources, from a function that returns the amount of one."""
    return amount("cpu"), math.ceil(amount("memory") / MEBIBYTE), sum(map(amount, GPUS))


def _is_work(pod: Mapping[str, Any]) -> bool:
    """Return False for a pod of a DaemonSet, and for the mirror of a pod that its node's kubelet runs from a file."""
    owners = [owner["kind"] for owner in pod["metadata"].get("ownerReferences") or ()]
    return "DaemonSet" not in owners and MIRROR not in (pod["metadata"].get("annotations") or {})


def read_members(
    nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], fleet: Fleet
) -> dict[str, Member]:
    """Return our machines among the nodes. ``pods``: all pods that are bound to nodes and have not ended."""
    bound, members = defaultdict(list), {}
    for pod in pods:
        bound[pod["spec"]["nodeName"]].append(pod)
    for node in nodes:
        status, here = node["status"], bound[node["metadata"]["name"]]
        if (machine := node["metadata"]["name"].partition(".")[0]) in fleet.running:
            ready = [one["status"] for one in status.get("conditions") or () if one["type"] == "Ready"]
            takes_pods = ready == ["True"] and not node["spec"].get("unschedulable")
            sizes = {name: quantity(amount) for name, amount in status["allocatable"].items()}
            whole = _amounts(defaultdict(float, sizes).__getitem__)
            taken = [_amounts(partial(requested, pod["spec"])) for pod in here]
            free = [takes_pods * max(0.0, total - sum(parts)) for total, *parts in zip(whole, *taken, strict=True)]
            members[machine] = Member(free[0], free[1], free[2], works=any(map(_is_work, here)))
    return members
