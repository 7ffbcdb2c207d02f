"""Every test of this directory runs in every place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.backends import fake, registry
from provisioner.simulator.server import Simulator
from tests.contract.memory_place import MemoryPlace
from tests.contract.mig_place import REGIONAL, ZONAL, MigPlace
from tests.contract.places import GkePlace, Place
from tests.support.clients.wire import Wire
from tests.support.clouds.switches import HALVES, assume
from tests.support.third_kind import install

REAL = [pytest.param(name, marks=pytest.mark.kube) for name in ("kube-watched", "kube-listed")]
"""A namespace of a real cluster: where it and the simulator differ, the simulator is wrong."""


FLIPPED_GROUPS = [pytest.param(f"mig-zonal: {name}", marks=pytest.mark.slow) for name in HALVES]
"""A group with half of the behaviours flipped that nobody documents; where it lies makes no difference to them."""


IN_MEMORY = ["fake", "yard"]
"""The fake, and a kind that another distribution brings."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For places that hang: a response that does not come is waited for half as long."""
    monkeypatch.setattr(Place, "call", Place.call / 2)


@pytest.fixture(params=["gke-watched", "gke-listed", "mig-zonal", "mig-regional", *IN_MEMORY, *FLIPPED_GROUPS, *REAL])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A pool in a cloud of its own, empty."""
    kind, _, flip = request.param.partition(": ")
    if kind.startswith("kube"):
        yield from real_place(request, tmp_path)
        return
    if kind == "fake":
        yield MemoryPlace(fake.KIND)
        return
    if kind == "yard":
        monkeypatch.syspath_prepend(install(tmp_path))
        yield MemoryPlace(registry.kind("yard"), yard="north")
        return
    if flip:
        assume(HALVES[flip], monkeypatch)
    with Simulator(namespaces=["symphony"], migs=[ZONAL, REGIONAL]) as simulator, Wire(simulator.address) as wire:
        made: MigPlace | GkePlace
        if kind.startswith("mig"):
            made = MigPlace(simulator, wire, ZONAL if kind == "mig-zonal" else REGIONAL)
        else:
            made = GkePlace(simulator, wire, tmp_path, watched=kind == "gke-watched")
        yield made
        made.close()


def real_place(request: pytest.FixtureRequest, directory: Path) -> Iterator[Place]:
    """Skips where there is no real cluster."""
    space, proxy = request.getfixturevalue("space"), request.getfixturevalue("proxy")
    from tests.kube.place import KubePlace

    made = KubePlace(space, proxy, directory, watched=request.param == "kube-watched")
    yield made
    made.close()
