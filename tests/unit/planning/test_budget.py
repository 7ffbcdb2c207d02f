"""The budget holds creates back, but deletes no machine. Its hourly limit acts like a cap. Once its monthly limit is
spent, creates wait for the next month."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model import (
    Budget,
    ErrorClass,
    Failure,
    Limits,
    Memory,
    PendingReason,
    Plan,
    PoolLimits,
    TemplateLimits,
    Verdict,
)
from provisioner.planning.allocate.budget import format_used_up_budget, get_hourly_cost, get_month_cost
from tests.unit.core import (
    NOW,
    OTHER,
    REQUEST,
    TEMPLATE,
    limits,
    machine,
    memory,
    plan,
    pool,
    record,
    running,
    slot,
    snapshot,
)

HOUR = 3600.0
MONTH = 31 * 86_400.0
"""Seconds of January 1970, the first month of epoch time."""


def allowed(price: float | None = 2.0, other: float | None = None, **budget: Any) -> Limits:
    """Return limits with two pools of these prices, and a budget."""
    pools = pool("a", price_per_hour=price), pool("b", price_per_hour=other)
    return limits(*pools, budget=Budget(**budget))


def planned(count: int, there: int = 0, *, by: Limits, now: float = NOW, **changes: Any) -> Plan:
    """Return the plan for a request of ``count`` machines, of which some run in pool a."""
    slots = [running(number) for number in range(there)]
    recorded = memory(record(*slots, count=count, read_at=now, deadline_at=now + 3600), **changes)
    observations = snapshot(*map(machine, range(there)), began=now - 1), snapshot(pool="b", began=now - 1)
    return plan(recorded, *observations, limits=by, now=now)


def made(decided: Plan) -> dict[str, int]:
    return {where: sum(create.pool == where for create in decided.creates) for where in "ab"}


def test_as_many_are_asked_for_as_an_hour_pays_for() -> None:
    decided = planned(10, by=allowed(2.0, 2.0, per_hour=7.0))
    assert made(decided) == {"a": 3, "b": 0}
    assert decided.deferred == {("a", TEMPLATE, PendingReason.BUDGET): 7}
    assert not decided.deletes


@pytest.mark.parametrize(
    ("count", "there", "by", "expected"),
    [
        pytest.param(10, 0, allowed(2.0, 1.0, per_hour=7.0), {"a": 3, "b": 1}, id="a cheaper pool takes the rest"),
        pytest.param(10, 0, allowed(2.0, None, per_hour=7.0), {"a": 3, "b": 7}, id="so does one without a price"),
        pytest.param(20, 3, allowed(0.1, 0.1, per_hour=1.0), {"a": 7, "b": 0}, id="by decimal arithmetic"),
        pytest.param(10, 1, allowed(2.0, per_month=4.0), {"a": 9, "b": 0}, id="a month not spent pays for any number"),
    ],
)
def test_what_a_budget_pays_for(count: int, there: int, by: Limits, expected: dict[str, int]) -> None:
    assert made(planned(count, there, by=by)) == expected


def test_the_price_of_a_template_wins() -> None:
    by = allowed(2.0, 2.0, per_hour=7.0)
    own = replace(by, templates={TEMPLATE: replace(by.templates[TEMPLATE], price_per_hour=0.5)})
    assert made(planned(20, by=own)) == {"a": 14, "b": 0}
    assert (own.price(TEMPLATE, "a"), own.price("", "a"), own.price("", "c")) == (0.5, 2.0, None)


def test_a_machine_without_a_request_counts_by_the_price_of_its_pool() -> None:
    recorded = memory(record(count=10, read_at=NOW, deadline_at=NOW + 3600))
    observations = snapshot(machine(0, request=OTHER)), snapshot(pool="b")
    assert made(plan(recorded, *observations, limits=allowed(2.0, 2.0, per_hour=7.0))) == {"a": 2, "b": 0}


def test_a_budget_that_was_lowered_deletes_nothing() -> None:
    decided = planned(10, 8, by=allowed(2.0, 2.0, per_hour=1.0))
    assert (decided.creates, decided.deletes, decided.closes) == ((), (), ())


PRICES = st.one_of(st.none(), st.just(0.0), st.floats(0.01, 5))


@given(
    prices=st.tuples(PRICES, PRICES, PRICES, PRICES),
    there=st.integers(0, 6),
    wanted=st.lists(st.integers(0, 12), min_size=2, max_size=2),
    most=st.floats(0.05, 30),
)
def test_no_plan_asks_for_more_than_an_hour_pays_for(
    prices: tuple[float | None, ...], there: int, wanted: list[int], most: float
) -> None:
    pools = {name: PoolLimits(name, price_per_hour=price) for name, price in zip("ab", prices, strict=False)}
    templates = {
        name: TemplateLimits(name, ("a", "b"), price_per_hour=price)
        for name, price in zip((TEMPLATE, "U"), prices[2:], strict=True)
    }
    by = Limits("hf", pools, templates, budget=Budget(per_hour=most))
    one = record(*map(running, range(there)), count=there + wanted[0], deadline_at=NOW + 3600)
    other = record(id_=OTHER, template="U", count=wanted[1], deadline_at=NOW + 3600)
    decided = plan(memory(one, other), snapshot(*map(machine, range(there))), snapshot(pool="b"), limits=by)

    def rate(recorded: Memory) -> float:
        every = [(slot.pool, each.template) for each in recorded.requests.values() for slot in each.slots.values()]
        return get_hourly_cost(by, Counter(every))

    before = rate(memory(one, other))
    assert rate(decided.memory) <= max(before, most) + 1e-4
    for (where, template, reason), held_back in decided.deferred.items():
        assert reason is PendingReason.BUDGET
        assert held_back > 0
        assert rate(decided.memory) + (by.price(template, where) or 0.0) > most - 1e-4, "one more did not fit"


def test_a_month_that_is_spent_holds_what_costs_until_the_next_one_begins() -> None:
    by = allowed(2.0, None, per_month=4.0)
    yet = {"usage": {"1970-01-01": {(TEMPLATE, "a", ""): 2 * 3_600_000}}}
    decided = planned(3, by=by, **yet)
    assert made(decided) == {"a": 0, "b": 3}
    only_a = replace(by, templates={TEMPLATE: TemplateLimits(TEMPLATE, ("a",))})
    recorded = planned(3, by=only_a, **yet)
    assert (recorded.creates, recorded.deferred) == ((), {("a", TEMPLATE, PendingReason.BUDGET): 3})
    at_last = planned(3, by=only_a, now=MONTH - 60, **yet)
    assert at_last.due_at == MONTH, "the next plan is that of the next month"
    assert len(planned(3, by=only_a, now=MONTH, **yet).creates) == 3


def test_machines_that_run_count_from_the_beginning_of_the_month() -> None:
    by = allowed(2.0, 2.0)
    remembered = memory(record(running(0, submitted_at=MONTH - HOUR), running(1, submitted_at=MONTH + HOUR)))
    assert get_month_cost(remembered, by, MONTH + 3 * HOUR, 0.0) == pytest.approx(2.0 * (3 + 2))
    assert get_month_cost(remembered, by, MONTH - HOUR / 2, 0.0) == pytest.approx(1.0)
    assert get_month_cost(remembered, by, MONTH - HOUR, 4 * HOUR) == 0.0, "the wall clock says which month it is"


def test_a_request_that_the_budget_held_back_until_its_deadline_fails_with_that_reason() -> None:
    by = allowed(2.0, 2.0, per_hour=3.0)
    recorded = memory(record(running(0), count=2, deadline_at=NOW))
    decided = plan(recorded, snapshot(machine(0)), snapshot(pool="b"), limits=by)
    (close,) = decided.closes
    failure = close.slot.failure
    assert close.slot.verdict is Verdict.FAILED
    assert failure is not None
    assert (failure.error, failure.text) == (ErrorClass.QUOTA, format_used_up_budget(by))
    assert decided.memory.requests[REQUEST].ended is not None
    both = allowed(per_hour=3.0, per_month=1500.0, currency="CHF")
    assert format_used_up_budget(both).endswith("used up (3.00 CHF per hour or 1500.00 CHF per month).")


def test_creates_that_were_refused_cost_nothing_although_caps_count_them() -> None:
    denied = Failure(ErrorClass.DENIED, "no right")
    refused = [
        slot(number, verdict=Verdict.FAILED, is_accepted=False, failure=denied, closed_at=NOW) for number in range(5)
    ]
    asked = memory(record(*refused, count=3, read_at=NOW, deadline_at=NOW + 3600))
    seen = snapshot(began=NOW - 1), snapshot(pool="b", began=NOW - 1)
    assert made(plan(asked, *seen, limits=allowed(2.0, 2.0, per_hour=6.0))) == {"a": 3, "b": 0}
