"""The effect of each rule of the loop. A scenario is played in virtual time twice: with all rules, and with one rule
switched off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from provisioner.backends import concurrency
from provisioner.lab.virtual.driver import VirtualClock
from provisioner.lab.virtual.run import play
from provisioner.lab.virtual.scenario import Scenario
from provisioner.lab.virtual.scenario_file import catalogue
from provisioner.model import ErrorClass
from provisioner.planning.allocate import capacity, machine_requests
from provisioner.planning.core import window_and_backoff
from provisioner.planning.observe import trust

Switch = Callable[[pytest.MonkeyPatch], None]


class Rule(NamedTuple):
    """A rule, and a scenario that shows its effect. With the rule, the measure is at most ``most``; without it,
    above."""

    scenario: str
    measure: str
    most: float
    off: Switch
    hours: float | None = None
    """The part of the scenario that is played, in hours; None: all."""


def without(module: Any, name: str, value: object) -> Switch:
    """Return a switch that turns a rule off: it sets the variable ``name`` of a module to ``value``."""
    return lambda patch: patch.setattr(module, name, value)


def every_failure_frees_room(patch: pytest.MonkeyPatch) -> None:
    room = window_and_backoff.room
    patch.setattr(
        window_and_backoff, "room", lambda window, pending, probes: room(window, pending - window.failed, probes)
    )


def each_place_seems_to_have_room(patch: pytest.MonkeyPatch) -> None:
    for module in (capacity, machine_requests):
        patch.setattr(module, "lacks_room", lambda *_: False)


def room_is_like_any_other(patch: pytest.MonkeyPatch) -> None:
    for error in (ErrorClass.STOCKOUT, ErrorClass.QUOTA):
        patch.setattr(error, "has_no_room", False)
        patch.setattr(error, "is_of_call", False)


RULES = {
    "the window grows by two with each machine that runs": Rule(
        "step", "t90_running", 384, without(window_and_backoff, "GROWTH", 1), 0.25
    ),
    "what failed keeps its room until the round is over": Rule(
        "crash-loop", "created", 130, every_failure_frees_room, 1.0
    ),
    "a round is a hundred results at most": Rule(
        "observation-old", "created", 610, without(window_and_backoff, "ROUND", 10**6)
    ),
    "where there is no room the next pool is asked at once": Rule(
        "stockout-first", "t90", 420, each_place_seems_to_have_room, 0.5
    ),
    "refusals for want of room are no failures": Rule("quota-returns", "t90_running", 600, room_is_like_any_other, 7.0),
    "after a refusal there are not more calls at once": Rule(
        "throttled", "throttled", 0.05, without(concurrency, "HOLD_SECONDS", 0.0), 0.25
    ),
    "across a restart the uptime counts, and not the wall clock": Rule(
        "clock-jumps", "created", 550, without(VirtualClock, "uptime", lambda _: None), 0.5
    ),
    "many that vanish at once are looked for again": Rule(
        "observation-empty", "created", 300, without(trust, "FEW", 10**6), 1.0
    ),
}


def measured(rule: Rule) -> float:
    """Return the rule's measure of a run. If the run has no such measure, return a number far above all bounds."""
    scenario: Scenario = catalogue()[rule.scenario]
    if rule.hours is not None:
        scenario = scenario.model_copy(update={"hours": rule.hours})
    result = play(scenario, seed=1)
    assert not result.broken, result.broken
    value = result.measures[rule.measure]
    return 1e9 if value is None else value


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_with_the_rule_it_is_good_and_without_it_is_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = RULES[name]
    with_it = measured(rule)
    rule.off(monkeypatch)
    without_it = measured(rule)
    print(f"{name}: {rule.scenario}, {rule.measure}: {with_it:g}, without {without_it:g}")
    assert with_it <= rule.most < without_it


def with_settings(scenario: Scenario, **settings: Any) -> Scenario:
    """Return the scenario with other settings of its pools and templates."""
    pools = {
        name: pool.model_copy(update={key: value for key, value in settings.items() if key in type(pool).model_fields})
        for name, pool in scenario.pools.items()
    }
    templates = {
        name: one.model_copy(update={key: value for key, value in settings.items() if key in type(one).model_fields})
        for name, one in scenario.templates.items()
    }
    return scenario.model_copy(update={"pools": pools, "templates": templates})


SETTINGS: dict[str, tuple[str, str, float, dict[str, float], float]] = {
    "the last of a request are given up": ("hangs", "t90", 600, {"straggler_seconds": 0.0}, 1.0),
    "who dies early counts against its pool": ("black-hole", "created", 320, {"early_loss_seconds": 0.0}, 1.0),
}
"""Scenario, measure, highest value of the measure, the settings that switch the rule off, and hours played."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_with_the_default_it_is_good_and_without_it_is_not(name: str) -> None:
    sim, measure, most, off, hours = SETTINGS[name]
    scenario = catalogue()[sim].model_copy(update={"hours": hours})
    values = [play(one, seed=1).measures[measure] for one in (scenario, with_settings(scenario, **off))]
    with_it, without_it = (1e9 if value is None else value for value in values)
    print(f"{name}: {sim}, {measure}: {with_it:g}, without {without_it:g}")
    assert with_it <= most < without_it
