"""Snapshots of one managed instance group. Each snapshot is made from the groups of its location and the instances of
its zones.

All pools of the project share these two kinds of lists. Each observation also lists the group's members, with the
group's action on each member. If the shared lists prove that the group is unchanged, its members are listed only every
``MEMBERS_SECONDS``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from provisioner.backends import BackendError, Finding
from provisioner.backends.dns import Resolver
from provisioner.backends.mig.compute_fields import (
    Entries,
    Json,
    Member,
    count_members,
    count_resting,
    is_settled,
    read_instance,
    spec,
    zones,
)
from provisioner.backends.mig.group_checks import Problems, missing_group_finding, missing_place_message
from provisioner.backends.mig.instance_states import LEAVING_ACTIONS, Observed, machine
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Lists, Project, Result
from provisioner.backends.mig.unlisted_preemptions import Preemptions
from provisioner.backends.responses import translated_errors
from provisioner.model import ErrorClass, Failure, Machine, MachineEnd, Phase, Snapshot

UNRESOLVED = Failure(ErrorClass.OTHER, "The instance's name does not resolve yet.")

MEMBERS_SECONDS = 300.0
"""Seconds after which the members of an unchanged group are listed anyway. Reason: if one member leaves while another
joins, the group seems unchanged."""


class GroupObserver:
    """The observer of one group. The observer keeps the previous observation, and makes one observation at a time."""

    def __init__(self, pool: MigPool, project: Project, check: Callable[[Json, float], list[Finding]]) -> None:
        """Store the settings. ``check``: a function that returns the findings about the group's autoscaler."""
        self._pool, self._project = pool, project
        self._resolver = Resolver() if pool.require_dns else None
        """The resolver of machine names; None if names need not resolve. With a resolver, a machine counts as running
        only after its name has resolved."""
        self._seen: Mapping[str, Observed] = {}
        self._machines: Mapping[str, Machine] = {}
        self._zones: frozenset[str] = frozenset()
        self._spec = ""
        self._last_member_names: Set[str] = frozenset()
        """Names of ours that the last list of members contained."""
        self._listed_at = float("-inf")
        self._restless_until = float("-inf")
        self._asked_to_delete: set[str] = set()
        """Members that we asked the group to delete. The end of these members is expected."""
        self._problems = Problems(pool, check)
        self._preemptions = Preemptions(pool.name, project.api.preemptions)
        self.members: Mapping[str, Member] = {}
        """The members in the last list, whatever their names."""
        self._leaving: Set[str] = frozenset()
        """Members that were leaving in the last list. A member stays in this set until no list shows its instance."""
        self.outside: Mapping[str, Member] = {}
        """Sought instances of ours that have left the group, as members with the action ABANDONING."""

    def expect_change(self, deleted: Collection[str] = ()) -> None:
        """List the members in each observation for a while after a call to the group, because the lists may show the
        call's effect late. ``deleted``: names that the call asks the group to delete."""
        self._asked_to_delete.update(deleted)
        self._restless_until = time.monotonic() + self._pool.lag_seconds

    def close(self) -> None:
        """Stop resolving names."""
        if self._resolver:
            self._resolver.close()

    @translated_errors()
    def observe(self, now: float, sought: Mapping[str, str], refused: Mapping[str, Machine]) -> Snapshot:
        """Return a complete snapshot. Raise BackendError if a list fails. The snapshot began when the first of its
        lists began, at ``now`` or earlier.

        ``refused``: machines that the group refused to make. Lists do not show these machines.
        """
        ipv6 = self._pool.ipv6
        deadline, wall = time.monotonic() + self._project.api.times.observation, self._project.api.clock.now()
        groups = self._groups(now, deadline)
        group = groups.items.get(self._pool.group)
        self._zones |= zones(group or {}, self._pool.zone or "")
        lists = self._instances(now, deadline)
        entries = {zone: listed.items for zone, listed in lists.items()}
        standing: Set[str] = set().union(*entries.values())
        self._update(group, entries, standing, now, deadline)
        self.outside = _abandoned_members(sought, self.members.keys() | self._leaving, entries)
        strayed = {
            name: machine(member, read_instance(_entry(entries, member), ipv6=ipv6), self._machines.get(name), now)
            for name, member in self.outside.items()
        }
        began = min(groups.began, *(listed.began for listed in lists.values()))
        return Snapshot(
            pool=self._pool.name,
            began_at=began,
            wall=wall and wall - (now - began),
            machines=self._publish({name: seen.machine for name, seen in self._seen.items()} | strayed, refused),
            foreign=frozenset(name for name in sought if name in self.members and name not in self._seen),
            name_collisions=self._name_collisions(
                sought.keys() - self.outside.keys() - self.members.keys(), standing, deadline
            ),
            spec=self._spec,
            asked=frozenset(sought),
            ends={name: MachineEnd(cause) for name, cause in self._preemptions.causes().items()},
            problems=(*self._project.api.clock.slowness(), *self._problems.texts),
        )

    def _update(self, group: Json | None, entries: Entries, standing: Set[str], now: float, deadline: float) -> None:
        """Report the group's problems. Unless the group is unchanged, list its members, and update the stored machines
        from all lists. ``standing``: names of all instances in the shared lists."""
        if group is not None and self._is_unchanged(group, entries):
            self._problems.report(group, self._project.foreign(self.members), deadline)  # the settings may have changed
            return
        if group is None and (not self._last_member_names or self._last_member_names & standing):
            raise self._missing_group_error()  # the group was deleted only if all its instances are gone
        members = self._list_members(group, deadline) if group is not None else {}
        seen = {
            name: self._read_machine(member, _entry(entries, member), now)
            for name, member in members.items()
            if self._project.is_ours(name)
        }
        before, self._seen = self._seen, self._preemptions.explain(self._seen, seen, self._asked_to_delete, self._zones)
        unasked = {name: one for name, one in self._seen.items() if name not in self._asked_to_delete}
        self._problems.note_strays(before, members, entries)
        self._problems.note_deletes(before, unasked, group or {}, deadline)
        self._problems.report(group, self._project.foreign(members), deadline)
        self._asked_to_delete &= members.keys()
        self.members, self._leaving = members, leaving_names(self._leaving, members, standing)
        self._listed_at = float("-inf")
        if group is not None:
            self._last_member_names, self._spec, self._listed_at = self._seen.keys(), spec(group), time.monotonic()

    def _is_unchanged(self, group: Json, entries: Entries) -> bool:
        """Return True if the members need not be listed: no change is expected, their last list is recent, the group
        has no current actions and the same template as before, and all instances run as before."""
        return (
            time.monotonic() > self._restless_until
            and time.monotonic() < self._listed_at + MEMBERS_SECONDS
            and is_settled(group, len(self.members))
            and spec(group) == self._spec
            and all(
                seen.machine.phase is Phase.RUNNING and _entry(entries, seen.member) == seen.entry
                for seen in self._seen.values()
            )
        )

    def _newer(self, shared: Lists, now: float, deadline: float) -> Result:
        return shared.newer(self._pool.name, now, pace=self._pool.observe_seconds, deadline=deadline)

    def _groups(self, now: float, deadline: float) -> Result:
        """Return the groups of the location. Raise BackendError if the list fails. If the project, zone or region is
        missing, the error advises the operator."""
        try:
            return self._newer(self._project.groups(self._pool.place), now, deadline)
        except BackendError as error:
            if text := missing_place_message(self._pool, error.failure):
                raise self._missing_group_error(text) from error
            raise

    def _instances(self, now: float, deadline: float) -> Mapping[str, Result]:
        """Return the instances by zone. All zones are read at the same time. Raise BackendError if the list of any zone
        fails."""
        lists = {zone: self._project.instances(zone) for zone in sorted(self._zones)}
        if not lists:
            raise self._missing_group_error()
        if len(lists) == 1:
            return {zone: self._newer(shared, now, deadline) for zone, shared in lists.items()}
        with ThreadPoolExecutor(len(lists), thread_name_prefix="zone") as pool:
            read = pool.map(lambda shared: self._newer(shared, now, deadline), lists.values())
            return dict(zip(lists, read, strict=True))

    def _name_collisions(self, others: Set[str], standing: Set[str], deadline: float) -> frozenset[str]:
        """Return the names in ``others`` that belong to instances. ``standing``: instances in the shared lists."""
        there = others & standing
        for prefix in self._project.adopt_prefixes:
            if any(name.startswith(prefix) for name in others):
                for zone in sorted(self._zones):
                    there |= others & self._project.api.instances(zone, deadline, prefix).keys()
        return frozenset(there)

    def _missing_group_error(self, text: str = "") -> BackendError:
        text = f"{text or missing_group_finding(self._pool).text}. Until the group is seen, no machine counts as lost."
        return BackendError(ErrorClass.NOT_FOUND, text)

    def _list_members(self, group: Json, deadline: float) -> Mapping[str, Member]:
        """Return the members. If the list is shorter than the group's count in ``group``, read a new count. Raise
        BackendError if the list is shorter than the new count, too."""
        members = self._project.members(self._pool, deadline)
        if self._incomplete_count(members, group):
            group = self._project.api.group(self._pool, deadline)
            if count := self._incomplete_count(members, group):
                raise BackendError(ErrorClass.OTHER, f"{len(members)} members are listed, but the group counts {count}")
        self._zones |= {member.zone for member in members.values()} - {""}
        return members

    def _incomplete_count(self, members: Mapping[str, Member], group: Json) -> int:
        """Return the group's count of members if the list ``members`` is shorter than this count; else 0.

        Usually the count leaves out members with an action, because a list may show new members late. If all members
        have vanished from the list at once, the count includes members with an action.
        """
        count = count_members(group) if self.members and not members else count_resting(group)
        return count if count > len(members) else 0

    def _read_machine(self, member: Member, entry: Json, now: float) -> Observed:
        """Return the machine with its two entries. If neither entry has changed, return the same object as before."""
        before = self._seen.get(member.name)
        if before is not None and before.member == member and before.entry == entry:
            return before
        instance = read_instance(entry, ipv6=self._pool.ipv6)
        return Observed(member, entry, machine(member, instance, before.machine if before else None, now))

    def _publish(self, machines: dict[str, Machine], refused: Mapping[str, Machine]) -> Mapping[str, Machine]:
        """Return our machines by name. If none has changed, return the same mapping as in the previous observation."""
        before = self._machines
        if self._resolver is not None:
            machines = {name: self._check_name(self._resolver, machine) for name, machine in machines.items()}
            for name in before.keys() - machines.keys():
                self._resolver.forget(name)
        machines |= refused
        same = len(machines) == len(before) and all(before.get(name) is machine for name, machine in machines.items())
        self._machines = before if same else machines
        return self._machines

    def _check_name(self, resolver: Resolver, machine: Machine) -> Machine:
        """Return the machine. If it runs but its name does not resolve yet, return it as pending."""
        if machine.phase is not Phase.RUNNING or resolver.is_resolved(machine.name):
            return machine
        waiting = replace(machine, phase=Phase.PENDING, failure=UNRESOLVED, is_nameless=True)
        before = self._machines.get(machine.name)
        return before if before == waiting and before is not None else waiting


def leaving_names(before: Set[str], members: Mapping[str, Member], standing: Set[str]) -> Set[str]:
    """Return the members that are leaving, and former members whose instances are still listed.

    ``standing``: the listed instances' names. An instance may be gone already, because a list may be late.
    """
    leaving = {name for name, member in members.items() if member.action in LEAVING_ACTIONS}
    return leaving | (before & standing - members.keys())


def _abandoned_members(sought: Mapping[str, str], members: Collection[str], entries: Entries) -> dict[str, Member]:
    """Return the sought instances that exist, but have left the group, by name. Each is returned as a ``Member`` with
    the action ABANDONING."""
    return {
        name: Member(name, uid, zone, "", "ABANDONING", None)
        for name, uid in sought.items()
        for zone, instances in entries.items()
        if uid and name not in members and str(instances.get(name, {}).get("id")) == uid
    }


def _entry(entries: Entries, member: Member) -> Json:
    """Return a member's instance; empty if there is no instance. The member's zone decides, because another zone may
    have an instance of the same name."""
    where = [member.zone] if member.zone else [*entries]
    return next((entries[zone][member.name] for zone in where if member.name in entries.get(zone, {})), {})
