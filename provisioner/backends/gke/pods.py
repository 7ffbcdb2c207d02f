"""What a pod's JSON says about its machine: phase, address, why it does not run, how it will end. Pure.

Typed models would cost more than the request that fetched the pods.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

from provisioner.backends import BackendError
from provisioner.backends.gke.api import words
from provisioner.backends.gke.pod_spec import CONTAINERS
from provisioner.backends.responses import ODD_RESPONSES, seconds, text
from provisioner.model import Create, ErrorClass, Failure, Fingerprint, LossCause, Machine, Notice, Phase

Pod = Mapping[str, Any]

ID_LABEL = "hf-provisioner/id"
POOL_LABEL = "hf-provisioner/pool"
REQUEST_LABEL = "hf-provisioner/request"
TEMPLATE_LABEL = "hf-provisioner/template"
SLOT_LABEL = "hf-provisioner/slot"
OWN_LABELS = frozenset({ID_LABEL, POOL_LABEL, REQUEST_LABEL, TEMPLATE_LABEL, SLOT_LABEL})

MANAGER = 112
"""Longest text of ours in the name of a field manager, which the server limits to 128 characters."""

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
        "SignatureValidationFailed",
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

NOT_PREPARED = Failure(ErrorClass.OTHER, "Its node has not made its volumes and its network ready.")
"""The reason of a pod that has a node and nothing else. It usually passes within seconds."""

LOST_CONTAINER = "ContainerStatusUnknown"
"""Why a container has ended that its kubelet could not find any more: its node was restarted, it did not exit."""

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
    """Seconds that the pod had left when this was said."""


class Wait(NamedTuple):
    """A pod that waits, and for what: for a node, or for what its node has to make ready."""

    uid: str
    placed: bool
    """True for a pod that has a node."""


IsSpot = Callable[[str], bool | None]
"""Whether Google may take the node of this name away at any time; None where that is not known."""


def not_known(_: str) -> bool | None:
    """An ``IsSpot`` that knows no node: then the pod's own spec decides."""
    return None


Reading = tuple[Machine, Ending | None]
"""The machine that a pod is, without its notice (whose end is loop time), and how it will end if that was said."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Provisioner and pool, which make a pod ours (law: nothing is deleted by count). Both are valid label values."""

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

    @property
    def manager(self) -> str:
        """The field manager of our creates. The server notes it in the pod, where no policy takes it away."""
        name = f"{self.provisioner}:{self.pool}"
        return f"hf-provisioner:{name if len(name) <= MANAGER else hashlib.sha256(name.encode()).hexdigest()}"

    def made(self, pod: Pod, uid: str) -> bool:
        """True for a pod of ours whatever its labels say: by the ``uid`` that is known of it, else by who made it."""
        managers = (entry.get("manager") for entry in pod["metadata"].get("managedFields") or ())
        return pod["metadata"].get("uid") == uid if uid else self.manager in managers

    def read(self, pod: Pod, is_spot: IsSpot = not_known) -> Reading | None:
        """The machine that a pod is; None when it is not ours; BackendError when it cannot be read."""
        try:
            return machine_of(pod, is_spot) if self.owns(pod) else None
        except ODD_RESPONSES as error:
            raise BackendError(
                ErrorClass.UNAVAILABLE, words(f"the server described a pod as no server does: {error!r}")
            ) from error

    def owns(self, pod: Pod) -> bool:
        """True for our pool's pods."""
        return self.is_of_provisioner(pod) and _labels(pod).get(POOL_LABEL) == self.pool

    def is_of_provisioner(self, pod: Pod) -> bool:
        """True for pods of any of our pools. One that merely copied our labels has another name than they spell."""
        labels = _labels(pod)
        ending = f"-{labels.get(REQUEST_LABEL)}-{labels.get(SLOT_LABEL)}"
        return labels.get(ID_LABEL) == self.provisioner and str(pod["metadata"]["name"]).endswith(ending)


def _labels(pod: Pod) -> Mapping[str, str]:
    return pod["metadata"].get("labels") or {}


