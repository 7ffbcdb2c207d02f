"""The last step of demand in the status: its numbers and ages, and the problems that need an operator."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from provisioner.demand.service import Report
from provisioner.telemetry.demand_status import LATE_SECONDS, demand_alarms, demand_document, demand_lines

NOW = 1_700_000_000.0
NUMBERS = {"wanted": 5, "asked": 4, "running": 3, "idle": 1}


def source(age: float | None, problem: str = "") -> dict[str, object]:
    read_at = None if age is None else NOW - age
    return {"wanted": {"Small": 5}, "read_at": read_at, "problem": problem, "failures": 0, "unfit": {"8 GPUs": 2}}


def alarms(**report: object) -> list[str]:
    return [*demand_alarms(demand_document(asdict(Report(NOW - 900)) | report, NOW))]


def test_without_a_step_there_is_no_demand() -> None:
    assert demand_document({}, NOW) is None
    assert [*demand_alarms(None), *demand_lines(None)] == []


def test_the_lines_have_all_numbers() -> None:
    step = Report(
        NOW, templates={"Small": NUMBERS}, sources={"pool": source(60), "new": source(None)}, reasons=["kept"]
    )
    assert [*demand_lines(demand_document(asdict(step), NOW))] == [
        "demand for Small: 5 wanted, 4 requested, 3 running, 1 idle",
        "demand source pool: 5 Small wanted, read 60 s ago; 2 fit no template: 8 GPUs",
        "demand source new: 5 Small wanted, never read; 2 fit no template: 8 GPUs",
        "demand: kept",
    ]


@pytest.mark.parametrize("late", [LATE_SECONDS + 1, LATE_SECONDS, -30, None])
def test_a_step_that_is_long_due_needs_an_operator(late: float | None) -> None:
    found = alarms(next_at=None if late is None else NOW - late)
    assert [text.partition(" since")[0] for text in found] == ["DEMAND STOPPED"] * (late == LATE_SECONDS + 1)


def test_a_problem_of_the_step_is_named_unless_the_step_is_old() -> None:
    assert alarms(problem="requestMachines failed")[0].endswith(": requestMachines failed")
    assert [text.split()[1] for text in alarms(problem="failed", next_at=0.0)] == ["STOPPED"]


@pytest.mark.parametrize(
    ("age", "problem", "words"),
    [
        (LATE_SECONDS + 1, "away", "DEMAND SOURCE pool: last read 5 min ago, those numbers stay: away"),
        (None, "away", "DEMAND SOURCE pool: never read: away"),
        (LATE_SECONDS, "away", ""),
        (LATE_SECONDS + 1, "", ""),
    ],
)
def test_a_source_that_fails_for_long_needs_an_operator(age: float | None, problem: str, words: str) -> None:
    assert alarms(sources={"pool": source(age, problem)}) == [words][: bool(words)]


def test_a_report_that_cannot_be_read_is_an_alarm() -> None:
    (alarm,) = demand_alarms(demand_document({"problem": "demand.json: not JSON"}, NOW))
    assert alarm.startswith("DEMAND FAILS")
