"""HostFactory's five scripts and a loop on a real Ray, and a head that starts again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.lab.playground import Playground
from tests.ray.head import ENDED, Head
from tests.support.waiting import until

pytestmark = pytest.mark.ray

SECONDS = 180.0
SETTINGS = """
id: demo
name_prefix: hf
loop: {{interval_seconds: 1, floor_seconds: 0.2}}
pools:
  ray:
    kind: ray
    endpoint: {address}
    entrypoint: exec sleep 600
    num_cpus: 0.1
    exclusive: false
    observe_seconds: 0.5
    lag_seconds: 1
"""
ATTRIBUTES = {"type": ["String", "X86_64"], "ncpus": ["Numeric", "1"], "nram": ["Numeric", "1024"]}
TEMPLATE = {"templateId": "RayJob", "maxNumber": 8, "attributes": ATTRIBUTES, "pools": ["ray"]}


class Site(Playground):
    """A loop whose only pool is on a Ray cluster."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def _start_simulator(self) -> None:
        (self.config / "provisioner.yaml").write_text(SETTINGS.format(address=self.head.address))
        (self.config / "demoinstprov_templates.json").write_text(json.dumps({"templates": [TEMPLATE]}))

    def ended(self, id_: str) -> dict[str, Any]:
        """Return the answer to a request or return request that has ended."""
        return until(
            lambda: (entry := self.hf.status(id_))["status"] != "running" and entry, SECONDS, every=0.5, what="the end"
        )

    def live(self) -> set[str]:
        """Return the names of the jobs that run, as Ray lists them."""
        return {job["submission_id"] for job in self.head.jobs() if job["status"] not in ENDED}

    def command(self, *arguments: str) -> str:
        """Return the output of a command."""
        command = [sys.executable, "-m", "provisioner", *arguments, "--state-dir", str(self.state)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS).stdout


@pytest.fixture
def head(ray_python: Path) -> Iterator[Head]:
    """Yield a head that a test may start again."""
    with Head(ray_python) as made:
        yield made


@pytest.fixture
def site(head: Head) -> Iterator[Site]:
    """Yield a loop for this head."""
    with Site(head) as made:
        yield made


def test_machines_are_requested_lost_and_returned_and_no_record_stays(site: Site) -> None:
    assert site.hf.templates() == ["RayJob"]
    entry = site.ended(site.hf.request("RayJob", 3))
    assert (entry["status"], len(entry["machines"])) == ("complete", 3)
    names = {machine["name"] for machine in entry["machines"]}
    assert site.live() == names
    assert {machine["privateIpAddress"].count(".") for machine in entry["machines"]} == {3}
    lost, *kept = sorted(names)
    site.head.call("POST", f"{lost}/stop")
    until(lambda: site.hf.reclaimed([*names]).keys() == {lost}, SECONDS, every=0.5, what="the loss is reported")
    assert site.live() == {*kept}
    entry = site.ended(site.hf.return_machines([*names]))
    assert entry["status"] == "complete"
    assert site.live() == set()
    until(lambda: not site.head.jobs(), SECONDS, every=0.5, what="the records are deleted")


def test_a_head_that_starts_again_is_another_place(site: Site) -> None:
    entry = site.ended(site.hf.request("RayJob", 2))
    names = [machine["name"] for machine in entry["machines"]]
    site.head.stop()
    site.head.start()
    assert site.head.jobs() == [], "it has forgotten them"
    until(lambda: "BRAKE wrong_endpoint in pool ray" in site.command("status"), SECONDS, every=0.5, what="the brake")
    assert site.hf.reclaimed(names) == {}, "no machine is reported as lost"
    site.command("recover", "--release-brake")
    until(lambda: site.hf.reclaimed(names).keys() == {*names}, SECONDS, every=0.5, what="their loss")
