"""Waits for a condition with a deadline, so that no test sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float, *, every: float = 0.02, what: str = "the condition") -> T:
    """The first true value of ``condition``; AssertionError when there is none within ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s; last value: {value!r}")
        time.sleep(every)
