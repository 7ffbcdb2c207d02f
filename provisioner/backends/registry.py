"""Finds kinds of places, each imported when a pool names it: the built-in ones, and those of other distributions.

A distribution registers a kind by an entry point of the group ``provisioner.backends``: its name is the kind's word,
its object a ``Kind``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from provisioner.backends import Backend, BackendError
from provisioner.backends.kind import Kind
from provisioner.backends.network import prepare
from provisioner.model import ErrorClass
from provisioner.optional_packages import needing
from provisioner.schema.pool import Pool, Site

GROUP = "provisioner.backends"
"""The group of entry points under which distributions register kinds."""

BUILT_IN = {"gke": "provisioner.backends.gke.kind", "mig": "provisioner.backends.mig.kind"}
"""The module of each built-in kind, which holds it as ``KIND``. It is only named, so that this module depends on no
kind."""


def names() -> list[str]:
    """What pools may say under ``kind``: the built-in kinds first."""
    return [*BUILT_IN, *sorted(_registered().keys() - BUILT_IN.keys())]


@cache
def kind(name: str) -> Kind[Any]:
    """The kind of this name, which is one of ``names``. Raises MissingExtra for one that cannot be imported."""
    if name in BUILT_IN:
        built_in: Kind[Any] = import_module(BUILT_IN[name]).KIND
        return built_in
    entry = _registered()[name]
    with needing(entry.dist.name if entry.dist else entry.value):
        registered: Kind[Any] = entry.load()
        return registered


def built_in() -> list[Kind[Any]]:
    """The kinds of this distribution: those that Google's connector knows."""
    return [kind(name) for name in BUILT_IN]


def longest_call(pools: Iterable[Pool]) -> float:
    """Seconds that a batch in any of these pools goes on at most once it begins no further call.

    The built-in kinds always count: the loop before this one may have had pools that the configuration names no more.
    """
    return max(each.longest_call for each in (*built_in(), *(kind(pool.kind) for pool in pools)))


def make_backends(pools: Mapping[str, Pool], site: Site) -> dict[str, Backend]:
    """One backend per pool; only the clients of kinds that have a pool are imported.

    Raises BackendError, a line a pool, for those whose settings lead to no place, and MissingExtra.
    """
    made, unusable = usable_backends(pools, site)
    if unusable:
        close(made)
        raise BackendError(ErrorClass.INVALID, "\n".join(unusable.values()))
    return made


def usable_backends(pools: Mapping[str, Pool], site: Site) -> tuple[dict[str, Backend], dict[str, str]]:
    """One backend for each pool whose settings lead to a place, and why the others have none.

    Raises MissingExtra, and BackendError for a ``ca_bundle`` that is none.
    """
    prepare(site.ca_bundle)
    made: dict[str, Backend] = {}
    unusable: dict[str, str] = {}
    factories: dict[str, Callable[[Any], Backend]] = {}
    for name, pool in pools.items():
        of_kind = kind(pool.kind)
        try:
            with needing(of_kind.distribution):  # a backend may load more of its client when it is made
                if pool.kind not in factories:
                    factories[pool.kind] = of_kind.factory(site)
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
