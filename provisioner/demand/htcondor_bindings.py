"""A program that asks HTCondor by PyPI's package ``htcondor`` (module htcondor2), and prints one line for each group of
equal jobs or each slot.

It is a program of its own because a query of htcondor2 has no time-out and keeps Python's global lock.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from provisioner.optional_packages import require_packages

MOST_APART = 0.05
"""Largest difference between the two counts of idle jobs, as a fraction of the larger one."""


def main(arguments: Sequence[str]) -> int:
    """Print the values of the attributes, separated by spaces. Return the exit code.

    Arguments: ``jobs`` or ``slots``, the pool, the schedds (separated by commas), the constraint, the attributes.
    """
    what, pool, schedds, constraint, *attributes = arguments
    try:
        with require_packages("htcondor"):
            htcondor2 = import_module("htcondor2")
        collector = htcondor2.Collector(pool or None)
        if what == "slots":
            ads = collector.query(htcondor2.AdType.Startd, constraint, attributes)
        else:
            ads = _groups(htcondor2, collector, schedds.split(",") if schedds else [], constraint, attributes)
    except Exception as error:  # noqa: BLE001 - any error of the library fails the question
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    for ad in ads:
        print(*(_format(ad, name) for name in attributes))
    return 0


def _groups(
    htcondor2: Any, collector: Any, names: Sequence[str], constraint: str, attributes: Sequence[str]
) -> list[Any]:
    """Return a group of jobs for each combination of values. Raise LookupError if a schedd is unknown or its groups
    do not hold all idle jobs.

    A schedd applies the constraint to its jobs and then to the groups, which have only the attributes asked for. So all
    attributes of the constraint are asked for, else the answer is empty.
    """
    classad2 = import_module("classad2")
    used = classad2.ClassAd().externalRefs(classad2.ExprTree(constraint))
    asked = sorted({*attributes, *used} - {"JobCount", ""})
    schedds = {ad["Name"]: ad for ad in collector.locateAll(htcondor2.DaemonType.Schedd)}
    if unknown := sorted(set(names) - set(schedds)):
        raise LookupError(f"the central manager does not know the schedd {unknown[0]}")
    groups: list[Any] = []
    for name in names or schedds:
        schedd = htcondor2.Schedd(schedds[name])
        found = schedd.query(constraint, projection=asked, opts=htcondor2.QueryOpt.GroupBy)
        (summary,) = schedd.query(constraint, opts=htcondor2.QueryOpt.SummaryOnly)
        counts = sum(ad["JobCount"] for ad in found), summary["Idle"]
        if max(counts) - min(counts) > MOST_APART * max(counts):
            raise LookupError(f"{name} has {counts[1]} idle jobs, but its groups have {counts[0]}")
        groups += found
    return groups


def _format(ad: Any, name: str) -> str:
    """Return a value as ``condor_q -autoformat`` prints it. The library's undefined value is a number by its type."""
    value = ad.eval(name) if name in ad else None
    is_text = type(value) is str and (name.startswith("Request") or len(value.split()) != 1)
    return "error" if is_text else str(value) if type(value) in (str, int, float) else "undefined"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
