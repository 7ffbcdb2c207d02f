"""The costs of machines and their budgets, as ``status`` shows them. The functions are pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from provisioner.model import HOUR, Limits, Memory, PendingReason
from provisioner.planning.allocate.budget import get_hourly_cost, get_month_cost, has_prices
from provisioner.planning.core.usage import get_month
from provisioner.telemetry.pool_windows import Document, format_count, format_local_time, past_fields


def spending(memory: Memory, limits: Limits, unmet: Iterable[Document], now: float) -> dict[str, Any] | None:
    """Return costs and budgets; None if no pool has a price.

    * ``per_hour``: the cost of the machines that exist or were requested.
    * ``per_month``: the cost of this month. ``forecast``: the month's cost if these machines keep running.
    * ``held_back``: the number of machines that the budget holds back.
    * ``since``: when the budget began to hold back the first of them.
    """
    if not has_prices(limits):
        return None
    budget, ahead = limits.budget, memory.written.ahead
    machines = Counter((slot.pool, record.template) for record, slot in memory.slots if slot.may_cost)
    hour_used = get_hourly_cost(limits, machines)
    month_used = get_month_cost(memory, limits, now, ahead)
    hours_left = max(0.0, get_month(now + ahead)[2] - (now + ahead)) / HOUR
    held_back = [one for one in unmet if one["reason"] == PendingReason.BUDGET]
    longest = max((one["since_seconds"] or 0.0 for one in held_back), default=None)
    month_reached = budget.per_month is not None and month_used >= budget.per_month
    hour_reached = budget.per_hour is not None and bool(held_back) and not month_reached
    hour = {"used": round(hour_used, 4), "limit": budget.per_hour, "reached": hour_reached}
    month = {"used": round(month_used, 4), "limit": budget.per_month, "reached": month_reached}
    return {
        "currency": budget.currency,
        "per_hour": hour,
        "per_month": month | {"forecast": round(month_used + hour_used * hours_left, 4)},
        "held_back": sum(one["machines"] for one in held_back),
        **past_fields(memory, "since", None if longest is None else now - longest, now),
    }


# --- for operators ----------------------------------------------------------------------------------------------------


def spending_lines(costs: Document | None) -> Iterator[str]:
    """Yield the line with costs and budgets. If no pool has a price, yield no line."""
    if costs is None:
        return
    hour, month, currency = costs["per_hour"], costs["per_month"], costs["currency"]
    yield (
        f"costs {hour['used']:.2f}{format_limit(hour['limit'])} {currency} per hour; "
        f"this month {month['used']:.2f}{format_limit(month['limit'])} {currency}, "
        f"{month['forecast']:.2f} at the end if these machines stay"
    )


def budget_alarm(costs: Document | None) -> str:
    """Return a sentence about the used-up budget and the machines that the budget holds back; empty if no budget is
    used up."""
    if costs is None or not (costs["held_back"] or costs["per_month"]["reached"]):
        return ""
    name = "month" if costs["per_month"]["reached"] else "hour"
    part, setting = costs[f"per_{name}"], f"budget.per_{name}"
    effect = "no machine is made"
    if costs["held_back"]:
        effect = f"{format_count(costs['held_back'], 'machine')} held back since {format_local_time(costs['since'])}"
    used = f"{part['used']:.2f}{format_limit(part['limit'])} {costs['currency']}"
    end = "the next month" if name == "month" else "machines are returned"
    return f"BUDGET of the {name} is used up ({used}): {effect}, until {end} or until {setting} is raised"


def format_limit(limit: float | None) -> str:
    """Return the words ``of LIMIT``, which stand after a used amount; empty if there is no limit."""
    return "" if limit is None else f" of {limit:.2f}"
