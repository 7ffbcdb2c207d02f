"""Every test of this directory runs in every place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.simulator.server import Simulator
from tests.contract.mig_place import REGIONAL, ZONAL, MigPlace
from tests.contract.places import GkePlace, Place
from tests.wire import Wire


@pytest.fixture(params=["gke-watched", "gke-listed", "mig-zonal", "mig-regional"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A pool in a cloud of its own, empty."""
    with Simulator(namespaces=["symphony"], migs=[ZONAL, REGIONAL]) as simulator, Wire(simulator.address) as wire:
        made: MigPlace | GkePlace
        if request.param.startswith("mig"):
            made = MigPlace(simulator, wire, ZONAL if request.param == "mig-zonal" else REGIONAL)
        else:
            made = GkePlace(simulator, wire, tmp_path, watched=request.param == "gke-watched")
        yield made
        made.close()
