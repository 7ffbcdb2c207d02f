"""A search for a scenario that breaks a law, or after whose trouble what is wanted never runs.

What it finds it tells as YAML, as small as it can: ``provisioner simulate FILE --seeds 1`` plays it again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings

from provisioner.virtual.scenario import Act, Demand, HostFactory, Scenario, Template, VirtualPool
from provisioner.virtual.scenario_file import scenarios
from tests.simulation.drawn import ACTS, Body, bodies, open_values
from tests.simulation.watched import Watched

SEARCHED = settings(
    max_examples=20,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
LONG = settings(SEARCHED, max_examples=150)

BLIND = ("cap", "killed", "orphan")
"""Laws that nobody can keep who is shown what is not."""


def read(body: Body) -> Scenario:
    return scenarios({"drawn": body}, "drawn")["drawn"]


def breaches(scenario: Scenario, run: Watched) -> Iterator[str]:
    """Laws that were broken."""
    spared = () if scenario.shows_truly() else BLIND
    return (text for text in run.broken if not any(f" s: {law}: " in text for law in spared))


def shortcomings(scenario: Scenario, run: Watched) -> Iterator[str]:
    """What should not be so once all trouble is over."""
    forgetful = any(event.do is Act.HF_RESTART for event in scenario.events)
    if missing := run.missing():
        yield f"{missing} machines are missing at the end"
    elif run.calls_at_last() and not run.brake():
        yield f"{run.calls_at_last()} calls in the last minutes"
    if not run.brake() and not forgetful and (left := run.left()):
        yield f"{len(left)} machines are left that HostFactory does not have: {min(left)}"


def assert_lawful(body: Body) -> None:
    scenario = read(body)
    found = list(breaches(scenario, Watched(scenario, seed=1)))
    assert not found, "\n".join([*found, yaml.safe_dump(body, sort_keys=False)])


def assert_healed(body: Body) -> None:
    scenario = read(body)
    run = Watched(scenario, seed=1)
    found = [*breaches(scenario, run), *shortcomings(scenario, run)]
    assert not found, "\n".join([*found, yaml.safe_dump(body, sort_keys=False)])


@SEARCHED
@given(bodies())
def test_no_law_is_broken(body: Body) -> None:
    assert_lawful(body)


@SEARCHED
@given(bodies(heals=True))
def test_what_is_wanted_runs_when_all_trouble_is_over(body: Body) -> None:
    assert_healed(body)


@pytest.mark.slow
@LONG
@given(bodies())
def test_no_law_is_broken_in_many_more(body: Body) -> None:
    assert_lawful(body)


@pytest.mark.slow
@LONG
@given(bodies(heals=True))
def test_what_is_wanted_runs_when_all_trouble_is_over_in_many_more(body: Body) -> None:
    assert_healed(body)


@pytest.mark.parametrize("part", [VirtualPool, Template, HostFactory, Demand])
def test_every_setting_is_searched(part: type) -> None:
    assert [name for name, values in open_values(part).items() if not values] == []


def test_everything_that_can_happen_is_searched() -> None:
    assert set(ACTS) == set(Act)
