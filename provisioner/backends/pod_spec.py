"""The pod that a pool makes: read from what the user wrote, completed for one slot.

What the user wrote is a Pod manifest or only its ``spec``, as YAML or JSON. Set for each machine are
``metadata.name``, our labels and ``spec.hostname``; ``restartPolicy`` is ``Never`` unless the user chose one, so that
a machine whose container ends is seen as lost instead of coming back empty under the same name. ``{{machine}}``,
``{{request}}`` and ``{{template}}`` in values of environment variables are replaced. Nothing else is changed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from provisioner.backends import BackendError
from provisioner.model import Create, ErrorClass

log = logging.getLogger(__name__)

PLACEHOLDER = re.compile(r"\{\{(machine|request|template)\}\}")


class PodSpecError(ValueError):
    """The text is not a pod that can be made; says what is wrong."""


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod that can be made many times."""

    pieces: tuple[str, ...]
    """The whole Pod as JSON text; every second piece names what stands there for each slot."""
    labels: Mapping[str, Any]
    """Those that the user wrote."""
    digest: str
    """Changes when the text changes."""

    def body(self, create: Create, labels: Mapping[str, str]) -> bytes:
        """The request body that makes the pod of one slot."""
        texts = {"machine": create.name, "request": create.request, "template": create.template}
        values = {key: json.dumps(text)[1:-1] for key, text in texts.items()}
        values["labels"] = json.dumps({**self.labels, **labels}, separators=(",", ":"))
        pieces = list(self.pieces)
        pieces[1::2] = [values[key] for key in pieces[1::2]]
        return "".join(pieces).encode()


class PodSpecFile:
    """A pod spec as its file is now. One that is changed into something else is refused, the old one stays in force."""

    def __init__(self, path: Path, namespace: str) -> None:
        """Reads it; BackendError says what is wrong with it."""
        self._path, self._namespace = path, namespace
        self._lock = threading.Lock()
        self._signature: tuple[int, ...] = ()
        self._refused = ""
        self._spec = self._read()

    def current(self) -> PodSpec:
        """The last good one. Thread-safe."""
        with self._lock:
            try:
                self._spec, self._refused = self._read(), ""
            except BackendError as error:
                if error.failure.text != self._refused:
                    self._refused = error.failure.text
                    log.exception("Pod spec refused, the one before stays in force")
            return self._spec

    def _read(self) -> PodSpec:
        """Read the file, unless it is the one that was read before."""
        try:
            stat = self._path.stat()
            signature = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if signature == self._signature:
                return self._spec
            spec = parse_pod_spec(self._path.read_text(encoding="utf-8-sig"), self._namespace)
        except (OSError, UnicodeDecodeError, PodSpecError) as error:
            raise BackendError(ErrorClass.INVALID, f"{self._path}: {error}") from error
        self._signature = signature
        return spec


def parse_pod_spec(text: str, namespace: str) -> PodSpec:
    """The pod that ``text`` describes, to be made in ``namespace``; PodSpecError when it describes none."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PodSpecError(f"not YAML: {error}") from error
    pod = _manifest(document)
    metadata, spec = _part(pod, "metadata"), _part(pod, "spec")
    if not isinstance(spec.get("containers"), list) or not spec["containers"]:
        raise PodSpecError("spec.containers: expected at least one container")
    if metadata.get("namespace", namespace) != namespace:
        raise PodSpecError(f"metadata.namespace: is '{metadata['namespace']}', but the pool is '{namespace}'")
    metadata.pop("generateName", None)
    spec.setdefault("restartPolicy", "Never")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    labels = metadata.get("labels") or {}
    try:
        pieces = _pieces(pod, digest)
        json.dumps(labels, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PodSpecError(f"a value that JSON cannot hold (quote dates and times): {error}") from error
    return PodSpec(pieces, labels, digest)


def _pieces(pod: dict[str, Any], digest: str) -> tuple[str, ...]:
    """The pod's JSON, cut where slots differ. No text holds its own digest, so that marks the cuts."""
    pod = copy.deepcopy(pod)
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["name"] = spec["hostname"] = f"<{digest}:machine>"
    metadata["labels"] = f"<{digest}:labels>"
    for variable in _variables(spec):
        variable["value"] = PLACEHOLDER.sub(rf"<{digest}:\1>", variable["value"])
    text = json.dumps(pod, separators=(",", ":"), allow_nan=False)
    text = text.replace(f'"<{digest}:labels>"', f"<{digest}:labels>")  # An object, not a text.
    return tuple(re.split(rf"<{digest}:(\w+)>", text))


def _manifest(document: object) -> dict[str, Any]:
    """A full Pod, whether the user wrote one or only its spec."""
    if not isinstance(document, dict):
        raise PodSpecError(f"expected a Pod or its spec, got {type(document).__name__}")
    if "containers" in document:
        document = {"spec": document}
    kind = (document.get("apiVersion", "v1"), document.get("kind", "Pod"))
    if kind != ("v1", "Pod"):
        raise PodSpecError(f"expected a v1 Pod, got {kind[0]} {kind[1]}")
    if "spec" not in document:
        raise PodSpecError("expected a Pod or its spec: there is neither 'spec' nor 'containers'")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {}, **document}


def _part(pod: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(pod[key], dict):
        raise PodSpecError(f"{key}: expected a mapping, got {type(pod[key]).__name__}")
    part: dict[str, Any] = pod[key]
    return part


def _variables(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The environment variables of all containers whose value is a text."""
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        for variable in container.get("env") or ():
            if isinstance(variable.get("value"), str):
                yield variable
