"""The picture of a scenario: its lines have names, and the same run gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.lab.virtual import parallel_runs
from provisioner.lab.virtual.plots import draw
from provisioner.lab.virtual.report import Report
from provisioner.lab.virtual.scenario_file import scenarios
from tests.unit.lab.virtual.test_true_events import TINY


def drawn(path: Path, hours: float, *controllers: str) -> str:
    """Return the picture of a scenario that these controllers have played."""
    scenario = scenarios({"own": {**TINY, "hours": hours}}, "test")["own"]
    report = Report({"own": scenario})
    for controller in controllers:
        report.add(parallel_runs.played(parallel_runs.Run(scenario, 2, controller, is_drawn=True)))
    draw(report, "own", path)
    return path.with_suffix(".svg").read_text()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw a picture, and return its path without the ending."""
    path = tmp_path_factory.mktemp("first") / "own"
    drawn(path, 0.1, "provisioner", "PRP")
    return path


def test_a_picture_names_its_lines(first: Path) -> None:
    picture = first.with_suffix(".svg").read_text()
    for label in ("wanted", "usable", "running", "pending", "window", "running, PRP", "own, seed 2", "minutes"):
        assert f">{label}<" in picture


def test_a_picture_is_the_same_each_time(first: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    drawn(again, 0.1, "provisioner", "PRP")
    for ending in (".svg", ".png"):
        assert again.with_suffix(ending).read_bytes() == first.with_suffix(ending).read_bytes()


def test_a_long_run_is_drawn_in_hours_and_without_the_provisioner_there_is_no_seed(tmp_path: Path) -> None:
    picture = drawn(tmp_path / "own", 4, "PRP")
    assert ">hours<" in picture
    assert ">own<" in picture
