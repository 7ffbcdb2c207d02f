"""What a valid configuration says that its author can hardly mean: templates against each other and their pods.

Reads pod specs; no network, no clock, no logger.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provisioner.backends import Finding, MachineSize, Severity
from provisioner.backends.gke.pod_spec import read_pod_spec
from provisioner.hostfactory.templates import Template
from provisioner.model import Create
from provisioner.settings.tree import GkePool, Settings

MEBIBYTE = 1024**2
"""What HF's nram counts."""

AMOUNT = re.compile(
    r"([0-9]*\.?[0-9]+)(?:[eE]([+-]?[0-9]{1,2})|(m|k|[KMGTPE]i?)?)",
)
"""A Kubernetes quantity, as far as processors and memory use them."""


def advice(settings: Settings, templates: Sequence[Template]) -> list[str]:
    """One line for each thing to look at; none when all fits. OSError or ValueError for a pod spec that has changed."""
    return [line for template in templates for line in (*_slots(template), *_pods(settings, template))]


def size_advice(settings: Settings, templates: Sequence[Template], sizes: Mapping[str, MachineSize]) -> list[Finding]:
    """The templates that promise more than the machines have which the places of their pools make."""
    return [
        Finding(name, Severity.WARNING, line)
        for template in templates
        if (limits := settings.template_limits.get(template.id))
        for name in limits.pools
        if name in sizes
        for line in _promises(template, name, sizes[name])
    ]


def _slots(template: Template) -> Iterator[str]:
    """Symphony counts slots as ncores x ncpus (interface §4): one of them should be 1."""
    ncores, ncpus = _number(template, "ncores"), _number(template, "ncpus")
    if ncores > 1 and ncpus > 1:
        yield (
            f"template {template.id}: ncores {ncores:g} and ncpus {ncpus:g} are both above 1; "
            f"Symphony counts {ncores * ncpus:g} slots. Set one of them to 1."
        )


def _pods(settings: Settings, template: Template) -> Iterator[str]:
    """A host that is promised bigger than its pod is gets more work than it can do."""
    limits = settings.template_limits.get(template.id)
    for name in limits.pools if limits else ():
        pool = settings.pools.get(name)
        if isinstance(pool, GkePool):
            yield from _pod(template, pool)


def _pod(template: Template, pool: GkePool) -> Iterator[str]:
    spec = read_pod_spec(pool.pod_spec, pool.namespace)
    pod = json.loads(spec.body(Create(template.id, pool.name, template.id, template.id), {}))["spec"]
    cores, memory = requested(pod, "cpu"), requested(pod, "memory") / MEBIBYTE
    yield from _promises(template, pool.name, MachineSize(f"the request of {pool.pod_spec}", cores, memory))


def _promises(template: Template, pool: str, size: MachineSize) -> Iterator[str]:
    """What HF is told of a template against what its machines in a pool have."""
    cores = _number(template, "ncores") * _number(template, "ncpus")
    for attribute, value, has, unit in (
        ("ncores x ncpus", cores, size.cores, "cores"),
        ("nram", _number(template, "nram"), size.megabytes, "MB"),
    ):
        if value > has:
            yield (
                f"template {template.id}: {attribute} promises {value:g} {unit}, but {size.name} has {has:g} {unit} "
                f"(pool {pool})"
            )


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
    found = AMOUNT.fullmatch(str(written))
    if found is None:
        return 0.0
    number, exponent, suffix = float(found[1]), found[2], found[3] or ""
    if suffix == "m":
        return number / 1000
    power = "KMGTPE".find(suffix[:1].upper()) + 1 if suffix else 0
    return float(number * (1024 if suffix.endswith("i") else 1000) ** power * 10 ** int(exponent or 0))


def _number(template: Template, attribute: str) -> float:
    return float(template.attributes[attribute][1])
