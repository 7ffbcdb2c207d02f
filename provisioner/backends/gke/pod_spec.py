"""The pod that a pool makes. A YAML or JSON file contains the pod: a Pod manifest or only its ``spec``. The pod is
completed for each slot.

Only these parts of the pod change:

* ``metadata.name``, our labels and ``spec.hostname`` are set.
* ``restartPolicy`` becomes ``Never`` unless the user chose another policy. So a machine counts as lost if its container
  ends. A restarted container would be an empty machine under the same name.
* ``{{machine}}``, ``{{request}}`` and ``{{template}}`` in values of environment variables are replaced.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from provisioner.backends import BackendError
from provisioner.backends.proxies_and_authorities import signature
from provisioner.files.yaml_text import TOO_DEEP, format_read_error, format_syntax_error, parse, read_text
from provisioner.model import Create, ErrorClass
from provisioner.schema.validation import format_expected

CONTAINERS = "hf-provisioner/containers"
"""Annotation of a pod that lists the containers of its pod spec, because others (a service mesh) may add containers."""

log = logging.getLogger(__name__)

MEBIBYTE = 1024**2

AMOUNT = re.compile(r"([0-9]*\.?[0-9]+)(?:[eE]([+-]?[0-9]{1,2})|(m|k|[KMGTPE]i?)?)")
"""A Kubernetes quantity, in the forms that are usual for processors and memory."""
QUANTITY = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+|[numk]|[KMGTPE]i|[MGTPE])?")
"""A Kubernetes quantity, as the API server accepts it (apimachinery, resource.ParseQuantity)."""
PLACEHOLDER = re.compile(r"\{\{(machine|request|template)\}\}")
MANIFEST = frozenset({"apiVersion", "kind", "metadata", "spec"})
"""Top-level fields of a Pod manifest. A document with one of these fields is a manifest; any other document is a
spec."""
TEXT = "a text (in quotes)"
"""Expected type of a text. YAML reads ``1`` and ``true`` as other types, which the API server refuses."""


class PodSpecError(ValueError):
    """Raised with the reason why a text does not describe a pod."""


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod that can be made many times."""

    text: str
    """The Pod as JSON, without the slot's own fields."""
    digest: str
    """Digest of the user's text."""
    restart_policy: str
    """The pod's restartPolicy."""

    def body(self, create: Create, labels: Mapping[str, str]) -> bytes:
        """Return the request body that makes the pod of one slot."""
        texts = {"machine": create.name, "request": create.request, "template": create.template}
        pod = self.pod()
        metadata, spec = pod["metadata"], pod["spec"]
        metadata["name"] = spec["hostname"] = create.name
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
        for variable in _variables(spec):
            variable["value"] = PLACEHOLDER.sub(lambda found: texts[found[1]], variable["value"])
        return json.dumps(pod, separators=(",", ":")).encode()

    def pod(self) -> dict[str, Any]:
        """Return the Pod, without the slot's own fields."""
        pod: dict[str, Any] = json.loads(self.text)
        return pod

    def replaced(self, labels: Collection[str]) -> list[str]:
        """Return the fields of the user's pod spec that are overwritten in each pod. ``labels``: the names of our
        labels."""
        pod = self.pod()
        theirs = [f"metadata.labels.{label}" for label in pod["metadata"].get("labels") or () if label in labels]
        return [*theirs, "spec.hostname"] if pod["spec"].get("hostname") else theirs


