"""Fail when a test was skipped for a reason that is not expected: ``skips.py TESTS.xml [REASON ...]``.

Each REASON is words of a reason that is expected in this run alone.
"""

import sys
import xml.etree.ElementTree as ElementTree

EXPECTED = (
    "Windows",  # the .bat files run on Windows only
    "needs kubectl",
    "needs gcloud",
    "needs the Pub/Sub emulator",
    "needs terraform",
    "needs another Python",
)
"""Words of the reasons that may stand: what no package registry has."""

unexpected = [
    (f"{case.get('classname')}::{case.get('name')}", skip.get("message", ""))
    for case in ElementTree.parse(sys.argv[1]).iter("testcase")
    for skip in case.iter("skipped")
    if not any(words in skip.get("message", "") for words in (*EXPECTED, *sys.argv[2:]))
]
for name, reason in unexpected:
    print(f"skipped, and not expected: {name}: {reason}")
sys.exit(bool(unexpected))
