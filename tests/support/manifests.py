"""The manifests of ``deploy/kustomize`` as kustomize builds them, and our schemas of kinds that Kubernetes lacks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.kube.build import kustomize
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
SCHEMAS = ROOT / "deploy" / "schemas"
GKE = "overlays/gke-workload-identity"
COMPONENTS = tuple(sorted(place.name for place in (KUSTOMIZE / "components").iterdir()))
INCLUDED = ("network-policy", "shared-state")
"""Components that the GKE overlays have already."""
IN_API = "kubernetes-state"
"""Component with which the state is not in a directory, so that ``shared-state`` and ``backup`` have no use."""
OPTIONAL = tuple(name for name in COMPONENTS if name not in (*INCLUDED, IN_API))
"""Components that a site may add and that go together with each other."""
MONITORS = ("pod-monitoring", "service-monitor")
OVERLAYS = ("base", *sorted(f"overlays/{place.name}" for place in (KUSTOMIZE / "overlays").iterdir()))

Manifest = dict[str, Any]
Build = tuple[str, tuple[str, ...]]
"""An overlay, and the components that are added to it."""

BUILDS: Sequence[Build] = (
    *((overlay, ()) for overlay in OVERLAYS),
    *((GKE, (component,)) for component in (*OPTIONAL, IN_API)),
    *((overlay, (monitor,)) for overlay in ("base", "overlays/kind") for monitor in MONITORS),
    ("overlays/kind", ("backup",)),
    *((overlay, (IN_API,)) for overlay in ("overlays/kind", "overlays/mixed")),
    (GKE, (*(name for name in OPTIONAL if name != "backup"), IN_API)),
    (GKE, OPTIONAL),
    ("overlays/mixed", tuple(name for name in OPTIONAL if name not in ("compute-classes", "kueue"))),
)
"""Builds that are tested: every overlay, the GKE overlay with each component, and with all components that go together.
Other combinations are not tested."""


CONFIGURED: Sequence[Build] = (
    *((overlay, ()) for overlay in OVERLAYS),
    *((GKE, (component,)) for component in ("compute-classes", "kueue")),
)
"""Builds that differ in their configuration."""


def name_of(build: Build) -> str:
    """Return the text that names a build in the id of a test."""
    overlay, components = build
    return " + ".join([overlay.removeprefix("overlays/"), "all" if components == OPTIONAL else ", ".join(components)])


def built(overlay: str, *components: str) -> list[Manifest]:
    """Return the manifests that an overlay of the repository builds."""
    return list(yaml.load_all(built_text(overlay, *components), yaml.CSafeLoader))


@cache
def built_text(overlay: str, *components: str) -> str:
    """Return the manifests of ``built`` as the text that kustomize prints."""
    if shutil.which("go") is None:
        pytest.skip("needs Go, to build kustomize")
    program = kustomize(os.environ)
    if not components:
        return _built(program, KUSTOMIZE / overlay)
    with tempfile.TemporaryDirectory() as own:  # as a site's own overlay; kustomize takes no absolute path
        beside = os.path.relpath(KUSTOMIZE, Path(own).resolve())
        parts = {
            "resources": [f"{beside}/{overlay}"],
            "components": [f"{beside}/components/{one}" for one in components],
        }
        (Path(own) / "kustomization.yaml").write_text(yaml.safe_dump(parts))
        return _built(program, Path(own))


def as_its_comments_offer() -> list[Manifest]:
    """Return the manifests of the GKE overlay after a site has uncommented its components. The component that keeps the
    state in the API stays a comment."""
    with tempfile.TemporaryDirectory() as own:
        copy = shutil.copytree(KUSTOMIZE, Path(own) / "kustomize")
        file = copy / GKE / "kustomization.yaml"
        file.write_text(re.sub(rf"(?m)^  # (- \.\./\.\./components/(?!{IN_API}))", r"  \1", file.read_text()))
        return built_there(copy / GKE)


def of_a_site(overlay: str, **values: str) -> list[Manifest]:
    """Return the manifests of an overlay for a site that has set these values."""
    with tempfile.TemporaryDirectory() as own:
        copy = shutil.copytree(KUSTOMIZE, Path(own) / "kustomize")
        file = copy / GKE / "values.yaml"
        document = yaml.safe_load(file.read_text())
        assert values.keys() <= document["data"].keys()
        document["data"] |= values
        file.write_text(yaml.safe_dump(document))
        return built_there(copy / overlay)


def built_there(directory: Path) -> list[Manifest]:
    """Return the manifests that an overlay in any directory builds."""
    if shutil.which("go") is None:
        pytest.skip("needs Go, to build kustomize")
    return list(yaml.load_all(_built(kustomize(os.environ), directory), yaml.CSafeLoader))


def _built(program: Path, directory: Path) -> str:
    done = subprocess.run(
        [program, "build", directory], capture_output=True, text=True, check=False, timeout=60 * PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def only(manifests: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the only manifest of this kind or, with ``name``, of this kind and name."""
    (chosen,) = [
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and (not name or manifest["metadata"]["name"] == name)
    ]
    return chosen


def pods(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """Return the specs of all our pods, by the kind of the object that makes them."""
    places = {"Deployment": "template", "StatefulSet": "template", "CronJob": "jobTemplate/spec/template"}
    found = {one["kind"]: one["spec"] for one in manifests if one["kind"] in places}
    return {
        kind: reduce(lambda part, key: part[key], [*places[kind].split("/"), "spec"], spec)
        for kind, spec in found.items()
    }


def container(manifests: Sequence[Manifest], kind: str = "Deployment") -> Manifest:
    """Return the only container of the loop's pod, or of the pod that another kind makes."""
    (one,) = pods(manifests)[kind]["containers"]
    return dict(one)


def entry_point() -> list[str]:
    """Return the words of the image's entry point."""
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    return list(json.loads(re.findall(r"(?m)^ENTRYPOINT (.*)$", text)[-1]))


def write_configuration(manifests: Sequence[Manifest], directory: Path) -> Path:
    """Write the files that the pod has in its configuration directory, and return the directory."""
    directory.mkdir(exist_ok=True)
    for name, content in only(manifests, "ConfigMap")["data"].items():
        (directory / name).write_text(content)
    return directory / "provisioner.yaml"


@cache
def schemas() -> dict[tuple[str, str], dict[str, Any]]:
    """Return our schemas by apiVersion and kind."""
    read = [json.loads(path.read_text()) for path in sorted(SCHEMAS.glob("*.json"))]
    return {(one["properties"]["apiVersion"]["const"], one["properties"]["kind"]["const"]): one for one in read}


def mistakes(manifest: Manifest) -> list[str]:
    """Return the faults in a manifest by our schema. Raises KeyError if there is no schema for its kind."""
    checker = jsonschema.Draft202012Validator(schemas()[manifest["apiVersion"], manifest["kind"]])
    return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(manifest)]
