"""The content of a board: headings, and panels under each heading. A panel answers a question of an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A query, and the name of the lines that Grafana draws from its result."""

    query: str
    name: str


@dataclass(frozen=True)
class Question:
    """A panel: an operator's question, and the queries that answer the question."""

    title: str
    about: str
    lines: Sequence[Line]
    unit: str = "short"
    width: int = 6
    number: bool = False
    """True if the panel shows the newest value as a number; False if it shows values as lines."""
    bad_from: float | None = None
    """The number from which on the panel is red; None if no number is too high."""
    bad_below: float | None = None
    """The number below which the panel is red; None if no number is too low."""


@dataclass(frozen=True)
class Board:
    """A dashboard: questions under headings."""

    name: str
    """The name of the JSON file. With a prefix, also the id of the dashboard in Grafana."""
    title: str
    about: str
    variables: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Question]]]


def line_question(title: str, about: str, query: str, name: str = "", unit: str = "short", width: int = 6) -> Question:
    """Return a panel that shows values as lines."""
    return Question(title, about, [Line(query, name)], unit, width)


def number_question(title: str, about: str, query: str, unit: str = "short", **bad: float) -> Question:
    """Return a panel that shows one number. ``bad``: ``bad_from=NUMBER`` or ``bad_below=NUMBER``, if the panel has to
    be red from this number on or below this number."""
    return Question(title, about, [Line(query, "")], unit, width=4, number=True, **bad)
