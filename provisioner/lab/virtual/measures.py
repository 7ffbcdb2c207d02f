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
    "t90": Measure("T90\ns", "the same for 90 %"),
    "t100": Measure("T100\ns", "the same for all"),
    "t90_running": Measure("T90\nruns s", "seconds until 90 % run, whether or not HostFactory has them"),
}
AMOUNTS = {
    "overshoot": Measure("over-\nshoot", "the largest surplus of machines, as a fraction of the highest demand", 2),
    "calls_per_machine": Measure("calls/\nmachine", "calls that create or delete, for each machine made", 2),
    "throttled": Measure("throt-\ntled", "fraction of these calls that the place throttled", 2),
    "unproven_minutes": Measure("unproven\nmin", "sum over all machines of the minutes from create until run or end"),
    "idle_hours": Measure("idle\nh", "sum of the hours of running machines beyond the wanted number", 1),
    "cost": Measure("cost", "sum of the hours of all machines, each at the price of its pool", 1),
    "created": Measure("made", "machines made"),
}
LAWS = {
    "double": Measure("double", "machines made a second time under the same name"),
    "orphan": Measure(
        "or-\nphans", "machines of ours without a slot for longer than an orphan may exist; counted at each check"
    ),
    "cap": Measure("over\ncap", "creates beyond max_machines, max_machines_total or max_pending"),
    "killed": Measure(
        "killed",
        "running machines that were deleted or reported as gone before HostFactory returned them, or machines not ours",
    ),
    "answer": Measure(
        "wrong\nanswer", "answers that no provider may give, and requests that did not end by their deadline"
    ),
    "hold": Measure("held\nback", "creates and deletes in spite of a hold"),
    "books": Measure(
        "books", "runs in which the number of machines made is not the number gone plus the number that exist"
    ),
}
PACE = {
    "requests": Measure("requests", "requests that ended"),
    "open": Measure("open", "requests that were open at the end"),
    "cycles": Measure("cycles", "cycles of the loop"),
    "plans": Measure("plans", "plans that were made"),
    "observations": Measure("observations", "observations of pools"),
}
MEASURES: Mapping[str, Measure] = {**TIMES, **AMOUNTS, **LAWS, **PACE}
"""All measures by name. Times are seconds from ``judge_from_minutes``. Only the provisioner has the measures of
``PACE``."""
