"""Kinds of places: the built-in kinds, and the kinds of other distributions. A kind is imported when a pool names it.

A distribution registers a kind with an entry point in the group ``provisioner.backends``. The entry point's name is the
value of ``kind``. The entry point's object is a ``Kind``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from provisioner.backends import Backend, BackendError
from provisioner.backends.kind import Kind
from provisioner.backends.proxies_and_authorities import prepare
from provisioner.model import ErrorClass
from provisioner.optional_packages import require_packages
from provisioner.schema.setting_types import Pool, Site

GROUP = "provisioner.backends"
"""The group of entry points under which distributions register kinds."""

BUILT_IN = {name: f"provisioner.backends.{name}.kind" for name in ("gke", "mig", "command", "slurm", "ray")}
"""Path of the module of each built-in kind; the module's attribute ``KIND`` is the kind. Only the path is stored, so
that this module does not import the kinds."""


def kind_names() -> list[str]:
    """Return the allowed values of ``kind``. The built-in kinds come first."""
    return [*BUILT_IN, *sorted(_registered().keys() - BUILT_IN.keys())]


@cache
def get_kind(name: str) -> Kind[Any]:
    """Return the kind with a name from ``kind_names``. Raise MissingExtra if the kind cannot be imported."""
    if name in BUILT_IN:
        built_in: Kind[Any] = import_module(BUILT_IN[name]).KIND
        return built_in
    entry = _registered()[name]
    with require_packages(entry.dist.name if entry.dist else entry.value):
        registered: Kind[Any] = entry.load()
        return registered


def built_in_kinds() -> list[Kind[Any]]:
    """Return the kinds of places that come with this distribution."""
    return [get_kind(name) for name in BUILT_IN]


def longest_call(pools: Iterable[Pool]) -> float:
    """Return how many seconds a batch in these pools may last after its last call has begun.

    The built-in kinds always count, because the previous loop may have had pools of these kinds that are no longer
    configured.
    """
    return max(each.longest_call for each in (*built_in_kinds(), *(get_kind(pool.kind) for pool in pools)))


def make_backends(pools: Mapping[str, Pool], site: Site) -> dict[str, Backend]:
    """Return one backend per pool. Clients are imported only for kinds that have a pool.

    Raise BackendError if a pool's settings name no usable place. The error has one line for each such pool. Raise
    MissingExtra if a client is not installed.
    """
    prepare(site.ca_bundle)
    made, unusable = usable_backends(pools, site)
    if unusable:
        close(made)
        raise BackendError(ErrorClass.INVALID, "\n".join(f"pool {name}: {text}" for name, text in unusable.items()))
    return made


def usable_backends(pools: Mapping[str, Pool], site: Site) -> tuple[dict[str, Backend], dict[str, str]]:
    """Return two dicts. The first has the backend of each usable pool. The second has a reason for each pool whose
    settings name no usable place.

    Raise MissingExtra if a client is not installed. ``proxies_and_authorities.prepare`` must have been called.
    """
    made: dict[str, Backend] = {}
    unusable: dict[str, str] = {}
    factories: dict[str, Callable[[Any], Backend]] = {}
    for name, pool in pools.items():
        pool_kind = get_kind(pool.kind)
        try:
            with require_packages(pool_kind.distribution):  # a backend may import more of its client when it is made
                if pool.kind not in factories:
                    factories[pool.kind] = pool_kind.factory(site)
                made[name] = factories[pool.kind](pool)
        except BackendError as error:
            unusable[name] = error.failure.text
    return made, unusable


def close(backends: Mapping[str, Backend]) -> None:
    """Close all backends."""
    for backend in backends.values():
        backend.close()


def _registered() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
