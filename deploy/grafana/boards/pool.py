"""The board of one or several pools."""

from __future__ import annotations

from .questions import Board
from .rows import churn, errors, machines, pressure, speed

BOARD = Board(
    "pool",
    "HostFactory pool",
    "One or several pools: machines wanted, machines created, and the reasons of missing machines.",
    ["instance", "pool", "template"],
    [
        ("True?", machines("template", "instance pool template")),
        ("Pressure", pressure("instance pool")),
        ("Churn", churn("instance pool")),
        ("Errors", errors("instance pool")),
        ("Speed", speed("instance pool")),
    ],
)
