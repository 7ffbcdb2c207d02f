"""The reasons why a pod does not run, from its JSON. The functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from provisioner.backends.gke.pod_status import (
    RECENT,
    Pod,
    condition,
    containers,
    disruption,
    has_ended,
    node_of,
    terminated,
)
from provisioner.backends.responses import words
from provisioner.model import ErrorClass, Failure

FAULTY_SPEC = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "SignatureValidationFailed"),
)
"""Reasons for which a container waits because of the pod's spec, so that any other pod of the same spec would also
wait."""

STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that is still starting."""

NOT_PREPARED = Failure(ErrorClass.OTHER, "The pod's node has not prepared the pod's volumes and network.")
"""Failure of a pod that is bound to a node and about which nothing else is known yet. A pod usually leaves this state
within seconds."""


def gates(pod: Pod) -> list[str]:
    """Return the scheduling gates that block a pod, by name."""
    return [str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]


def hindrance(metadata: Mapping[str, Any]) -> Failure | None:
    """Return a failure that names the finalizers of a terminating pod; None if the pod has no finalizers, because it
    then waits only for its kubelet."""
    finalizers = ", ".join(metadata.get("finalizers") or ())
    return _shared(ErrorClass.OTHER, words(f"it waits for its finalizers: {finalizers}")) if finalizers else None


def failure(pod: Pod) -> Failure | None:
    """Return why a pod does not run; None while the pod is only starting. Causes are tried before symptoms, and the
    first that applies counts."""
    status = pod.get("status") or {}
    if has_ended(pod):
        return _end_failure(pod)
    if disrupted := disruption(status):
        return _make_failure(ErrorClass.OTHER, disrupted)
    scheduled, ready = condition(status, "PodScheduled"), condition(status, "Ready")
    if scheduled.get("status") == "False":
        return _scheduling_failure(scheduled, gates(pod))
    if trouble := next(filter(None, map(_container_failure, containers(status))), None):
        return trouble
    if status.get("phase") == "Running":
        is_unready = ready.get("status") == "False"
        return (_restart_failure(status) or _make_failure(ErrorClass.OTHER, ready)) if is_unready else None
    is_prepared = condition(status, "PodReadyToStartContainers").get("status") == "True"
    return NOT_PREPARED if node_of(pod) and not is_prepared else None


def _end_failure(pod: Pod) -> Failure | None:
    """Return why a pod has ended. The first of these sources decides: the pod's status; its disruption condition; the
    first failed container in the order of ``containers``; the last container.

    A sidecar (an init container that is always restarted) is never the reason, because Kubernetes stops a sidecar after
    the other containers have ended.
    """
    status = pod["status"]
    for witness in (status, disruption(status)):
        if witness.get("reason"):
            return _make_failure(ErrorClass.OTHER, witness)
    inits = (pod.get("spec") or {}).get("initContainers") or ()
    sidecars = {init.get("name") for init in inits if init.get("restartPolicy") == "Always"}
    ends = [
        (ended, container)
        for container in containers(status)
        if container.get("name") not in sidecars and (ended := terminated(container))
    ]
    first = next((end for end in ends if end[0].get("exitCode")), ends[-1] if ends else None)
    return _make_failure(ErrorClass.OTHER, *first) if first else None


def _scheduling_failure(scheduled: Mapping[str, Any], gates: Sequence[str]) -> Failure | None:
    """Return why the pod has no node: gates block the pod, or no node fits. Return None if the condition still names
    gates although all gates are removed."""
    reason = scheduled.get("reason")
    if reason == "SchedulingGated":
        return _make_failure(ErrorClass.OTHER, scheduled, more=", ".join(gates)) if gates else None
    return _make_failure(ErrorClass.STOCKOUT if reason == "Unschedulable" else ErrorClass.OTHER, scheduled)


def _container_failure(container: Mapping[str, Any]) -> Failure | None:
    """Return why a container does not run; None if the container runs, has ended without an error, or is about to
    start."""
    ended = terminated(container)
    if ended.get("exitCode"):
        return _make_failure(ErrorClass.OTHER, ended, container)
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    if reason in STARTING:
        return None
    return _make_failure(ErrorClass.INVALID if reason in FAULTY_SPEC else ErrorClass.OTHER, waiting, container)


def _restart_failure(status: Mapping[str, Any]) -> Failure | None:
    """Return how a container failed before its last restart; None if no container failed. A container that is ready
    again does not count.

    Callers use this failure if the pod's status shows no other reason.
    """
    for container in containers(status):
        last = terminated(container, "lastState")
        if last.get("exitCode") and not container.get("ready"):
            return _make_failure(ErrorClass.OTHER, last, container)
    return None


def _make_failure(
    error: ErrorClass, source: Mapping[str, Any], container: Mapping[str, Any] | None = None, more: str = ""
) -> Failure:
    """Return a failure with the server's texts: container, reason, message, and the last end of a waiting container."""
    container = container or {}
    parts = [container.get("name"), source.get("reason"), source.get("message"), more]
    ended = source if "exitCode" in source else terminated(container, "lastState")
    parts += [ended.get("reason"), ended.get("message")] if ended is not source else []
    parts += [f"exit code {ended['exitCode']}"] if "exitCode" in ended else []
    return _shared(error, words(": ".join(str(part) for part in parts if part)))


_shared = lru_cache(RECENT)(Failure)
"""Return a failure. Pods with the same failure share one object."""
