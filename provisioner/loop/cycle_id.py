"""Which cycle a thread works for: its number, as the journal has it, on each log line that is written for it."""

from __future__ import annotations

from contextvars import ContextVar

CYCLE: ContextVar[int] = ContextVar("cycle", default=0)
"""The number of the cycle; 0: none, as in an observer, which looks on its own."""
