"""The measures of a run: their names in results and goals, their headings in the table, and their meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Measure(NamedTuple):
    """The heading and the meaning of a number that describes a run."""

    heading: str
    meaning: str
    digits: int = 0
    """Digits after the decimal point in the table."""


TIMES = {
    "t50": Measure("T50\ns", "seconds until half of the wanted machines run and HostFactory has them"),
    "t90": Measure("T90\ns", "seconds until 90 % of the wanted machines run and HostFactory has them"),
    "t100": Measure("T100\ns", "seconds until all wanted machines run and HostFactory has them"),
    "t90_running": Measure(
        "T90\nruns s", "seconds until 90 % of the wanted machines run, whether or not HostFactory has them"
    ),
}
AMOUNTS = {
    "overshoot": Measure("over-\nshoot", "the largest surplus of machines, as a fraction of the highest demand", 2),
    "calls_per_machine": Measure("calls/\nmachine", "create and delete calls for each machine made", 2),
    "throttled": Measure("throt-\ntled", "fraction of the create and delete calls that the place throttled", 2),
    "unproven_minutes": Measure(
        "unproven\nmin", "minutes from each machine's create until the machine runs or ends; sum of all machines"
    ),
    "idle_hours": Measure("idle\nh", "hours for which machines beyond the wanted number ran; sum of all machines", 1),
    "cost": Measure("cost", "hours of each machine, times the price of its pool; sum of all machines", 1),
    "created": Measure("made", "machines made"),
}
LAWS = {
    "double": Measure("double", "machines made a second time under the same name"),
    "orphan": Measure(
        "or-\nphans",
        "our machines without a slot that still exist after their grace period; every check counts them again",
    ),
    "cap": Measure("over\ncap", "creates beyond max_machines, max_machines_total or max_pending"),
    "killed": Measure(
        "killed",
        "running machines that were deleted, or reported as gone, before HostFactory returned them; "
        "machines of others that were deleted; orphans that were deleted within their grace period",
    ),
    "answer": Measure(
        "wrong\nanswer", "answers that no provider may give, and requests that did not end by their deadline"
    ),
    "hold": Measure("held\nback", "creates and deletes that were made although a hold forbade them"),
    "books": Measure(
        "books",
        "runs in which the number of machines made is not the number of machines gone plus the number that exist",
    ),
}
PACE = {
    "requests": Measure("requests", "requests that ended during the run"),
    "open": Measure("open", "requests that were open at the end of the run"),
    "cycles": Measure("cycles", "cycles of the loop"),
    "plans": Measure("plans", "plans that were made"),
    "observations": Measure("observations", "observations of pools"),
}
MEASURES: Mapping[str, Measure] = {**TIMES, **AMOUNTS, **LAWS, **PACE}
"""All measures by name. Times are seconds from ``judge_from_minutes``. Only the provisioner has the measures of
``PACE``."""
