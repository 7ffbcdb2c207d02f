"""Changes to the members of a simulated managed instance group (MIG). Calls, VMs and others make these changes.

Fault modes that simulate changes by others. Targets: the VM's name, the MIG, the zone.

* ``abandoned``: a member is taken out of the MIG ``seconds`` (60) after it runs
* ``recreated``: a member is recreated ``seconds`` (60) after it runs
* ``protected``: a member's VM is protected against deletion, so that the MIG tries to delete it again and again
* ``unhealthy``: a member begins to fail its health check ``seconds`` (60) after it runs, if the MIG has a check

A MIG's settings decide whether the MIG repairs and heals its members. They also decide whether it replaces members with
an old template, and whether it evens out its zones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from provisioner.lab.cloud.compute.attempts import Attempts
from provisioner.lab.cloud.compute.managed_instances import LEAVING, Member, Members
from provisioner.lab.cloud.compute.operations import Document
from provisioner.lab.cloud.compute.vms import Vm

REPAIRED = "Instance eligible for repair: instance should be RUNNING, but is STOPPING"
UNHEALTHY = "Instance eligible for autohealing: instance unhealthy."
"""Google's message about a member that fails its health check."""

PROTECTED = {
    "code": "INVALID_RESOURCE_USAGE",
    "message": "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion.'.",
}
"""Google's error for a VM that is protected against deletion."""


