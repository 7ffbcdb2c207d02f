"""Every test of this directory runs in every place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.simulator.server import Simulator
from tests.contract.places import GkePlace, Place
from tests.wire import Wire


@pytest.fixture(params=["gke-watched", "gke-listed"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A pool in a cloud of its own, empty."""
    with Simulator(namespaces=["symphony"]) as simulator, Wire(simulator.address) as wire:
        place = GkePlace(simulator, wire, tmp_path, watched=request.param == "gke-watched")
        yield place
        place.close()
