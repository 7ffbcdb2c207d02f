"""What a pod says about its machine: phase, address, why it does not run, how it will end. Pure: no I/O, no clock.

Works on pods as the API server's JSON describes them: typed models cost more than the request that fetched them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from provisioner.backends import BackendError
from provisioner.backends.kube_api import words
from provisioner.model import Create, ErrorClass, Failure, Fingerprint, LossCause, Machine, Phase

Pod = Mapping[str, Any]

ID_LABEL = "hf-provisioner/id"
POOL_LABEL = "hf-provisioner/pool"
REQUEST_LABEL = "hf-provisioner/request"
TEMPLATE_LABEL = "hf-provisioner/template"
SLOT_LABEL = "hf-provisioner/slot"
OWN_LABELS = frozenset({ID_LABEL, POOL_LABEL, REQUEST_LABEL, TEMPLATE_LABEL, SLOT_LABEL})

DEFAULT_GRACE_SECONDS = 30
"""Kubernetes' own default for terminationGracePeriodSeconds."""

FAULTY_SPEC = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Reasons of a waiting container that another pod of the same spec would meet too."""

STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that only say that it is not there yet."""

DISRUPTIONS: Mapping[str, LossCause] = {
    "PreemptionByScheduler": LossCause.PREEMPTED,
    "EvictionByEvictionAPI": LossCause.EVICTED,
    "DeletionByTaintManager": LossCause.NODE,
    "DeletionByPodGC": LossCause.NODE,
}
"""Reasons of the DisruptionTarget condition. TerminationByKubelet is decided by its message."""

FAILED_REASONS: Mapping[str, LossCause] = {
    "Evicted": LossCause.EVICTED,
    "Preempting": LossCause.PREEMPTED,
    "NodeShutdown": LossCause.NODE,
    "Shutdown": LossCause.NODE,
    "Terminated": LossCause.NODE,
    "NodeLost": LossCause.NODE,
}
"""Values of ``status.reason`` of a failed pod, as kubelets and GKE write them."""


SPOT_TAINTS = frozenset({"cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible"})
SPOT_SELECTORS = frozenset({*(f"{taint}=true" for taint in SPOT_TAINTS), "cloud.google.com/gke-provisioning=spot"})
"""How GKE marks Spot and preemptible nodes."""

RECENT = 1024
"""Values that many pods have in common, remembered to be kept in memory once."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A pod that will end by itself."""

    cause: LossCause
    seconds: float
    """How long it had when this was said."""


Reading = tuple[Machine, Ending | None]
"""The machine that a pod is, without its notice (whose end is loop time), and how it will end if that was said."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose pods and which pool's: what makes a pod ours (law 5). Both are valid label values."""

    provisioner: str
    pool: str

    @property
    def selector(self) -> str:
        """The label selector of all pods that may be ours."""
        return f"{ID_LABEL}={self.provisioner},{POOL_LABEL}={self.pool}"

    def labels(self, create: Create) -> dict[str, str]:
        """The labels of the pod that fills a slot."""
        return {
            ID_LABEL: self.provisioner,
            POOL_LABEL: self.pool,
            REQUEST_LABEL: create.request,
            TEMPLATE_LABEL: label_value(create.template),
            SLOT_LABEL: create.name.rpartition("-")[2],
        }

    def read(self, pod: Pod) -> Reading | None:
        """The machine that a pod is; None when it is not ours; BackendError when it cannot be read (law 4)."""
        try:
            return machine_of(pod) if self.owns(pod) else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BackendError(
                ErrorClass.UNAVAILABLE, f"the server described a pod as no server does: {error!r}"
            ) from error

    def owns(self, pod: Pod) -> bool:
        """True for our pool's pods. One that merely copied our labels has another name than they spell."""
        labels = pod["metadata"].get("labels") or {}
        ending = f"-{labels.get(REQUEST_LABEL)}-{labels.get(SLOT_LABEL)}"
        return (
            self.is_of_provisioner(pod)
            and labels.get(POOL_LABEL) == self.pool
            and str(pod["metadata"]["name"]).endswith(ending)
        )

    def is_of_provisioner(self, pod: Pod) -> bool:
        """True for pods of any of our pools."""
        return bool((pod["metadata"].get("labels") or {}).get(ID_LABEL) == self.provisioner)


