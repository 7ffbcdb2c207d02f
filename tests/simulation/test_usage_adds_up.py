"""A day in virtual time. Whatever happens to the loop, the machine-hours in memory must agree with those of the
places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from provisioner.lab.virtual.run import Provisioner, Stage, play
from provisioner.lab.virtual.scenario import Scenario
from provisioner.lab.virtual.scenario_file import scenarios
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import Limits, Memory, Snapshot
from provisioner.planning.allocate.budget import get_cost
from provisioner.planning.core.usage import by_pool, get_usage
from provisioner.telemetry.cycle_metrics import machine_seconds

SCENARIO: dict[str, Any] = {
    "about": "Machines come and go for a day, are preempted, fail to boot, and are made and seen late.",
    "pools": {
        "a": {
            "boot_seconds": 40,
            "boot_failures": 0.1,
            "preempted_per_hour": 0.2,
            "price_per_hour": 1.0,
            "capacity": 6,
        },
        "b": {"boot_seconds": 60, "price_per_hour": 3.0, "watched": False, "lag_seconds": 10, "leftovers": False},
    },
    "demand": [{"machines": 4}, {"machines": 8, "every_minutes": 150, "for_minutes": 40, "at_minutes": 5}],
}
EVENTS: Mapping[str, list[dict[str, Any]]] = {
    "loops that die and are followed": [
        *({"at_minutes": 47.0 * number, "do": "restart"} for number in range(1, 20)),
        {"at_minutes": 500, "do": "second_loop"},
        {"at_minutes": 700, "do": "pause", "for_minutes": 20},
    ],
    "a wall clock that is moved, and loops that start in it": [
        {"at_minutes": 200, "do": "clock", "for_minutes": 3000},
        {"at_minutes": 300, "do": "restart"},
        {"at_minutes": 400, "do": "clock", "for_minutes": -9000},
        {"at_minutes": 500, "do": "restart"},
    ],
}
SLACK = 12.0
"""Seconds by which the reported time of a machine may differ: a call, and the time between two observations."""


class Counted(Provisioner):
    """A provisioner that adds up its reported usage as the metrics do. The sums must never fall."""

    def __init__(self, stage: Stage) -> None:
        self.reported: dict[str, float] = {}
        self.fell: list[str] = []
        self.dearest = 0.0
        """The highest price for an hour of the machines that existed at once."""
        self._looked: dict[str, float] = {}
        super().__init__(stage)

    def _restart(self, *meanwhile: Any) -> None:
        self._looked = {}
        super()._restart(*meanwhile)

    def check(self) -> None:
        super().check()
        prices = {name: pool.price_per_hour or 0.0 for name, pool in self._stage.scenario.pools.items()}
        self.dearest = max(
            self.dearest, sum(prices[name] * len(place.ours()) for name, place in self._stage.places.items())
        )

    def _hear(self, report: CycleReport) -> None:
        super()._hear(report)
        if report.memory is None or report.problem:
            return
        self._looked |= {
            observation.pool: observation.began_at
            for observation in report.observations.values()
            if isinstance(observation, Snapshot)
        }
        now = machine_seconds(report.memory, self._looked)
        self.fell += [f"{pool} at {report.now}" for pool in now if now[pool] < self.reported.get(pool, 0.0)]
        self.reported |= now


class Day:
    """A run of the scenario, with the true and the reported numbers at its end."""

    def __init__(self, events: list[dict[str, Any]], **changes: Any) -> None:
        self.scenario: Scenario = scenarios({"day": {**SCENARIO, "events": events, **changes}}, "tests")["day"]
        self.limits: Limits = self.scenario.limits()
        self.broken = play(self.scenario, 7, self._begin).broken
        clock = self.provisioner.loop.clock
        memory = self.provisioner.loop.reconciler.memory
        assert memory is not None
        self.memory: Memory = memory
        self.usage = get_usage(memory, clock.now(), clock.wall() - clock.now())

    def _begin(self, stage: Stage) -> Provisioner:
        self.stage, self.ledger, self.provisioner = stage, stage.ledger, Counted(stage)
        return self.provisioner


@pytest.mark.parametrize("events", EVENTS)
@pytest.mark.parametrize("hours", [6.0, pytest.param(24.0, marks=pytest.mark.slow)])
def test_hours_and_costs_are_those_of_the_places(events: str, hours: float) -> None:
    day = Day(EVENTS[events], hours=hours)
    tally, reported = day.ledger.tally, sum(by_pool(day.usage).values()) / 1000
    total = sum(get_cost(day.limits, cells) for cells in day.usage.values())

    assert not day.broken
    assert tally.gone > 20
    assert abs(reported - tally.seconds) < SLACK * tally.created
    assert abs(reported - tally.seconds) < 0.02 * tally.seconds
    assert abs(total - tally.cost) < 0.02 * tally.cost
    assert day.provisioner.fell == []
    assert day.provisioner.reported == pytest.approx(
        {pool: ms / 1000 for pool, ms in by_pool(day.usage).items()}, rel=0.01
    )


def test_a_lost_memory_says_since_when_it_counts() -> None:
    day = Day([{"at_minutes": 200, "do": "lose_memory"}], hours=8.0)

    began = day.memory.usage.since_wall
    assert began is not None
    assert 200 * 60 <= began - day.stage.world.start_wall < 230 * 60
    assert sum(by_pool(day.usage).values()) / 1000 < day.ledger.tally.seconds


def test_no_hour_costs_more_than_its_budget_and_no_machine_goes_for_it() -> None:
    most = 11.0
    day = Day(EVENTS["loops that die and are followed"], hours=6.0, settings={"budget": {"per_hour": most}})

    assert not day.broken, "no running machine was deleted"
    assert most - 1.0 < day.provisioner.dearest <= most
