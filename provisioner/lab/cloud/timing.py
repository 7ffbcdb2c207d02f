"""Delays in the embedded cloud, and their form in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

Delay = tuple[float, float]
"""Median and 95th percentile of a lognormal delay in seconds. A median of 0 means no delay."""

T = TypeVar("T")


def parse_timings(kind: type[T], document: Mapping[str, Any]) -> T:
    """Return a dataclass of the type ``kind`` from JSON. Its fields are seconds or delays.

    A delay is a number (no random spread) or [median, 95th percentile]. Raise ValueError with the field's name for a
    mistake.
    """
    delays = {entry.name: isinstance(entry.default, tuple) for entry in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name not in delays:
            raise ValueError(f"{name}: unknown timing; known: {', '.join(sorted(delays))}")
        values[name] = _delay(name, value) if delays[name] else parse_seconds(name, value)
    return kind(**values)


def parse_seconds(name: str, value: object) -> float:
    """Parse a number of seconds. Raise ValueError with the field's name for a mistake."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ValueError(f"{name}: expected seconds ≥ 0, got {value!r}")
    return float(value)


def _delay(name: str, value: object) -> Delay:
    if not isinstance(value, (list, tuple)):
        return parse_seconds(name, value), parse_seconds(name, value)
    if len(value) != 2:
        raise ValueError(f"{name}: expected seconds or [median, 95th percentile], got {value!r}")
    return parse_seconds(name, value[0]), parse_seconds(name, value[1])
