"""The last step of ``provisioner demand``, as ``status`` shows it. The functions are pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provisioner.model import format_utc
from provisioner.telemetry.pool_windows import Document, format_duration, format_local_time

LATE_SECONDS = 300
"""Seconds after which a missing step, or a source without a reading, needs an operator."""


EMPTY: Document = {"at": 0.0, "problem": "", "templates": {}, "sources": {}, "reasons": [], "next_at": None}
"""The report of a step that has found nothing."""


def demand_document(report: Mapping[str, Any], wall: float) -> Document | None:
    """Return the report of the last step; None if there has been no step. Times are in UTC. Each source has the age of
    its reading in seconds.

    ``late_seconds``: the seconds since the next step was due. None if this step is not due yet, or not planned.
    """
    if not report:
        return None
    full: dict[str, Any] = {**EMPTY, **report}
    due, sources = full.pop("next_at"), {}
    for name, source in full["sources"].items():
        at = source["read_at"]
        sources[name] = source | {"read_at": at and format_utc(at), "age_seconds": at and max(0.0, wall - at)}
    late_seconds = None if due is None or due > wall else wall - due
    return full | {"at": format_utc(full["at"]), "late_seconds": late_seconds, "sources": sources}


# --- for operators ----------------------------------------------------------------------------------------------------


def demand_alarms(demand: Document | None) -> Iterator[str]:
    """Yield sentences about an overdue step, a failed step, and sources that cannot be read."""
    if demand is None:
        return
    if (demand["late_seconds"] or 0.0) > LATE_SECONDS:
        step = "start `provisioner demand`, or remove demand.json if it is no longer used"
        yield f"DEMAND STOPPED since {format_local_time(demand['at'])}: no machine is requested or returned; {step}"
    elif demand["problem"]:
        yield f"DEMAND FAILS at {format_local_time(demand['at'])}: {demand['problem']}"
    for name, source in demand["sources"].items():
        age = source["age_seconds"]
        if source["problem"] and (age is None or age > LATE_SECONDS):
            stays = "never read" if age is None else f"last read {format_duration(age)} ago, those numbers stay"
            yield f"DEMAND SOURCE {name}: {stays}: {source['problem']}"


def demand_lines(demand: Document | None) -> Iterator[str]:
    """Yield a line for each template, for each source, and for each reason of the last step. Yield no line if there has
    been no step."""
    if demand is None:
        return
    for template, numbers in demand["templates"].items():
        shown = {"requested" if name == "asked" else name: number for name, number in numbers.items()}
        yield f"demand for {template}: {', '.join(f'{number} {name}' for name, number in shown.items())}"
    for name, source in demand["sources"].items():
        wanted = ", ".join(f"{number} {template}" for template, number in source["wanted"].items()) or "no machine"
        read = "never read" if source["age_seconds"] is None else f"read {format_duration(source['age_seconds'])} ago"
        unfit = "".join(f"; {number} fit no template: {jobs}" for jobs, number in source["unfit"].items())
        yield f"demand source {name}: {wanted} wanted, {read}{unfit}"
    yield from (f"demand: {reason}" for reason in demand["reasons"])
