"""A kind whose machines are hosts in yards, in memory: all that a distribution needs to add a kind of place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from provisioner.backends import Backend, MachineSize, Measure
from provisioner.backends.kind import Kind, Surroundings
from provisioner.lab.fake_backend import FakeBackend, FakePlace, FakePool
from provisioner.schema.setting_types import (
    OptionalCarriedFile,
    OptionalFile,
    OptionalSecretFile,
    Site,
    Text,
)
from provisioner.schema.validation import Problem


class YardPool(FakePool):
    """Hosts in one yard."""

    yard: Text
    """Name of the yard. No default."""

    key: OptionalSecretFile = None
    """File with the key of the yard; default none."""
    plan: OptionalFile = None
    """File that this kind marks neither as carried nor as a secret; default none."""
    map: OptionalCarriedFile = None
    """File that the loop's pod gets; default none."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Return the key by which two pools are the same place."""
        return (self.kind, self.yard)


class YardBackend(FakeBackend):
    """The fake backend with a metric of its own."""

    def measures(self) -> list[Measure]:
        """Return the number of hosts."""
        return [Measure("hosts", "Hosts in the yard.", len(self.place.entries()))]


class Yard(Kind[YardPool]):
    """The kind ``yard``, in the form that the registry of kinds needs."""

    name: ClassVar = "yard"
    pool = YardPool
    distribution = "yard-provisioner"
    longest_call = 90.0
    docs = "https://yard.example/kind"
    config_keys: ClassVar = frozenset({"YARD_NAME"})

    def factory(self, site: Site) -> Callable[[YardPool], Backend]:
        """Return a function that makes backends. Pools of the same yard see the same hosts."""
        yards: dict[str, FakePlace] = {}

        def backend(pool: YardPool) -> Backend:
            return YardBackend(pool, yards.setdefault(pool.yard, FakePlace(pool)), provisioner=site.id)

        return backend

    def inherited(self, body: Mapping[str, Any], around: Surroundings) -> Mapping[str, object]:
        """Return the yard of HF's provider config, or else of the environment."""
        return {"yard": around.config.unknown.get("YARD_NAME") or around.environment.get("YARD")}

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """Return an error for the one yard that must not be used."""
        return [Problem("", "yard", "is closed")] if body.get("yard") == "junk" else []

    def warnings(self, pool: YardPool) -> list[str]:
        """Return a warning for old yards, which are slow."""
        return [f"pools.{pool.name}.yard: {pool.yard} is an old yard"] if pool.yard.startswith("old") else []

    def size(self, pool: YardPool, template: str) -> MachineSize:
        """Return the size of a host. All hosts have the same size."""
        return MachineSize(f"every host of yard {pool.yard}", 4, 4096)


KIND = Yard()
