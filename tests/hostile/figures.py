"""A table of the attacks, printed after a run of the slow tests. It shows the cost of each attack, its limits, and its
cost when the loop had no limits yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

ATTACK = "attack"
"""The name of the property in which a test records its figures. The value is a dict of texts: the attack and the
columns."""

DESCRIPTORS, MEBIBYTES, PROBE_SECONDS, REQUEST_SECONDS = 512, 200, 15, 10
"""The limits of an attack on an idle machine: open descriptors, growth of memory, and seconds for a probe and for a
request."""

COLUMNS = {
    "descriptors": f"descriptors (≤ {DESCRIPTORS})",
    "growth": f"MiB more (< {MEBIBYTES})",
    "probe": f"slowest probe or call, s (≤ {PROBE_SECONDS})",
    "request": f"request, s (≤ {REQUEST_SECONDS})",
}

BEFORE = {
    "slow_head": "1,150 connections take all descriptors: the loop stops",
    "big_head": "2.9 GB",
    "a body that unpacks to 600 MiB": "2 to 3 GB, by 1 MB on the wire",
}
"""The cost of an attack when the loop had no limits yet, if that was measured."""


def attack_table(reports: Iterable[Any]) -> str:
    """Return the table as text; empty if no test recorded an attack."""
    rows = [value for report in reports for key, value in report.user_properties if key == ATTACK]
    if not rows:
        return ""
    from rich.console import Console  # imported here alone: every run of pytest would wait for it
    from rich.table import Table

    table = Table(ATTACK, "before", *COLUMNS.values(), title="Attacks")
    for row in sorted(rows, key=lambda row: row[ATTACK]):
        before = BEFORE.get(row[ATTACK].partition(", ")[0], "not measured")
        table.add_row(row[ATTACK], before, *(row.get(column, "") for column in COLUMNS))
    console = Console(width=140, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def show(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, unless the run had no attack."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    for line in attack_table(report for report in reports if report.when == "call").splitlines():
        terminalreporter.write_line(line)
