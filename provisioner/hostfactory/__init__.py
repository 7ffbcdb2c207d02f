"""HostFactory's own files, environment and calls, and the answers to the calls. The scripts import this module at each
call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MAX_NUMBER = 10_000
"""HF's upper limit for a template's maxNumber. HF also uses this number to mean "unlimited" (docs/hostfactory.md:
maxNumber)."""


SILENT_SECONDS = 60.0
"""Seconds without a heartbeat after which the loop counts as down: four times the largest ``interval_seconds``."""


class Answer(NamedTuple):
    """An answer to HF: the entry about one request in the output of getRequestStatus."""

    text: str
    """The entry, as the text of a JSON object."""
    ended: bool
    """True if the status is terminal."""


class Loss(NamedTuple):
    """A machine that HF has to return: it is gone, will be gone soon, or is too old."""

    grace: int
    """Seconds until the machine is gone; 0 if it is gone already."""
    cause: str = "unknown"
    """Cause of the loss, in a word."""


class Recorded(NamedTuple):
    """The id of a recorded request or return request, and the age of the loop's last heartbeat."""

    id: str
    silent_seconds: float | None
    """Seconds since the loop's last heartbeat; None if there was no heartbeat yet or its age is unknown."""


class Polled(NamedTuple):
    """The answers for the requests that a getRequestStatus call names."""

    answers: Mapping[str, Answer | None]
    """Answers by id. An unknown id is left out. None: the request is recorded, but its answer is not published yet."""
    silent_seconds: float | None
    """Seconds since the loop's last heartbeat; None if there was no heartbeat yet or its age is unknown."""
