"""The brake, and what waits for its release, as ``status`` and ``recover`` say it."""

from __future__ import annotations

from provisioner.commands.options import Document
from provisioner.telemetry.pool_windows import local

SHOWN = 20
"""Machines that wait to be deleted, as many as a terminal is shown; ``-o json`` names all."""


def brake_lines(document: Document) -> list[str]:
    """The brake, and what waits for its release, as lines for a terminal."""
    lines, brake = [], document["brake"]
    if brake:
        where = f" in pool {brake['pool']}" if brake["pool"] else ""
        lines.append(f"  BRAKE {brake['reason']}{where} since {local(brake['since'])}: {brake['detail']}")
    if document["release_asked"]:
        lines.append("  The loop was asked to release the brake; it does so with its next cycle.")
    machines = document["waiting"]
    lines += [_machine_line(one, held=brake is not None) for one in machines[:SHOWN]]
    if len(machines) > SHOWN:
        last = machines[-1]["deleted_at"]
        when = f", the last of them at {local(last)}" if last else ""
        lines.append(f"  and {len(machines) - SHOWN} more{when}; `-o json` names all")
    lines += [
        f"  request {one['id']}: cancelled, and its {one['machines']} machines deleted, unless HostFactory asks first"
        for one in document["forgotten"]
    ]
    return lines


def _machine_line(one: Document, *, held: bool) -> str:
    where = f" in pool {one['pool']}" if one["pool"] else ""
    why = "is in no list of HostFactory" if one["unlisted"] else "has no request"
    when = f"at {local(one['deleted_at'])}" if one["deleted_at"] else "in time, unless orphan_cap_per_hour is 0"
    return f"  machine {one['machine']}{where} {why}: deleted as an orphan {when}" + (
        " if released now" if held else ""
    )
