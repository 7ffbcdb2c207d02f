"""The Compute Engine half of the embedded cloud: MIGs in zones and regions, their VMs, and the operations on them.

Behaviour follows Google's documentation. If the documentation is silent, a switch decides (``settings.Switches``).

Fault modes of operations. Targets: the MIG's or VM's name, and the operation type such as
``compute.instanceGroupManagers.deleteInstances``. Further modes are in ``attempts.py``, ``managed_instance_life.py``,
``group.py``, ``vms.py``, ``api.py`` and ``lists.py``.

* ``op_error``: the operation ends with an error and has no effect; ``code``, ``message``, ``status``, ``details``
  (errorDetails)
* ``op_stuck``: the operation stays RUNNING; it has its effect, unless ``applied`` is false
* ``op_gone``: the methods get and wait of operations give 404
* ``precondition``: createInstances only: the operation ends with 412 CONDITION_NOT_MET
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provisioner.lab.cloud.compute.audit import Audit
from provisioner.lab.cloud.compute.group import Mig
from provisioner.lab.cloud.compute.managed_instances import Member
from provisioner.lab.cloud.compute.operations import ApiError, Operation, Operations, Target, numeric_id, timestamp
from provisioner.lab.cloud.compute.settings import Duplicate, MigSpec, Switches, Timings, region_of
from provisioner.lab.cloud.compute.vms import Vm, Vms
from provisioner.lab.cloud.timing import Delay
from provisioner.lab.cloud.world import World

__all__ = ["ApiError", "Delay", "Duplicate", "Groups", "MigSpec", "Switches", "Timings"]

_VM_PHASES = {
    "PROVISIONING": "pending",
    "STAGING": "pending",
    "RUNNING": "running",
    "STOPPING": "stopping",
    "TERMINATED": "gone",
}


class Groups:
    """All MIGs of the embedded cloud, their VMs, and the operations on them."""

    def __init__(
        self,
        world: World,
        migs: Sequence[MigSpec],
        timings: Timings | None = None,
        switches: Switches | None = None,
    ) -> None:
        self.world = world
        self.timings = timings or Timings()
        self.switches = switches or Switches()
        self.specs = tuple(migs)
        self.audit = Audit(world, self.timings)
        self.operations = Operations(world, self.timings, self.switches, self.audit)
        self.vms = Vms(world, self.timings, self.switches, self.audit, self.operations)
        self.migs: dict[tuple[str, str, str], Mig] = {}
        """The MIGs by project, scope (``zones/<zone>`` or ``regions/<region>``) and name."""
        self.reset()

    def reset(self) -> None:
        """Remove all members, VMs and operations, and undo all patches. Call counters and faults stay, because they
        belong to the ``World``."""
        self.operations.reset()
        self.vms.reset()
        for mig in self.migs.values():
            mig.members.clear()  # so that events scheduled before find no member
        self.migs = {
            (spec.project, spec.scope, spec.name): Mig(
                spec, self.world, self.vms, self.timings, self.switches, self.operations
            )
            for spec in self.specs
        }

    def impose_timings(self, timings: Timings) -> None:
        """Use these timings from now on."""
        self.timings = self.audit.timings = self.operations.timings = self.vms.timings = timings
        for mig in self.migs.values():
            mig.timings = timings

    def impose_switches(self, switches: Switches) -> None:
        """Use these switches from now on."""
        self.switches = self.operations.switches = self.vms.switches = switches
        for mig in self.migs.values():
            mig.switches = switches

    def mig(self, project: str, scope: str, name: str) -> Mig:
        """Return a MIG; raise 404 if there is no such MIG, or if the fault ``mig_gone`` strikes it. If the fault
        ``resized`` strikes it, begin to resize the MIG first."""
        mig = self.migs.get((project, scope, name))
        if mig is None or self.world.strikes("mig_gone", name):
            path = f"projects/{project}/{scope}/instanceGroupManagers/{name}"
            raise ApiError(404, "notFound", f"The resource '{path}' was not found")
        if fault := self.world.strikes("resized", name):
            mig.resize(int(fault.params.get("size", 0)))
        return mig

    def migs_of(self, project: str, scope: str) -> list[Mig]:
        """Return the existing MIGs of a zone or region, in order of names."""
        return [
            mig
            for key, mig in sorted(self.migs.items())
            if key[:2] == (project, scope) and not self.world.strikes("mig_gone", mig.spec.name)
        ]

    def has_project(self, project: str) -> bool:
        """Return True if the project exists. A project exists if it has a MIG."""
        return any(spec.project == project for spec in self.specs)

    def zones(self, project: str) -> list[str]:
        """Return the zones that the project's MIGs use."""
        return sorted({zone for spec in self.specs if spec.project == project for zone in spec.all_zones})

    def regions(self, project: str) -> list[str]:
        """Return the regions that the project's MIGs use."""
        return sorted({spec.region or region_of(spec.zone) for spec in self.specs if spec.project == project})

    def vm(self, project: str, zone: str, name: str) -> Vm:
        """Return a VM; raise 404 if there is no such VM."""
        vm = self.vms.zone(project, zone).get(name)
        if vm is None:
            path = f"projects/{project}/zones/{zone}/instances/{name}"
            raise ApiError(404, "notFound", f"The resource '{path}' was not found")
        return vm

    def delete_vm(self, vm: Vm, request_id: str = "") -> Operation:
        """Delete an instance directly and not by its group (instances.delete)."""
        return self._on_vm(vm, "delete", request_id)

    def stop_vm(self, vm: Vm, request_id: str = "") -> Operation:
        """Stop an instance directly and not by its group (instances.stop)."""
        return self._on_vm(vm, "stop", request_id)

    def set_labels(self, vm: Vm, labels: Mapping[str, str], request_id: str = "") -> Operation:
        """Replace the labels of an instance (instances.setLabels)."""
        return self._begin_on(vm, "setLabels", request_id, lambda: self.vms.set_labels(vm, labels))

    def delete_autoscaler(self, mig: Mig, request_id: str = "") -> Operation:
        """Remove the autoscaler of a MIG (autoscalers.delete). The MIG stays."""

        def effect() -> None:
            mig.spec = replace(mig.spec, autoscaler_mode="")

        spec = mig.spec
        target = Target(spec.project, spec.scope, spec.autoscaler, numeric_id(spec.autoscaler))
        return self.operations.begin("delete", target, request_id, effect)

    def templates(self, project: str) -> dict[str, MigSpec]:
        """Return the project's instance templates by name. Each template is represented by the spec of a MIG that was
        made from the template."""
        return {spec.template.rpartition("/")[2]: spec for spec in self.specs if spec.project == project}

    def preempt(self, names: Collection[str]) -> list[str]:
        """Preempt running VMs, as happens to Spot VMs. Return the names of the preempted VMs."""
        return [name for name in names if [vm for vm in self.vms.named(name) if self.vms.preempt(vm)]]

    def state(self) -> list[dict[str, Any]]:
        """Return every machine: members with or without VM, then VMs that are not members (with an empty ``pool``)."""
        members = [_member_state(mig, member) for mig in self.migs.values() for member in mig.members.values()]
        owned = {id(member.vm) for mig in self.migs.values() for member in mig.members.values() if member.vm}
        return members + [_vm_state(vm, "") for vm in self.vms if id(vm) not in owned]

    def _on_vm(self, vm: Vm, method: str, request_id: str) -> Operation:
        act = self.vms.delete if method == "delete" else self.vms.stop
        return self._begin_on(vm, method, request_id, lambda: act(vm))

    def _begin_on(self, vm: Vm, method: str, request_id: str, effect: Callable[[], None]) -> Operation:
        target = Target(vm.spec.project, f"zones/{vm.zone}", vm.path, str(vm.id))
        return self.operations.begin(method, target, request_id, effect)


def _member_state(mig: Mig, member: Member) -> dict[str, Any]:
    if member.vm:
        return _vm_state(member.vm, mig.spec.name)
    phase = {"NONE": "gone", "DELETING": "stopping", "ABANDONING": "stopping"}.get(member.action, "pending")
    return {
        "name": member.name,
        "kind": "mig",
        "pool": mig.spec.name,
        "phase": phase,
        "labels": dict(mig.spec.labels),
        "created": "",
        "ip": "",
    }


def _vm_state(vm: Vm, pool: str) -> dict[str, Any]:
    return {
        "name": vm.name,
        "kind": "mig",
        "pool": pool,
        "phase": _VM_PHASES[vm.status],
        "labels": dict(vm.labels),
        "created": timestamp(vm.created),
        "ip": vm.ip if vm.is_ip_shown else "",
    }
