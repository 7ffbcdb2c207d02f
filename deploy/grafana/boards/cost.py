"""Machine-hours, and what they cost."""

from __future__ import annotations

from .queries import chosen, each
from .questions import Board, Line, Question, ask


def used() -> list[Question]:
    """Who uses machines."""
    return [
        ask(
            "Machine-hours in an hour, by pool",
            "Machines that are there, on average of ten minutes.",
            f"sum by (pool) (rate({chosen('machine_seconds_total')}[10m]))",
            each("pool"),
            width=12,
        ),
        ask(
            "Machine-hours in a day, by provisioner",
            "In the 24 hours before.",
            f"sum by (instance) (increase({chosen('machine_seconds_total')}[1d])) / 3600",
            each("instance"),
            width=12,
        ),
    ]


def spent() -> list[Question]:
    """What machines cost, beside what they may; in the currency of the setting ``budget``."""
    return [
        Question(
            f"Cost {words}, and its budget",
            about,
            [
                Line(f"sum by (instance) ({chosen(metric)})", f"{each('instance')} cost"),
                Line(f"sum by (instance) ({chosen('budget', per=per)})", f"{each('instance')} budget"),
            ],
            width=12,
        )
        for words, per, metric, about in (
            ("per hour", "hour", "cost_per_hour", "By price_per_hour; empty without one."),
            ("of this month", "month", "cost_this_month", "Calendar month, UTC, by the present prices."),
        )
    ]


BOARD = Board(
    "cost",
    "HostFactory cost",
    "Who uses machines, and what they cost beside the budget.",
    ["instance"],
    [("Usage", used()), ("Cost", spent())],
)
