"""The machine types of the simulated Compute Engine: the usual types, which differ in memory per processor, and custom
types."""

from __future__ import annotations

import re
from collections.abc import Iterable

from provisioner.lab.cloud.compute.operations import BASE, ApiError, Document, numeric_id, timestamp
from provisioner.lab.cloud.compute.resource_documents import PROJECT_MADE

GIGABYTES_PER_CPU = {"standard": 4, "highmem": 8, "highcpu": 1}
"""Gigabytes of memory per processor in N2 and similar families; some families differ slightly."""

_FAMILIES = ("c2d", "c3", "e2", "n1", "n2", "n2d")
_SIZES = (2, 4, 8, 16, 32)
_LISTED = tuple(f"{family}-{ratio}-{size}" for family in _FAMILIES for ratio in GIGABYTES_PER_CPU for size in _SIZES)
"""The machine types that a list shows in addition to the types in use. The method ``machineTypes.get`` finds all types
with the usual ratios of memory to processors."""

_CUSTOM = re.compile(r"(?:[a-z0-9]+-)?custom-([0-9]+)-([0-9]+)(?:-ext)?")
_USUAL = re.compile(r"[a-z][a-z0-9]+-(standard|highmem|highcpu)-([0-9]+)")


def machine_type_document(project: str, zone: str, name: str) -> Document:
    """Return a machine type; raise 404 for an unknown name."""
    path = f"projects/{project}/zones/{zone}/machineTypes/{name}"
    size = _size(name)
    if size is None:
        raise ApiError(404, "notFound", f"The resource '{path}' was not found")
    cpus, memory = size
    return {
        "kind": "compute#machineType",
        "id": numeric_id(name),
        "name": name,
        "description": f"{cpus} vCPUs, {memory / 1024:g} GB RAM",
        "guestCpus": cpus,
        "memoryMb": memory,
        "isSharedCpu": False,
        "zone": zone,
        "creationTimestamp": timestamp(PROJECT_MADE),
        "selfLink": BASE + path,
    }


def machine_types(project: str, zone: str, used: Iterable[str]) -> dict[str, Document]:
    """Return the machine types that a zone lists, by name. ``used``: the types in templates; custom types among them
    are not listed."""
    names = {*_LISTED, *(name for name in used if _USUAL.fullmatch(name))}
    return {name: machine_type_document(project, zone, name) for name in names}


def _size(name: str) -> tuple[int, int] | None:
    """Return a type's number of processors and MB of memory; None for an unknown type."""
    if custom := _CUSTOM.fullmatch(name):
        return int(custom[1]), int(custom[2])
    if usual := _USUAL.fullmatch(name):
        return int(usual[2]), int(usual[2]) * GIGABYTES_PER_CPU[usual[1]] * 1024
    return None
