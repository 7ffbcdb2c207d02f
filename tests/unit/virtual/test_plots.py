"""The picture of a scenario: the same bytes each time, with a line for all that is drawn."""

from __future__ import annotations

from pathlib import Path

from provisioner.virtual import trial
from provisioner.virtual.plots import draw
from provisioner.virtual.report import Report
from provisioner.virtual.scenario_file import scenarios
from tests.unit.virtual.test_ledger import TINY


def drawn(path: Path, hours: float, *controllers: str) -> str:
    """The picture of a scenario that these have played."""
    scenario = scenarios({"own": {**TINY, "hours": hours}}, "test")["own"]
    report = Report({"own": scenario})
    for controller in controllers:
        report.add(trial.played(trial.Run(scenario, 2, controller, drawn=True)))
    draw(report, "own", path)
    return path.with_suffix(".svg").read_text()


def test_a_picture_is_the_same_each_time_and_names_its_lines(tmp_path: Path) -> None:
    one, other = (drawn(tmp_path / name, 0.1, "provisioner", "PRP") for name in ("one", "other"))
    assert one == other
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()
    for label in ("wanted", "usable", "running", "pending", "window", "running, PRP", "own, seed 2", "minutes"):
        assert f">{label}<" in one


def test_a_long_run_is_drawn_in_hours_and_without_the_provisioner_there_is_no_seed(tmp_path: Path) -> None:
    picture = drawn(tmp_path / "own", 4, "PRP")
    assert ">hours<" in picture
    assert ">own<" in picture
