"""HostFactory's own files, calls and environment, and what it is told; the scripts import this at each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MAX_NUMBER = 10_000
"""HF's own upper limit for a template's maxNumber; it also stands for "unlimited" (docs/hostfactory.md: maxNumber)."""


class Answer(NamedTuple):
    """One request's entry in getRequestStatus."""

    text: str
    """A JSON object."""
    ended: bool
    """The status is terminal."""


class Loss(NamedTuple):
    """A machine that HF has to give back: it is gone, will be, or is too old."""

    grace: int
    """Seconds left; 0 = already gone."""
    cause: str = "unknown"
    """One word for why."""


class Recorded(NamedTuple):
    """What was recorded of a call."""

    id: str
    silent: float | None
    """Seconds since the loop's last sign of life; None where there never was one, or nobody can say."""


class Polled(NamedTuple):
    """What HF is told of the requests it asks for."""

    answers: Mapping[str, Answer | None]
    """By id. None: recorded, and not published yet; an id that nobody knows is left out."""
    silent: float | None
    """As ``Recorded.silent``."""
