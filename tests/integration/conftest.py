"""Fixtures: a machine, and an embedded Kubernetes cluster that all tests of a module share. A module may replace the
cluster by its own fixture ``shared``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.lab.cloud.server import Simulator
from tests.support.clouds.kube_cloud import SPACE, impose, official_client
from tests.support.machine import Machine, of_an_instance
from tests.support.metadata_server import MetadataServer


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulator]:
    with Simulator(namespaces=[SPACE, "other"]) as running:
        yield running


@pytest.fixture
def simulator(shared: Simulator) -> Simulator:
    """Return the module's simulator after a reset: without objects, with short times and without faults."""
    shared.reset()
    impose(shared)
    return shared


@pytest.fixture
def api(simulator: Simulator) -> Iterator[Any]:
    with official_client(simulator) as official:
        yield official


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Yield a host for the scripts of ``deploy/machine``."""
    made = Machine(tmp_path)
    yield made
    made.end()


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    """Yield the metadata server of an instance."""
    with MetadataServer(of_an_instance()) as server:
        yield server
