"""What machines cost and what they may, as ``status`` says it. Pure: no input, no output, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from provisioner.model import HOUR, Limits, Memory, PendingReason
from provisioner.planning.allocate.budget import hourly, month_cost, priced
from provisioner.planning.core.usage import month_of
from provisioner.telemetry.pool_windows import Document, lasting, local, past


def spending(memory: Memory, limits: Limits, lacks: Iterable[Document], now: float) -> dict[str, Any] | None:
    """The costs where something has a price, else None; ``lacks``: what open requests are short of.

    ``per_hour`` and ``per_month`` have ``used``, ``limit`` (None: any amount) and ``reached``; ``used`` of an hour is
    what all that is there or asked for costs, ``forecast`` of a month what it comes to if that stays. ``held``: how
    many machines the budget holds back; ``since``, ``since_seconds``: when the oldest of their requests was read.
    """
    if not priced(limits):
        return None
    budget, ahead = limits.budget, memory.written.ahead
    machines = Counter((slot.pool, record.template) for record, slot in memory.slots if not slot.deletion.gone)
    asked = hourly(limits, machines)
    spent = month_cost(memory, limits, now, ahead)
    left = max(0.0, month_of(now + ahead)[2] - (now + ahead)) / HOUR
    held = [one for one in lacks if one["reason"] == PendingReason.BUDGET]
    longest = max((one["since_seconds"] or 0.0 for one in held), default=None)
    reached = budget.per_month is not None and spent >= budget.per_month
    return {
        "currency": budget.currency,
        "per_hour": {
            "used": round(asked, 4),
            "limit": budget.per_hour,
            "reached": budget.per_hour is not None and bool(held) and not reached,
        },
        "per_month": {
            "used": round(spent, 4),
            "limit": budget.per_month,
            "reached": reached,
            "forecast": round(spent + asked * left, 4),
        },
        "held": sum(one["machines"] for one in held),
        **past(memory, "since", None if longest is None else now - longest, now),
    }


# --- for people -------------------------------------------------------------------------------------------------------


def spending_lines(seen: Document | None) -> Iterator[str]:
    """The costs beside what they may be, and what is held back; nothing where nothing has a price."""
    if seen is None:
        return
    hour, month, currency = seen["per_hour"], seen["per_month"], seen["currency"]
    yield (
        f"costs {hour['used']:.2f}{of_most(hour['limit'])} {currency} per hour; "
        f"this month {month['used']:.2f}{of_most(month['limit'])} {currency}, "
        f"{month['forecast']:.2f} at its end as it runs now"
    )
    if seen["held"]:
        which = "month" if month["reached"] else "hour"
        since = f"since {local(seen['since'])} ({lasting(seen['since_seconds'])})"
        yield f"BUDGET of the {which} holds back {seen['held']} machines {since}"


def of_most(limit: float | None) -> str:
    """What may be spent, after what was; empty for any amount."""
    return "" if limit is None else f" of {limit:g}"
