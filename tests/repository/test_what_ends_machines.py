"""The page about the ends of machines names all fields of groups and of their templates' scheduling."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioner.lab.cloud.compute.schema import messages

PAGE = (Path(__file__).parents[2] / "docs" / "what-ends-machines.md").read_text()
PARTS = {
    "updatePolicy": "UpdatePolicy",
    "instanceLifecyclePolicy": "LifecyclePolicy",
    "instanceLifecyclePolicy.onRepair": "OnRepair",
    "autoHealingPolicies": "AutoHealingPolicy",
    "distributionPolicy": "DistributionPolicy",
}
"""The parts of a group that can end machines. Each of their fields is listed."""


def paths() -> set[str]:
    """Return every field of a group, and of its template's ``scheduling``, by its path."""
    whole = set(messages()["InstanceGroupManager"].fields) - PARTS.keys()
    parts = {f"{part}.{field}" for part, message in PARTS.items() for field in messages()[message].fields}
    return (whole | parts | set(messages()["Scheduling"].fields)) - PARTS.keys()


@pytest.mark.parametrize("path", sorted(paths()))
def test_the_page_names_it(path: str) -> None:
    assert re.search(rf"`{re.escape(path)}`", PAGE)
