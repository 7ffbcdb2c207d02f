"""What machines cost and what they may, as ``status`` and the status page say it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import Budget, Limits, Memory
from provisioner.telemetry.cost import spending, spending_lines
from provisioner.telemetry.pool_windows import Document
from tests.support.parts import alter
from tests.unit.core import limits, memory, pool, record, running, slot

MARCH_30 = 1_774_828_800.0
"""30 March 2026, 00:00 UTC: two days before the month ends."""
HELD = {"reason": "budget", "machines": 3, "since_seconds": 90.0}


def held(machines: int) -> Memory:
    """So many that run since an hour before, and one that is asked for and not seen."""
    ones = [running(number, ran=-3600.0, submitted=-3600.0, seen=True, opened=-3600.0) for number in range(machines)]
    return alter(memory(record(*ones, slot(machines, submitted=0.0))), time=0.0, time_wall=MARCH_30)


def priced(**budget: float) -> Limits:
    return replace(limits(pool("a", price_per_hour=2.0)), budget=Budget(currency="EUR", **budget))


def told(allowed: Limits, *lacks: Document) -> Document:
    seen = spending(held(4), allowed, lacks, 0.0)
    assert seen is not None
    return seen


def test_what_is_there_or_asked_for_what_was_spent_and_what_the_month_comes_to() -> None:
    seen = told(priced(per_hour=20.0, per_month=1000.0))
    assert seen["per_hour"] == {"used": 10.0, "limit": 20.0, "reached": False}
    assert seen["per_month"] == {"used": 8.0, "limit": 1000.0, "reached": False, "forecast": 8.0 + 48 * 10.0}
    assert (seen["currency"], seen["held"], seen["since"]) == ("EUR", 0, None)
    assert list(spending_lines(seen)) == [
        "costs 10.00 of 20 EUR per hour; this month 8.00 of 1000 EUR, 488.00 at its end if these machines stay"
    ]


@pytest.mark.parametrize(
    ("budget", "which"),
    [
        pytest.param({"per_hour": 10.0, "per_month": 1000.0}, "hour", id="the hour's"),
        pytest.param({"per_hour": 10.0, "per_month": 8.0}, "month", id="the month's"),
    ],
)
def test_it_is_said_which_budget_holds_machines_back_how_many_and_since_when(
    budget: dict[str, float], which: str
) -> None:
    seen = told(priced(**budget), HELD, {**HELD, "since_seconds": 30.0}, {**HELD, "reason": "cap"})
    assert (seen["held"], seen["since"], seen["since_seconds"]) == (6, "2026-03-29T23:58:30Z", 90.0)
    assert [part for part in ("hour", "month") if seen[f"per_{part}"]["reached"]] == [which]
    _, line = spending_lines(seen)
    assert line.startswith(f"BUDGET of the {which} holds back 6 machines since ")


def test_nothing_is_said_where_nothing_has_a_price() -> None:
    assert spending(held(1), limits(pool("a")), [], 0.0) is None
    assert list(spending_lines(None)) == []
