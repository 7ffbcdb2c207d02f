"""Kubelets that kwok plays for pods with a node. The pod's label ``test/kubelet`` chooses a kubelet.

Without the label, the pod runs. The annotation ``test/delay`` (such as ``3s``) delays everything that the kubelet does.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import indent
from typing import Any, NamedTuple

import yaml

LABEL = "test/kubelet"
DELAY = "test/delay"
STUCK = "stuck"
"""The pod runs, and its deletion is never confirmed."""
CONFIRM_SECONDS = 0.3
"""Seconds until a deletion is confirmed."""


class Says(NamedTuple):
    """The status that a kubelet reports for a pod that does not run."""

    phase: str
    state: str
    """The state of the pod's containers."""
    last: str = ""
    """The last end of the pod's containers."""
    init: str = ""
    """State of the init containers, which hold up the other containers. Empty: the init containers are done."""


OOM = "terminated: {exitCode: 137, reason: OOMKilled, finishedAt: '{{ Now }}'}"
EXIT_1 = "terminated: {exitCode: 1, reason: Error, finishedAt: '{{ Now }}'}"
EXIT_3 = "terminated: {exitCode: 3, reason: Error, message: no disk, finishedAt: '{{ Now }}'}"
BACK_OFF = "waiting: {reason: CrashLoopBackOff, message: back-off restarting failed container}"
INITIALIZING = "waiting: {reason: PodInitializing}"
RUNS = "running: {startedAt: '{{ Now }}'}"

FAILING = {
    "image-pull": Says("Pending", "waiting: {reason: ImagePullBackOff, message: Back-off pulling image}"),
    "config": Says("Pending", "waiting: {reason: CreateContainerConfigError, message: 'secret \"grid\" not found'}"),
    "crash-loop": Says("Running", BACK_OFF, last=EXIT_1),
    "oom-loop": Says("Running", BACK_OFF, last=OOM),
    "oom-restarted": Says("Running", RUNS, last=OOM),
    "never-ready": Says("Running", RUNS),
    "fails": Says("Failed", EXIT_1),
    "oom": Says("Failed", OOM),
    "init-fails": Says("Failed", INITIALIZING, init=EXIT_3),
    "init-loop": Says("Pending", INITIALIZING, init=BACK_OFF),
}


def configuration() -> str:
    """Return the configuration file of kwok."""
    options = {"podPlayStageParallelism": 32, "nodePlayStageParallelism": 4}
    kwok = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options}
    runs = _begins(_status(Says("Running", RUNS), ready=True), "NotIn", FAILING)
    stages = [
        _stage("runs", **runs),
        *(_stage(name, **_begins(_status(says), "In", [name])) for name, says in FAILING.items()),
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
    """Return the stage in which a kubelet first reports a pod.

    ``operator`` and ``kubelets`` select the pods by label.
    """
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


def _deletion() -> dict[str, Any]:
    return {
        "selector": _selector((".metadata.deletionTimestamp", "Exists"), (_label(), "NotIn", STUCK)),
        "delay": {"durationMilliseconds": int(CONFIRM_SECONDS * 1000)},
        "next": {"delete": True},
    }


def _says(status: str) -> dict[str, Any]:
    """Return the step that gives a pod this status, unless the pod has changed since kwok read it.

    Otherwise kwok could start a pod twice, the second time with another address.
    """
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


def _status(says: Says, *, ready: bool = False) -> str:
    """Return a template of a pod's status, with all containers in one state."""
    holds = "True" if ready else "False"
    reason = "" if ready else ", reason: ContainersNotReady, message: 'containers with unready status: [main]'"
    address = (
        'podIP: {{ PodIPWith .spec.nodeName false (or .metadata.uid "") (or .metadata.name "") '
        '(or .metadata.namespace "") | Quote }}'
    )
    return "\n".join(
        [
            "conditions:",
            f"- {{type: Initialized, status: '{not says.init}', lastTransitionTime: '{{{{ Now }}}}'}}",
            f"- {{type: ContainersReady, status: '{holds}', lastTransitionTime: '{{{{ Now }}}}'{reason}}}",
            f"- {{type: Ready, status: '{holds}', lastTransitionTime: '{{{{ Now }}}}'{reason}}}",
            *_inits(says.init),
            "containerStatuses:",
            "{{ range .spec.containers }}",
            *_container(says.state, ready=ready, last=says.last),
            "{{ end }}",
            "hostIP: {{ NodeIPWith .spec.nodeName | Quote }}",
            *([] if says.phase == "Pending" else [address]),
            f"phase: {says.phase}",
            "startTime: '{{ or .status.startTime Now }}'",
        ]
    )


def _inits(state: str) -> list[str]:
    """Return a template of the init containers in this state. An empty ``state`` means that they are done.

    Init containers that are always restarted run beside the others.
    """
    done = "terminated: {exitCode: 0, reason: Completed, finishedAt: '{{ Now }}'}"
    return [
        "{{ if .spec.initContainers }}",
        "initContainerStatuses:",
        "{{ range .spec.initContainers }}",
        '{{ if eq (or .restartPolicy "") "Always" }}',
        *_container(RUNS, ready=True),
        "{{ else }}",
        *_container(state or done, ready=not state),
        "{{ end }}",
        "{{ end }}",
        "{{ end }}",
    ]


def _container(state: str, *, ready: bool, last: str = "") -> list[str]:
    return [
        "- name: {{ .name | Quote }}",
        "  image: {{ .image | Quote }}",
        f"  ready: {str(ready).lower()}",
        f"  restartCount: {int(bool(last))}",
        f"  state: {{{state}}}",
        *([f"  lastState: {{{last}}}"] if last else []),
    ]
