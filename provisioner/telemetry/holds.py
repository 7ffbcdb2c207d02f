"""Holds that are held, as ``status`` says it: who holds what, since when and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provisioner.model import DESIRED, HoldKind, Memory, format_utc
from provisioner.planning.core.holds import is_done
from provisioner.state.errors import StateError
from provisioner.state.protocols import State
from provisioner.telemetry.pool_windows import Document, local


def current_holds(state: State, memory: Memory | None) -> dict[str, Any]:
    """``held``: a ``hold`` (pause, drain, cancel, stop-all) each, its ``target`` (pool, request, machine), ``who``,
    ``since``, ``reason``, and how many ``machines`` HostFactory has still to give back (None: it is not asked to).
    ``problem``: why nobody knows which are held; empty where they are known.
    """
    try:
        holds = state.read_holds()
    except StateError as error:
        return {"held": [], "problem": str(error)}
    held = [
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
    return {"held": held, "problem": ""}


# --- for people -------------------------------------------------------------------------------------------------------


def hold_alarms(document: Document) -> Iterator[str]:
    """The holds that keep machines away, the widest first; a person has to let go of them."""
    if problem := document["problem"]:
        yield f"HOLDS UNKNOWN, a loop that runs holds those that it knows, one that starts stops all: {problem}"
    for kind in (HoldKind.STOP_ALL, HoldKind.DRAIN, HoldKind.PAUSE):
        yield from (f"{_what(one)} {_who(one)}" for one in document["held"] if one["hold"] == kind)


def _what(one: Document) -> str:
    target = one["target"]
    if one["hold"] == HoldKind.STOP_ALL:
        return "STOPPED: no machine is made or deleted until `provisioner start-all`;"
    if one["hold"] == HoldKind.PAUSE:
        return f"PAUSED pool {target}: it gets no new machines until `provisioner resume {target}`;"
    left = "" if one["machines"] is None else f", {one['machines']} left"
    return f"DRAINED pool {target}: HostFactory is asked for its machines{left}, until `provisioner resume {target}`;"


def _who(one: Document) -> str:
    return f"by {one['who']} since {local(one['since'])}" + (f": {one['reason']}" if one["reason"] else "")


def cancel_lines(document: Document) -> list[str]:
    """The cancels that are not done yet."""
    return [
        f"  cancel of {one['target']} asked {_who(one)}" for one in document["held"] if one["hold"] == HoldKind.CANCEL
    ]
