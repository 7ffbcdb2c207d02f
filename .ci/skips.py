"""Fail when a test was skipped for a reason that is not expected: ``skips.py TESTS.xml [REASON ...]``.

Each REASON is words of a reason that is expected in this run alone. What Debian has, ``.ci/run`` installs: no test
may be skipped for want of it. What stands is counted and printed: no run seems to have tried more than it did.

With ``REQUIRE_ALL=1`` in the environment only those stand that no machine can avoid: for a machine that has every
tool, and before a release.
"""

import os
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

UNAVOIDABLE = {
    "Windows": "the .bat files run on Windows only; their text is checked everywhere",
}
"""Words of the reasons that stand on every machine, and why."""

UNMENDED = {
    "needs gcloud": "Google's own archive alone has it, more than 100 MB",
    "needs kubectl": "Debian's is years too old; from source it takes minutes, and 4 GB of Kubernetes' modules",
    "needs terraform": "HashiCorp's own archive alone has it; from source it takes the clients of a dozen clouds",
    "needs a mirror of Debian's": "debootstrap makes the guest of its packages; where CI reaches one, these tests run",
    "needs another Python": "Debian has one Python; a machine that has others runs these tests",
    "needs the Pub/Sub emulator": "a part of gcloud that its archive brings beside it, and Java",
}
"""Words of the reasons that may stand, and why CI does not mend them: it fetches from Debian, PyPI and the Go proxy
alone, and no 100 MB for one tool. A machine that has a tool runs its tests: before a release CI needs one with all."""


def main(report: str, *expected: str, require_all: bool = False) -> int:
    """Print what was skipped; 1 when one reason is not among those that may stand or are expected in this run."""
    standing = UNAVOIDABLE if require_all else UNAVOIDABLE | UNMENDED
    skipped: Counter[str] = Counter()
    code = 0
    for case in ElementTree.parse(report).iter("testcase"):
        for skip in case.iter("skipped"):
            reason = skip.get("message", "")
            known = next((words for words in (*standing, *expected) if words in reason), None)
            if known is None:
                print(f"skipped, and not expected: {case.get('classname')}::{case.get('name')}: {reason}")
                code = 1
            else:
                skipped[known] += 1
    for words, count in sorted(skipped.items()):
        print(f"skipped: {count} ({words}): {standing.get(words, 'another run of this CI has them')}")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:], require_all=os.environ.get("REQUIRE_ALL") == "1"))
