"""The phase of a pod, its end, and the cause of this end. All are read from the pod's JSON. The functions are pure."""

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
"""Kubernetes' default for terminationGracePeriodSeconds."""

DISRUPTIONS: Mapping[str, LossCause] = {
    "PreemptionByScheduler": LossCause.PREEMPTED,
    "EvictionByEvictionAPI": LossCause.EVICTED,
    "DeletionByTaintManager": LossCause.NODE,
    "DeletionByPodGC": LossCause.NODE,
}
"""Causes of loss by the reason of the DisruptionTarget condition. The causes for TerminationByKubelet are in
``KUBELET_ENDINGS``."""

KUBELET_ENDINGS: Mapping[str, LossCause] = {"shutdown": LossCause.NODE, "preempt": LossCause.PREEMPTED}
"""Causes of loss by a word in the message of TerminationByKubelet. Without such a word, the kubelet evicted the pod
(memory, disk, pids)."""

FAILED_REASONS: Mapping[str, LossCause] = {
    "Evicted": LossCause.EVICTED,
    "Preempting": LossCause.PREEMPTED,
    "NodeShutdown": LossCause.NODE,
    "Shutdown": LossCause.NODE,
    "Terminated": LossCause.NODE,
    "NodeLost": LossCause.NODE,
    "DeadlineExceeded": LossCause.EXPIRES,
}
"""Causes of loss by ``status.reason`` of a failed pod, as kubelets and GKE write it. DeadlineExceeded means that the
pod's own ``activeDeadlineSeconds`` has passed."""

REFUSED_BY_KUBELET = re.compile(
    r"OutOf.+|.*AffinityError|Node(Affinity|Name|Ports)|TaintToleration|UnexpectedAdmissionError|InvalidNodeInfo"
)
"""Reasons with which a kubelet refuses a pod. Some are the names of scheduler plug-ins, and some contain the name of a
resource (``OutOfcpu``). A restarted kubelet may even refuse a running pod. Newer kubelets begin the message with
``REJECTED``."""
REJECTED = "Pod was rejected: "

LOST_CONTAINER = "ContainerStatusUnknown"
"""Reason of a container that its kubelet could not find after a restart of the node. The container did not exit."""

SPOT_TAINTS = frozenset({"cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible"})
SPOT_SELECTORS = frozenset({*(f"{taint}=true" for taint in SPOT_TAINTS), "cloud.google.com/gke-provisioning=spot"})
"""Taints and labels of GKE's Spot and preemptible nodes."""

RECENT = 1024
"""Number of values that a cache keeps, so that a value of many pods is in memory only once."""


def is_terminating(pod: Pod) -> bool:
    """Return True if the pod's deletion was requested."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def node_of(pod: Pod) -> str:
    """Return the node to which the pod is bound; empty if it has none yet."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def phase_of(pod: Pod) -> Phase:
    """Return the phase of a pod. If the pod's deletion was requested, the pod is STOPPING, even after its containers
    have ended."""
    status = pod.get("status") or {}
    if is_terminating(pod):
        return Phase.STOPPING
    if has_ended(pod):
        return Phase.GONE
    is_ready = status.get("phase") == "Running" and condition(status, "Ready").get("status") == "True"
    return Phase.RUNNING if is_ready and status.get("podIP") else Phase.PENDING


def has_ended(pod: Pod) -> bool:
    """Return True if the pod will never run again: its phase is an end, or all containers of our spec have ended for
    good."""
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
        if (exited := ended.get(name)) and not _is_restarted(exited.get("exitCode") or 0, {**usual, **one})
    }
    # Others, for example a service mesh, may have added containers. Without our annotation, all containers count.
    annotated = (pod["metadata"].get("annotations") or {}).get(CONTAINERS)
    ours = set(annotated.split(",") if annotated else named)
    return bool(ours) and ours <= over


