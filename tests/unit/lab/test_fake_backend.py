"""The fake place: the fate of a machine as the seed decides. tests/contract checks its promises as a backend."""

from __future__ import annotations

import pytest

from provisioner.backends import BackendError
from provisioner.lab.fake_backend import FakeBackend, FakePlace, FakePool
from provisioner.model import Create, ErrorClass, LossCause, Machine, Phase
from provisioner.names import machine_name
from tests.support.steered_place import steered

NAMES = [machine_name("hf", "abcdefghij", number) for number in range(1, 101)]


class World:
    """A place whose time the test sets."""

    def __init__(self, **settings: object) -> None:
        self.time = 0.0
        pool = FakePool(name="a", **settings)
        self.place = FakePlace(pool, lambda: self.time)
        self.backend = FakeBackend(pool, self.place, provisioner="demo")

    def create(self, *names: str) -> list[ErrorClass | None]:
        """Create each machine with its own template, so that a refusal stops no other machine."""
        outcomes = self.backend.create([Create(name, "a", name, "abcdefghij") for name in names], lambda: True)
        return [outcome.failure.error if outcome.failure else None for outcome in outcomes]

    def machines(self) -> dict[str, Machine]:
        return dict(self.backend.observe(self.time, {}).machines)

    def phases(self) -> dict[str, Phase]:
        return {name: machine.phase for name, machine in self.machines().items()}


def test_a_machine_boots_within_the_seconds_that_the_settings_give_it() -> None:
    world = World(boot_seconds=10)
    world.create(*NAMES)
    assert set(world.phases().values()) == {Phase.PENDING}
    world.time = 5.0
    assert set(world.phases().values()) == {Phase.PENDING, Phase.RUNNING}
    world.time = 10.0
    assert set(world.phases().values()) == {Phase.RUNNING}


def test_the_same_seed_refuses_the_same_machines_and_another_seed_others() -> None:
    refused = [World(refused=0.5, seed=seed).create(*NAMES) for seed in (1, 1, 2)]
    assert refused[0] == refused[1] != refused[2]
    assert set(refused[0]) == {None, ErrorClass.STOCKOUT}
    assert 30 <= refused[0].count(None) <= 70


def test_some_machines_end_by_themselves_and_what_is_left_of_them_is_seen() -> None:
    world = World(crashed=0.5, crash_seconds=60)
    world.create(*NAMES)
    assert set(world.phases().values()) == {Phase.RUNNING}
    world.time = 60.0
    causes = [(machine.phase, machine.cause) for machine in world.machines().values()]
    assert set(causes) == {(Phase.RUNNING, None), (Phase.GONE, LossCause.EXITED)}
    assert 30 <= causes.count((Phase.RUNNING, None)) <= 70


def test_a_deleted_machine_stops_for_the_seconds_that_the_settings_give_it() -> None:
    world = World(stop_seconds=30)
    world.create(NAMES[0])
    world.place.delete(world.place.entries()[NAMES[0]])
    assert world.phases() == {NAMES[0]: Phase.STOPPING}
    with pytest.raises(BackendError, match="about to go"):
        world.place.create(NAMES[0], world.place.entries()[NAMES[0]].mark)
    world.time = 30.0
    assert world.phases() == {}


def test_who_watches_is_woken_when_a_machine_comes_or_goes() -> None:
    world, woken = World(), []
    world.backend.start(lambda: woken.append(world.time))
    world.create(NAMES[0])
    world.time = 1.0
    steered(world.place).crash(NAMES[0])
    world.time = 2.0
    world.place.delete(world.place.entries()[NAMES[0]])
    assert woken == [0.0, 1.0, 2.0]
