"""Unschedulable pods of a Kubernetes cluster as demand. A node is a machine of ours if the node's name, up to its first
dot, is the machine's name.

Bound pods and nodes are read before unschedulable pods. So a pod that is bound between these reads is not counted
twice.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from provisioner.backends import BackendError
from provisioner.backends.gke.pod_spec import MEBIBYTE, quantity, requested_amount
from provisioner.backends.gke.settings import GkePool, Namespace
from provisioner.demand.packing import ClusterSource, Jobs, Member
from provisioner.demand.sources import Fleet, SourceError, source_errors
from provisioner.optional_packages import extra, require_packages
from provisioner.schema.setting_types import OptionalSecretFile, OptionalText
from provisioner.schema.validation import Expects

if TYPE_CHECKING:
    from provisioner.backends.gke.api import KubeApi

GPUS = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources that count as GPUs."""
COMMON_LABELS = frozenset({"kubernetes.io/os", "kubernetes.io/arch"})
"""Labels that each node has. A pod's rules about these labels do not decide which template fits."""
REQUIRED, TERMS = "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"
"""Keys of the rules of a required node affinity."""
VOLUME_CLAIM = "persistentvolumeclaim"
"""Part of the scheduler's message about a pod whose volume claim is unbound, missing or being deleted."""
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a pod that its node's kubelet runs from a file."""

Object = Mapping[str, Any]
NodeLabels = Annotated[Mapping[str, Mapping[str, str]], Expects("a mapping of templates to labels")]
Taint = Annotated[str, Field(pattern="^[^=:]+(=[^=:]*)?:No(Schedule|Execute)$"), Expects("a taint like a=b:NoSchedule")]
Taints = Annotated[tuple[Taint, ...], Field(strict=False)]
NodeTaints = Annotated[Mapping[str, Taints], Expects("a mapping of templates to lists of taints")]


class Kubernetes(ClusterSource):
    """The unschedulable pods of a Kubernetes cluster. A pod that waits because of other pods also counts, for example
    because of an affinity to them. ``selector`` can leave such pods out."""

    namespaces: Annotated[tuple[Namespace, ...], Field(strict=False), Expects("a list of namespaces")] = ()
    """Namespaces of the pods that count; default all."""
    selector: Annotated[str, Expects("a text such as team=risk")] = ""
    """Selector of the pods that count by their labels, for example team=risk; default all."""
    node_labels: NodeLabels = Field(default_factory=dict)
    """Labels of the nodes of each template; default none. A pod fits only templates whose labels fulfil its node
    selector and its required node affinity."""
    node_taints: NodeTaints = Field(default_factory=dict)
    """Taints of the nodes of each template, for example [grid=risk:NoSchedule]; default none. A pod fits only templates
    whose taints it tolerates."""
    kubeconfig: OptionalSecretFile = None
    """File that names cluster and credentials; default the environment's ``KUBECONFIG``, then the service account of
    the pod that ``provisioner demand`` runs in."""
    context: OptionalText = None
    """Context within the kubeconfig; default its current one."""

    @cached_property
    def api(self) -> KubeApi:
        """Return the client of the API server. Raise SourceError if the files of the login name no usable cluster."""
        with require_packages(extra("gke")):
            from provisioner.backends.gke.login import connect

        named = self.kubeconfig or os.environ.get("KUBECONFIG")
        file, unused = Path(named) if named else None, Path(os.devnull)
        try:
            return connect(GkePool(name="demand", pod_spec=unused, kubeconfig=file, context=self.context))
        except BackendError as error:
            raise SourceError(error.failure.text.partition(";")[0]) from error

    def ask(self, fleet: Fleet) -> tuple[Iterable[Jobs], Mapping[str, Member]]:
        """Return the unschedulable pods, and our machines among the nodes. Raise SourceError if a list fails."""
        waiting = {"fieldSelector": "spec.nodeName=,status.phase=Pending", "labelSelector": self.selector}
        bound = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
        places = [f"/api/v1/namespaces/{name}/pods" for name in dict.fromkeys(self.namespaces)] or ["/api/v1/pods"]
        items, members = self.api.items, dict[str, Member]()
        with source_errors("Kubernetes"):
            if fleet.running:
                members = read_members(items("/api/v1/nodes", {}), items("/api/v1/pods", bound), fleet)
            pods = [pod for place in places for pod in items(place, waiting)]
            return [job for pod in pods for job in read_pod(pod, self, fleet)], members


