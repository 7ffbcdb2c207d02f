"""Checks of a pod's form, the server's defaults, and the changes that an update may make.

The functions have no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from provisioner.lab.cloud.kubernetes.amounts import amount_causes, check_amounts
from provisioner.lab.cloud.kubernetes.errors import (
    Cause,
    Json,
    bad_request,
    bad_value,
    duplicate,
    invalid,
    not_supported,
    required,
    unknown_reference,
)
from provisioner.lab.cloud.kubernetes.gates import gate_causes, gate_change_causes, gates, without_empty_gates

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED = re.compile(rf"({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")

_SUBDOMAIN_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_WORDS = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_VALUE_WORDS = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_WORDS = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_QUALIFIED_WORDS = (
    _KEY_WORDS.replace("name part", "a qualified name")
    + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)

_MAX_GENERATE_NAME = 58

_TYPES: Mapping[str, tuple[type, str]] = {
    "metadata": (dict, "v1.ObjectMeta"),
    "metadata.name": (str, "string"),
    "metadata.generateName": (str, "string"),
    "metadata.namespace": (str, "string"),
    "metadata.labels": (dict, "map[string]string"),
    "metadata.annotations": (dict, "map[string]string"),
    "metadata.finalizers": (list, "[]string"),
    "spec": (dict, "v1.PodSpec"),
    "spec.containers": (list, "[]v1.Container"),
    "spec.restartPolicy": (str, "v1.RestartPolicy"),
    "spec.nodeName": (str, "string"),
    "spec.schedulingGates": (list, "[]v1.PodSchedulingGate"),
    "spec.terminationGracePeriodSeconds": (int, "int64"),
    "status": (dict, "v1.PodStatus"),
    "status.phase": (str, "v1.PodPhase"),
    "status.conditions": (list, "[]v1.PodCondition"),
    "status.containerStatuses": (list, "[]v1.ContainerStatus"),
}
"""Fields whose type is checked, because the model reads them."""

_CONTAINER_DEFAULTS: Json = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_SPEC_DEFAULTS: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "priority": 0,
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
}


_JSON_TYPES: Mapping[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
}


def check_shape(kind: str, document: object) -> Json:
    """Return the body as a JSON object whose fields have the right types for ``kind``; raise 400 if a type is wrong."""
    if not isinstance(document, dict):
        raise bad_request(f"couldn't get version/kind; json parse error: cannot unmarshal a {_json_type(document)}")
    if document.get("kind", kind) != kind or document.get("apiVersion", "v1") not in ("v1", "policy/v1"):
        words = f"{document.get('apiVersion', '')}, Kind={document.get('kind', '')}"
        raise bad_request(f"the object provided is unrecognized (must be of type {kind}): {words}")
    for path, (wanted, go_type) in _TYPES.items():
        _check_type(kind, path, _at(document, path), wanted, go_type)
    for path in ("metadata.labels", "metadata.annotations"):
        for key, value in (_at(document, path) or {}).items():
            _check_type(kind, f"{path}.{key}", value, str, "string")
    for path in ("spec.containers", "spec.schedulingGates", "status.conditions", "status.containerStatuses"):
        for item in _at(document, path) or []:
            _check_type(kind, path, item, dict, _TYPES[path][1].removeprefix("[]"))
    for container in _at(document, "spec.containers") or []:
        for key in ("name", "image"):
            _check_type(kind, f"spec.containers.{key}", container.get(key), str, "string")
        check_amounts(kind, container.get("resources") or {})
    return document


def known_fields(pod: Json, *, strict: bool) -> Json:
    """Remove all unknown fields from the pod, and return the pod. If ``strict``, raise 400 for unknown fields
    instead."""
    from provisioner.backends.gke.pod_fields import unknown_fields  # here, because it loads the client's models: 0.3 s

    unknown = list(unknown_fields(pod))
    if unknown and strict:
        words = ", ".join(f'unknown field "{field.path}"' for field in unknown)
        raise bad_request(f'Pod in version "v1" cannot be handled as a Pod: strict decoding error: {words}')
    for field in unknown:
        del field.holder[field.key]
    return pod


def _at(document: Json, path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _check_type(kind: str, path: str, value: object, wanted: type, go_type: str) -> None:
    if value is None or (isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))):
        return
    words = f"cannot unmarshal {_json_type(value)} into Go struct field {kind}.{path} of type {go_type}"
    raise bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: json: {words}')


def _json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), "null")


def validate_pod(pod: Json) -> None:
    """Raise 422 with all mistakes. The name must have been generated and the defaults filled in before."""
    causes = [*_metadata_causes(pod["metadata"]), *_spec_causes(pod.get("spec") or {})]
    if causes:
        raise invalid("Pod", pod["metadata"].get("name", ""), causes)


def _metadata_causes(metadata: Json) -> Iterator[Cause]:
    name = metadata.get("name", "")
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif not _DNS_SUBDOMAIN.fullmatch(name):
        yield bad_value("metadata.name", name, _SUBDOMAIN_WORDS)
    elif len(name) > 253:
        yield bad_value("metadata.name", name, "must be no more than 253 characters")
    for key, value in (metadata.get("labels") or {}).items():
        if not _QUALIFIED.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            yield bad_value("metadata.labels", key, _QUALIFIED_WORDS if key.count("/") > 1 else _KEY_WORDS)
        if not _LABEL_VALUE.fullmatch(value):
            yield bad_value("metadata.labels", value, _VALUE_WORDS)
        elif len(value) > 63:
            yield bad_value("metadata.labels", value, "must be no more than 63 characters")
    for key in metadata.get("annotations") or {}:
        if not _QUALIFIED.fullmatch(key.lower()):
            yield bad_value("metadata.annotations", key, _KEY_WORDS)


def _spec_causes(spec: Json) -> Iterator[Cause]:
    containers = spec.get("containers") or []
    if not containers:
        yield required("spec.containers")
    names = [container.get("name", "") for container in containers]
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    for number, container in enumerate(containers):
        where = f"spec.containers[{number}]"
        yield from _container_name_causes(where, names[number], taken=names[:number])
        yield from _container_causes(where, container, volumes)
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        yield not_supported("spec.restartPolicy", spec.get("restartPolicy"), ("Always", "OnFailure", "Never"))
    yield from gate_causes(spec)
    yield from _hostname_causes(spec.get("hostname") or "")


def _container_name_causes(where: str, name: str, *, taken: Collection[str]) -> Iterator[Cause]:
    if not name:
        yield required(f"{where}.name")
    elif not _DNS_LABEL.fullmatch(name) or len(name) > 63:
        yield bad_value(f"{where}.name", name, _LABEL_WORDS)
    elif name in taken:
        yield duplicate(f"{where}.name", name)


def _container_causes(where: str, container: Json, volumes: Collection[Any]) -> Iterator[Cause]:
    if not container.get("image"):
        yield required(f"{where}.image")
    yield from amount_causes(f"{where}.resources", container.get("resources") or {})
    for place, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            yield unknown_reference(f"{where}.volumeMounts[{place}].name", mount.get("name", ""))


def _hostname_causes(hostname: str) -> Iterator[Cause]:
    if len(hostname) > 63:
        yield bad_value("spec.hostname", hostname, "must be no more than 63 characters")
    elif hostname and not _DNS_LABEL.fullmatch(hostname):
        yield bad_value("spec.hostname", hostname, _LABEL_WORDS)


def with_defaults(pod: Json) -> Json:
    """Return the pod as the server stores it, without kind, apiVersion and status."""
    spec = pod.get("spec") or {}
    containers = [_container_with_defaults(container) for container in spec.get("containers") or []]
    filled = {**_SPEC_DEFAULTS, **{key: value for key, value in spec.items() if value is not None}}
    filled["containers"] = containers
    # The server replaces a negative grace period by the shortest one.
    if filled["terminationGracePeriodSeconds"] < 0:
        filled["terminationGracePeriodSeconds"] = 1
    if "serviceAccountName" in spec:
        filled["serviceAccount"] = spec["serviceAccountName"]
    return {"metadata": pod.get("metadata") or {}, "spec": without_empty_gates(filled)}


def _container_with_defaults(container: Json) -> Json:
    image = container.get("image") or ""
    tag = image.rpartition("/")[2]
    policy = "Always" if image and (":" not in tag or tag.endswith(":latest")) else "IfNotPresent"
    return {**_CONTAINER_DEFAULTS, "imagePullPolicy": policy, **container}


def generated_base(name: str) -> str:
    """Return the part of ``generateName`` before the random suffix."""
    return name[:_MAX_GENERATE_NAME]


def check_update(old: Json, new: Json) -> None:
    """Raise 422 if an update changes forbidden fields of a pod's spec.

    An update may change images, tolerations, the active deadline and scheduling gates. While the pod has gates, an
    update may also change its node selector and affinity.
    """
    if causes := list(gate_change_causes(old["spec"], new.get("spec") or {})):
        raise invalid("Pod", old["metadata"]["name"], causes)
    free = {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    free |= {"nodeSelector", "affinity"} if gates(old["spec"]) else set()
    if _frozen(old["spec"], free) == _frozen(new.get("spec") or {}, free):
        return
    words = (
        "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
        "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
        "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
    )
    raise invalid("Pod", old["metadata"]["name"], [Cause("spec", "FieldValueForbidden", words)])


def _frozen(spec: Json, free: Collection[str]) -> Json:
    lists = {
        key: [{**container, "image": ""} for container in spec.get(key) or []]
        for key in ("containers", "initContainers")
    }
    return {**{key: value for key, value in spec.items() if key not in free}, **lists}


def check_path(metadata: Json, namespace: str, name: str = "") -> None:
    """Raise 400 if the body names another namespace or object than the path."""
    if metadata.get("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if name and metadata.get("name", name) != name:
        words = f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
        raise bad_request(words)


def grace_period(options: Json) -> int | None:
    """Return ``gracePeriodSeconds`` of delete options; None if the options lack this field. A negative value means the
    shortest period."""
    grace = options.get("gracePeriodSeconds")
    if grace is None:
        return None
    if not isinstance(grace, int):
        raise bad_request(f"json: cannot unmarshal {_json_type(grace)} into DeleteOptions.gracePeriodSeconds of int64")
    return grace if grace >= 0 else 1
