"""One pool, or some."""

from __future__ import annotations

from .questions import Board
from .rows import churn, errors, machines, pressure, speed

BOARD = Board(
    "pool",
    "HostFactory pool",
    "One pool, or some: what is wanted there, what the place makes of it, and why not more.",
    ["instance", "pool", "template"],
    [
        ("True?", machines("template", "instance pool template")),
        ("Pressure", pressure("instance pool")),
        ("Churn", churn("instance pool")),
        ("Errors", errors("instance pool")),
        ("Speed", speed("instance pool")),
    ],
)
