"""Managed instance groups of the simulated Compute Engine as places of the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from provisioner.backends.mig.api import ComputeTimes
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.compute_fields import instance_url
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.compute.group import Mig
from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import ErrorClass
from provisioner.names import name_pattern
from provisioner.schema.setting_types import Site
from provisioner.testing.place import PREFIX, How, Place
from tests.support.clients.wire import Wire
from tests.support.clouds.compute_cloud import QUICK
from tests.support.clouds.specs import advised
from tests.support.waiting import until

T = TypeVar("T")

ZONAL = advised(project="demo-project", name="hf-a", zone="us-central1-a")
REGIONAL = advised(project="demo-project", name="hf-r", region="us-central1")

QUICK_GROUP = replace(QUICK, operation=(0.0, 0.0))
"""Quick timings. A call is accepted at once, so that its effect is visible with its response."""


class MigPlace(Place):
    """A zonal or regional group."""

    pool = "mig-a"

    def __init__(self, simulator: Simulator, wire: Wire, spec: MigSpec) -> None:
        super().__init__()
        self._simulator, self._wire, self._spec = simulator, wire, spec
        simulator.call(lambda cloud: cloud.impose(Conditions(mig=QUICK_GROUP)))
        self._opened: list[MigBackend] = []
        self.backend = self.another()

    def another(self) -> MigBackend:
        return self._backend_of(self.pool, self._spec)

    def other_pool(self) -> MigBackend:
        return self._backend_of("mig-other", REGIONAL if self._spec is ZONAL else ZONAL)

    def _backend_of(self, pool: str, spec: MigSpec) -> MigBackend:
        settings = MigPool(
            name=pool,
            project=spec.project,
            group=spec.name,
            endpoint=f"{self._wire.address}/compute/v1/",
            observe_seconds=0.01,
            **({"zone": spec.zone} if spec.zone else {"region": spec.region}),
        )
        times = ComputeTimes(call=self.call, admission=2.0)
        self._opened.append(MigBackend(settings, Projects(Site("demo", PREFIX), times=times)))
        return self._opened[-1]

    def close(self) -> None:
        """End all backends."""
        for backend in self._opened:
            backend.close()

    def present(self) -> list[str]:
        return self._in_groups(lambda groups: [entry["name"] for entry in groups.state()])

    def creates(self) -> int:
        calls = self._simulator.call(lambda cloud: dict(cloud.world.calls))
        return sum(count for method, count in calls.items() if method.endswith(".createInstances"))

    def spawn_foreign(self, name: str) -> None:
        """Make an instance that is not ours: a member of the group. If the name has the form of our names, make the
        instance outside the group instead."""
        if name_pattern(PREFIX).fullmatch(name):
            zone = self._spec.all_zones[0]
            self._in_groups(lambda groups: groups.vms.insert(self._spec, zone, name))
        else:
            self._on_group(lambda group: group.create([name]))

    def copy(self, name: str, as_name: str) -> None:
        """Make an instance outside the group from the group's template."""
        zone = self._on_group(lambda group: group.members[name].zone)
        self._in_groups(lambda groups: groups.vms.insert(self._spec, zone, as_name))

    def stray(self, name: str) -> None:
        self._on_group(lambda group: group.abandon([instance_url(group.members[name].zone, name)]))

    def remove_stray(self, name: str) -> None:
        self._in_groups(lambda groups: [groups.vms.delete(vm) for vm in groups.vms.named(name)])

    def remove(self, name: str) -> None:
        self._on_group(lambda group: group.delete([instance_url(group.members[name].zone, name)], skip_invalid=False))
        until(lambda: name not in self.present(), self.patience, what=f"{name} is removed")

    def recreate(self, name: str) -> None:
        self.remove(name)
        self._on_group(lambda group: group.create([name]))
        until(lambda: self._runs(name), self.patience, what=f"{name} runs again")

    def end(self, name: str, how: How) -> bool:
        """End the VM of a member: stop it, delete it without the group's help, or preempt it."""
        acts = {How.EXIT: "stop", How.KILL: "delete", How.PREEMPTION: "preempt"}
        if how in acts:
            self._in_groups(lambda groups: [getattr(groups.vms, acts[how])(vm) for vm in groups.vms.named(name)])
        return how in acts

    def restart(self, name: str) -> bool:
        self._on_group(lambda group: group.recreate([instance_url(group.members[name].zone, name)]))
        return True

    def starve(self, reason: ErrorClass) -> bool:
        self._fault(Fault({ErrorClass.STOCKOUT: "stockout", ErrorClass.QUOTA: "quota"}[reason]))
        return True

    def fail_creates(self, error: ErrorClass) -> None:
        words = "The request was refused by the test's own fault."
        quota = Fault("op_error", self._spec.name, params={"code": "QUOTA_EXCEEDED", "message": words, "status": 403})
        faults = {
            ErrorClass.QUOTA: quota,
            ErrorClass.DENIED: Fault("denied", self._spec.name, params={"message": words}),
            ErrorClass.INVALID: Fault("invalid", self._spec.name, params={"message": words}),
        }
        self._fault(faults[error])

    def lose_responses(self) -> None:
        self._fault(Fault("lost_response", r".*\.(create|delete)Instances"))

    def hang(self) -> None:
        self._fault(Fault("hang"))

    def black_out(self) -> None:
        self._fault(Fault("unavailable"))

    def heal(self) -> None:
        self._fault()

    def _runs(self, name: str) -> bool:
        return any(e["name"] == name and e["phase"] == "running" for e in self._in_groups(Groups.state))

    def _fault(self, *faults: Fault) -> None:
        self._simulator.call(lambda cloud: cloud.impose(Conditions(faults=faults)))

    def _in_groups(self, act: Callable[[Groups], T]) -> T:
        return self._simulator.call(lambda cloud: act(cloud.groups))

    def _on_group(self, act: Callable[[Mig], T]) -> T:
        spec = self._spec
        return self._in_groups(lambda groups: act(groups.mig(spec.project, spec.scope, spec.name)))
