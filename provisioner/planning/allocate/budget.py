"""The budget: what machines cost, and how many more may be asked for. No I/O, no clock, no logger.

It binds as a cap does, by the hour on what is there or asked for, by the month on what machines have cost; it holds
back creates, and deletes nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property

from provisioner.hostfactory import MAX_NUMBER
from provisioner.model import HOUR, Limits, Memory
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.usage import Cell, month_of, there

PART = 1e-6
"""Of a machine: prices are no binary fractions, and ten times 0.1 is to fit into 1."""


def priced(limits: Limits) -> bool:
    """Some template or pool has a price."""
    prices = [one.price_per_hour for one in limits.templates.values()]
    return {None} < {None, *prices, *(one.price_per_hour for one in limits.pools.values())}


def hourly(limits: Limits, machines: Mapping[tuple[str, str], int]) -> float:
    """What machines cost in an hour together; they are counted by pool and template."""
    return math.fsum(count * (limits.price(template, pool) or 0.0) for (pool, template), count in machines.items())


def cost(limits: Limits, cells: Mapping[Cell, float]) -> float:
    """What milliseconds of machines cost, by the present prices; without a price, nothing."""
    return math.fsum(
        milliseconds / 1000 / HOUR * (limits.price(template, pool) or 0.0)
        for (template, pool, _), milliseconds in cells.items()
    )


def month_cost(memory: Memory, limits: Limits, now: float, ahead: float) -> float:
    """What the machines of this calendar month have cost until ``now``."""
    days, begins, _ = month_of(now + ahead)
    cells = Counter[Cell]()
    for cell, one in there(memory, now):
        cells[cell] += max(0, round((one.end - max(one.begin, begins - ahead)) * 1000))
    gone = [used for day, used in memory.usage.days.items() if day.startswith(days)]
    return cost(limits, cells) + math.fsum(cost(limits, used) for used in gone)


class Purse:
    """How many more machines the budget pays for, while a plan asks for more."""

    def __init__(self, draft: Draft, occupied: Mapping[tuple[str, str], int]) -> None:
        """``occupied``: what is there or asked for, by pool and template; the caller keeps it up to date."""
        self._draft, self._occupied = draft, occupied

    def machines(self, pool: str, template: str) -> int:
        """How many more machines of the template the pool may be asked for."""
        limits = self._draft.limits
        each, most = limits.price(template, pool), limits.budget.per_hour
        if not each:
            return MAX_NUMBER
        if self._month_is_spent:
            return 0
        return MAX_NUMBER if most is None else self._affordable(most, each)

    def _affordable(self, most: float, each: float) -> int:
        unknown = {(pool, ""): len(names) for pool, names in self._draft.unknown.items()}
        left = most - hourly(self._draft.limits, self._occupied) - hourly(self._draft.limits, unknown)
        return max(0, min(MAX_NUMBER, math.floor(left / each + PART)))

    @cached_property
    def _month_is_spent(self) -> bool:
        """This month's budget is used up: the next plan that finds otherwise is that of the next month."""
        draft, most = self._draft, self._draft.limits.budget.per_month
        if most is None or month_cost(draft.before, draft.limits, draft.now, draft.ahead) < most:
            return False
        draft.wake_at(month_of(draft.now + draft.ahead)[2] - draft.ahead)
        return True


def spent(limits: Limits) -> str:
    """That the budget holds machines back, in words for people."""
    budget = limits.budget
    parts = ((budget.per_hour, "hour"), (budget.per_month, "month"))
    words = " or ".join(f"{most:g} {budget.currency} per {unit}" for most, unit in parts if most is not None)
    return f"The provisioner's budget is used up ({words})."
