"""A program that asks HTCondor by PyPI's package ``htcondor`` (module htcondor2).

It prints a line for each group of equal jobs, or for each slot. The program runs as a separate process, because a query
of htcondor2 has no time-out. Such a query also keeps Python's global lock, so that all other threads would stop.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from provisioner.optional_packages import require_packages

MOST_APART = 0.05
"""Largest allowed difference between two counts of a schedd's idle jobs, the sum of its groups and its own count, as a
fraction of the larger count."""


def main(arguments: Sequence[str]) -> int:
    """Print a line for each group of jobs or each slot, and return the exit code.

    A line contains the values of the attributes, separated by spaces. Arguments: ``jobs`` or ``slots``, the pool, the
    schedds (separated by commas), the constraint, the attributes.
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
    """Return a group of jobs for each combination of values.

    Raise LookupError if a schedd is unknown, or if its groups do not hold all idle jobs.

    A schedd applies the constraint to jobs, and then also to groups. A group has only the attributes that the query
    names. Therefore the query names all attributes of the constraint.
    """
    classad2 = import_module("classad2")
    used = classad2.ClassAd().externalRefs(classad2.ExprTree(constraint))
    asked = sorted({*attributes, *used} - {"JobCount", ""})
    schedds = {ad["Name"]: ad for ad in collector.locateAll(htcondor2.DaemonType.Schedd)}
    if unknown := sorted(set(names) - set(schedds)):
        raise LookupError(f"the central manager does not know the schedd {unknown[0]}")
    groups: list[Any] = []
    for name in dict.fromkeys(names or schedds):
        schedd = htcondor2.Schedd(schedds[name])
        found = schedd.query(constraint, projection=asked, opts=htcondor2.QueryOpt.GroupBy)
        (summary,) = schedd.query(constraint, opts=htcondor2.QueryOpt.SummaryOnly)
        counts = sum(ad["JobCount"] for ad in found), summary["Idle"]
        if max(counts) - min(counts) > MOST_APART * max(counts):
            raise LookupError(f"{name} has {counts[1]} idle jobs, but its groups have {counts[0]}")
        groups += found
    return groups


def _format(ad: Any, name: str) -> str:
    """Return a value as ``condor_q -autoformat`` prints it. The exact type is compared, because ``isinstance`` would
    take htcondor2's undefined value for a number."""
    value = ad.eval(name) if name in ad else None
    is_text = type(value) is str and (name.startswith("Request") or len(value.split()) != 1)
    return "error" if is_text else str(value) if type(value) in (str, int, float) else "undefined"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
