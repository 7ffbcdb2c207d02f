"""The holds in force, as ``status`` shows them: kind, target, operator, time and reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provisioner.model import DESIRED, HoldKind, Memory, format_utc
from provisioner.planning.core.holds import is_done
from provisioner.state.errors import StateError
from provisioner.state.protocols import State
from provisioner.telemetry.pool_windows import Document, format_local_time


def current_holds(state: State, memory: Memory | None) -> dict[str, Any]:
    """Return the holds in force, or the reason why the holds cannot be read.

    * ``current``: a document for each hold. ``target``: the pool, request or machine.
    * ``machines``: for a drain, the machines that HostFactory still has to return. None for other holds, or if memory
      is unknown.
    * ``problem``: why the holds are unknown, or empty.
    """
    try:
        holds = state.holds.read()
    except StateError as error:
        return {"current": [], "problem": str(error)}
    current = [
        {
            "hold": hold.kind,
            "target": hold.target,
            "who": hold.who,
            "since": format_utc(hold.since),
            "reason": hold.reason,
            "machines": sum(slot.pool == hold.target and slot.verdict in DESIRED for _, slot in memory.slots)
            if memory and hold.kind is HoldKind.DRAIN
            else None,
        }
        for hold in holds.current
        if memory is None or not is_done(hold, memory)
    ]
    return {"current": current, "problem": ""}


# --- for operators ----------------------------------------------------------------------------------------------------


def hold_alarms(document: Document) -> Iterator[str]:
    """Yield a sentence for each hold that stops machines: first stop-all, then drains, then pauses. If the holds cannot
    be read, yield a sentence about this."""
    if problem := document["problem"]:
        yield f"HOLDS UNKNOWN: a running loop keeps the known holds, and a new loop acts on no machine; {problem}"
    for kind in (HoldKind.STOP_ALL, HoldKind.DRAIN, HoldKind.PAUSE):
        yield from (f"{_format_hold(one)} {_format_author(one)}" for one in document["current"] if one["hold"] == kind)


def _format_hold(one: Document) -> str:
    target = one["target"]
    if one["hold"] == HoldKind.STOP_ALL:
        return "STOPPED: no machine is made or deleted until `provisioner start-all`;"
    if one["hold"] == HoldKind.PAUSE:
        return f"PAUSED pool {target}: the pool gets no new machines until `provisioner resume {target}`;"
    if one["machines"] == 0:
        return f"DRAINED pool {target}: it has no machine left and gets none until `provisioner resume {target}`;"
    left = "" if one["machines"] is None else f", {one['machines']} left"
    asked = f"HostFactory is asked to return the pool's machines{left}"
    return f"DRAINING pool {target}: {asked}, until `provisioner resume {target}`;"


def _format_author(one: Document) -> str:
    author = f"by {one['who']} since {format_local_time(one['since'])}" if one["who"] else "set without a command"
    return author + (f": {one['reason']}" if one["reason"] else "")


def cancel_lines(document: Document) -> Iterator[str]:
    """Return a line for each cancel that is still in effect."""
    for one in document["current"]:
        if one["hold"] == HoldKind.CANCEL:
            yield f"  cancel of {one['target']} asked {_format_author(one)}"
