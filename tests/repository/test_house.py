"""The measures of ``make house`` and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from provisioner import names
from provisioner.lab.virtual import scenario_file
from tests import house
from tests.house import House, Row, budgets
from tests.support.entered import count, entered

GRANTED = "[house]\ncode_lines = 5\ncode_lines_goal = 3\n"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Return an empty list of measures. A test adds rows to the list, and ``make house`` then judges these rows."""
    rows: list[Row] = []
    monkeypatch.setattr(house, "house", lambda: House({}, frozenset()))
    monkeypatch.setattr(house, "refused", lambda *_: [])
    monkeypatch.setattr(house, "rows", lambda *_: rows)
    return rows


@pytest.mark.parametrize(
    ("row", "code"),
    [
        pytest.param(Row("lines of code", 6, 5, 3), 1, id="a limit that is exceeded fails"),
        pytest.param(Row("lines of code", 5, 5, 3), 0, id="a goal that is missed does not fail"),
        pytest.param(Row("lines of code", 6, None, 3), 0, id="a measure without a limit does not fail"),
    ],
)
def test_a_limit_fails_and_a_goal_is_shown(
    measured: list[Row], row: Row, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    measured.append(row)
    assert house.main() == code
    assert ("Too many lines of code: 6, and the limit is 5." in capsys.readouterr().out) == (code == 1)


def test_a_budget_is_read_from_setup_cfg() -> None:
    assert budgets(GRANTED) == {"code_lines": 5, "code_lines_goal": 3}


def test_the_code_of_the_core_is_within_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.py").write_text('"""A docstring."""\n\nA = 1  # a comment\nB = [\n    2,\n]\n')
    files: Mapping[str, Path] = {"provisioner.one": tmp_path / "one.py", "provisioner.lab.one": tmp_path / "one.py"}
    monkeypatch.setattr(house, "ways", lambda _: {})
    found = {row.name: row for row in house.rows(House(files, frozenset()), budgets(GRANTED))}
    assert found["lines of code"] == Row("lines of code", 4, 5, 3)
    assert found["lines of code with the laboratory"].measured == 8
    assert found["modules under 60 lines"].measured == 1


def test_modules_that_reach_each_other_inside_a_room_are_a_circle() -> None:
    arrows = {("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("x", "y"), ("y", "x")}
    named = {(f"provisioner.state.{one}", f"provisioner.state.{other}") for one, other in arrows}
    across = {("provisioner.state.d", "provisioner.model.e"), ("provisioner.model.e", "provisioner.state.d")}
    here = House({one: Path() for pair in named | across for one in pair}, named | across)
    assert here.circles_inside() == [
        ["provisioner.state.a", "provisioner.state.b", "provisioner.state.c"],
        ["provisioner.state.x", "provisioner.state.y"],
    ]


def test_only_functions_of_the_product_count_as_entered() -> None:
    functions = entered(lambda: (names.short_name("a.b"), names.short_name("c.d"), scenario_file.catalogue()))
    of_names = {code for code in functions if code.co_filename == names.__file__}
    assert count(of_names) == (1, 1)
    assert {code.co_name for code in of_names} == {"short_name"}
    assert not [code for code in functions if "/lab/" in code.co_filename or "/tests/" in code.co_filename]