def label_value(text: str) -> str:
    """``text`` as a label may hold it: at most 63 of ``[A-Za-z0-9._-]``, no sign at either end."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:63].strip("._-")


def is_terminating(pod: Pod) -> bool:
    """True once its deletion was asked for."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def machine_of(pod: Pod) -> Reading:
    """What a pod says of its machine."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    phase, ip = _phase(pod), str(status.get("podIP") or "")
    machine = Machine(
        name=metadata["name"],
        phase=phase,
        fingerprint=Fingerprint(metadata.get("uid") or "", _shared(metadata.get("creationTimestamp") or ""), ip=ip),
        ip=ip,
        launched=_epoch(status.get("startTime") or metadata.get("creationTimestamp")),
        failure=None if phase is Phase.RUNNING else _failure(status),
        cause=_cause(pod) if phase in (Phase.STOPPING, Phase.GONE) else None,
    )
    return machine, _ending(pod, phase)


def _phase(pod: Pod) -> Phase:
    """A pod whose deletion was asked for is STOPPING also when its containers have ended: nothing is left to delete."""
    status = pod.get("status") or {}
    if is_terminating(pod):
        return Phase.STOPPING
    if status.get("phase") in ("Failed", "Succeeded"):
        return Phase.GONE
    ready = _condition(status, "Ready").get("status") == "True"
    if status.get("phase") == "Running" and ready and status.get("podIP"):
        return Phase.RUNNING
    return Phase.PENDING


def _ending(pod: Pod, phase: Phase) -> Ending | None:
    """A pod that terminates has its deletion's grace; one that is only marked for disruption has its own."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    if phase is Phase.STOPPING:
        ended = status.get("phase") in ("Failed", "Succeeded")
        grace = 0 if ended else metadata.get("deletionGracePeriodSeconds") or 0
        return Ending(_cause(pod), float(grace))
    if phase is not Phase.GONE and _disruption(status):
        grace = (pod.get("spec") or {}).get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
        return Ending(_cause(pod), float(grace))
    return None


def _cause(pod: Pod) -> LossCause:
    """Why a pod ends or has ended, by the best witness there is."""
    status = pod.get("status") or {}
    disruption = _disruption(status)
    if disruption.get("reason") == "TerminationByKubelet":
        shutdown = "shutdown" in str(disruption.get("message")).lower()
        cause = LossCause.NODE if shutdown else LossCause.EVICTED
    elif disruption:
        cause = DISRUPTIONS.get(str(disruption.get("reason")), LossCause.UNKNOWN)
    elif status.get("phase") == "Failed" and status.get("reason") in FAILED_REASONS:
        cause = FAILED_REASONS[status["reason"]]
    else:
        cause = LossCause.DELETED if is_terminating(pod) else LossCause.UNKNOWN
    return LossCause.PREEMPTED if cause is LossCause.NODE and _wants_spot(pod) else cause


def _wants_spot(pod: Pod) -> bool:
    """True for a pod that asks for, or tolerates, nodes that Google takes away: the loss of one is a preemption."""
    spec = pod.get("spec") or {}
    wanted = {f"{key}={value}" for key, value in (spec.get("nodeSelector") or {}).items()}
    tolerated = {str(toleration.get("key")) for toleration in spec.get("tolerations") or ()}
    return not wanted.isdisjoint(SPOT_SELECTORS) or not tolerated.isdisjoint(SPOT_TAINTS)


def _disruption(status: Mapping[str, Any]) -> Mapping[str, Any]:
    condition = _condition(status, "DisruptionTarget")
    return condition if condition.get("status") == "True" else {}


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of this type; empty when the pod has none."""
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})


def _failure(status: Mapping[str, Any]) -> Failure | None:
    """Why a pod does not run, from the first cause to the last symptom; None while it is merely starting."""
    scheduled, ready = _condition(status, "PodScheduled"), _condition(status, "Ready")
    if scheduled.get("status") == "False":
        stockout = scheduled.get("reason") == "Unschedulable"
        return _say(ErrorClass.STOCKOUT if stockout else ErrorClass.OTHER, scheduled)
    if status.get("phase") == "Failed" and status.get("reason"):
        return _say(ErrorClass.OTHER, status)
    for failure in _container_failures(status):
        return failure
    if status.get("phase") == "Running" and ready.get("status") == "False":
        return _say(ErrorClass.OTHER, ready)
    return None


def _container_failures(status: Mapping[str, Any]) -> Iterator[Failure]:
    """What is wrong with each container that does not run, init containers first: they hold up the others."""
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        ended = state.get("terminated") or {}
        reason = str((state.get("waiting") or {}).get("reason") or "")
        if ended.get("exitCode"):
            yield _say(ErrorClass.OTHER, ended, container)
        elif reason in FAULTY_SPEC:
            yield _say(ErrorClass.INVALID, state["waiting"], container)
        elif reason not in STARTING:
            yield _say(ErrorClass.OTHER, state["waiting"], container)


def _say(error: ErrorClass, source: Mapping[str, Any], container: Mapping[str, Any] | None = None) -> Failure:
    """The server's words: container, reason, message, and how the container ended (the last time)."""
    parts = [container.get("name") if container else None, source.get("reason"), source.get("message")]
    last = ((container or {}).get("lastState") or {}).get("terminated") or {}
    parts += [last.get("reason"), last.get("message")]
    code = last.get("exitCode", source.get("exitCode"))
    parts.append(None if code is None else f"exit code {code}")
    return _failure_of(error, words(": ".join(str(part) for part in parts if part)))


@lru_cache(RECENT)
def _failure_of(error: ErrorClass, text: str) -> Failure:
    """A failure, the same one for all pods that wait for the same reason."""
    return Failure(error, text)


@lru_cache(RECENT)
def _shared(text: str) -> str:
    """The text that was equal to this one before: thousands of pods are made in the same few seconds."""
    return text


@lru_cache(RECENT)
def _epoch(timestamp: str | None) -> int:
    """Epoch seconds of an RFC 3339 time; 0 when there is none."""
    return int(datetime.fromisoformat(timestamp).timestamp()) if timestamp else 0
