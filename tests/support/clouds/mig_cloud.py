"""A MIG without HTTP, in a deterministic world whose time the test advances."""

from __future__ import annotations

from typing import Any

from provisioner.lab.cloud.compute.group import Mig
from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.compute.settings import MigSpec, Switches, Timings
from provisioner.lab.cloud.world import Fault, World
from tests.support.clouds.specs import advised

EXACT = Timings(
    call=(0.0, 0.0),
    operation=(1.0, 1.0),
    schedule=(1.0, 1.0),
    inserts_per_second=0.0,
    boot=(10.0, 10.0),
    delete=(5.0, 5.0),
    delete_spot=(3.0, 3.0),
    leave=(2.0, 2.0),
    retry_first=60.0,
    retry_last=200.0,
    notice=30.0,
    repair=(20.0, 20.0),
)
"""Timings without randomness. After a create: a member after 1 s, its VM after 2 s, RUNNING after 12 s. After a delete:
the VM is gone after 6 s, the member after 8 s."""

ZONE = "us-central1-a"
SPEC = advised(project="p", zone=ZONE, name="g")


class Cloud:
    """A world with one MIG."""

    def __init__(self, spec: MigSpec = SPEC, timings: Timings = EXACT, switches: Switches | None = None) -> None:
        self.world = World(seed=7)
        self.groups = Groups(self.world, [spec], timings, switches)
        self.spec = spec

    @property
    def mig(self) -> Mig:
        return self.groups.mig("p", self.spec.scope, "g")

    def pass_time(self, seconds: float) -> None:
        self.world.advance(self.world.now + seconds)

    def run(self, *names: str) -> None:
        """Create VMs and let them boot."""
        self.mig.create(names)
        self.pass_time(12.1)

    def url(self, name: str) -> str:
        return f"https://anywhere/compute/v1/projects/p/zones/{ZONE}/instances/{name}"

    def delete(self, *names: str, skip: bool = True) -> None:
        self.mig.delete([self.url(name) for name in names], skip_invalid=skip)

    def shown(self) -> dict[str, dict[str, Any]]:
        return dict(self.mig.shelf.after(""))

    def vm(self, name: str) -> dict[str, Any] | None:
        return self.groups.vms.shelf("p", ZONE).get(name)

    def phases(self) -> dict[str, str]:
        return {entry["name"]: entry["phase"] for entry in self.groups.state()}

    def faults(self, *faults: Fault) -> None:
        self.world.set_faults(faults)
