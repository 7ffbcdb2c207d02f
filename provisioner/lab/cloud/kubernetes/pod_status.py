"""A pod's status at each step of its life, as the scheduler and a kubelet write it.

Each function takes a pod's document and returns the next document. The functions have no side effects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from provisioner.lab.cloud.kubernetes.errors import Json
from provisioner.lab.cloud.kubernetes.gates import gates


def timestamp(wall: float) -> str:
    """Return epoch seconds as a timestamp of the API, in whole seconds."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def epoch(text: str) -> float:
    """Return the epoch seconds of an API timestamp."""
    return datetime.fromisoformat(text).timestamp()


def condition_of(pod: Json, name: str) -> Json | None:
    """Return the pod's condition of the type ``name``; None if the pod has no such condition."""
    conditions = pod["status"].get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == name), None)


def container_statuses(pod: Json) -> list[Json]:
    """Return the status of each container; empty before the pod is on a node."""
    return pod["status"].get("containerStatuses") or []


def is_ready(pod: Json) -> bool:
    """Return True if a pod counts as a running machine: it is Running and Ready, and has an IP."""
    condition = condition_of(pod, "Ready") or {}
    status = pod["status"]
    return status.get("phase") == "Running" and condition.get("status") == "True" and bool(status.get("podIP"))


def is_ended(pod: Json) -> bool:
    """Return True for a pod that is Succeeded or Failed and never runs again."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def machine_phase(pod: Json) -> str:
    """Return the phase of the machine, in the words of the control API."""
    if "deletionTimestamp" in pod["metadata"]:
        return "stopping"
    phase = pod["status"].get("phase")
    if phase == "Failed":
        return "failed"
    if phase == "Succeeded":
        return "gone"
    return "running" if is_ready(pod) else "pending"


def with_status(pod: Json, **changes: Any) -> Json:
    """Return the pod with some fields of its status replaced."""
    return {**pod, "status": {**pod["status"], **changes}}


def with_metadata(pod: Json, **changes: Any) -> Json:
    """Return the pod with some fields of its metadata replaced."""
    return {**pod, "metadata": {**pod["metadata"], **changes}}


def with_condition(pod: Json, name: str, status: str, now: str, reason: str = "", message: str = "") -> Json:
    """Return the pod with one condition set. The condition's transition time changes only if the condition's status
    changes."""
    old = condition_of(pod, name)
    condition: Json = {"type": name, "status": status, "lastProbeTime": None, "lastTransitionTime": now}
    if old is not None and old.get("status") == status:
        condition["lastTransitionTime"] = old.get("lastTransitionTime", now)
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    others = [other for other in pod["status"].get("conditions") or [] if other.get("type") != name]
    return with_status(pod, conditions=[*others, condition])


def with_containers(pod: Json, state: Json, *, restarts: int = 0, last: Json | None = None) -> Json:
    """Return the pod with the same status for every container. No container is ready yet. ``last``: the state in which
    each container ended the last time."""
    started = "running" in state
    statuses = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": f"{container['image']}@sha256:{_digest(container['image'])}" if started else "",
            "containerID": f"containerd://{_digest(pod['metadata']['uid'] + container['name'])}" if started else "",
            "ready": False,
            "started": started,
            "restartCount": restarts,
            "state": state,
            "lastState": last or {},
        }
        for container in pod["spec"]["containers"]
    ]
    return with_status(pod, containerStatuses=statuses)


def _digest(text: str) -> str:
    """Return 64 hexadecimal digits that depend only on the text."""
    return hashlib.sha256(text.encode()).hexdigest()


def admitted(pod: Json, metadata: Json, params: Mapping[str, Any]) -> tuple[Json, Json]:
    """Return a new pod and its metadata after an admission policy has changed them. ``params``: the parameters of the
    fault ``altered``, which define the changes."""
    changes = params.get("labels")
    labels = {} if changes is None else {**(metadata.get("labels") or {}), **changes}
    kept = {key: value for key, value in labels.items() if value is not None}
    return {**pod, "spec": {**pod["spec"], **params.get("spec", {})}}, {**metadata, "labels": kept}


def created(pod: Json, qos: str) -> Json:
    """Return a new pod in the form in which the server stores it."""
    stored = {**pod, "status": {"phase": "Pending", "qosClass": qos}}
    if not gates(pod["spec"]):
        return stored
    words = "Scheduling is blocked due to non-empty scheduling gates"
    return with_condition(
        stored, "PodScheduled", "False", pod["metadata"]["creationTimestamp"], "SchedulingGated", words
    )


def unschedulable(pod: Json, now: str, message: str) -> Json:
    """Return the pod after the scheduler found no node for it."""
    return with_condition(pod, "PodScheduled", "False", now, "Unschedulable", message)


def scheduled(pod: Json, node: str, host_ip: str, now: str) -> Json:
    """Return the pod after it was bound to a node. The node's kubelet has begun to create the containers."""
    bound = {**pod, "spec": {**pod["spec"], "nodeName": node}}
    bound = with_status(bound, hostIP=host_ip, hostIPs=[{"ip": host_ip}], startTime=now)
    bound = with_containers(bound, {"waiting": {"reason": "ContainerCreating"}})
    bound = with_condition(bound, "PodScheduled", "True", now)
    bound = with_condition(bound, "Initialized", "True", now)
    return _unready(bound, now)


