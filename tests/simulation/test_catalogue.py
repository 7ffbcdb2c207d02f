"""The scenarios of ``provisioner simulate``: no law is broken in a scenario, and each scenario reaches its goals."""

from __future__ import annotations

import pytest

from provisioner.lab.virtual.run import play
from provisioner.lab.virtual.scenario_file import catalogue

SCENARIOS = catalogue()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.hours <= 4])
def test_every_law_holds_goals_are_met_and_reasons_are_reported(name: str) -> None:
    scenario = SCENARIOS[name]
    result = play(scenario, seed=1)
    assert not result.broken, "\n".join(result.broken)
    assert not scenario.reason or scenario.reason in result.reasons
    reached = {goal: result.measures[goal] for goal in scenario.goals}
    assert all(value is not None and value <= scenario.goals[goal] for goal, value in reached.items()), reached


def test_the_same_seed_is_the_same_run() -> None:
    scenario = SCENARIOS["few"]
    assert play(scenario, seed=3) == play(scenario, seed=3)
    assert play(scenario, seed=3).measures["created"] == 3
