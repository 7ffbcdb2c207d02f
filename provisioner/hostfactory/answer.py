"""What HF is told, ready to print. Imported by the scripts at each call, so it imports nothing of ours."""

from __future__ import annotations

from typing import NamedTuple


class Answer(NamedTuple):
    """One request's entry in getRequestStatus."""

    text: str
    """A JSON object."""
    ended: bool
    """The status is terminal."""


class Loss(NamedTuple):
    """A machine that HF has to give back: it is gone or will be."""

    grace: int
    """Seconds left; 0 = already gone."""
    cause: str = "unknown"
    """One word for why."""
