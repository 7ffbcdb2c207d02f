"""Levers that are held, as ``status`` says it: who holds what, since when and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provisioner.model import DESIRED, LeverKind, Memory, format_utc
from provisioner.planning.core.levers import is_done
from provisioner.state.errors import StateError
from provisioner.state.protocols import State
from provisioner.telemetry.pool_windows import Document, local


def held_levers(state: State, memory: Memory | None) -> dict[str, Any]:
    """``held``: a ``lever`` (pause, drain, cancel, stop-all) each, its ``target`` (pool, request, machine), ``who``,
    ``since``, ``reason``, and how many ``machines`` HostFactory has still to give back (None: it is not asked to).
    ``problem``: why nobody knows which are held; empty where they are known.
    """
    try:
        levers = state.read_levers()
    except StateError as error:
        return {"held": [], "problem": str(error)}
    held = [
        {
            "lever": lever.kind,
            "target": lever.target,
            "who": lever.who,
            "since": format_utc(lever.since),
            "reason": lever.reason,
            "machines": sum(slot.pool == lever.target and slot.verdict in DESIRED for _, slot in memory.slots)
            if memory and lever.kind is LeverKind.DRAIN
            else None,
        }
        for lever in levers.held
        if memory is None or not is_done(lever, memory)
    ]
    return {"held": held, "problem": ""}


# --- for people -------------------------------------------------------------------------------------------------------


def lever_alarms(document: Document) -> Iterator[str]:
    """The levers that keep machines away, the widest first; a person has to let go of them."""
    if problem := document["problem"]:
        yield f"LEVERS UNKNOWN, a loop that runs holds those that it knows, one that starts stops all: {problem}"
    for kind in (LeverKind.STOP_ALL, LeverKind.DRAIN, LeverKind.PAUSE):
        yield from (f"{_what(one)} {_who(one)}" for one in document["held"] if one["lever"] == kind)


def _what(one: Document) -> str:
    target = one["target"]
    if one["lever"] == LeverKind.STOP_ALL:
        return "STOPPED: no machine is made or deleted until `provisioner start-all`;"
    if one["lever"] == LeverKind.PAUSE:
        return f"PAUSED pool {target}: it gets no new machines until `provisioner resume {target}`;"
    left = "" if one["machines"] is None else f", {one['machines']} left"
    return f"DRAINED pool {target}: HostFactory is asked for its machines{left}, until `provisioner resume {target}`;"


def _who(one: Document) -> str:
    return f"by {one['who']} since {local(one['since'])}" + (f": {one['reason']}" if one["reason"] else "")


def cancel_lines(document: Document) -> list[str]:
    """The cancels that are not done yet."""
    return [
        f"  cancel of {one['target']} asked {_who(one)}" for one in document["held"] if one["lever"] == LeverKind.CANCEL
    ]
