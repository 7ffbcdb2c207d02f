"""Warnings about settings that are valid but probably mistakes: of templates, their machines, and pools.

The module reads the files that settings name. No network, no clock, no logger.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from provisioner.backends import Finding, MachineSize, Severity, registry
from provisioner.hostfactory.templates import NUMERIC_ATTRIBUTES, Template
from provisioner.settings.definitions import Settings

SITE_ATTRIBUTES = frozenset({"ngpus", "rack"})
"""Attributes that sites define themselves, and that are no mistakes although they are spelled almost like attributes of
HF."""

MOST_OVERHEAD = 1.25
"""Factor by which a pod's request may exceed the template's promise, because programs of the grid run in the pod
too."""


def find_warnings(settings: Settings, templates: Sequence[Template]) -> list[str]:
    """Return a line for each doubtful setting. Raises OSError or ValueError if a file has changed since the settings
    were read, and cannot be read any more."""
    of_templates = [
        line
        for template in templates
        for line in (*_attribute_warnings(template), *_slot_warnings(template), *_size_warnings(settings, template))
    ]
    return [
        *_unused_pool_warnings(settings),
        *_missing_file_warnings(settings),
        *_price_warnings(settings),
        *_server_warnings(settings),
        *of_templates,
    ]


def find_size_warnings(
    settings: Settings, templates: Sequence[Template], sizes: Mapping[str, MachineSize]
) -> list[Finding]:
    """Return a finding for each template that promises larger machines than its pools make. ``sizes``: the size of each
    pool's machines, by pool."""
    return [
        Finding(name, Severity.WARNING, line)
        for template in templates
        if (limits := settings.template_limits.get(template.id))
        for name in limits.pools
        if name in sizes
        for line in _promise_warnings(template, name, sizes[name])
    ]


def _server_warnings(settings: Settings) -> Iterator[str]:
    """Warn if a file of the server is missing. Warn if unintended readers can see the server's pages or its token."""
    server = settings.server
    for name in ("token_file", "tls_cert", "tls_key"):
        path = getattr(server, name)
        if path is not None and not path.exists():
            yield f"server.{name}: no such file: '{path}'"
    if is_loopback(settings.listen):
        return
    if server.token_file is None:
        yield f"listen: everyone who reaches {settings.listen} can read the status page; set server.token_file"
    elif server.tls_cert is None:
        yield f"listen: the token is sent to {settings.listen} in clear text; set server.tls_cert and server.tls_key"


def is_loopback(listen: str) -> bool:
    """Return True if only programs on this host can reach the address ``HOST:PORT``."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unused_pool_warnings(settings: Settings) -> Iterator[str]:
    """Warn of each pool that templates do not name. Such a pool makes no machines."""
    used = {name for limits in settings.template_limits.values() for name in limits.pools}
    for name in (name for name in settings.pools if name not in used):
        yield f"pools.{name}: no template uses it; name it in a template's 'pools', or leave it out"


def _missing_file_warnings(settings: Settings) -> Iterator[str]:
    """Warn of each file that a pool names and that is missing. A setting may name several files, as KUBECONFIG does;
    one existing file is then enough.

    A missing pod spec is an error instead, which is reported when the configuration is read.
    """
    for name, pool in settings.pools.items():
        for setting, value in pool:
            if isinstance(value, Path) and not any(map(os.path.exists, str(value).split(os.pathsep))):
                yield f"pools.{name}.{setting}: no such file: '{value}'"


def _price_warnings(settings: Settings) -> Iterator[str]:
    """Warn of templates without a price if there is a budget. The budget counts the cost of their machines as 0."""
    if settings.budget.per_hour is None and settings.budget.per_month is None:
        return
    limits = settings.limits()
    for template in limits.templates.values():
        if lacking := [pool for pool in template.pools if limits.price(template.id, pool) is None]:
            yield (
                f"template {template.id}: no price_per_hour, of its own or of pool {', '.join(lacking)}; the budget "
                "counts these machines as 0"
            )


def _attribute_warnings(template: Template) -> Iterator[str]:
    """Warn of each attribute that is probably a misspelled attribute of HF. HF would accept it as an attribute that the
    site has defined."""
    known = NUMERIC_ATTRIBUTES | {"type"}
    for name in template.attributes.keys() - known - SITE_ATTRIBUTES:
        if near := difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.75):
            yield f"template {template.id}: attribute {name!r} is unknown to HostFactory; did you mean {near[0]!r}?"


def _slot_warnings(template: Template) -> Iterator[str]:
    """Warn if ncores and ncpus are both above 1: Symphony counts ncores x ncpus slots (docs/hostfactory.md, slots)."""
    ncores, ncpus = _attribute_number(template, "ncores"), _attribute_number(template, "ncpus")
    if ncores > 1 and ncpus > 1:
        yield (
            f"template {template.id}: ncores {ncores:g} and ncpus {ncpus:g} are both above 1; "
            f"Symphony counts {ncores * ncpus:g} slots. Set one of them to 1."
        )


def _size_warnings(settings: Settings, template: Template) -> Iterator[str]:
    """Warn if a template promises larger or much smaller hosts than its machines are.

    HF gives too much work to a host that is smaller than promised. A larger host stays partly idle.
    """
    limits = settings.template_limits.get(template.id)
    for name in limits.pools if limits else ():
        pool = settings.pools.get(name)
        size = registry.get_kind(pool.kind).size(pool, template.id) if pool else None
        if size is not None:
            yield from _promise_warnings(template, name, size)
            yield from _idle_warnings(template, name, size)


def _promise_warnings(template: Template, pool: str, size: MachineSize) -> Iterator[str]:
    """Yield a line for each resource if the pool's machines have less than the template promises."""
    for attribute, promised, actual, unit in _compared_resources(template, size):
        if promised > actual:
            yield (
                f"template {template.id}: {attribute} promises {promised:g} {unit}, but {size.name} has {actual:g} "
                f"{unit} (pool {pool})"
            )


def _idle_warnings(template: Template, pool: str, size: MachineSize) -> Iterator[str]:
    """Yield a line for each resource if the pool's machines have much more than the template promises. HF's work leaves
    the rest idle."""
    for attribute, promised, actual, unit in _compared_resources(template, size):
        if actual > MOST_OVERHEAD * promised:
            yield (
                f"template {template.id}: {attribute} promises only {promised:g} {unit}, but {size.name} is {actual:g} "
                f"{unit} (pool {pool}): HostFactory's work leaves the rest idle"
            )


def _compared_resources(template: Template, size: MachineSize) -> Sequence[tuple[str, float, float, str]]:
    """Return each resource as its attribute, the promised amount, the actual amount and the unit."""
    cores = _attribute_number(template, "ncores") * _attribute_number(template, "ncpus")
    nram = _attribute_number(template, "nram")
    return ("ncores x ncpus", cores, size.cores, "cores"), ("nram", nram, size.megabytes, "MB")


def _attribute_number(template: Template, attribute: str) -> float:
    return float(template.attributes[attribute][1])
