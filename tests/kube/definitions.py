"""The CustomResourceDefinitions of other projects, as these projects publish them in their Go modules. The command
``go`` downloads the modules."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.waiting import PATIENCE

Manifest = dict[str, Any]


class Source(NamedTuple):
    """A Go module, and those of its files that contain CustomResourceDefinitions."""

    module: str
    checksum: str
    """Checksum of the whole module, as in go.sum."""
    files: tuple[str, ...]


_KUEUE = "config/components/crd/bases/kueue.x-k8s.io_{}.yaml"
SOURCES = (
    Source(
        "sigs.k8s.io/kueue@v0.17.0",
        "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I=",
        tuple(
            _KUEUE.format(kinds)
            for kinds in (
                "admissionchecks",
                "clusterqueues",
                "localqueues",
                "provisioningrequestconfigs",
                "resourceflavors",
            )
        ),
    ),
    Source(
        "github.com/prometheus-operator/prometheus-operator@v0.82.0",
        "h1:gqz+z31co8+qaEpsJKGfbrBuaMAPiAo/Z08dBIlSM+E=",
        ("example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",),
    ),
    Source(
        "sigs.k8s.io/secrets-store-csi-driver@v1.4.8",
        "h1:YmL0lx9HMYqeZCnLyOZRMuGAZXmP/e42UGCCAnMKjgE=",
        ("config/crd/bases/secrets-store.csi.x-k8s.io_secretproviderclasses.yaml",),
    ),
)


@cache
def published() -> Mapping[str, Manifest]:
    """Return each published definition by the resource's kind. Return an empty mapping if Go is not installed."""
    return {one["spec"]["names"]["kind"]: one for one in _definitions()} if shutil.which("go") else {}


def _definitions() -> Iterator[Manifest]:
    for source in SOURCES:
        directory = _downloaded(source)
        for name in source.files:
            yield yaml.load((directory / name).read_text(), yaml.CSafeLoader)


def _downloaded(source: Source) -> Path:
    """Return the directory of the module in Go's own cache."""
    with tempfile.TemporaryDirectory() as nowhere:  # in a module's directory its go.mod would have a say
        command = ["go", "mod", "download", "-json", source.module]
        done = subprocess.run(command, cwd=nowhere, capture_output=True, text=True, check=False, timeout=300 * PATIENCE)
    said = json.loads(done.stdout)
    assert said.get("Sum") == source.checksum, said.get("Error", said)
    return Path(said["Dir"])


def differences(ours: Manifest, theirs: Manifest, where: str = "") -> Iterator[str]:
    """Yield the places at which our schema accepts a value that the published schema refuses."""
    if theirs.get("x-kubernetes-int-or-string"):
        return  # either-or has a word of its own there
    if ours["type"] != theirs["type"]:
        yield f"{where}: a {theirs['type']}, not a {ours['type']}"
    for word in ("pattern", "maxLength", "maxItems", "maximum", "minimum"):
        if word in theirs and ours.get(word) != theirs[word] and "(?i)" not in str(theirs[word]):
            yield f"{where}: {word} {theirs[word]}, not {ours.get(word)}"
    if "enum" in theirs and not {*ours.get("enum", ["anything"])} <= {*theirs["enum"]}:
        yield f"{where}: one of {theirs['enum']}, not {ours.get('enum', 'anything')}"
    yield from (f"{where}: {name} is required" for name in theirs.get("required", ()) if name not in ours["required"])
    if "items" in ours:
        yield from differences(ours["items"], theirs["items"], f"{where}[]")
    known = theirs.get("properties", {})
    for name, schema in ours.get("properties", {}).items():
        one = known.get(name, theirs.get("additionalProperties"))
        if one is None:
            yield f"{where}.{name}: no such field"
        else:
            yield from differences(schema, one, f"{where}.{name}")
