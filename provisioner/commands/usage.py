"""The command ``provisioner usage``: show machine-hours and their cost, by day, template, pool and account. The command
changes nothing."""

from __future__ import annotations

import argparse
import csv
import io
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Any

from provisioner.commands.shared_options import Document, UsageError, add_shared, open_state, show
from provisioner.loop.clock import LoopClock
from provisioner.model import HOUR, Limits, Memory, format_utc
from provisioner.names import format_printable
from provisioner.planning.allocate.budget import get_cost, get_hourly_cost, get_month_cost, has_prices
from provisioner.planning.core.usage import Cell, Usage, find_present_spans, get_month, get_usage, wall_day
from provisioner.state.protocols import State
from provisioner.telemetry.cost import format_limit
from provisioner.telemetry.pool_status import read_pool_status
from provisioner.telemetry.pool_windows import format_count

PARTS = ("day", "template", "pool", "account")
"""Names of the columns by which hours are summed, in the order of the output."""

Group = tuple[str, ...]


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "state-dir")
    command.add_argument("--since", type=first_day, default="7d", metavar="DATE", help="first day, or 7d (default)")
    command.add_argument("--until", type=day, metavar="DATE", help="last day (UTC), included; default today")
    command.add_argument("--by", type=parts, default=PARTS, metavar=",".join(PARTS), help="columns; default all four")
    add_shared(command, "output", outputs=("text", "csv", "json"))


def day(text: str, expected: str = "a date such as 2026-11-01") -> str:
    """Return the date in an argument. Raises ArgumentTypeError if the argument is not a date.

    ``expected``: the description of a valid argument, for the error's message.
    """
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}") from error


def first_day(text: str) -> str:
    """Return the first day of the period that an argument gives: a date, or a number of days. ``7d`` means the seven
    days that end today. Raises ArgumentTypeError."""
    if not re.fullmatch(r"[1-9][0-9]{0,4}d", text):
        return day(text, "a date such as 2026-11-01, or a number of days such as 7d")
    return (date.fromisoformat(wall_day(time.time())) - timedelta(days=int(text[:-1]) - 1)).isoformat()


def parts(text: str) -> tuple[str, ...]:
    """Return the column names that an argument lists, in the order of ``PARTS``. Raises ArgumentTypeError."""
    given = text.split(",")
    if wrong := [name for name in given if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"expected some of {','.join(PARTS)}, got {wrong[0]!r}")
    return tuple(name for name in PARTS if name in given)


def run(options: argparse.Namespace) -> int:
    """Print the usage. Raises StateError, UsageError."""
    if options.until and options.until < options.since:
        raise UsageError(f"--since {options.since}: is after {options.until}, the last day")
    document = usage(open_state(options.state_dir), options.since, options.until, options.by)
    return show(options, document, usage_csv if options.output == "csv" else usage_lines)


def usage(state: State, since: str, until: str | None, by: tuple[str, ...]) -> dict[str, Any]:
    """Return the usage from day ``since`` to day ``until``, both included. Raises StateError. Keys of the document:

    * ``rows``: the columns in ``by``, with ``hours``, and ``cost`` at present prices
    * ``total``: the sums of the rows
    * ``unpriced_hours``: hours of machines without a price
    * ``counted_since``: the time since which ended machines are counted; None before the first ended machine
    * ``now``: the number of existing machines, their cost ``per_hour``, and the cost of this ``month``, with budgets

    A ``cost`` is None if no machine of the row has a price.
    """
    memory, pool_status = state.memory.read(), read_pool_status(state)
    limits = pool_status.limits or Limits("", {}, {})
    currency = limits.budget.currency
    now, wall = LoopClock(memory).now(), time.time()
    last = until or wall_day(wall)
    days = {each: cells for each, cells in get_usage(memory, now, wall - now).items() if since <= each <= last}
    groups = grouped(days, by)
    total = sum(groups.values(), Counter[Cell]())
    return {
        "since": since,
        "until": last,
        "counted_since": None if memory.usage.since_wall is None else format_utc(memory.usage.since_wall),
        "currency": currency,
        "by": list(by),
        "rows": [{**dict(zip(by, group, strict=True)), **_sums(limits, groups[group])} for group in sorted(groups)],
        "total": _sums(limits, total),
        "unpriced_hours": _hours({cell: part for cell, part in total.items() if limits.price(*cell[:2]) is None}),
        "now": _present(memory, limits, now, wall),
    }


