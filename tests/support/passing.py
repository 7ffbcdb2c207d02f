"""Check that a pod has the content of the manifest from which the pool makes it. The real backend makes the pod, and
the server stores it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.model import Create, Delete, DeleteReason
from provisioner.settings import loader

NAME = "hf-abcdefghij-000001"


def pools_of(directory: Path) -> list[GkePool]:
    """Return the GKE pools of a configuration."""
    pools = loader.load(directory / "provisioner.yaml", {}).pools.values()
    return [pool for pool in pools if isinstance(pool, GkePool)]


def made_by(pool: GkePool, kubeconfig: Path, read: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Return the pod that the backend makes for a pool, read at the server with ``read``. The pod is deleted again."""
    backend = GkeBackend(pool.model_copy(update={"kubeconfig": kubeconfig}), Namespaces(), provisioner="demo")
    try:
        (outcome,) = backend.create([Create(NAME, pool.name, "T", "abcdefghij")], lambda: True)
        assert outcome.failure is None, outcome.failure
        pod = read(NAME)
        uid = pod["metadata"]["uid"]
        backend.delete([Delete(NAME, pool.name, DeleteReason.RETURNED, uid)], lambda: True)
    finally:
        backend.close()
    return pod


def missing_from(there: Any, wanted: Any, where: str = "spec") -> list[str]:
    """Return the parts of ``wanted`` that ``there`` lacks or has with another value. Additions of the server are
    ignored."""
    if isinstance(wanted, dict):
        if not isinstance(there, dict):
            return [where]
        return [text for key, value in wanted.items() for text in missing_from(there.get(key), value, f"{where}.{key}")]
    if isinstance(wanted, list) and isinstance(there, list):
        return [
            f"{where}[{index}]" for index, value in enumerate(wanted) if all(missing_from(one, value) for one in there)
        ]
    return [] if there == wanted else [f"{where}: {there!r} instead of {wanted!r}"]
