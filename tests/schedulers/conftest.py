"""A pool on a real Slurm, for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.slurm_place import SlurmPlace
from tests.support.schedulers.slurm import SlurmCluster


@pytest.fixture
def place(slurm: SlurmCluster, tmp_path: Path) -> Iterator[SlurmPlace]:
    """Yield an empty pool."""
    made = SlurmPlace(slurm, tmp_path)
    yield made
    made.close()