class PodSpecFile:
    """The current pod spec of a file. If the file becomes invalid, the last valid spec stays in force."""

    def __init__(self, path: Path, namespace: str) -> None:
        """Read the file. Raise BackendError with the problem if the file is invalid."""
        self._path, self._namespace = path, namespace
        self._lock = threading.Lock()
        self._signature: object = None
        self._refused_message = ""
        self._spec = self._read()

    def current(self) -> PodSpec:
        """Return the last valid pod spec. Thread-safe."""
        with self._lock:
            try:
                self._spec, self._refused_message = self._read(), ""
            except BackendError as error:
                if error.failure.text != self._refused_message:
                    self._refused_message = error.failure.text
                    log.exception("Pod spec refused, the previous pod spec stays in force")
            return self._spec

    def problems(self) -> tuple[str, ...]:
        """Return the problem of the file if its present content is not in force; an empty tuple if the content is in
        force."""
        said = self._refused_message
        return (f"the earlier pod spec stays in force, because the file is refused: {said}",) if said else ()

    def _read(self) -> PodSpec:
        """Read the file if it has changed."""
        try:
            now = signature([self._path])
            if now == self._signature:
                return self._spec
            spec = read_pod_spec(self._path, self._namespace)
        except (OSError, ValueError) as error:
            raise BackendError(ErrorClass.INVALID, f"{self._path}: {format_read_error(error)}") from error
        self._signature = now
        return spec


def read_pod_spec(path: Path, namespace: str) -> PodSpec:
    """Return the pod that a file describes. Raise OSError for an unreadable file, UnicodeDecodeError for a file
    that is not UTF-8, and PodSpecError for a file without a pod."""
    return parse_pod_spec(read_text(path), namespace)


def parse_pod_spec(text: str, namespace: str) -> PodSpec:
    """Return the pod that ``text`` describes, for ``namespace``. Raise PodSpecError if it does not describe a pod."""
    try:
        return _parse(text, namespace)
    except RecursionError as error:  # JSON does not limit the depth of a document.
        raise PodSpecError(TOO_DEEP) from error


def _parse(text: str, namespace: str) -> PodSpec:
    pod = _manifest(_document(text))
    metadata, spec = pod["metadata"], pod["spec"]
    for name in ("labels", "annotations"):
        for key, value in _mapping(metadata.get(name) or {}, f"metadata.{name}").items():
            _check_text(value, f"metadata.{name}.{key}")
    if metadata.get("namespace", namespace) != namespace:
        raise PodSpecError(f"metadata.namespace: {format_expected(f'{namespace!r} (the pool)', metadata['namespace'])}")
    if not spec.get("containers"):
        raise PodSpecError("containers: missing; expected at least one container")
    for path, container in _containers(spec):
        _check_container(container, path)
    _check_volumes(spec.get("volumes") or ())
    for name in ("name", "generateName"):
        metadata.pop(name, None)
    if "hostname" in spec:
        spec["hostname"] = str(spec["hostname"] or "")
    spec.setdefault("restartPolicy", "Never")
    names = ",".join(container["name"] for container in spec["containers"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), CONTAINERS: names}
    try:
        made = json.dumps(pod, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PodSpecError(f"a value that JSON cannot hold (quote dates and times): {error}") from error
    return PodSpec(made, hashlib.sha256(text.encode()).hexdigest()[:16], str(spec["restartPolicy"]))


def _document(text: str) -> object:
    """Return the document in the text. The JSON parser is tried first. The YAML parser refuses JSON with tabs or with
    numbers such as 1e3."""
    try:
        return json.loads(text, object_pairs_hook=_check_keys)
    except ValueError:
        pass
    try:
        document, repeated = parse(text)
    except yaml.YAMLError as error:
        raise PodSpecError(format_syntax_error(error)) from error
    if repeated:
        raise PodSpecError(": ".join(repeated[0]))
    return document


def _check_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raise ValueError for a repeated key. The caller then reads the text as YAML, which reports
    the key."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a key is given twice")
    return mapping


def _manifest(document: object) -> dict[str, Any]:
    """Return a full Pod, from a Pod or from only its spec."""
    if not isinstance(document, dict):
        raise PodSpecError(format_expected("a pod's spec or a Pod manifest", document))
    if MANIFEST.isdisjoint(document):
        document = {"spec": document}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, **document}
    for key, value in (("apiVersion", "v1"), ("kind", "Pod")):
        if pod[key] != value:
            raise PodSpecError(f"{key}: {format_expected(value, pod[key])}")
    return {**pod, "metadata": dict(_mapping(pod["metadata"], "metadata")), "spec": _mapping(pod.get("spec"), "spec")}