def label_value(text: str) -> str:
    """``text`` as a label may hold it: at most 63 of ``[A-Za-z0-9._-]``, no sign at either end."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:63].strip("._-")


def is_terminating(pod: Pod) -> bool:
    """True once its deletion was asked for."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def machine_of(pod: Pod, is_spot: IsSpot = not_known) -> Reading:
    """What a pod says of its machine."""
    cause = partial(_cause, pod, is_spot)
    metadata, status = pod["metadata"], pod.get("status") or {}
    created = metadata.get("creationTimestamp")
    phase, ip = _phase(pod), text(status.get("podIP") or "")
    machine = Machine(
        name=text(metadata["name"]),
        phase=phase,
        fingerprint=Fingerprint(text(metadata.get("uid") or ""), _shared(text(created or "")), ip=ip),
        ip=ip,
        launched=_epoch(status.get("startTime") or created),
        failure=None if phase is Phase.RUNNING else _failure(pod),
        cause=cause() if phase in (Phase.STOPPING, Phase.GONE) else None,
        gated=phase is Phase.PENDING and bool(_gates(pod)),
        expires=_expiry(pod),
        hindrance=_hindrance(metadata) if phase is Phase.STOPPING else None,
    )
    return machine, _ending(pod, phase, cause)


def sought_machine(pod: Pod, now: float, before: Machine | None, *, strayed: bool) -> Machine:
    """The machine of a pod that was asked for by its name, at loop time ``now``; ``before``: as it was shown last."""
    machine, ending = machine_of(pod)
    held = before.notice if before else None
    if ending is None or held is None or held.cause is not ending.cause:
        held = Notice(ending.cause, now + ending.seconds) if ending else None
    return replace(machine, strayed=strayed, notice=held)


def altered(asked: Pod, made: Pod) -> str:
    """Return which fields of ``asked`` differ in the pod that was made, and how; an empty text if none does."""
    parts = (
        ("metadata", asked["metadata"], made["metadata"]),
        ("metadata.labels", asked["metadata"]["labels"], _labels(made)),
        ("spec", asked["spec"], made.get("spec") or {}),
    )
    changes = [
        f"{part}.{key} is {theirs.get(key, 'gone')}"
        for part, ours, theirs in parts
        for key, value in ours.items()
        if key != "labels" and theirs.get(key) != value
    ]
    what = "something in the cluster, such as an admission policy, changes pods that are asked for"
    return f"{what}: {', '.join(changes)}" if changes else ""


def waits(machine: Machine) -> Wait | None:
    """Return the wait of a pod if only Events explain it; None for any other pod."""
    if machine.phase is not Phase.PENDING or machine.failure is None:
        return None
    placed = machine.failure == NOT_PREPARED
    return Wait(machine.fingerprint.uid, placed) if placed or machine.failure.error is ErrorClass.STOCKOUT else None


def _phase(pod: Pod) -> Phase:
    """A pod whose deletion was asked for is STOPPING also when its containers have ended: nothing is left to delete."""
    status = pod.get("status") or {}
    if is_terminating(pod):
        return Phase.STOPPING
    if _has_ended(pod):
        return Phase.GONE
    ready = _condition(status, "Ready").get("status") == "True"
    if status.get("phase") == "Running" and ready and status.get("podIP"):
        return Phase.RUNNING
    return Phase.PENDING


def _has_ended(pod: Pod) -> bool:
    """Return True if the pod never runs again, by its phase or as all containers of our spec have ended for good."""
    status = pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return True
    spec = pod.get("spec") or {}
    ended = {one.get("name"): _terminated(one) for one in status.get("containerStatuses") or ()}
    usual = {"restartPolicy": spec.get("restartPolicy", "Always")}
    over = {
        one.get("name")
        for one in spec.get("containers") or ()
        if (exited := ended.get(one.get("name"))) and not _restarts(exited.get("exitCode") or 0, {**usual, **one})
    }
    ours = _own_containers(pod)
    return bool(ours) and ours <= over


