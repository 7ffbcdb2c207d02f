"""The repeated attempts of a simulated managed instance group to create the VM of a member.

Fault modes of each attempt to create a VM. Targets: the VM's name, the MIG, the zone. After a failed attempt, the
member stays CREATING with ``lastAttempt.errors``. An entry appears in listErrors. The MIG tries again after a growing
pause.

* ``stockout``: no capacity. ``code`` is ZONE_RESOURCE_POOL_EXHAUSTED by default; it may be ``…_WITH_DETAILS`` or
  INSUFFICIENT_CAPACITY. With ``after``, the first ``after`` attempts find capacity.
* ``quota``: QUOTA_EXCEEDED with quotaInfo; ``limit`` (500), ``metric`` (the family's CPUs)
* ``ip_exhausted``: IP_SPACE_EXHAUSTED
* ``attempt_error``: any other error: ``code`` (INTERNAL_ERROR), ``message``
* ``false_start``: no capacity, but the VM is shown as PROVISIONING for ``seconds`` (5) first
* ``name_taken``: a VM outside the MIG has taken the name: RESOURCE_ALREADY_EXISTS, until that VM is gone
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from provisioner.lab.cloud.compute.attempt_errors import STOCKOUT, failed, insert_error, quota, stockout
from provisioner.lab.cloud.compute.managed_instances import Member, Members
from provisioner.lab.cloud.compute.operations import Document
from provisioner.lab.cloud.compute.settings import region_of
from provisioner.lab.cloud.compute.vms import STARTING, Vm


class Attempts:
    """The attempts of a MIG to create VMs. ``noticed`` is called whenever the VM of a member changes its status."""

    def __init__(self, group: Members, noticed: Callable[[Member, Vm], None]) -> None:
        self._group = group
        self._noticed = noticed
        self._next_insert = 0.0

    def schedule(self, member: Member, delay: float) -> None:
        """Try to create the member's VM after ``delay`` seconds."""
        self._group.world.after(delay, lambda: self._queue(member))

    def _queue(self, member: Member) -> None:
        """Try to create the VM as soon as the MIG's throughput allows."""
        world, rate = self._group.world, self._group.timings.inserts_per_second
        at = max(world.now, self._next_insert)
        if rate:
            self._next_insert = at + 1.0 / rate
        world.after(at - world.now, lambda: self._attempt(member))

    def _attempt(self, member: Member) -> None:
        if not self._group.has_member(member) or member.vm or member.leaving:
            return
        error = self._obstacle(member)
        if error is None:
            self._insert(member)
        elif member.action == "DELETING":
            self._group.leave(member)
        else:
            self._log_insert(member, error)
            self._fail(member, error)

    def _insert(self, member: Member) -> None:
        group = self._group
        like = member.previous if group.switches.recreate_keeps_id else None
        metadata = member.preserved.get("metadata", {})
        spec = member.previous.spec if member.keeps_template and member.previous else group.spec
        member.keeps_template = False
        vm = member.vm = group.vms.insert(spec, member.zone, member.name, like=like, metadata=metadata)
        vm.watcher = partial(self._noticed, member)
        group.show(member)
        if fault := group.world.strikes("false_start", member.name, group.spec.name, member.zone):
            group.world.after(float(fault.params.get("seconds", 5.0)), partial(self._give_up, member, vm))

    def _give_up(self, member: Member, vm: Vm) -> None:
        """Remove a VM whose insert has begun, because the zone has no room for the VM."""
        if member.vm is not vm or vm.status not in STARTING:
            return
        error = stockout(self._group.spec, member.zone)
        member.vm = None
        self._group.vms.withdraw(vm, insert_error(error))
        if member.action == "DELETING":
            self._group.leave(member)
        else:
            self._fail(member, error)

    def _fail(self, member: Member, error: Document) -> None:
        member.errors = (error,)
        member.failures += 1
        self._group.log_error(member, error)
        self._group.show(member)
        timings = self._group.timings
        self.schedule(member, min(timings.retry_first * 2.0 ** (member.failures - 1), timings.retry_last))

    def _log_insert(self, member: Member, error: Document) -> None:
        """Log a failed insert. Like any other insert, it has two entries in the audit log."""
        path, audit = self._group.path(member), self._group.vms.audit
        audit.end("instances.insert", path, audit.begin("instances.insert", path), insert_error(error))

    def _obstacle(self, member: Member) -> Document | None:
        """Return the error that prevents the insert of the member's VM now; None if the VM can be inserted.

        The error has the form of an entry of ``lastAttempt.errors``.
        """
        spec, zone, world = self._group.spec, member.zone, self._group.world
        targets = (member.name, spec.name, zone)
        if self._is_name_taken(member):
            path = self._group.path(member)
            return failed(member.name, "RESOURCE_ALREADY_EXISTS", f"The resource '{path}' already exists")
        if fault := world.strikes("stockout", *targets):
            return stockout(spec, zone, str(fault.params.get("code", STOCKOUT)))
        if self._is_full():
            return stockout(spec, zone)
        if fault := world.strikes("quota", *targets):
            return quota(spec, zone, member.name, fault)
        if world.strikes("ip_exhausted", *targets):
            subnet = f"projects/{spec.project}/regions/{region_of(zone)}/subnetworks/default"
            return failed(member.name, "IP_SPACE_EXHAUSTED", f"IP space of '{subnet}' is exhausted.")
        if fault := world.strikes("attempt_error", *targets):
            message = str(fault.params.get("message", "Internal error. Please try again."))
            return {"code": str(fault.params.get("code", "INTERNAL_ERROR")), "message": message}
        return None

    def _is_name_taken(self, member: Member) -> bool:
        """Return True if another VM of the zone has the member's name. If the fault ``name_taken`` strikes, make such a
        VM first."""
        spec, vms = self._group.spec, self._group.vms
        struck = self._group.world.strikes("name_taken", member.name, spec.name, member.zone)
        if struck and member.name not in vms.zone(spec.project, member.zone):
            vms.insert(spec, member.zone, member.name)
        return member.name in vms.zone(spec.project, member.zone)

    def _is_full(self) -> bool:
        """Return True if the MIG has as many VMs as its ``capacity`` allows."""
        capacity = self._group.spec.capacity
        return capacity is not None and sum(1 for member in self._group.members.values() if member.vm) >= capacity
