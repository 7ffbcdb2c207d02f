"""``provisioner demand`` against PRP's own formula: the same queues and places, in virtual time (docs/htcondor.md)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from provisioner.lab.virtual.demand import DemandService
from provisioner.lab.virtual.formulas import Prp
from provisioner.lab.virtual.run import Result, play
from provisioner.lab.virtual.scenario_file import scenarios

QUEUES: Mapping[str, Any] = {
    "few": {"demand": [{"machines": 3, "for_minutes": 120}]},
    "step": {"demand": [{"machines": 100, "for_minutes": 180}]},
    "day": {"demand": [{"machines": 200, "ramp_minutes": 60, "for_minutes": 300}]},
    "two sessions": {
        "demand": [
            {"machines": 100, "ramp_minutes": 30, "for_minutes": 120, "at_minutes": minutes} for minutes in (0, 200)
        ]
    },
    "stairs down": {"demand": [{"machines": 50, "for_minutes": minutes} for minutes in (90, 180, 270, 360)]},
    "bursts": {"demand": [{"machines": 40, "for_minutes": 20, "every_minutes": 60}]},
    "flapping": {"hours": 4, "demand": [{"machines": 40, "for_minutes": 10, "every_minutes": 20}]},
}
NEVER = float("inf")
PAGE = Path(__file__).parents[2] / "docs" / "htcondor.md"


@cache
def compare(name: str) -> Mapping[str, tuple[float, float]]:
    """Return the measures of demand and of PRP, and the hours of work that their machines have done. A single seed is
    enough, because nothing happens by chance."""
    queue = {"about": name, "hours": 8, "pools": {"a": {}}, **QUEUES[name]}
    scenario = scenarios({name: queue}, "queues")[name]
    ours, prp = play(scenario, 1, DemandService), play(scenario, 1, Prp)
    assert not ours.broken
    return {
        "t90": (_number(ours, "t90"), _number(prp, "t90")),
        "idle_hours": (_number(ours, "idle_hours"), _number(prp, "idle_hours")),
        "created": (_number(ours, "created"), _number(prp, "created")),
        "work_hours": (_work_hours(ours), _work_hours(prp)),
    }


def _number(result: Result, measure: str) -> float:
    number = result.measures[measure]
    return NEVER if number is None else number


def _work_hours(result: Result) -> float:
    apart = result.samples[1].at - result.samples[0].at
    return sum(min(sample.running, sample.wanted) for sample in result.samples) * apart / 3600


@pytest.mark.parametrize("name", ["few", "step", "day", "two sessions", "stairs down"])
def test_demand_is_nowhere_worse_than_prp_and_idles_half_as_long(name: str) -> None:
    measures = compare(name)
    assert measures["t90"][0] <= measures["t90"][1]
    assert measures["created"][0] <= measures["created"][1]
    assert measures["idle_hours"][0] <= measures["idle_hours"][1] / 2


@pytest.mark.parametrize("name", ["bursts", "flapping"])
def test_demand_makes_more_machines_for_a_queue_that_is_empty_again_and_again(name: str) -> None:
    """PRP keeps each machine for 20 minutes without work."""
    measures = compare(name)
    assert measures["t90"][0] <= measures["t90"][1] / 10
    assert measures["idle_hours"][0] <= measures["idle_hours"][1]
    assert measures["created"][0] > measures["created"][1]


@pytest.mark.parametrize("name", ["step", "day", "stairs down", "bursts", "flapping"])
def test_the_page_has_the_measured_numbers(name: str) -> None:
    measures = compare(name)
    numbers = [f"{ours:,.0f} / {prp:,.0f}".replace("inf", "never") for ours, prp in measures.values()]
    assert f"| {' | '.join(numbers)} |" in PAGE.read_text()
