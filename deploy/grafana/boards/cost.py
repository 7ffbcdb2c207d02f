"""The board of machine-hours and their costs."""

from __future__ import annotations

from .queries import label_value, selector
from .questions import Board, Line, Question, line_question


def usage_questions() -> list[Question]:
    """Return the panels of machine-hours."""
    return [
        line_question(
            "Machine-hours in an hour, by pool",
            "Number of machines that exist, averaged over ten minutes.",
            f"sum by (pool) (rate({selector('machine_seconds_total')}[10m]))",
            label_value("pool"),
            width=12,
        ),
        line_question(
            "Machine-hours in a day, by provisioner",
            "Sum over the last 24 hours.",
            f"sum by (instance) (increase({selector('machine_seconds_total')}[1d])) / 3600",
            label_value("instance"),
            width=12,
        ),
    ]


def cost_questions() -> list[Question]:
    """Return the panels of costs and budgets, in the currency of the setting ``budget``."""
    return [
        Question(
            f"Cost {words}, and its budget",
            about,
            [
                Line(f"sum by (instance) ({selector(metric)})", f"{label_value('instance')} cost"),
                Line(f"sum by (instance) ({selector('budget', per=per)})", f"{label_value('instance')} budget"),
            ],
            width=12,
        )
        for words, per, metric, about in (
            ("per hour", "hour", "cost_per_hour", "Cost at each pool's price_per_hour; empty if no pool has a price."),
            ("of this month", "month", "cost_this_month", "Cost of this calendar month (UTC) at the present prices."),
        )
    ]


BOARD = Board(
    "cost",
    "HostFactory cost",
    "Machine-hours by pool and provisioner, and costs beside the budget.",
    ["instance"],
    [("Usage", usage_questions()), ("Cost", cost_questions())],
)