class MemberLife:
    """The creation and the end of a MIG's members."""

    def __init__(self, group: Members) -> None:
        self._group = group
        self._attempts = Attempts(group, self._noticed)

    # --- effects of calls ---------------------------------------------------------------------------------------------

    def create(self, names: Sequence[str], preserved: Mapping[str, Document]) -> None:
        """Add a member for each name that no member has yet."""
        for name in names:
            if name not in self._group.members:
                self._add(Member(name, self._group.next_zone(), preserved=preserved.get(name, {})))

    def resize(self, size: int) -> None:
        """Add members with random names, or delete the first members, until there are ``size`` members."""
        group = self._group
        while group.target_size < size:
            self._add(Member(group.random_name(), group.next_zone(), configured=False))
        victims = [member for member in group.members.values() if member.action not in LEAVING]
        for member in victims[: max(0, group.target_size - size)]:
            self.delete(member)

    def each(self, names: Sequence[str], effect: Callable[[Member], None]) -> None:
        """Apply an effect to each named member that still exists and is not leaving."""
        for name in names:
            member = self._group.members.get(name)
            if member and member.action not in LEAVING:
                effect(member)

    def delete(self, member: Member) -> None:
        """Delete the member and its VM."""
        self._group.target_size -= 1
        self._group.act(member, "DELETING")
        self._go(member)
        self.even_out_later()

    def _go(self, member: Member) -> None:
        """Delete the VM of a leaving member. If the VM is protected, try again later."""
        group = self._group
        if not group.has_member(member):
            return
        if member.vm and group.world.strikes("protected", member.name, group.spec.name, member.zone):
            member.errors = (PROTECTED,)
            group.show(member)
            group.world.after(group.timings.retry_first, partial(self._go, member))
        elif member.vm:
            group.vms.delete(member.vm)
        elif member.failures or group.switches.cancel_creating or member.previous:
            group.leave(member)

    def abandon(self, member: Member) -> None:
        """Let the member leave while its VM runs on."""
        self._group.target_size -= 1
        self._group.act(member, "ABANDONING")
        if member.vm:
            member.vm.watcher = None
        self._group.leave(member)
        self.even_out_later()

    def recreate(self, member: Member) -> None:
        """Delete the member's VM and make a new VM under the same name."""
        self._group.act(member, "RECREATING")
        if member.vm:
            self._group.vms.delete(member.vm)
        else:
            self._attempts.schedule(member, 0.0)

    def update(self) -> None:
        """If the update is PROACTIVE, replace the members with an old template, one after the other."""
        group = self._group
        old = [member for member in group.members.values() if group.outdated(member)]
        for turn, member in enumerate(old):
            group.world.after(turn * group.timings.schedule[1], partial(self.each, [member.name], self._replace))

    def _replace(self, member: Member) -> None:
        """If the member is still outdated, replace it under the same name or under a new name."""
        if not self._group.outdated(member):
            return
        if self._group.spec.replacement_method == "RECREATE":
            self.recreate(member)
            return
        self.delete(member)
        self._add(Member(self._group.random_name(), member.zone, configured=False))

    def even_out_later(self) -> None:
        """If the group redistributes, schedule a step that evens out its zones."""
        group = self._group
        if group.is_redistributing:
            group.world.after(group.world.lognormal(*group.timings.redistribute), self._even_out)

    def _even_out(self) -> None:
        """Move one member from the fullest zone to the emptiest zone, if the MIG redistributes members and the zones
        are uneven.

        Delete a member in the fullest zone. Make a member with a new name in the emptiest zone.
        """
        group = self._group
        there = [member for member in group.members.values() if member.action not in LEAVING]
        counts = Counter(member.zone for member in there)
        sizes = {zone: counts[zone] for zone in group.spec.all_zones}
        fullest, emptiest = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
        if not group.is_redistributing or sizes[fullest] - sizes[emptiest] < 2:
            return
        self.delete(next(member for member in there if member.zone == fullest))
        self._add(Member(group.random_name(), emptiest, configured=False))

    def _add(self, member: Member) -> None:
        self._group.join(member)
        self._attempts.schedule(member, self._group.world.lognormal(*self._group.timings.schedule))

    # --- changes of VMs -----------------------------------------------------------------------------------------------

    def _noticed(self, member: Member, vm: Vm) -> None:
        """React to a changed status of a member's VM."""
        if member.vm is not vm:
            return
        if vm.status == "RUNNING":
            self._booted(member, vm)
        elif not vm.exists:
            self._ended(member, vm)
        elif vm.status == "TERMINATED" and self._group.is_repairing:
            self._repair_later(member)
        self._group.show(member)

    def _booted(self, member: Member, vm: Vm) -> None:
        member.failures, member.errors = 0, ()
        if member.action == "DELETING":
            self._go(member)
        else:
            member.action = "NONE"
            self._disturb(member)

    def _disturb(self, member: Member) -> None:
        """Schedule the effects of faults on a member that has just begun to run."""
        world = self._group.world
        for mode, act in (("abandoned", self.abandon), ("recreated", self.recreate)):
            if fault := world.strikes(mode, member.name, self._group.spec.name, member.zone):
                world.after(float(fault.params.get("seconds", 60.0)), partial(self.each, [member.name], act))
        if fault := world.strikes("unhealthy", member.name, self._group.spec.name, member.zone):
            seconds = max(float(fault.params.get("seconds", 60.0)), self._group.initial_delay)
            world.after(seconds, partial(self._heal, member, member.vm))

    def _ended(self, member: Member, vm: Vm) -> None:
        member.vm, member.previous = None, vm
        if member.action == "DELETING":
            self._group.leave(member)
        elif member.action in ("CREATING", "RECREATING"):
            self._attempts.schedule(member, 0.0)
        elif self._group.is_repairing:
            self._repair_later(member)
        elif self._group.switches.dead_member_stays:
            member.action = "NONE"
        else:
            self._group.target_size -= 1
            self._group.act(member, "DELETING")
            self._group.leave(member)

    def _repair_later(self, member: Member) -> None:
        dead, world = member.vm or member.previous, self._group.world
        world.after(world.lognormal(*self._group.timings.repair), lambda: self._repair_dead(member, dead))

    def _repair_dead(self, member: Member, dead: Vm | None) -> None:
        if self._group.is_repairing:
            self._repair(member, dead, REPAIRED)

    def _heal(self, member: Member, sick: Vm | None) -> None:
        if self._group.is_healing:
            self._repair(member, sick, UNHEALTHY)

    def _repair(self, member: Member, dead: Vm | None, why: str) -> None:
        """Recreate a member whose VM died or is unhealthy, unless the member has changed meanwhile."""
        if not self._group.has_member(member) or (member.vm or member.previous) is not dead:
            return
        if member.action == "NONE":
            self._group.vms.audit.system("instances.repair.recreateInstance", self._group.path(member), why)
            member.keeps_template = not self._group.is_updated_on_repair
            self.recreate(member)
