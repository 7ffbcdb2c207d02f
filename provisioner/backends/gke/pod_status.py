"""The life of a pod as its JSON says it: its phase, and when and why it ends. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from provisioner.backends.gke.pod_spec import CONTAINERS
from provisioner.backends.responses import seconds
from provisioner.model import LossCause, Phase

Pod = Mapping[str, Any]

DEFAULT_GRACE_SECONDS = 30
"""Kubernetes' own default for terminationGracePeriodSeconds."""

DISRUPTIONS: Mapping[str, LossCause] = {
    "PreemptionByScheduler": LossCause.PREEMPTED,
    "EvictionByEvictionAPI": LossCause.EVICTED,
    "DeletionByTaintManager": LossCause.NODE,
    "DeletionByPodGC": LossCause.NODE,
}
"""Reasons of the DisruptionTarget condition. TerminationByKubelet is decided by its message."""

KUBELET_ENDINGS: Mapping[str, LossCause] = {"shutdown": LossCause.NODE, "preempt": LossCause.PREEMPTED}
"""Words of the message of TerminationByKubelet; without them the kubelet evicted the pod (memory, disk, pids)."""

FAILED_REASONS: Mapping[str, LossCause] = {
    "Evicted": LossCause.EVICTED,
    "Preempting": LossCause.PREEMPTED,
    "NodeShutdown": LossCause.NODE,
    "Shutdown": LossCause.NODE,
    "Terminated": LossCause.NODE,
    "NodeLost": LossCause.NODE,
    "DeadlineExceeded": LossCause.EXPIRES,
}
"""Values of ``status.reason`` of a failed pod, as kubelets and GKE write them. DeadlineExceeded is the pod's own
``activeDeadlineSeconds``."""

REFUSED_BY_KUBELET = re.compile(
    r"OutOf.+|.*AffinityError|Node(Affinity|Name|Ports)|TaintToleration|UnexpectedAdmissionError|InvalidNodeInfo"
)
"""Reasons by which a kubelet refuses a pod, also one that runs when the kubelet begins anew: each plug-in of the
scheduler and each resource may be one. Newer kubelets begin the message with ``REJECTED``, whatever the reason."""
REJECTED = "Pod was rejected: "

LOST_CONTAINER = "ContainerStatusUnknown"
"""The reason of a container that its kubelet could not find any more: its node was restarted, it did not exit."""

SPOT_TAINTS = frozenset({"cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible"})
SPOT_SELECTORS = frozenset({*(f"{taint}=true" for taint in SPOT_TAINTS), "cloud.google.com/gke-provisioning=spot"})
"""Marks of GKE's Spot and preemptible nodes."""

RECENT = 1024
"""Values that many pods have in common, remembered to be kept in memory once."""


def is_terminating(pod: Pod) -> bool:
    """True once its deletion was asked for."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def node_of(pod: Pod) -> str:
    """The node that the pod was bound to; empty before it was."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def phase_of(pod: Pod) -> Phase:
    """Return the phase. A pod whose deletion was asked for is STOPPING also when its containers have ended."""
    status = pod.get("status") or {}
    if is_terminating(pod):
        return Phase.STOPPING
    if has_ended(pod):
        return Phase.GONE
    is_ready = status.get("phase") == "Running" and condition(status, "Ready").get("status") == "True"
    return Phase.RUNNING if is_ready and status.get("podIP") else Phase.PENDING


def has_ended(pod: Pod) -> bool:
    """Return True if the pod never runs again, by its phase or as all containers of our spec have ended for good."""
    status = pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return True
    spec = pod.get("spec") or {}
    named = {str(one.get("name")): one for one in spec.get("containers") or ()}
    ended = {str(one.get("name")): terminated(one) for one in status.get("containerStatuses") or ()}
    usual = {"restartPolicy": spec.get("restartPolicy", "Always")}
    over = {
        name
        for name, one in named.items()
        if (exited := ended.get(name)) and not _restarts(exited.get("exitCode") or 0, {**usual, **one})
    }
    # Others, such as a service mesh, may have added containers. A pod without our annotation has no others.
    annotated = (pod["metadata"].get("annotations") or {}).get(CONTAINERS)
    ours = set(annotated.split(",") if annotated else named)
    return bool(ours) and ours <= over


