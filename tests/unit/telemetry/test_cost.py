"""The costs of machines and their budgets, as ``status`` and the status page show them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import Budget, ErrorClass, Failure, Limits, Memory, Verdict
from provisioner.telemetry.cost import budget_alarm, spending, spending_lines
from provisioner.telemetry.pool_windows import Document
from tests.support.parts import alter
from tests.unit.core import limits, memory, pool, record, running, slot, unsent

MARCH_30 = 1_774_828_800.0
"""30 March 2026, 00:00 UTC: two days before the month ends."""
HELD_BACK = {"reason": "budget", "machines": 3, "since_seconds": 90.0}


def memory_of(machines: int) -> Memory:
    """Return a memory of machines that have run for an hour. One more machine was requested and is not yet seen."""
    ones = [
        running(number, ran_at=-3600.0, submitted_at=-3600.0, was_seen=True, opened_at=-3600.0)
        for number in range(machines)
    ]
    return alter(memory(record(*ones, slot(machines, submitted_at=0.0))), time=0.0, time_wall=MARCH_30)


def priced(**budget: float) -> Limits:
    return replace(limits(pool("a", price_per_hour=2.0)), budget=Budget(currency="EUR", **budget))


def get_spending(allowed: Limits, *unmet: Document) -> Document:
    seen = spending(memory_of(4), allowed, unmet, 0.0)
    assert seen is not None
    return seen


def test_costs_per_hour_of_the_month_and_the_forecast() -> None:
    seen = get_spending(priced(per_hour=20.0, per_month=1000.0))
    assert seen["per_hour"] == {"used": 10.0, "limit": 20.0, "reached": False}
    assert seen["per_month"] == {"used": 8.0, "limit": 1000.0, "reached": False, "forecast": 8.0 + 48 * 10.0}
    assert (seen["currency"], seen["held_back"], seen["since"]) == ("EUR", 0, None)
    assert list(spending_lines(seen)) == [
        "costs 10.00 of 20.00 EUR per hour; this month 8.00 of 1000.00 EUR, 488.00 at the end if these machines stay"
    ]


@pytest.mark.parametrize(
    ("budget", "which"),
    [
        pytest.param({"per_hour": 10.0, "per_month": 1000.0}, "hour", id="the hour's"),
        pytest.param({"per_hour": 10.0, "per_month": 8.0}, "month", id="the month's"),
    ],
)
def test_the_budget_that_holds_machines_back_has_their_number_and_time(budget: dict[str, float], which: str) -> None:
    seen = get_spending(
        priced(**budget), HELD_BACK, {**HELD_BACK, "since_seconds": 30.0}, {**HELD_BACK, "reason": "cap"}
    )
    assert (seen["held_back"], seen["since"], seen["since_seconds"]) == (6, "2026-03-29T23:58:30Z", 90.0)
    assert [part for part in ("hour", "month") if seen[f"per_{part}"]["reached"]] == [which]
    used = "10.00 of 10.00" if which == "hour" else "8.00 of 8.00"
    line = budget_alarm(seen)
    assert line.startswith(f"BUDGET of the {which} is used up ({used} EUR): 6 machines held back since ")
    end = "the next month" if which == "month" else "machines are returned"
    assert line.endswith(f", until {end} or until budget.per_{which} is raised")


def test_a_budget_of_the_month_that_is_used_up_is_an_alarm_before_a_machine_waits_for_it() -> None:
    assert not budget_alarm(get_spending(priced(per_month=9.0)))
    line = budget_alarm(get_spending(priced(per_month=8.0)))
    assert line.endswith(
        "(8.00 of 8.00 EUR): no machine is made, until the next month or until budget.per_month is raised"
    )


def test_a_create_that_was_refused_costs_nothing() -> None:
    refused = slot(2, verdict=Verdict.FAILED, is_accepted=False, failure=Failure(ErrorClass.DENIED, "no right"))
    late = slot(3, verdict=Verdict.FAILED, is_accepted=False, failure=Failure(ErrorClass.TIMEOUT, "no answer"))
    seen = spending(alter(memory(record(running(0), unsent(1), refused, late, count=4)), time=0.0), priced(), [], 0.0)
    assert seen is not None
    assert seen["per_hour"]["used"] == 4.0, "the create without an answer may have made a machine"


def test_without_a_price_there_are_no_costs() -> None:
    assert spending(memory_of(1), limits(pool("a")), [], 0.0) is None
    assert list(spending_lines(None)) == []
