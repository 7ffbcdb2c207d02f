"""The drill. For each incident, the first screen and the alerts lead an operator to the cause and to the right step."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container
from functools import cache
from pathlib import Path

import pytest

from tests.drill.drawn import draw
from tests.drill.incidents import INCIDENTS, LACKS, UNRUNG
from tests.drill.play import Seen, firing, play
from tests.integration.test_alerts import PROMTOOL

Play = Callable[[int], Seen]
pytestmark = pytest.mark.slow
ALERTS = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Return a function that returns the outputs of an incident. It plays each incident only once."""

    @cache
    def once(number: int) -> Seen:
        return play(INCIDENTS[number], tmp_path_factory.mktemp("drill"))

    return once


def test_every_incident_has_its_name_and_there_are_36_kinds() -> None:
    names = [one.name for one in INCIDENTS]
    assert len({*names}) == len(names) >= 36


def each(lacks: Container[str]) -> list[object]:
    """Return the numbers of all incidents as test parameters. The test is expected to fail for the incidents in
    ``lacks``."""
    return [
        pytest.param(number, id=one.name, marks=[pytest.mark.xfail(strict=True)] if one.name in lacks else [])
        for number, one in enumerate(INCIDENTS)
    ]


@pytest.mark.parametrize("number", each(LACKS))
def test_the_first_screen_names_the_cause_and_the_right_step(played: Play, number: int) -> None:
    seen = played(number)
    assert seen.mistakes(INCIDENTS[number]) == [], seen.screen


@PROMTOOL
@pytest.mark.parametrize("number", each(UNRUNG))
def test_an_alert_fires_within_two_minutes_or_the_page_says_why_not(played: Play, number: int) -> None:
    ((before, after),), incident = firing([played(number)]), INCIDENTS[number]
    rung = [name for name in after - before if incident.alert and re.fullmatch(incident.alert, name)]
    assert rung or (incident.silent and f"**{incident.silent}" in ALERTS), (before, after)


SEED = int(os.environ.get("DRILL_SEED", "1"))
DRAWN = 24


def test_status_alone_finds_95_of_100_drawn_incidents_and_never_offers_a_wrong_step(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Draw incidents by the seed DRILL_SEED, and print a table of them. The first screen must name the cause of at
    least 95 % of them. It must never offer a wrong step."""
    rows = []
    for incident in draw(SEED, DRAWN):
        seen = play(incident, tmp_path_factory.mktemp("drawn"))
        rows.append((incident.name, seen.mistakes(incident), seen.wrong_steps(incident)))
    for name, mistakes, _ in rows:
        print(f"{name:50} {'; '.join(mistakes) or 'found'}")
    missed = [f"{name}: {mistakes}" for name, mistakes, _ in rows if mistakes]
    assert [name for name, _, wrong in rows if wrong] == []
    assert len(missed) <= 0.05 * len(rows), missed
