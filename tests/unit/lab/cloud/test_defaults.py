"""The table of defaults in docs/embedded-cloud.md, checked against the simulator. The table gives a reason for each
difference from Google."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.compute.resource_documents import mig_document
from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.kubernetes.pods import Cluster
from provisioner.lab.cloud.world import World

PAGE = Path(__file__).parents[4] / "docs" / "embedded-cloud.md"
ROW = re.compile(r"\| `(?P<field>[\w./]+)` \| (?P<theirs>[^|]*) \| (?P<ours>[^|]*) \| (?P<source>[^|]*) \|")
ROWS = [match.groupdict() for match in ROW.finditer(PAGE.read_text())]
SAME = "the same"


def documents() -> Mapping[str, Mapping[str, Any]]:
    """Return the documents of a regional group, of its VM and of a pod. No setting is given."""
    spec = MigSpec(project="p", region="us-central1", name="g")
    groups = Groups(world := World(seed=1), [spec])
    mig = groups.mig("p", spec.scope, "g")
    mig.create(["a"])
    world.advance(300.0)
    (vm,) = (
        dict(groups.vms.shelf("p", zone).after("")) for zone in spec.all_zones if groups.vms.shelf("p", zone).get("a")
    )
    cluster = Cluster(world, ["n"])
    pod = cluster.create("n", {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "m", "image": "i"}]}})
    return {"group": mig_document(mig), "instance": vm["a"], "pod": pod.document}


def at(document: Any, path: str) -> str:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return str(document)


@pytest.mark.parametrize("row", ROWS, ids=[row["field"] for row in ROWS])
def test_each_default_is_as_the_page_says(row: Mapping[str, str]) -> None:
    kind, _, path = row["field"].partition("/")
    value, _, reason = row["ours"].partition(": ")
    theirs = row["theirs"].strip("`")
    if value.strip() == SAME:
        assert at(documents()[kind], path) == theirs
        return
    assert at(documents()[kind], path) == value.strip("`")
    assert reason, "a difference has a reason"


def test_the_page_names_every_field_by_which_a_group_ends_machines() -> None:
    fields = [row["field"].partition("/")[2] for row in ROWS if row["field"].startswith("group/")]
    named = {".".join(field.split(".")[:2]) for field in fields}
    ends = (PAGE.parent / "what-ends-machines.md").read_text().partition("## The settings of a managed")[2]
    decisive = re.findall(r"`((?:updatePolicy|instanceLifecyclePolicy)\.\w+)`", ends.partition("## The instance")[0])
    assert set(decisive) - {"updatePolicy.mostDisruptiveAllowedAction"} <= named
    assert all(row["source"].strip() for row in ROWS)
