"""A search for a scenario that breaks a law, or whose machines never run after the trouble.

A failure prints the smallest such scenario as YAML. ``provisioner simulate FILE --seeds 1`` plays it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings

from provisioner.lab.virtual.scenario import Act, Demand, HostFactory, Scenario, Template, VirtualPool
from provisioner.lab.virtual.scenario_file import scenarios
from tests.simulation.drawn import ACTS, Body, bodies, open_values
from tests.simulation.test_broken_laws import (
    Break,
    a_failed_observation_is_an_empty_pool,
    holds_hold_nothing,
    nothing_has_a_deadline,
    only_wanted_machines_count_against_a_cap,
    orphans_get_no_grace,
    slot_numbers_are_used_again,
)
from tests.simulation.watched import Watched

SEARCHED = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


BLIND = ("cap", "killed", "orphan")
"""Laws that cannot be kept if observations are false."""


SURPLUS = " machines reported, "
"""The text of a breach that is allowed after a lost memory. A rebuilt memory keeps every machine of an open request,
also a withdrawn one that was not gone yet, because no machine is deleted by count. HostFactory may then get more
machines than it requested.
"""

FORGETTING = frozenset({Act.LOSE_MEMORY, Act.OLD_MEMORY})


def read(body: Body) -> Scenario:
    return scenarios({"drawn": body}, "drawn")["drawn"]


def breaches(scenario: Scenario, run: Watched) -> Iterator[str]:
    """Return the broken laws."""
    spared = [] if scenario.is_truthful() else [f" s: {law}: " for law in BLIND]
    if any(event.do in FORGETTING for event in scenario.events):
        spared.append(SURPLUS)
    return (text for text in run.broken if not any(words in text for words in spared))


def shortcomings(scenario: Scenario, run: Watched) -> Iterator[str]:
    """Return the problems that remain once all trouble is over."""
    # Machines that HostFactory forgot, or returned because observations did not show them, stay for a day.
    may_stay = any(event.do is Act.HF_RESTART for event in scenario.events) or not scenario.is_truthful()
    if missing := run.missing():
        yield f"{missing} machines are missing at the end"
    elif run.calls_at_last() and not run.brake():
        yield f"{run.calls_at_last()} calls in the last minutes"
    if not run.brake() and not may_stay and (left := run.left()):
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


SEARCHES: list[tuple[Callable[[Body], None], bool]] = [(assert_lawful, False), (assert_healed, True)]


@pytest.mark.parametrize("most", [20, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("holds", "heals"), SEARCHES, ids=["no law is broken", "what is wanted runs when all trouble is over"]
)
def test_scenarios_by_chance(holds: Callable[[Body], None], heals: bool, most: int) -> None:
    settings(SEARCHED, max_examples=most)(given(bodies(heals=heals))(holds))()


def test_a_create_is_not_repeated_whose_machine_came_and_went_unseen() -> None:
    unseen = {"boot_seconds": 0.0, "boot_failures": 1.0, "leftovers": False, "lost_answers": 1.0}
    assert_lawful({"about": "Found.", "hours": 0.2, "pools": {"a": unseen}, "demand": [{"machines": 1}]})


@pytest.mark.parametrize("part", [VirtualPool, Template, HostFactory, Demand])
def test_every_setting_is_searched(part: type) -> None:
    assert [name for name, values in open_values(part).items() if not values] == []


def test_everything_that_can_happen_is_searched() -> None:
    assert set(ACTS) == set(Act)


class Theme(NamedTuple):
    """A way to break a law on purpose.

    ``laws``: the laws that must then be reported as broken. ``events`` and ``pool``: events and settings with which the
    break shows.
    """

    broken: Callable[[], Break]
    laws: str
    events: tuple[Body, ...] = ()
    pool: Mapping[str, Any] = MappingProxyType({})
    """Settings of all pools."""

    def given_to(self, body: Body) -> Body:
        """Return the drawn scenario with the events and settings with which the break shows."""
        pools = {name: {**pool, **self.pool} for name, pool in body["pools"].items()}
        return body | {"pools": pools, "events": [*body["events"], *self.events]}


THEMES = [
    Theme(slot_numbers_are_used_again, "double|answer", pool={"boot_failures": 0.5}),
    Theme(
        a_failed_observation_is_an_empty_pool,
        "killed",
        ({"at_minutes": 8.0, "for_minutes": 5.0, "change": {"observations": "failed"}},),
        {"boot_seconds": 20.0},
    ),
    Theme(
        only_wanted_machines_count_against_a_cap,
        "cap",
        ({"at_minutes": 8.0, "do": "remove", "share": 1.0},),
        {"boot_seconds": 20.0, "stop_seconds": 400.0, "max_machines": 4},
    ),
    Theme(orphans_get_no_grace, "killed", ({"at_minutes": 8.0, "do": "doubles", "machines": 1},)),
    Theme(nothing_has_a_deadline, "answer", pool={"hangs": 1.0}),
    Theme(
        holds_hold_nothing,
        "hold",
        ({"at_minutes": 2.0, "do": "stop_all", "for_minutes": 10.0},),
        {"boot_seconds": 20.0, "boot_failures": 0.5},
    ),
]


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.broken.__name__.replace("_", " "))
def test_the_search_finds_that(theme: Theme) -> None:
    @settings(SEARCHED, max_examples=100, phases=[Phase.generate])
    @given(bodies(heals=True))
    def search(body: Body) -> None:
        assert_lawful(theme.given_to(body))

    with theme.broken(), pytest.raises(AssertionError, match=f" s: ({theme.laws}): "):
        search()