def read_pod(pod: Object, settings: Kubernetes, fleet: Fleet) -> list[Jobs]:
    """Return a pod as a list with one job; an empty list if a new node would not help.

    A new node does not help a pod that is gated, is being deleted, or waits for a volume claim. The list is also empty
    if the scheduler has not tried the pod yet, or preempts other pods for this pod.
    """
    status = pod.get("status") or {}
    tried = [one for one in status.get("conditions") or () if one["type"] == "PodScheduled"]
    results = [(one.get("reason"), VOLUME_CLAIM in f"{one.get('message')}".lower()) for one in tried]
    is_served = pod["metadata"].get("deletionTimestamp") or status.get("nominatedNodeName")
    if is_served or results != [("Unschedulable", False)]:
        return []
    labels, taints = settings.node_labels, settings.node_taints
    fitting = {name for name in fleet.shapes if accepts(labels.get(name, {}), taints.get(name, ()), pod["spec"])}
    templates = None if fitting == fleet.shapes.keys() else frozenset(fitting)
    return [Jobs(1, *_amounts(partial(requested_amount, pod["spec"])), templates=templates)]


def accepts(labels: Mapping[str, str], taints: Iterable[str], spec: Object) -> bool:
    """Return True if a new node with these labels and taints accepts a pod.

    The pod's node selector, required node affinity and tolerations decide. An empty affinity term accepts no node.
    """
    tolerations = spec.get("tolerations") or ()
    return _selects(spec, labels) and all(any(_tolerates(one, taint) for one in tolerations) for taint in taints)


def _selects(spec: Object, labels: Mapping[str, str]) -> bool:
    """Return True if the node selector and the required node affinity of a pod select a node with these labels."""
    rules = [{"key": key, "operator": "In", "values": [one]} for key, one in (spec.get("nodeSelector") or {}).items()]
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {TERMS: ()}
    terms = [[*(one.get("matchExpressions") or ()), *(one.get("matchFields") or ())] for one in required[TERMS]]
    alternatives = [[*rules, *term] for term in terms if term] if terms else [rules]
    return any(all(_fulfils(labels, rule) for rule in alternative) for alternative in alternatives)


def _fulfils(labels: Mapping[str, str], rule: Object) -> bool:
    """Return True if a node with these labels fulfils a rule.

    A rule about ``COMMON_LABELS`` counts as fulfilled. Gt and Lt compare whole numbers; a label that is no number
    fulfils neither of them. A rule about the field ``metadata.name`` counts as a rule about a label that the node
    lacks, because the new node's name is unknown.
    """
    key, operator, label = rule["key"], rule["operator"], labels.get(rule["key"], "")
    if operator in ("Gt", "Lt"):
        limit = int(rule["values"][0])
        is_fulfilled = label.isdecimal() and (int(label) > limit if operator == "Gt" else int(label) < limit)
    else:
        is_found = label in rule["values"] if key in labels and operator in ("In", "NotIn") else key in labels
        is_fulfilled = is_found != (operator in ("NotIn", "DoesNotExist"))
    return key in COMMON_LABELS or is_fulfilled


def _tolerates(toleration: Object, taint: str) -> bool:
    pair, _, effect = taint.partition(":")
    key, _, value = pair.partition("=")
    is_meant = (toleration.get("key") or key, toleration.get("effect") or effect) == (key, effect)
    return is_meant and (toleration.get("operator") == "Exists" or toleration.get("value", "") == value)


def _amounts(amount: Callable[[str], float]) -> tuple[float, float, float]:
    """Return processors, memory in MB, and GPUs. ``amount``: a function that returns the amount of the named
    resource."""
    return amount("cpu"), math.ceil(amount("memory") / MEBIBYTE), sum(map(amount, GPUS))


def _is_work(pod: Object) -> bool:
    """Return False for a pod of a DaemonSet, and for a mirror pod. A node's kubelet runs a mirror pod from a file."""
    owners = [owner["kind"] for owner in pod["metadata"].get("ownerReferences") or ()]
    return "DaemonSet" not in owners and MIRROR not in (pod["metadata"].get("annotations") or {})


def read_members(nodes: Iterable[Object], pods: Iterable[Object], fleet: Fleet) -> dict[str, Member]:
    """Return our machines among the nodes. ``pods``: all pods that are bound to nodes and have not ended."""
    bound, members = defaultdict(list), {}
    for pod in pods:
        bound[pod["spec"]["nodeName"]].append(pod)
    for node in nodes:
        status, here = node.get("status") or {}, bound[node["metadata"]["name"]]
        if (machine := node["metadata"]["name"].partition(".")[0]) in fleet.running:
            ready = [one["status"] for one in status.get("conditions") or () if one["type"] == "Ready"]
            takes_pods = ready == ["True"] and not node["spec"].get("unschedulable")
            sizes = {name: quantity(amount) for name, amount in (status.get("allocatable") or {}).items()}
            whole = _amounts(defaultdict(float, sizes).__getitem__)
            taken = [_amounts(partial(requested_amount, pod["spec"])) for pod in here]
            free = [takes_pods * max(0.0, total - sum(parts)) for total, *parts in zip(whole, *taken, strict=True)]
            members[machine] = Member(free[0], free[1], free[2], works=any(map(_is_work, here)))
    return members
