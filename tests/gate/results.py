"""Read the results of a stage's tests: passed, failed, skipped with reason, passed only when run again."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

UNAVOIDABLE = {
    "the place ": "a test of the contract for kinds, about what a kind of place does not have",
    "Windows": "the .bat files run on Windows only; their text is checked everywhere",
    "make test-kube": "the stage kube has them",
}
"""Parts of skip reasons that are accepted on every machine, each with its justification."""

UNAVAILABLE = {
    "needs gcloud": "Google's own archive alone has it, more than 100 MB",
    "needs kubectl": "Debian's is years too old; from source it takes minutes, and 4 GB of Kubernetes' modules",
    "needs terraform": "HashiCorp's own archive alone has it; from source it takes the clients of a dozen clouds",
    "needs gcluster": "built from a clone of Google's Cluster Toolkit, which is no Go module that a proxy has",
    "needs a mirror of Debian's": "debootstrap makes the guest of its packages; where CI reaches one, these tests run",
    "needs another Python": "Debian has one Python; a machine that has others runs these tests",
    "needs Grid Engine": "as Slurm",
    "needs task-spooler": "as Slurm",
    "needs Slurm": "Debian's packages in Debian 12's versions; a machine without root or Debian cannot install them",
    "needs Ray": "several hundred megabytes from PyPI, which a CI machine may refuse; make test-ray installs them",
    "needs HTCondor (package condor)": "Debian 12 has no such package; a machine that has the daemons runs them",
    "needs PyPI's htcondor": "a package of HTCondor's libraries, for no part of ours; make test-schedulers installs it",
    "needs the Pub/Sub emulator": "a part of gcloud that its archive brings beside it, and Java",
}
"""Words of the reasons that are accepted unless REQUIRE_ALL=1, and why: CI installs from Debian, PyPI and the Go proxy
alone. Before a release, a machine that has all of these runs with REQUIRE_ALL=1."""


@dataclass
class Result:
    """The outcome of one stage."""

    is_green: bool
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of skipped tests by reason."""
    problems: list[str] = field(default_factory=list)
    """Messages about reasons other than failed tests why the stage failed."""
    again: Mapping[str, str] = field(default_factory=dict)
    """First failure of each test that passed only when it was run again."""

    def record(self) -> dict[str, object]:
        """Return the entry of ``.ci/complete-run.json``."""
        return {
            "is_green": self.is_green,
            "passed": self.passed,
            "failed": self.failed,
            "skipped": dict(sorted(self.skipped.items())),
            "seconds": round(self.seconds, 1),
            **({"passed_only_when_run_again": dict(self.again)} if self.again else {}),
        }


def read(result: Result, report: Path, again: Path, *, require_all: bool) -> Result:
    """Add the results of a stage's tests to ``result``. ``report``: a JUnit report. ``again``: the file about tests
    that passed only when run again. A skip for an unexpected reason makes the result red."""
    accepted = UNAVOIDABLE if require_all else UNAVOIDABLE | UNAVAILABLE
    for case in ElementTree.parse(report).iter("testcase"):
        skip = case.find("skipped")
        if skip is not None:
            reason = skip.get("message", "")
            words = next((words for words in accepted if words in reason), None)
            result.skipped[words or reason] += 1
            if words is None:
                name = f"{case.get('classname')}::{case.get('name')}"
                result.problems.append(f"skipped for a reason that is not accepted: {name}: {reason}")
        elif case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        else:
            result.passed += 1
    if again.exists():
        result.again = json.loads(again.read_text())
    result.is_green = result.is_green and not result.problems
    return result


def requires_all() -> bool:
    """Return True if the run must be red when tests were skipped because a program is missing. This does not apply to
    programs that no machine can have."""
    return os.environ.get("REQUIRE_ALL") == "1"