def _restarts(exit_code: int, container: Mapping[str, Any]) -> bool:
    """Return True if the kubelet starts the ended container again, by its rules, else by its policy or the pod's."""
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if (exit_code in (codes.get("values") or ())) is (codes.get("operator") == "In"):
            return True
    policy = container["restartPolicy"]
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def seconds_left(pod: Pod, phase: Phase) -> float | None:
    """Return the seconds that a pod has left: those of its deletion, else of its mark for disruption; None without."""
    if phase is Phase.STOPPING:
        return seconds(0 if has_ended(pod) else pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    if phase is not Phase.GONE and disruption(pod.get("status") or {}):
        return seconds((pod.get("spec") or {}).get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))
    return None


def expiry(pod: Pod) -> float | None:
    """Return the epoch at which ``activeDeadlineSeconds`` ends the pod; None without one, or before its start."""
    longest, started = (pod.get("spec") or {}).get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    return None if longest is None or not started else epoch(started) + seconds(longest)


def cause_of(pod: Pod, is_spot: bool | None) -> LossCause:
    """Return why a pod ends or has ended; the loss of a node that Google may take away at any time is a preemption.

    ``is_spot``: True for such a node; if that is unknown, what the pod's spec wants decides.
    """
    cause = _witnessed(pod)
    is_preempted = cause is LossCause.NODE and (_wants_spot(pod) if is_spot is None else is_spot)
    return LossCause.PREEMPTED if is_preempted else cause


def _witnessed(pod: Pod) -> LossCause:
    """Return the cause by the best witness there is: who disrupted it, its kubelet, who deleted it, its containers."""
    status = pod.get("status") or {}
    disrupted = disruption(status)
    if disrupted.get("reason") == "TerminationByKubelet":
        message = str(disrupted.get("message")).lower()
        return next((cause for word, cause in KUBELET_ENDINGS.items() if word in message), LossCause.EVICTED)
    if disrupted:
        return DISRUPTIONS.get(str(disrupted.get("reason")), LossCause.UNKNOWN)
    if status.get("phase") == "Failed" and (reason := status.get("reason")):
        refused = REFUSED_BY_KUBELET.fullmatch(reason) or str(status.get("message")).startswith(REJECTED)
        return LossCause.NODE if refused else FAILED_REASONS.get(reason, LossCause.UNKNOWN)
    if is_terminating(pod):
        return LossCause.DELETED
    return _exit(status)


def _exit(status: Mapping[str, Any]) -> LossCause:
    """Return the cause for a pod that ended by itself: its containers exited, unless their kubelet lost them."""
    ends = [ended for container in containers(status) if (ended := terminated(container))]
    if any(ended.get("reason") == LOST_CONTAINER for ended in ends):
        return LossCause.NODE
    return LossCause.EXITED if ends or status.get("phase") == "Succeeded" else LossCause.UNKNOWN


def _wants_spot(pod: Pod) -> bool:
    """True for a pod that asks for, or tolerates, nodes that Google takes away: the loss of one is a preemption."""
    spec = pod.get("spec") or {}
    wanted = {f"{key}={value}" for key, value in (spec.get("nodeSelector") or {}).items()} | set(_affine(spec))
    tolerated = {str(toleration.get("key")) for toleration in spec.get("tolerations") or ()}
    return not wanted.isdisjoint(SPOT_SELECTORS) or not tolerated.isdisjoint(SPOT_TAINTS)


def _affine(spec: Mapping[str, Any]) -> Iterator[str]:
    """The labels of nodes that its affinity demands; of a label that only has to exist, its usual value."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    demanded = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in demanded.get("nodeSelectorTerms") or ():
        for each in term.get("matchExpressions") or ():
            values = {"In": each.get("values") or (), "Exists": ("true",)}.get(each.get("operator"), ())
            yield from (f"{each.get('key')}={value}" for value in values)


def disruption(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition of a pod that is being disrupted; empty for any other."""
    found = condition(status, "DisruptionTarget")
    return found if found.get("status") == "True" else {}


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of this type; empty when the pod has none."""
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})


def containers(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the status of each container, init containers first: they hold up the others."""
    return (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))


def terminated(container: Mapping[str, Any], state: str = "state") -> Mapping[str, Any]:
    """Return how a container has ended; empty if it has not."""
    return (container.get(state) or {}).get("terminated") or {}


@lru_cache(RECENT)
def epoch(timestamp: str | None) -> int:
    """Epoch seconds of an RFC 3339 time; 0 when there is none."""
    return int(datetime.fromisoformat(timestamp).timestamp()) if timestamp else 0