def prepared(pod: Json, now: str, *, ready: bool) -> Json:
    """Return the pod with the condition PodReadyToStartContainers. ``ready``: True if the node has made the pod's
    volumes and network ready."""
    return with_condition(pod, "PodReadyToStartContainers", str(ready), now)


def _unready(pod: Json, now: str, reason: str = "ContainersNotReady") -> Json:
    names = [container["name"] for container in pod["spec"]["containers"]]
    message = f"containers with unready status: [{' '.join(names)}]"
    pod = with_condition(pod, "ContainersReady", "False", now, reason, message)
    return with_condition(pod, "Ready", "False", now, reason, message)


def waiting(pod: Json, reason: str, message: str) -> Json:
    """Return the pod with all containers waiting for ``reason``."""
    return with_containers(pod, {"waiting": {"reason": reason, "message": message}})


def running(pod: Json, ip: str, now: str, restarts: int = 0, last: Json | None = None) -> Json:
    """Return the pod with running containers, which are not ready yet, and with its IP."""
    pod = with_status(pod, phase="Running", podIP=ip, podIPs=[{"ip": ip}])
    return with_containers(pod, {"running": {"startedAt": now}}, restarts=restarts, last=last)


def ready(pod: Json, now: str) -> Json:
    """Return the pod after every container has passed its readiness probe."""
    statuses = [{**status, "ready": True} for status in container_statuses(pod)]
    pod = with_status(pod, containerStatuses=statuses)
    pod = with_condition(pod, "ContainersReady", "True", now)
    return with_condition(pod, "Ready", "True", now)


def terminated(pod: Json, exit_code: int, now: str, reason: str = "") -> Json:
    """Return the state of a container that has ended. ``reason``: for example OOMKilled; if empty, Completed for exit
    code 0 and Error for any other."""
    reason = reason or ("Completed" if exit_code == 0 else "Error")
    started = pod["status"].get("startTime", now)
    return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": started, "finishedAt": now}}


def crashed(pod: Json, last: Json, now: str, restarts: int, wait: float) -> Json:
    """Return the pod after a container has ended with the state ``last``. The container waits to be started again."""
    container = pod["spec"]["containers"][0]["name"]
    metadata = pod["metadata"]
    whose = f"container={container} pod={metadata['name']}_{metadata['namespace']}({metadata['uid']})"
    message = f"back-off {wait:.0f}s restarting failed {whose}"
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    return _unready(with_containers(pod, state, restarts=restarts, last=last), now)


def ended(pod: Json, phase: str, state: Json, now: str, reason: str = "", message: str = "") -> Json:
    """Return the pod after every container has ended for good, with the state ``state``."""
    restarts = max((status.get("restartCount", 0) for status in container_statuses(pod)), default=0)
    pod = with_containers(pod, state, restarts=restarts)
    why = {"reason": reason, "message": message} if reason else {}
    pod = with_status(pod, phase=phase, **why)
    return _unready(pod, now, "PodCompleted" if phase == "Succeeded" else "PodFailed")


def disrupted(pod: Json, reason: str, message: str, now: str) -> Json:
    """Return the pod with the condition DisruptionTarget, by which the system announces the pod's end."""
    return with_condition(pod, "DisruptionTarget", "True", now, reason, message)


def deleting(pod: Json, grace: int, at: str) -> Json:
    """Return the pod after its deletion was requested. ``at``: latest time at which the pod ends."""
    return with_metadata(pod, deletionTimestamp=at, deletionGracePeriodSeconds=grace)


def quality_of_service(spec: Json) -> str:
    """Return the pod's class Guaranteed, Burstable or BestEffort, according to the resources of the pod's
    containers."""
    resources = [container.get("resources") or {} for container in spec["containers"]]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    limits = [one.get("limits") or {} for one in resources]
    equal = all((one.get("requests") or limit) == limit for one, limit in zip(resources, limits, strict=True))
    return "Guaranteed" if equal and all({"cpu", "memory"} <= limit.keys() for limit in limits) else "Burstable"