def _restarts(exit_code: int, container: Mapping[str, Any]) -> bool:
    """Return True if the kubelet starts the ended container again, by its rules, else by its policy or the pod's."""
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if (exit_code in (codes.get("values") or ())) is (codes.get("operator") == "In"):
            return True
    policy = container["restartPolicy"]
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _own_containers(pod: Pod) -> set[str]:
    """The names of those that its pod spec named; all, where the pod does not say so."""
    told = (pod["metadata"].get("annotations") or {}).get(CONTAINERS)
    if told:
        return set(told.split(","))
    return {str(one.get("name")) for one in (pod.get("spec") or {}).get("containers") or ()}


def _gates(pod: Pod) -> list[str]:
    """The scheduling gates that hold it back, by name."""
    return [str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]


# --- how it ends ------------------------------------------------------------------------------------------------------


def _ending(pod: Pod, phase: Phase, cause: Callable[[], LossCause]) -> Ending | None:
    """A pod that terminates has its deletion's grace; one that is only marked for disruption has its own."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    if phase is Phase.STOPPING:
        grace = 0 if _has_ended(pod) else metadata.get("deletionGracePeriodSeconds") or 0
        return Ending(cause(), seconds(grace))
    if phase is not Phase.GONE and _disruption(status):
        grace = (pod.get("spec") or {}).get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
        return Ending(cause(), seconds(grace))
    return None


def _hindrance(metadata: Mapping[str, Any]) -> Failure | None:
    """Return whose finalizers hold a terminating pod; None if only its kubelet has to finish."""
    finalizers = ", ".join(metadata.get("finalizers") or ())
    return _failure_of(ErrorClass.OTHER, words(f"it waits for its finalizers: {finalizers}")) if finalizers else None


def _expiry(pod: Pod) -> float | None:
    """Return the epoch at which ``activeDeadlineSeconds`` ends the pod; None without one, or before its start."""
    longest, started = (pod.get("spec") or {}).get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    return None if longest is None or not started else _epoch(started) + seconds(longest)


def node_of(pod: Pod) -> str:
    """The node that the pod was bound to; empty before it was."""
    spec = pod.get("spec")
    return str(spec.get("nodeName") or "") if isinstance(spec, Mapping) else ""


def _cause(pod: Pod, is_spot: IsSpot) -> LossCause:
    """Why a pod ends or has ended; the loss of a node that Google may take away at any time is a preemption."""
    cause = _witnessed(pod)
    if cause is not LossCause.NODE:
        return cause
    spot = is_spot(node_of(pod))
    return LossCause.PREEMPTED if spot or (spot is None and _wants_spot(pod)) else cause


def _witnessed(pod: Pod) -> LossCause:
    """The cause by the best witness there is: who disrupted it, its kubelet, who deleted it, its containers."""
    status = pod.get("status") or {}
    disruption = _disruption(status)
    if disruption.get("reason") == "TerminationByKubelet":
        message = str(disruption.get("message")).lower()
        return next((cause for word, cause in KUBELET_ENDINGS.items() if word in message), LossCause.EVICTED)
    if disruption:
        return DISRUPTIONS.get(str(disruption.get("reason")), LossCause.UNKNOWN)
    if status.get("phase") == "Failed" and (reason := status.get("reason")):
        refused = REFUSED_BY_KUBELET.fullmatch(reason) or str(status.get("message")).startswith(REJECTED)
        return LossCause.NODE if refused else FAILED_REASONS.get(reason, LossCause.UNKNOWN)
    if is_terminating(pod):
        return LossCause.DELETED
    return _exit(status)


def _exit(status: Mapping[str, Any]) -> LossCause:
    """The cause for a pod that nobody ended: its containers exited, unless their kubelet lost them."""
    ends = [ended for container in _containers(status) if (ended := _terminated(container))]
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


def _disruption(status: Mapping[str, Any]) -> Mapping[str, Any]:
    condition = _condition(status, "DisruptionTarget")
    return condition if condition.get("status") == "True" else {}


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of this type; empty when the pod has none."""
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})