def _mapping(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PodSpecError(f"{path}: {format_expected('a mapping', value)}")
    return value


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every container of the spec with its path. Init containers come first."""
    for key in ("initContainers", "containers"):
        containers = spec.get(key) or []
        if not isinstance(containers, list):
            raise PodSpecError(f"{key}: {format_expected('a list of containers', containers)}")
        yield from ((f"{key}.{number}", container) for number, container in enumerate(containers))


def _check_container(container: object, path: str) -> None:
    fields = _mapping(container, path)
    for key in ("name", "image"):
        _check_text(fields.get(key), f"{path}.{key}")
    variables = fields.get("env") or []
    if not isinstance(variables, list):
        raise PodSpecError(f"{path}.env: {format_expected('a list of variables', variables)}")
    resources = _mapping(fields.get("resources") or {}, f"{path}.resources")
    for kind in ("requests", "limits"):
        for name, amount in _mapping(resources.get(kind) or {}, f"{path}.resources.{kind}").items():
            _check_amount(amount, f"{path}.resources.{kind}.{name}")
    for number, variable in enumerate(variables):
        place = f"{path}.env.{number}"
        _check_text(_mapping(variable, place).get("value", ""), f"{place}.value")


def _check_text(value: object, path: str) -> None:
    if not isinstance(value, str):
        raise PodSpecError(f"{path}: {format_expected(TEXT, value)}")


def _check_volumes(volumes: object) -> None:
    for number, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        directory = _mapping_or_empty(_mapping_or_empty(volume).get("emptyDir"))
        if directory.get("sizeLimit") is not None:
            _check_amount(directory["sizeLimit"], f"volumes.{number}.emptyDir.sizeLimit")


def _check_amount(value: object, path: str) -> None:
    if isinstance(value, bool) or not QUANTITY.fullmatch(str(value)):
        raise PodSpecError(f"{path}: {format_expected('an amount such as 4, 500m or 8Gi', value)}")


def _variables(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield, for all containers, the environment variables that have a value."""
    for _, container in _containers(spec):
        yield from (variable for variable in container.get("env") or () if "value" in variable)


def requested_amount(spec: Mapping[str, Any], resource: str) -> float:
    """Return the effective request of a pod for a resource, as the scheduler computes it.

    Init containers run one by one, together with the sidecars that started before them. The other containers run
    together with all sidecars. A request of the whole pod replaces the computed request. The overhead of the pod's
    runtime is added.
    """
    sidecars = peak = 0.0
    for container in spec.get("initContainers") or ():
        alone = _amount(container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars, alone = sidecars + alone, 0.0
        peak = max(peak, sidecars + alone)
    together = sidecars + sum(_amount(container, resource) for container in spec["containers"])
    overhead = quantity(_mapping_or_empty(spec.get("overhead")).get(resource, 0))
    return (_amount(spec, resource) or max(peak, together)) + overhead


def _amount(part: Mapping[str, Any], resource: str) -> float:
    """Return the request of a container, or of a pod as a whole. A limit without a request counts as a request."""
    resources = _mapping_or_empty(part.get("resources"))
    amounts = {**_mapping_or_empty(resources.get("limits")), **_mapping_or_empty(resources.get("requests"))}
    return quantity(amounts.get(resource, 0))


def _mapping_or_empty(written: object) -> Mapping[str, Any]:
    """Return ``written`` if it is a mapping. For another type, which Kubernetes refuses, return an empty mapping."""
    return written if isinstance(written, dict) else {}


def quantity(written: object) -> float:
    """Return the number of a quantity such as ``500m`` or ``8Gi``. For an invalid text, which Kubernetes refuses,
    return 0."""
    parts = AMOUNT.fullmatch(str(written))
    if parts is None:
        return 0.0
    number, exponent, suffix = float(parts[1]), parts[2], parts[3] or ""
    if suffix == "m":
        return number / 1000
    power = "KMGTPE".find(suffix[:1].upper()) + 1 if suffix else 0
    return float(number * (1024 if suffix.endswith("i") else 1000) ** power * 10 ** int(exponent or 0))
