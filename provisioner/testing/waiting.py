"""Wait for a condition, up to a deadline. So no test has to sleep for a fixed time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
"""Factor by which all waits of tests are longer than on an idle machine; CI sets 4."""


def until(condition: Callable[[], T], seconds: float, *, every: float = 0.02, what: str = "the condition") -> T:
    """Call ``condition`` every ``every`` seconds until it returns a true value. Return this value.

    Raises AssertionError if no value is true within ``seconds`` times ``PATIENCE``. ``what``: the condition in the
    error's text.
    """
    patient = seconds * PATIENCE
    deadline = time.monotonic() + patient
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {patient:g} s; last value: {value!r}")
        time.sleep(every)
