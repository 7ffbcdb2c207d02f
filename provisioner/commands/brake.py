"""The brake, and what waits for its release: machines and requests, as ``status`` and ``recover`` say it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from provisioner.commands.options import Document
from provisioner.loop.clock import utc
from provisioner.model import Memory
from provisioner.planning.release import ScriptCalls, Waiting, forgotten, owned, waiting
from provisioner.state.directory import StateDir
from provisioner.telemetry.notes import Notes

SHOWN = 20
"""Machines that wait to be deleted, as many as a terminal is shown; ``-o json`` names all."""


def released(state: StateDir, memory: Memory | None, notes: Notes, news: Mapping[str, str] | None = None) -> Document:
    """The brake, and what waits for its release.

    ``brake``: ``reason``, ``detail``, ``pool`` and ``since``, or None. ``release_asked``: the loop is to release it.
    ``waiting``: machines that are deleted as orphans: ``machine``, ``pool`` (empty: unknown), ``unlisted`` and
    ``deleted_at``: if no brake holds from now on, not before; None: never, or nobody knows. ``forgotten``: requests
    that are cancelled, with the number of ``machines`` deleted. ``news``: machines without a request that no loop has
    noted yet, with their pools. Raises StateError.
    """
    news = news or {}
    document: dict[str, Any] = {"brake": None, "release_asked": state.recovery_asked(), "waiting": [], "forgotten": []}
    if memory is None:
        document["waiting"] = [_waiting(Waiting(name), news[name], None) for name in sorted(news)]
        return document
    pools = {name: pool for pool, names in notes.orphans.items() for name in names} | dict(news)
    pools |= {slot.name: slot.pool for record in memory.requests.values() for slot in record.slots.values()}
    brake = memory.brake
    if brake is not None:
        since = utc(wall_of(memory, brake.since))
        document["brake"] = {"reason": brake.reason, "detail": brake.detail, "pool": brake.pool, "since": since}
    document["waiting"] = [
        _waiting(one, pools.get(one.name, ""), None if one.at is None else utc(wall_of(memory, one.at)))
        for one in waiting(memory, notes.limits, time_now(memory), news.keys())
    ]
    document["forgotten"] = [
        {"id": record.id, "machines": owned(record)}
        for record in forgotten(memory, notes.limits, _calls(state), time_now(memory))
    ]
    return document


def _waiting(one: Waiting, pool: str, at: str | None) -> dict[str, Any]:
    return {"machine": one.name, "pool": pool, "unlisted": one.unlisted, "deleted_at": at}


def _calls(state: StateDir) -> ScriptCalls:
    """HF's calls, in seconds by the file system's clock."""
    marks = state.seen.marks()
    _, listed = state.inventory.read() or ((), 0)
    return ScriptCalls(
        {id_: mark / 1e9 for id_, mark in marks.items()}, state.told.ids(), max(0, listed, *marks.values()) / 1e9
    )


def time_now(memory: Memory) -> float:
    """Loop time, as the next loop would have it."""
    return memory.time + max(0.0, time.time() - memory.time_wall)


def wall_of(memory: Memory, at: float) -> float:
    """Loop time as epoch seconds of the loop's host."""
    return memory.time_wall + (at - memory.time)


def brake_lines(document: Document) -> list[str]:
    """The brake, and what waits for its release, as lines for a terminal."""
    lines, brake = [], document["brake"]
    if brake:
        where = f" in pool {brake['pool']}" if brake["pool"] else ""
        lines.append(f"  BRAKE {brake['reason']}{where} since {brake['since']}: {brake['detail']}")
    if document["release_asked"]:
        lines.append("  The loop was asked to release the brake; it does so with its next cycle.")
    machines = document["waiting"]
    lines += [_machine_line(one, held=brake is not None) for one in machines[:SHOWN]]
    if len(machines) > SHOWN:
        last = machines[-1]["deleted_at"]
        when = f", the last of them at {last}" if last else ""
        lines.append(f"  and {len(machines) - SHOWN} more{when}; `-o json` names all")
    lines += [
        f"  request {one['id']}: cancelled, and its {one['machines']} machines deleted, unless HostFactory asks first"
        for one in document["forgotten"]
    ]
    return lines


def _machine_line(one: Document, *, held: bool) -> str:
    where = f" in pool {one['pool']}" if one["pool"] else ""
    why = "is in no list of HostFactory" if one["unlisted"] else "has no request"
    when = f"at {one['deleted_at']}" if one["deleted_at"] else "in time, unless orphan_cap_per_hour is 0"
    return f"  machine {one['machine']}{where} {why}: deleted as an orphan {when}" + (
        " if released now" if held else ""
    )