def _is_restarted(exit_code: int, container: Mapping[str, Any]) -> bool:
    """Return True if the kubelet will start the ended container again. The container's restart rules decide. If no rule
    applies, the container's restart policy decides."""
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if (exit_code in (codes.get("values") or ())) is (codes.get("operator") == "In"):
            return True
    policy = container["restartPolicy"]
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def seconds_left(pod: Pod, phase: Phase) -> float | None:
    """Return the seconds until the pod ends because of its deletion or of a disruption; None if its end is not
    announced."""
    if phase is Phase.STOPPING:
        return seconds(0 if has_ended(pod) else pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    if phase is not Phase.GONE and disruption(pod.get("status") or {}):
        return seconds((pod.get("spec") or {}).get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))
    return None


def expiry(pod: Pod) -> float | None:
    """Return the epoch seconds at which ``activeDeadlineSeconds`` ends the pod; None if the pod has no limit or has not
    started."""
    longest, started = (pod.get("spec") or {}).get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    return None if longest is None or not started else epoch(started) + seconds(longest)


def cause_of(pod: Pod, is_spot: bool | None) -> LossCause:
    """Return why a pod ends or has ended. A lost node counts as a preemption if Google may preempt the node.

    ``is_spot``: True if Google may preempt the node. If None, the pod's spec decides.
    """
    cause = _best_cause(pod)
    is_preempted = cause is LossCause.NODE and (_is_for_spot(pod) if is_spot is None else is_spot)
    return LossCause.PREEMPTED if is_preempted else cause


def _best_cause(pod: Pod) -> LossCause:
    """Return the cause from the first source that names a cause, in this order: the disruption, the kubelet's reason,
    the deletion, the containers."""
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
    return LossCause.DELETED if is_terminating(pod) else _exit_cause(status)


def _exit_cause(status: Mapping[str, Any]) -> LossCause:
    """Return the cause for a pod that ended by itself: EXITED, or NODE if the kubelet could not find a container any
    more."""
    ends = [ended for container in containers(status) if (ended := terminated(container))]
    if any(ended.get("reason") == LOST_CONTAINER for ended in ends):
        return LossCause.NODE
    return LossCause.EXITED if ends or status.get("phase") == "Succeeded" else LossCause.UNKNOWN


def _is_for_spot(pod: Pod) -> bool:
    """Return True if a pod requests or tolerates nodes that Google may preempt."""
    spec = pod.get("spec") or {}
    wanted = {f"{key}={value}" for key, value in (spec.get("nodeSelector") or {}).items()} | set(_required_labels(spec))
    tolerated = {str(toleration.get("key")) for toleration in spec.get("tolerations") or ()}
    return not wanted.isdisjoint(SPOT_SELECTORS) or not tolerated.isdisjoint(SPOT_TAINTS)


def _required_labels(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the node labels that the pod's affinity requires. If the affinity accepts any value of a label, yield the
    value ``true``, because such labels usually have this value."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    demanded = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in demanded.get("nodeSelectorTerms") or ():
        for each in term.get("matchExpressions") or ():
            values = {"In": each.get("values") or (), "Exists": ("true",)}.get(each.get("operator"), ())
            yield from (f"{each.get('key')}={value}" for value in values)


def disruption(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the DisruptionTarget condition of a pod that is being disrupted; empty for any other pod."""
    found = condition(status, "DisruptionTarget")
    return found if found.get("status") == "True" else {}


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of this type; empty if the pod has none."""
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})


def containers(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the status of each container. Init containers come first, because the others wait for them."""
    return (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))


def terminated(container: Mapping[str, Any], state: str = "state") -> Mapping[str, Any]:
    """Return the ``terminated`` part of a container's state; empty if the container has not ended."""
    return (container.get(state) or {}).get("terminated") or {}


@lru_cache(RECENT)
def epoch(timestamp: str | None) -> int:
    """Return an RFC 3339 time as epoch seconds; 0 if there is no time."""
    return int(datetime.fromisoformat(timestamp).timestamp()) if timestamp else 0