# --- why it does not run ----------------------------------------------------------------------------------------------


def _failure(pod: Pod) -> Failure | None:
    """Why a pod does not run, from the first cause to the last symptom; None while it is merely starting."""
    status = pod.get("status") or {}
    if _has_ended(pod):
        return _end(pod)
    if disruption := _disruption(status):
        return _say(ErrorClass.OTHER, disruption)
    scheduled, ready = _condition(status, "PodScheduled"), _condition(status, "Ready")
    if scheduled.get("status") == "False":
        return _not_scheduled(scheduled, _gates(pod))
    for container in _containers(status):
        if failure := _trouble(container):
            return failure
    if status.get("phase") == "Running" and ready.get("status") == "False":
        return _restarted(status) or _say(ErrorClass.OTHER, ready)
    if status.get("phase") == "Running" or not node_of(pod):
        return None
    return None if _condition(status, "PodReadyToStartContainers").get("status") == "True" else NOT_PREPARED


def _end(pod: Pod) -> Failure | None:
    """Why a pod has ended: in the words of who ended it, else of the container that failed first, or ended at all.

    A sidecar (an init container that is always restarted) is stopped when the others have ended: that is no cause.
    """
    status = pod["status"]
    for witness in (status, _disruption(status)):
        if witness.get("reason"):
            return _say(ErrorClass.OTHER, witness)
    inits = (pod.get("spec") or {}).get("initContainers") or ()
    sidecars = {init.get("name") for init in inits if init.get("restartPolicy") == "Always"}
    ends = [
        (ended, container)
        for container in _containers(status)
        if container.get("name") not in sidecars and (ended := _terminated(container))
    ]
    first = next((end for end in ends if end[0].get("exitCode")), ends[-1] if ends else None)
    return _say(ErrorClass.OTHER, *first) if first else None


def _not_scheduled(condition: Mapping[str, Any], gates: Sequence[str]) -> Failure | None:
    """Why the pod has no node: gates hold it back, or no node takes it. Gates that were just lifted are no failure."""
    if condition.get("reason") == "SchedulingGated":
        return _say(ErrorClass.OTHER, condition, more=", ".join(gates)) if gates else None
    unschedulable = condition.get("reason") == "Unschedulable"
    return _say(ErrorClass.STOCKOUT if unschedulable else ErrorClass.OTHER, condition)


def _trouble(container: Mapping[str, Any]) -> Failure | None:
    """Why a container does not run; None for one that runs, has ended well, or is about to start."""
    ended = _terminated(container)
    if ended.get("exitCode"):
        return _say(ErrorClass.OTHER, ended, container)
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    if reason in STARTING:
        return None
    return _say(ErrorClass.INVALID if reason in FAULTY_SPEC else ErrorClass.OTHER, waiting, container)


def _restarted(status: Mapping[str, Any]) -> Failure | None:
    """How a container ended the last time that runs again and is not ready: as good a reason as there is."""
    for container in _containers(status):
        last = _terminated(container, "lastState")
        if last.get("exitCode") and not container.get("ready"):
            return _say(ErrorClass.OTHER, last, container)
    return None


def _containers(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What is known of each container, init containers first: they hold up the others."""
    return (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))


def _terminated(container: Mapping[str, Any], state: str = "state") -> Mapping[str, Any]:
    return (container.get(state) or {}).get("terminated") or {}


def _say(
    error: ErrorClass, source: Mapping[str, Any], container: Mapping[str, Any] | None = None, more: str = ""
) -> Failure:
    """The server's words: container, reason, message, and of one that waits how it ended the last time."""
    container = container or {}
    parts = [container.get("name"), source.get("reason"), source.get("message"), more]
    ended = source if "exitCode" in source else _terminated(container, "lastState")
    parts += [ended.get("reason"), ended.get("message")] if ended is not source else []
    parts += [f"exit code {ended['exitCode']}"] if "exitCode" in ended else []
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
