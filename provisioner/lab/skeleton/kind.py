"""The module that the entry point of the kind ``skeleton`` names. If the configuration has no pool of this kind, no
client is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from provisioner.backends import Backend
from provisioner.backends.kind import Kind
from provisioner.lab.skeleton.settings import SkeletonPool
from provisioner.schema.setting_types import Site


class Skeleton(Kind[SkeletonPool]):
    """The kind ``skeleton``. ``provisioner.backends.kind.Kind`` describes what else a kind may have, e.g. checks of the
    settings."""

    name: ClassVar = "skeleton"
    pool = SkeletonPool
    distribution = "skeleton-provisioner"
    longest_call = 60.0

    def factory(self, site: Site) -> Callable[[SkeletonPool], Backend]:
        """Return a function that makes backends, which share a client."""
        from provisioner.lab.skeleton.backend import Client, SkeletonBackend

        client = Client()
        return lambda pool: SkeletonBackend(pool, client, provisioner=site.id)


KIND = Skeleton()
