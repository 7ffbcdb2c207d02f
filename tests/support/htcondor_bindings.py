"""A program that runs ``provisioner.demand.htcondor_bindings`` with stand-ins of schedd and central manager.

The stand-ins make classads from text. The program needs a Python with PyPI's package ``htcondor``, which has the real
classes, expressions and values, but no daemon. Arguments: a JSON file with the ads by schedd, then the arguments of
``htcondor_bindings``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar


class StandIn:
    """A schedd or the central manager. It reads classads in their old text form."""

    pool: ClassVar[dict[str, Any]] = {}

    def __init__(self, named: Any = None) -> None:
        self._name = named["Name"] if named is not None else ""

    def locateAll(self, _: Any) -> list[Any]:
        return [classad2.ClassAd({"Name": name, "MyAddress": name}) for name in self.pool["schedds"]]

    def query(self, *arguments: Any, projection: Any = (), opts: Any = None) -> list[Any]:
        """Return the classads that match the constraint.

        With ``opts``, respond as a schedd does to a query for jobs (``command_query_job_ads`` in schedd.cpp). Without
        ``opts``, respond as the central manager does to a query for slots.
        """
        if opts is None:
            _, constraint, projection = arguments
            return [ad for text in self.pool["slots"] if _holds(ad := _parse(text), constraint)]
        jobs = [ad for text in self.pool["schedds"][self._name] if _holds(ad := _parse(text), arguments[0])]
        if opts == htcondor2.QueryOpt.SummaryOnly:
            return [classad2.ClassAd({"Idle": len(jobs) + self.pool.get("missed", 0)})]
        return _group(jobs, projection, arguments[0])


def _group(jobs: list[Any], projection: list[str], constraint: str) -> list[Any]:
    """Return the jobs in groups, as JobAggregationResults in autocluster.cpp does.

    Jobs of a group agree in the attributes of the projection, and in the attributes that these attributes' expressions
    use. Only groups that match the constraint are returned.
    """
    found: Counter[str] = Counter()
    for job in jobs:
        names = {name.lower(): name for name in projection}
        for name in projection:
            if name in job and isinstance(job.lookup(name), classad2.ExprTree):
                names |= {used.lower(): used for used in job.internalRefs(job.lookup(name)) if used}
        found["\n".join(f"{name} = {job.lookup(name) if name in job else 'undefined'}" for name in names.values())] += 1
    groups = []
    for text, number in found.items():
        group = _parse(text)
        group["JobCount"] = number
        if _holds(group, constraint):
            groups.append(group)
    return groups


def _holds(ad: Any, constraint: str) -> bool:
    return bool(classad2.ExprTree(constraint).eval(ad) is True)


def _parse(text: str) -> Any:
    return classad2.parseOne(text)


if __name__ == "__main__":
    classad2, htcondor2 = import_module("classad2"), import_module("htcondor2")
    StandIn.pool = json.loads(Path(sys.argv[1]).read_text())
    vars(htcondor2).update(Collector=StandIn, Schedd=StandIn)
    sys.exit(import_module("provisioner.demand.htcondor_bindings").main(sys.argv[2:]))