def grouped(days: Usage, by: tuple[str, ...]) -> Mapping[Group, Counter[Cell]]:
    """Return the machine-milliseconds by group. A group is a combination of values of the columns ``by``.

    Within a group, the machine-milliseconds are counted by template, pool and account, because prices may differ.
    """
    groups = defaultdict[Group, Counter[Cell]](Counter)
    for each, cells in days.items():
        for cell, milliseconds in cells.items():
            facts = dict(zip(PARTS, (each, *cell), strict=True))
            groups[tuple(facts[name] for name in by)][cell] += milliseconds
    return groups


def _sums(limits: Limits, cells: Mapping[Cell, int]) -> dict[str, float | None]:
    priced = any(limits.price(template, pool) is not None for template, pool, _ in cells)
    return {"hours": _hours(cells), "cost": round(get_cost(limits, cells), 4) if priced else None}


def _hours(cells: Mapping[Cell, int]) -> float:
    return round(sum(cells.values()) / 1000 / HOUR, 4)


def _present(memory: Memory, limits: Limits, now: float, wall: float) -> dict[str, Any]:
    machines = Counter((pool, template) for (template, pool, _), _ in find_present_spans(memory, now))
    return {
        "machines": machines.total(),
        "per_hour": round(get_hourly_cost(limits, machines), 4) if has_prices(limits) else None,
        "per_hour_budget": limits.budget.per_hour,
        "month": get_month(wall)[0].rstrip("-"),
        "month_cost": round(get_month_cost(memory, limits, now, wall - now), 4) if has_prices(limits) else None,
        "month_budget": limits.budget.per_month,
    }


# --- text for a terminal or a spreadsheet -----------------------------------------------------------------------------


def usage_csv(document: Document) -> list[str]:
    """Return the rows as CSV. The title of the cost column names the currency."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*document["by"], "hours", f"cost_{document['currency']}"])
    table.writerows([*map(row.get, document["by"]), row["hours"], row["cost"]] for row in document["rows"])
    return [text.getvalue().rstrip("\n")]


def usage_lines(document: Document) -> Iterator[str]:
    """Yield the lines for a terminal: a table and remarks."""
    names = document["by"]
    lines = [[*names, "hours", document["currency"]]]
    lines += [[*(format_printable(row[name]) or "-" for name in names), *_numbers(row)] for row in document["rows"]]
    lines.append(["total", *[""] * (len(names) - 1), *_numbers(document["total"])])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    yield f"Machine-hours from {document['since']} to {document['until']} (UTC)"
    sides = ["<"] * len(names) + [">"] * 2
    for line in lines:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)]
        yield f"  {'  '.join(cells)}"
    yield from _remarks(document)


def _numbers(sums: Document) -> tuple[str, str]:
    return f"{sums['hours']:.2f}", "-" if sums["cost"] is None else f"{sums['cost']:.2f}"


def _remarks(document: Document) -> Iterator[str]:
    since, now, currency = document["counted_since"], document["now"], document["currency"]
    if since is None:
        yield "An older version made memory.json; machines that ended under this older version are not counted."
    elif since[:10] >= document["since"]:
        yield f"Counted since {since[:10]}, when memory was made; earlier usage is unknown."
    if document["unpriced_hours"] and document["total"]["cost"] is not None:
        yield f"{document['unpriced_hours']:.2f} machine-hours have no price_per_hour, and count as cost 0."
    if now["per_hour"] is None:
        return
    machines = format_count(now["machines"], "machine")
    yield (
        f"Now {machines}: {now['per_hour']:.2f}{format_limit(now['per_hour_budget'])} {currency} per hour; "
        f"month {now['month']}: {now['month_cost']:.2f}{format_limit(now['month_budget'])} {currency}"
    )
