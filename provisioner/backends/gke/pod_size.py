"""How big a pod is: what its containers request together. Pure: no I/O, no clock, no logger."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from provisioner.backends import MachineSize

MEBIBYTE = 1024**2

AMOUNT = re.compile(
    r"([0-9]*\.?[0-9]+)(?:[eE]([+-]?[0-9]{1,2})|(m|k|[KMGTPE]i?)?)",
)
"""A Kubernetes quantity, as far as processors and memory use them."""


def pod_size(name: str, spec: Mapping[str, Any]) -> MachineSize:
    """The size of a pod with this ``spec``; ``name`` is what says so."""
    return MachineSize(name, requested(spec, "cpu"), requested(spec, "memory") / MEBIBYTE)


def requested(spec: Mapping[str, Any], resource: str) -> float:
    """What the containers of a pod request together; a limit without a request is one."""
    total = 0.0
    for container in spec["containers"]:
        resources = _mapping(container.get("resources"))
        amounts = {**_mapping(resources.get("limits")), **_mapping(resources.get("requests"))}
        total += quantity(amounts.get(resource, 0))
    return total


def _mapping(written: object) -> Mapping[str, Any]:
    """Empty for what is no mapping: Kubernetes refuses it."""
    return written if isinstance(written, dict) else {}


def quantity(written: object) -> float:
    """The number that a quantity such as ``500m`` or ``8Gi`` stands for; 0 for what is none: Kubernetes refuses it."""
    parts = AMOUNT.fullmatch(str(written))
    if parts is None:
        return 0.0
    number, exponent, suffix = float(parts[1]), parts[2], parts[3] or ""
    if suffix == "m":
        return number / 1000
    power = "KMGTPE".find(suffix[:1].upper()) + 1 if suffix else 0
    return float(number * (1024 if suffix.endswith("i") else 1000) ** power * 10 ** int(exponent or 0))
