"""Tables of objects for ``kubectl get``, which prints the tables that the server makes. The functions have no side
effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from provisioner.lab.cloud.kubernetes.errors import Json
from provisioner.lab.cloud.kubernetes.pod_status import condition_of, container_statuses, epoch
from provisioner.lab.cloud.kubernetes.store import Stored

Cells = list[Any]

_NAME_WORDS = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a "
    "client to request the generation of an appropriate name automatically."
)


def table(objects: Sequence[Stored], resource: str, now: float, include: str, metadata: Json) -> Json:
    """Return a ``Table`` of objects at epoch second ``now``. ``include``: the part of an object in its row (None,
    Metadata or Object)."""
    columns, cells = _TABLES[resource]
    rows = [{"cells": cells(stored.document, now), **_object(stored, include)} for stored in objects]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return {**head, "columnDefinitions": columns, "rows": rows}


def _object(stored: Stored, include: str) -> Json:
    if include == "None":
        return {}
    if include == "Object":
        return {"object": {"kind": stored.kind.kind, "apiVersion": "v1", **stored.document}}
    return {"object": partial(stored)}


def partial(stored: Stored) -> Json:
    """Return only the metadata of an object."""
    head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    return {**head, "metadata": stored.document["metadata"]}


def _column(name: str, words: str = "", *, wide: bool = False) -> Json:
    form = "name" if name == "Name" else ""
    words = words or (_NAME_WORDS if name == "Name" else name)
    return {"name": name, "type": "string", "format": form, "description": words, "priority": int(wide)}


def duration(seconds: float) -> str:
    """Return a duration in the form of kubectl's ages: one unit, or two if the first number is small and the second is
    not 0."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{_rest(whole % 60, 's')}"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{_rest(minutes % 60, 'm')}"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{_rest(hours % 24, 'h')}"
    return f"{days}d"


def _rest(number: int, unit: str) -> str:
    return f"{number}{unit}" if number else ""


def _age(text: str | None, now: float) -> str:
    return duration(now - epoch(text)) if text else "<unknown>"


# --- pods -------------------------------------------------------------------------------------------------------------

_POD_COLUMNS = [
    _column("Name"),
    _column("Ready", "The aggregate readiness state of this pod for accepting traffic."),
    _column("Status", "The aggregate status of the containers in this pod."),
    _column("Restarts", "How often the containers in this pod have been restarted, and when last."),
    _column("Age"),
    _column("IP", wide=True),
    _column("Node", wide=True),
    _column("Nominated Node", wide=True),
    _column("Readiness Gates", wide=True),
]


def _pod_cells(pod: Json, now: float) -> Cells:
    statuses, status = container_statuses(pod), pod["status"]
    ready = sum(bool(one.get("ready")) for one in statuses)
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(pod['spec']['containers'])}",
        pod_word(pod),
        _restarts(statuses, now),
        _age(pod["metadata"]["creationTimestamp"], now),
        status.get("podIP") or "<none>",
        pod["spec"].get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>",
    ]


def pod_word(pod: Json) -> str:
    """Return the word in the column STATUS, by the rules of the real server."""
    status = pod["status"]
    word: str = status.get("reason") or status.get("phase") or "Unknown"
    if (condition_of(pod, "PodScheduled") or {}).get("reason") == "SchedulingGated":
        word = "SchedulingGated"
    for one in reversed(container_statuses(pod)):
        state = one.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason"):
            word = waiting["reason"]
        elif terminated:
            word = terminated.get("reason") or f"ExitCode:{terminated.get('exitCode')}"
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    return word


def _restarts(statuses: Sequence[Mapping[str, Any]], now: float) -> str:
    count = sum(one.get("restartCount", 0) for one in statuses)
    ends = [(one.get("lastState") or {}).get("terminated", {}).get("finishedAt") for one in statuses]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({_age(last, now)} ago)" if count and last else str(count)


# --- events, namespaces, nodes ----------------------------------------------------------------------------------------

_EVENT_COLUMNS = [
    _column("Last Seen"),
    _column("Type"),
    _column("Reason"),
    _column("Object"),
    _column("Subobject", wide=True),
    _column("Source", wide=True),
    _column("Message"),
    _column("First Seen", wide=True),
    _column("Count", wide=True),
    _column("Name", wide=True),
]


def _event_cells(event: Json, now: float) -> Cells:
    whom = event.get("involvedObject") or {}
    source = event.get("source") or {}
    return [
        _age(event.get("lastTimestamp") or event.get("eventTime"), now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{str(whom.get('kind', '')).lower()}/{whom.get('name', '')}",
        whom.get("fieldPath", ""),
        ", ".join(part for part in (source.get("component"), source.get("host")) if part),
        event.get("message", ""),
        _age(event.get("firstTimestamp") or event.get("eventTime"), now),
        event.get("count", 1),
        event["metadata"]["name"],
    ]


_NAMESPACE_COLUMNS = [_column("Name"), _column("Status"), _column("Age")]


def _namespace_cells(namespace: Json, now: float) -> Cells:
    metadata = namespace["metadata"]
    return [metadata["name"], namespace["status"]["phase"], _age(metadata["creationTimestamp"], now)]


_NODE_COLUMNS = [
    _column("Name"),
    _column("Status"),
    _column("Roles"),
    _column("Age"),
    _column("Version"),
    _column("Internal-IP", wide=True),
    _column("External-IP", wide=True),
    _column("OS-Image", wide=True),
    _column("Kernel-Version", wide=True),
    _column("Container-Runtime", wide=True),
]


def _node_cells(node: Json, now: float) -> Cells:
    metadata, status = node["metadata"], node["status"]
    ready = (condition_of(node, "Ready") or {}).get("status") == "True"
    info = status["nodeInfo"]
    return [
        metadata["name"],
        "Ready" if ready else "NotReady",
        "<none>",
        _age(metadata["creationTimestamp"], now),
        info["kubeletVersion"],
        status["addresses"][0]["address"],
        "<none>",
        info["osImage"],
        info["kernelVersion"],
        info["containerRuntimeVersion"],
    ]


_TABLES: Mapping[str, tuple[list[Json], Callable[[Json, float], Cells]]] = {
    "events": (_EVENT_COLUMNS, _event_cells),
    "namespaces": (_NAMESPACE_COLUMNS, _namespace_cells),
    "nodes": (_NODE_COLUMNS, _node_cells),
    "pods": (_POD_COLUMNS, _pod_cells),
}
