"""Reports of many runs: percentiles, the run that is drawn, and the measures."""

from __future__ import annotations

import pytest

from provisioner.lab.virtual.measures import LAWS, MEASURES
from provisioner.lab.virtual.report import middle, percentile
from provisioner.lab.virtual.run import Provisioner, Result, play
from provisioner.lab.virtual.scenario_file import catalogue
from tests.support.hostfactory.provider import ROOT

PAGE = (ROOT / "docs" / "pressure.md").read_text()


@pytest.mark.parametrize(
    ("numbers", "p50", "p95"),
    [
        pytest.param([], None, None, id="none"),
        pytest.param([3.0], 3.0, 3.0, id="one"),
        pytest.param([4.0, 1.0, 3.0, 2.0, 5.0], 3.0, 5.0, id="five"),
        pytest.param([1.0, 2.0], 1.0, 2.0, id="two"),
        pytest.param([float(number) for number in range(1, 101)], 50.0, 95.0, id="a hundred"),
        pytest.param([1.0, None, 2.0], 2.0, None, id="what was never reached is beyond all that was"),
        pytest.param([None, None, 1.0], None, None, id="most never got there"),
    ],
)
def test_percentiles(numbers: list[float | None], p50: float | None, p95: float | None) -> None:
    assert (percentile(numbers, 0.5), percentile(numbers, 0.95)) == (p50, p95)


def test_the_middle_run_is_drawn() -> None:
    def result(seed: int, t90: float | None, cost: float) -> Result:
        return Result("own", seed, "provisioner", {"t90": t90, "cost": cost}, (), (), ())

    assert middle([result(1, None, 1.0), result(2, 60.0, 1.0), result(3, 90.0, 1.0)]).seed == 3
    assert middle([result(1, None, 9.0), result(2, None, 1.0), result(3, None, 5.0)]).seed == 3
    assert middle([result(1, 60.0, 1.0), result(2, 60.0, 1.0)]).seed == 1


def test_a_run_has_all_measures_of_the_table() -> None:
    assert set(play(catalogue()["few"], 1, Provisioner).measures) == set(MEASURES)
    assert set(LAWS) < set(MEASURES)


def test_the_page_has_the_meaning_of_each_measure() -> None:
    for name, measure in MEASURES.items():
        assert f"| `{name}` | " in PAGE
        assert f" | {measure.meaning} |\n" in PAGE
