"""Places of the contract suite. Every test of this directory runs in every place."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from provisioner.backends import registry
from provisioner.lab import fake_backend
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.skeleton.contract import SkeletonPlace
from provisioner.testing.place import Place
from tests.contract.command_place import LanciumPlace, LsfPlace
from tests.contract.memory_place import MemoryPlace
from tests.contract.mig_place import REGIONAL, ZONAL, MigPlace
from tests.contract.places import GkePlace
from tests.contract.scheduler_places import NO_SPOOLER, GridEnginePlace, SlurmCliPlace, SpoolerPlace
from tests.contract.slurm_place import SlurmPlace
from tests.support.clients.wire import Wire
from tests.support.clouds.switches import ASSUMED, EACH, assume
from tests.support.schedulers import grid_engine
from tests.support.third_kind import install

REAL = [pytest.param(name, marks=pytest.mark.kube) for name in ("kube-watched", "kube-listed")]
"""A namespace of a real cluster. If it and the simulator differ, the simulator is wrong."""

IN_MEMORY = ["fake", "yard", "skeleton"]
"""The fake, a kind that another distribution brings, and the kind that ``provisioner new-kind`` copies."""

COMMANDS = ["lsf", "lancium"]
"""Kinds of commands that behave as the documentation and the users say."""

SCHEDULERS = [
    *(pytest.param(one, marks=pytest.mark.schedulers) for one in ("slurm", "slurm-cli", "gridengine", "task-spooler")),
    pytest.param("ray", marks=pytest.mark.ray),
]
"""Places of real schedulers."""

UNFLIPPED = ["gke-watched", "gke-listed", "mig-zonal", "mig-regional", *IN_MEMORY, *COMMANDS, *REAL, *SCHEDULERS]

FLIPPED = [
    pytest.param(f"mig-zonal: {one.id}", id=f"mig-zonal: {one.id}", marks=one.marks) for one in EACH if one.marks
]
"""Groups with flipped undocumented behaviours, which do not depend on the group's location."""

INDIFFERENT = {
    "test_an_empty_place_is_seen_as_empty",
    "test_a_snapshot_begins_when_it_was_asked_for",
    "test_the_spec_has_a_fingerprint_that_stays",
    "test_a_failed_observation_raises_and_a_later_one_is_complete_again",
    "test_nothing_is_sent_when_the_time_is_over",
    "test_a_refusal_has_its_class_and_words_and_makes_nothing",
    "test_the_first_refusal_stops_further_creates",
    "test_no_response_is_ambiguous",
    "test_to_delete_what_is_not_there_is_a_success",
    "test_one_delete_that_fails_stops_no_other",
    "test_no_delete_is_sent_when_the_time_is_over",
    "test_sought_names_that_cannot_be_read_fail_the_observation",
    "test_observations_and_actions_may_run_at_the_same_time",
}
"""Tests independent of undocumented behaviours, because the cloud refuses the call or gets none."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test in every place. A test whose result may depend on undocumented behaviours of groups also runs on
    groups in which one such behaviour is flipped."""
    if "place" in metafunc.fixturenames:
        flipped = [] if metafunc.function.__name__ in INDIFFERENT else FLIPPED
        metafunc.parametrize("place", [*UNFLIPPED, *flipped], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield an empty pool in a cloud of its own."""
    kind, _, flip = request.param.partition(": ")
    if kind.startswith("kube"):
        yield from real_place(request, tmp_path)
        return
    if kind in COMMANDS:
        yield LsfPlace(tmp_path) if kind == "lsf" else LanciumPlace(tmp_path)
        return
    if kind in BY_SCHEDULER:
        scheduled = BY_SCHEDULER[kind](request, tmp_path, monkeypatch)
        yield scheduled
        scheduled.close()
        return
    if kind == "ray":
        yield from ray_place(request)
        return
    if kind == "fake":
        yield MemoryPlace(fake_backend.KIND)
        return
    if kind == "skeleton":
        yield SkeletonPlace()
        return
    if kind == "yard":
        monkeypatch.syspath_prepend(install(tmp_path))
        yield MemoryPlace(registry.get_kind("yard"), yard="north", keeps_records=True)
        return
    if flip:
        assume(ASSUMED[flip], monkeypatch)
    with Simulator(namespaces=["symphony"], migs=[ZONAL, REGIONAL]) as simulator, Wire(simulator.address) as wire:
        made: MigPlace | GkePlace
        if kind.startswith("mig"):
            made = MigPlace(simulator, wire, ZONAL if kind == "mig-zonal" else REGIONAL)
        else:
            made = GkePlace(simulator, wire, tmp_path, watched=kind == "gke-watched")
        yield made
        made.close()


def real_place(request: pytest.FixtureRequest, directory: Path) -> Iterator[Place]:
    """Yield a namespace of a real cluster. Skip the test if there is no cluster."""
    space, proxy = request.getfixturevalue("space"), request.getfixturevalue("proxy")
    from tests.kube.place import KubePlace

    made = KubePlace(space, proxy, directory, watched=request.param == "kube-watched")
    yield made
    made.close()


@pytest.fixture(scope="session")
def cell() -> Iterator[grid_engine.GridEngine]:
    """A cell of Grid Engine."""
    if not grid_engine.is_installed():
        pytest.skip(grid_engine.NO_GRID_ENGINE)
    made = grid_engine.GridEngine()
    yield made
    made.stop()


def ray_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Yield a pool of jobs on the Ray cluster that the tests share."""
    from tests.contract.ray_place import RayPlace, RayProxy

    head = request.getfixturevalue("ray_head")
    with RayProxy(head.address) as proxy:
        made = RayPlace(head, proxy)
        yield made
        made.close()


def spooler_place(_: pytest.FixtureRequest, directory: Path, __: pytest.MonkeyPatch) -> SpoolerPlace:
    """Return a place with a task-spooler of its own."""
    if shutil.which("tsp") is None:
        pytest.skip(NO_SPOOLER)
    return SpoolerPlace(directory)


BY_SCHEDULER: Mapping[str, Callable[..., SlurmPlace | SlurmCliPlace | GridEnginePlace | SpoolerPlace]] = {
    "slurm": lambda request, directory, _: SlurmPlace(request.getfixturevalue("slurm"), directory),
    "slurm-cli": lambda request, *rest: SlurmCliPlace(request.getfixturevalue("slurm"), *rest),
    "gridengine": lambda request, directory, _: GridEnginePlace(request.getfixturevalue("cell"), directory),
    "task-spooler": spooler_place,
}
"""Functions that make the places of real schedulers."""
