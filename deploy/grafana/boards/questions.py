"""What a board asks: panels, each of which is a question, under headings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A query, and how its lines are called."""

    query: str
    name: str


@dataclass(frozen=True)
class Question:
    """A panel: what somebody asks, and what answers it."""

    title: str
    about: str
    lines: Sequence[Line]
    unit: str = "short"
    width: int = 6
    number: bool = False
    """Shown as a number and not as lines."""
    bad_from: float | None = None
    """A number from which on it is red."""
    bad_below: float | None = None
    """A number below which it is red."""


@dataclass(frozen=True)
class Board:
    """One dashboard: questions under headings."""

    name: str
    """Of its file, and with a prefix of the dashboard in Grafana."""
    title: str
    about: str
    variables: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Question]]]


def ask(title: str, about: str, query: str, name: str = "", unit: str = "short", width: int = 6) -> Question:
    """A panel of lines."""
    return Question(title, about, [Line(query, name)], unit, width)


def say(title: str, about: str, query: str, unit: str = "short", **bad: float) -> Question:
    """A number."""
    return Question(title, about, [Line(query, "")], unit, width=4, number=True, **bad)
