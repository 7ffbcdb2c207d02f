"""What the journal says of a cycle: a line for each action that was tried and for each slot that ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from provisioner.loop.actors import Results
from provisioner.model import Close, Delete, Outcome
from provisioner.state.errors import StateError
from provisioner.state.interfaces import LoopState

log = logging.getLogger(__name__)

Line = dict[str, object]


def write(state: LoopState, cycle: int, wall: float, results: Sequence[Results], closes: Sequence[Close]) -> None:
    """Append a cycle's lines, if it has any; a journal that cannot be written stops nothing."""
    lines = [_outcome_line(outcome) for done in results for outcome in done.outcomes]
    lines += [_close_line(close) for close in closes]
    if not lines:
        return
    try:
        state.journal.append([{"time": round(wall, 3), "cycle": cycle, **line} for line in lines])
    except StateError as error:
        log.warning("Journal could not be written", extra={"error": str(error)})


def _outcome_line(outcome: Outcome) -> Line:
    action = outcome.action
    line: Line = {
        "event": type(action).__name__.lower(),
        "machine": action.name,
        "pool": action.pool,
        "result": outcome.failure.error if outcome.failure else "ok",
    }
    if isinstance(action, Delete):
        line["reason"] = action.reason
        if action.force:
            line["force"] = True
    if outcome.failure is not None:
        line["text"] = outcome.failure.text
    return line


def _close_line(close: Close) -> Line:
    line: Line = {
        "event": "close",
        "machine": close.name,
        "pool": close.pool,
        "template": close.template,
        "verdict": close.verdict,
    }
    if close.cause is not None:
        line["cause"] = close.cause
    if close.failure is not None:
        line["error"], line["text"] = close.failure.error, close.failure.text
    return line
