"""The kubeconfig with which kubectl and the official clients reach the embedded cloud."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

NAME = "hostfactory-simulator"
"""Name of the cluster, the user and the current context. The name also shows that this simulator wrote the file."""


def kubeconfig(server: str, namespace: str, contexts: Mapping[str, str]) -> dict[str, Any]:
    """Return the kubeconfig. ``contexts``: further contexts, each with its namespace."""
    every = {NAME: namespace, **contexts}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": server}}],
        "users": [{"name": NAME, "user": {}}],
        "contexts": [
            {"name": name, "context": {"cluster": NAME, "user": NAME, "namespace": space}}
            for name, space in every.items()
        ],
        "current-context": NAME,
    }


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write the kubeconfig. Raise FileExistsError if another program wrote the existing file."""
    if path.exists() and NAME not in path.read_text(encoding="utf-8", errors="replace"):
        raise FileExistsError(f"{path}: exists and is not a simulator's kubeconfig; it is left alone")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(yaml.safe_dump(dict(document), sort_keys=False), encoding="utf-8")
    aside.chmod(0o600)
    aside.replace(path)
