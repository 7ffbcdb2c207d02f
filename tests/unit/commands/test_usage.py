"""`provisioner usage`: its days, columns and prices, and the gaps in its numbers."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands.cli import run
from provisioner.model import Budget, Limits, Memory, PoolLimits, RequestRecord, TemplateLimits
from provisioner.state.directory import StateDir
from provisioner.telemetry.pool_status import PoolStatus
from tests.support.parts import alter
from tests.unit.core import record, running

HOUR = 3_600_000
WALL = 1_795_521_600.0
"""2026-11-24, 12:00 UTC."""
NIGHT = ("T", "a", "night")
USED = {
    "2026-11-17": {("T", "a", ""): 100 * HOUR},
    "2026-11-18": {("T", "a", ""): 10 * HOUR, NIGHT: 5 * HOUR},
    "2026-11-23": {("U", "b", ""): 8 * HOUR, ("gone", "b", "day,\nnight"): HOUR},
}
PRICED = Limits(
    "",
    {"a": PoolLimits("a", price_per_hour=2.0), "b": PoolLimits("b")},
    {"T": TemplateLimits("T", ("a",)), "U": TemplateLimits("U", ("a", "b"), price_per_hour=0.5)},
    budget=Budget(per_hour=20.0, per_month=1500.0, currency="CHF"),
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    monkeypatch.setattr("time.time", lambda: WALL)
    monkeypatch.setenv("HF_PROVIDER_WORKDIR", str(tmp_path))
    return StateDir(tmp_path)


@pytest.fixture
def left(state: StateDir) -> StateDir:
    """A state directory of a loop: machines of six days, one running for two hours, prices and a budget."""
    begun = alter(running(0), submitted_at=WALL - 7200.0, ran_at=WALL - 7100.0)
    remember(state, record(begun, deadline_at=WALL))
    state.pool_status.write(asdict(PoolStatus(limits=PRICED)))
    return state


def remember(state: StateDir, *records: RequestRecord, **changes: Any) -> None:
    facts = {"time": WALL, "time_wall": WALL, "usage": USED, "usage_since_wall": WALL - 30 * 86_400} | changes
    state.memory.write(alter(Memory("demo"), requests={one.id: one for one in records}, **facts))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run(["usage", *arguments]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(shown(capsys, "-o", "json", *arguments))
    return read


def hours(capsys: pytest.CaptureFixture[str], *arguments: str) -> float:
    total: float = document(capsys, *arguments)["total"]["hours"]
    return total


def test_it_shows_the_last_week_by_everything(left: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    printed = document(capsys)
    assert (printed["since"], printed["until"]) == ("2026-11-18", "2026-11-24")
    assert printed["by"] == ["day", "template", "pool", "account"]
    assert printed["rows"] == [
        {"day": "2026-11-18", "template": "T", "pool": "a", "account": "", "hours": 10.0, "cost": 20.0},
        {"day": "2026-11-18", "template": "T", "pool": "a", "account": "night", "hours": 5.0, "cost": 10.0},
        {"day": "2026-11-23", "template": "U", "pool": "b", "account": "", "hours": 8.0, "cost": 4.0},
        {"day": "2026-11-23", "template": "gone", "pool": "b", "account": "day,\nnight", "hours": 1.0, "cost": None},
        {"day": "2026-11-24", "template": "T", "pool": "a", "account": "", "hours": 2.0, "cost": 4.0},
    ]
    assert (printed["total"], printed["unpriced_hours"]) == ({"hours": 26.0, "cost": 38.0}, 1.0)
    assert (printed["currency"], printed["counted_since"]) == ("CHF", "2026-10-25T12:00:00Z")
    assert printed["now"] == {
        "machines": 1,
        "per_hour": 2.0,
        "per_hour_budget": 20.0,
        "month": "2026-11",
        "month_cost": 238.0,
        "month_budget": 1500.0,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--since", "2026-11-17"], 126.0),
        (["--since", "1d"], 2.0),
        (["--since", "2026-11-17", "--until", "2026-11-18"], 115.0),
        (["--since", "2026-11-25"], 0.0),
        (["--since", "99999d", "--by", "pool"], 126.0),
    ],
)
def test_both_ends_are_days_that_are_included(
    left: StateDir, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: float
) -> None:
    assert hours(capsys, *arguments) == expected


@pytest.mark.parametrize("by", ["day", "account,pool", "pool,day,template"])
def test_however_it_is_grouped_the_rows_add_up(left: StateDir, capsys: pytest.CaptureFixture[str], by: str) -> None:
    printed = document(capsys, "--by", by)
    assert sum(row["hours"] for row in printed["rows"]) == printed["total"]["hours"] == 26.0
    assert sum(row["cost"] or 0.0 for row in printed["rows"]) == printed["total"]["cost"] == 38.0
    groups = [tuple(row[name] for name in printed["by"]) for row in printed["rows"]]
    assert len(groups) == len(set(groups))
    assert groups == sorted(groups)


def test_an_operator_reads_a_table(left: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--by", "pool,template").splitlines() == [
        "Machine-hours from 2026-11-18 to 2026-11-24 (UTC)",
        "  template  pool  hours    CHF",
        "  T         a     17.00  34.00",
        "  U         b      8.00   4.00",
        "  gone      b      1.00      -",
        "  total           26.00  38.00",
        "1.00 machine-hours have no price_per_hour, and count as cost 0.",
        "Now 1 machine: 2.00 of 20.00 CHF per hour; month 2026-11: 238.00 of 1500.00 CHF",
    ]


def test_a_spreadsheet_reads_rows_and_an_account_of_any_text_stays_on_its_line(
    left: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    before = left.memory.signature()
    rows = list(csv.reader(io.StringIO(shown(capsys, "-o", "csv", "--by", "account"))))
    assert rows == [
        ["account", "hours", "cost_CHF"], ["", "20.0", "28.0"], ["day,\nnight", "1.0", ""], ["night", "5.0", "10.0"]
    ]  # fmt: skip
    assert "  day, night   1.00      -" in shown(capsys, "--by", "account").splitlines()
    assert left.memory.signature() == before, "nothing is written"


def test_without_prices_there_are_hours_and_no_costs(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    remember(state)
    printed = document(capsys, "--by", "pool")
    assert printed["rows"] == [{"pool": "a", "hours": 15.0, "cost": None}, {"pool": "b", "hours": 9.0, "cost": None}]
    assert shown(capsys, "--by", "pool").splitlines()[-1] == "  total  24.00    -"


def test_a_memory_that_was_made_again_says_since_when_it_counts(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(state, usage_since_wall=WALL - 86_400)
    printed = "Counted since 2026-11-23, when memory was made; earlier usage is unknown."
    assert printed in shown(capsys)
    remember(state, usage={}, usage_since_wall=None)
    printed = "An older version made memory.json; machines that ended under this older version are not counted."
    assert printed in shown(capsys)


def test_a_wall_clock_that_was_set_forward_makes_no_hours(
    left: StateDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: WALL + 40 * 86_400)
    assert document(capsys, "--since", "2026-11-17")["total"]["hours"] <= 126.0 + 1.0


@pytest.mark.parametrize(
    "arguments",
    [["--since", "7"], ["--since", "0d"], ["--until", "7d"], ["--by", "day,owner"]],
)
def test_what_is_no_day_or_part_is_wrong_usage(
    left: StateDir, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["usage", *arguments])
    assert "expected" in capsys.readouterr().err
