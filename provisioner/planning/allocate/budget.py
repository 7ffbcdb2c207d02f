"""Budget: the cost of machines, and the number of further machines that the budget pays for.

If the budget is used up, the plan holds creates back, but deletes no machine. The hourly limit applies to the cost of
all machines that exist or were requested. The monthly limit applies to the cost of machines in this month so far.

The module uses no I/O, clock or logger.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property

from provisioner.hostfactory import MAX_NUMBER
from provisioner.model import HOUR, Limits, Memory
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.usage import Cell, find_present_spans, get_month

TOLERANCE = 1e-6
"""Fraction of a machine. It is added to the affordable number of machines before this number is rounded down, because
prices have rounding errors. For example, ten machines at 0.1 must fit into a budget of 1."""


def has_prices(limits: Limits) -> bool:
    """Return whether any template or pool has a price."""
    prices = [one.price_per_hour for one in limits.templates.values()]
    return {None} < {None, *prices, *(one.price_per_hour for one in limits.pools.values())}


def get_hourly_cost(limits: Limits, machines: Mapping[tuple[str, str], int]) -> float:
    """Return the hourly cost of ``machines``, the numbers of machines by pool and template."""
    return math.fsum(count * (limits.price(template, pool) or 0.0) for (pool, template), count in machines.items())


def get_cost(limits: Limits, cells: Mapping[Cell, float]) -> float:
    """Return the cost of ``cells`` at the prices configured now. A cell without a price costs 0.

    ``cells``: milliseconds of machine time by template, pool and account.
    """
    return math.fsum(
        milliseconds / 1000 / HOUR * (limits.price(template, pool) or 0.0)
        for (template, pool, _), milliseconds in cells.items()
    )


def get_month_cost(memory: Memory, limits: Limits, now: float, ahead: float) -> float:
    """Return the cost of machines in this calendar month (UTC) until ``now``. ``ahead``: seconds by which the wall
    clock is ahead of loop time."""
    days, begins, _ = get_month(now + ahead)
    cells = Counter[Cell]()
    for cell, one in find_present_spans(memory, now):
        cells[cell] += max(0, round((one.end - max(one.begin, begins - ahead)) * 1000))
    gone = [used for day, used in memory.usage.days.items() if day.startswith(days)]
    return get_cost(limits, cells) + math.fsum(get_cost(limits, used) for used in gone)


class BudgetLeft:
    """Counter of the machines that the budget still pays for while a plan requests more machines."""

    def __init__(self, draft: Draft, occupied: Mapping[tuple[str, str], int]) -> None:
        """Store the machines that count against the budget.

        ``occupied``: the number of machines that exist or were requested, by pool and template. The caller must update
        this mapping after each request for a machine.
        """
        self._draft, self._occupied = draft, occupied

    def machines(self, pool: str, template: str) -> int:
        """Return how many more machines of the template may be requested from the pool; ``MAX_NUMBER`` if the budget
        sets no limit."""
        limits = self._draft.limits
        each, most = limits.price(template, pool), limits.budget.per_hour
        if not each:
            return MAX_NUMBER
        if self._month_is_spent:
            return 0
        return MAX_NUMBER if most is None else self._affordable(most, each)

    def _affordable(self, most: float, each: float) -> int:
        unknown = {(pool, ""): len(names) for pool, names in self._draft.unknown.items()}
        left = most - get_hourly_cost(self._draft.limits, self._occupied) - get_hourly_cost(self._draft.limits, unknown)
        left += get_hourly_cost(self._draft.limits, self._refused)
        return max(0, min(MAX_NUMBER, math.floor(left / each + TOLERANCE)))

    @cached_property
    def _refused(self) -> Counter[tuple[str, str]]:
        """Return the number of slots whose create was refused, by pool and template.

        Such a slot costs nothing, although ``occupied`` contains it until its machine is proven gone.
        """
        slots = self._draft.slots()
        return Counter([(one.pool, record.template) for record, one in slots if one.may_exist and not one.may_cost])

    @cached_property
    def _month_is_spent(self) -> bool:
        """Return whether this month's budget is used up. If so, ask for a plan at the start of the next month."""
        draft, most = self._draft, self._draft.limits.budget.per_month
        if most is None or get_month_cost(draft.before, draft.limits, draft.now, draft.ahead) < most:
            return False
        draft.wake_at(get_month(draft.now + draft.ahead)[2] - draft.ahead)
        return True


def format_used_up_budget(limits: Limits) -> str:
    """Return the message about machines that the loop does not request because the budget is used up."""
    budget = limits.budget
    parts = ((budget.per_hour, "hour"), (budget.per_month, "month"))
    amounts = " or ".join(f"{most:.2f} {budget.currency} per {unit}" for most, unit in parts if most is not None)
    return f"The provisioner's budget is used up ({amounts})."
