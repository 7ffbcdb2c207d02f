"""What becomes of a pod that has a node, as kwok plays it: the pod's label ``test/kubelet`` chooses, else the pod runs.

Annotation ``test/delay`` (such as ``3s``): how long the kubelet takes before it does anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import indent
from typing import Any

import yaml

LABEL = "test/kubelet"
DELAY = "test/delay"
STUCK = "stuck"
"""Runs, and its deletion is never confirmed."""
EXITS = "exits"
"""Runs, and ends well some seconds later."""
CONFIRM_SECONDS = 0.3
"""Until a deletion is confirmed."""
EXIT_SECONDS = 4.0

FAILING = {
    "image-pull": ("Pending", "waiting: {reason: ImagePullBackOff, message: Back-off pulling image}"),
    "config": ("Pending", "waiting: {reason: CreateContainerConfigError, message: 'secret \"grid\" not found'}"),
    "crash-loop": ("Running", "waiting: {reason: CrashLoopBackOff, message: back-off restarting failed container}"),
    "never-ready": ("Running", "running: {startedAt: '{{ Now }}'}"),
    "fails": ("Failed", "terminated: {exitCode: 1, reason: Error, finishedAt: '{{ Now }}'}"),
    "oom": ("Failed", "terminated: {exitCode: 137, reason: OOMKilled, finishedAt: '{{ Now }}'}"),
}
"""Phase of the pod and state of its containers."""


def configuration() -> str:
    """The configuration file of kwok."""
    options = {"podPlayStageParallelism": 32, "nodePlayStageParallelism": 4}
    kwok = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options}
    runs = _begins(_status("Running", "running: {startedAt: '{{ Now }}'}", ready=True), "NotIn", FAILING)
    stages = [
        _stage("runs", **runs),
        *(_stage(name, **_begins(_status(*state), "In", [name])) for name, state in FAILING.items()),
        _stage("exits", **_exits()),
        _stage("deletion", **_deletion()),
    ]
    return yaml.safe_dump_all([kwok, *stages], sort_keys=False)


def _stage(name: str, **spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {"resourceRef": {"apiGroup": "v1", "kind": "Pod"}, **spec},
    }


def _begins(status: str, operator: str, kubelets: Iterable[str]) -> dict[str, Any]:
    """The first thing that a kubelet says of a pod with, or without, these labels."""
    return {
        "selector": _selector(
            (".metadata.deletionTimestamp", "DoesNotExist"),
            (".status.startTime", "DoesNotExist"),
            (_label(), operator, *kubelets),
        ),
        "delay": {
            "durationMilliseconds": 0,
            "durationFrom": {"expressionFrom": f'.metadata.annotations["{DELAY}"]'},
        },
        "next": _says(status),
    }


def _exits() -> dict[str, Any]:
    return {
        "selector": _selector(
            (".metadata.deletionTimestamp", "DoesNotExist"),
            (".status.phase", "In", "Running"),
            (_label(), "In", EXITS),
        ),
        "delay": {"durationMilliseconds": int(EXIT_SECONDS * 1000)},
        "next": _says(_status("Succeeded", "terminated: {exitCode: 0, reason: Completed}")),
    }


def _deletion() -> dict[str, Any]:
    return {
        "selector": _selector((".metadata.deletionTimestamp", "Exists"), (_label(), "NotIn", STUCK)),
        "delay": {"durationMilliseconds": int(CONFIRM_SECONDS * 1000)},
        "next": {"delete": True},
    }


def _says(status: str) -> dict[str, Any]:
    """The pod gets this status, unless it changed meanwhile: else kwok may begin a pod twice, with another address."""
    version = 'metadata: {resourceVersion: "{{ .metadata.resourceVersion }}"}'
    template = f"{version}\nstatus:\n{indent(status, '  ')}"
    return {"patches": [{"subresource": "status", "type": "strategic", "template": template}]}


def _label() -> str:
    return f'.metadata.labels["{LABEL}"]'


def _selector(*rules: tuple[str, ...]) -> dict[str, Any]:
    return {
        "matchExpressions": [
            {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
            for key, operator, *values in rules
        ]
    }


def _status(phase: str, state: str, *, ready: bool = False) -> str:
    """A template of a pod's status, with all its containers in this state."""
    holds = "True" if ready else "False"
    reason = "" if ready else ", reason: ContainersNotReady, message: 'containers with unready status: [main]'"
    address = (
        'podIP: {{ PodIPWith .spec.nodeName false (or .metadata.uid "") (or .metadata.name "") '
        '(or .metadata.namespace "") | Quote }}'
    )
    return "\n".join(
        [
            "conditions:",
            "- {type: Initialized, status: 'True', lastTransitionTime: '{{ Now }}'}",
            f"- {{type: ContainersReady, status: '{holds}', lastTransitionTime: '{{{{ Now }}}}'{reason}}}",
            f"- {{type: Ready, status: '{holds}', lastTransitionTime: '{{{{ Now }}}}'{reason}}}",
            "containerStatuses:",
            "{{ range .spec.containers }}",
            "- name: {{ .name | Quote }}",
            "  image: {{ .image | Quote }}",
            f"  ready: {str(ready).lower()}",
            "  restartCount: 0",
            f"  state: {{{state}}}",
            "{{ end }}",
            "hostIP: {{ NodeIPWith .spec.nodeName | Quote }}",
            *([] if phase == "Pending" else [address]),
            f"phase: {phase}",
            "startTime: '{{ or .status.startTime Now }}'",
        ]
    )
