"""One simulated managed instance group: its members, what it does with them, and how it goes on trying.

Fault modes that strike at each attempt to create a VM (targets: the VM's name, the MIG, the zone). The member stays
CREATING with ``lastAttempt.errors``, a row appears in listErrors, and the MIG tries again after a growing gap:

============= ==========================================================================================
stockout      no capacity; ``code`` (ZONE_RESOURCE_POOL_EXHAUSTED), also ``…_WITH_DETAILS`` or
              INSUFFICIENT_CAPACITY; let some through with the fault's ``after``
quota         QUOTA_EXCEEDED with quotaInfo; ``limit`` (500), ``metric`` (the family's CPUs)
ip_exhausted  IP_SPACE_EXHAUSTED
attempt_error any other: ``code`` (INTERNAL_ERROR), ``message``
false_start   no capacity, as the MIG learns ``seconds`` (5) after the VM shows as PROVISIONING
name_taken    a VM outside the MIG takes the name just before: RESOURCE_ALREADY_EXISTS, until it goes
============= ==========================================================================================

What others do to the MIG, and settings in place of its own (targets: the MIG; of the first two also the VM and zone):

============= ==========================================================================================
abandoned     a member is taken out of the MIG ``seconds`` (60) after it runs
recreated     a member is recreated ``seconds`` (60) after it runs
resized       the next call about the MIG finds it resized to ``size`` (0)
size_limit    the MIG takes no more than ``limit`` (1) members
repairs       the MIG recreates what dies, as with defaultActionOnFailure REPAIR
paginated     listManagedInstances has pages
============= ==========================================================================================
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from provisioner.simulator.compute.attempt_errors import STOCKOUT, failed, insert_error, quota, stockout
from provisioner.simulator.compute.operations import (
    BASE,
    PROACTIVE_SUBSTITUTE,
    ApiError,
    Document,
    Operation,
    OperationError,
    Operations,
    numeric_id,
    timestamp,
)
from provisioner.simulator.compute.settings import MAX_PER_CALL, Duplicate, MigSpec, Switches, Timings, region_of
from provisioner.simulator.compute.vms import STARTING, Shelf, Vm, Vms
from provisioner.simulator.world import World

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
INSTANCE_URL = re.compile(r"(?:(?:.*/)?projects/(?P<project>[^/]+)/)?zones/(?P<zone>[^/]+)/instances/(?P<name>[^/]+)")
ERROR_HISTORY = 500
"""Rows that listErrors keeps."""

REPAIRED = "Instance eligible for repair: instance should be RUNNING, but is STOPPING"
"""Google's own words."""

LEAVING = ("DELETING", "ABANDONING")


@dataclass(eq=False)
class Member:
    """One managed instance, with or without a VM."""

    name: str
    zone: str
    vm: Vm | None = None
    action: str = "CREATING"
    failures: int = 0
    """Attempts to create it that failed, since the last that did not."""
    errors: tuple[Document, ...] = ()
    """Of the last attempt."""
    previous: Vm | None = None
    """The VM before a recreation."""
    leaving: bool = False
    """Nothing is done for it any more; it is only still shown."""
    configured: bool = True
    """It has a per-instance config, because createInstances named it."""
    preserved: Document = field(default_factory=dict)
    """``preservedState`` of that config."""

    @property
    def target(self) -> str:
        """``targetStatus``: where the MIG wants it."""
        return {"DELETING": "DELETED", "ABANDONING": "ABANDONED"}.get(self.action, "RUNNING")

    @property
    def config(self) -> str:
        """Status of its per-instance config; empty where it has none."""
        if not self.configured:
            return ""
        if self.action in LEAVING:
            return "DELETING"
        return "EFFECTIVE" if self.vm else "APPLYING"


@dataclass
class Mig:
    """A managed instance group at work."""

    spec: MigSpec
    world: World
    vms: Vms
    operations: Operations
    timings: Timings
    switches: Switches
    target_size: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    settings: Document = field(default_factory=dict)
    """What patches said of it beyond ``spec``, as it stands in its document."""
    errors: deque[Document] = field(default_factory=lambda: deque(maxlen=ERROR_HISTORY))
    """Rows of listErrors, oldest first."""
    _next_insert: float = 0.0

    def __post_init__(self) -> None:
        self.shelf = Shelf(self.world)
        """What listManagedInstances shows."""
        self.created = self.world.wall()

    # --- calls; each is accepted or refused at once, and takes effect when its operation ends ------------------------

    def create(
        self, names: Sequence[str], request_id: str = "", preserved: Mapping[str, Document] | None = None
    ) -> Operation:
        """createInstances: new members with these names; ``preserved``: ``preservedState`` of those that have one."""
        self._check_count(names)
        for name in names:
            if not NAME.fullmatch(name):
                raise _invalid(
                    f"Invalid value for field 'resource.instances[].name': '{name}'. Must be a match of regex"
                )
        if len(set(names)) < len(names):
            raise _invalid("Invalid value for field 'resource.instances': names must be unique within a request.")
        self._check_size(self.target_size + len(names))
        present = [name for name in names if name in self.members]
        if present and self.switches.duplicate_name is Duplicate.HTTP_CONFLICT:
            raise ApiError(409, "alreadyExists", self._already(present[0]).message)
        return self._begin("createInstances", request_id, lambda: self._create(names, preserved or {}))

    def delete(self, urls: Sequence[str], *, skip_invalid: bool, request_id: str = "") -> Operation:
        """deleteInstances: members and their VMs go; targetSize falls."""
        names = self._members_named(urls, skip_invalid=skip_invalid)
        return self._begin("deleteInstances", request_id, lambda: self._each(names, self._delete))

    def abandon(self, urls: Sequence[str], request_id: str = "") -> Operation:
        """abandonInstances: members leave, their VMs run on; targetSize falls."""
        names = self._members_named(urls, skip_invalid=False)
        return self._begin("abandonInstances", request_id, lambda: self._each(names, self._abandon))

    def recreate(self, urls: Sequence[str], request_id: str = "") -> Operation:
        """recreateInstances: VMs are deleted and made again under the same names."""
        names = self._members_named(urls, skip_invalid=False)
        return self._begin("recreateInstances", request_id, lambda: self._each(names, self._recreate))

    def resize(self, size: int, request_id: str = "") -> Operation:
        """resize: random names are added, or members chosen by the MIG deleted."""
        if size < 0:
            raise _invalid(f"Invalid value for field 'size': '{size}'. Must be greater than or equal to 0")
        self._check_size(size)
        return self._begin("resize", request_id, lambda: self._resize(size))

    def patch(self, change: Callable[[Mig], None], size: int | None, request_id: str = "") -> Operation:
        """patch: ``change`` alters its settings; members stay as they are, unless ``size`` is another targetSize."""
        if size is not None:
            self._check_size(size)

        def effect() -> None:
            change(self)
            if size is not None:
                self._resize(size)

        return self._begin("patch", request_id, effect)

    # --- what it shows ------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Numeric id."""
        return numeric_id(self.spec.path)

    @property
    def repairs(self) -> bool:
        """It recreates what dies."""
        chosen = self.spec.default_action_on_failure == "REPAIR"
        return chosen or self.world.strikes("repairs", self.spec.name) is not None

    @property
    def paginated(self) -> bool:
        """listManagedInstances has pages."""
        return self.spec.list_results == "PAGINATED" or self.world.strikes("paginated", self.spec.name) is not None

    def actions(self) -> Counter[str]:
        """Members by current action."""
        return Counter(member.action for member in self.members.values())

    @property
    def stable(self) -> bool:
        """Nothing changes and nothing is scheduled."""
        return set(self.actions()) <= {"NONE"} and not self.operations.pending(self.spec.path)

    # --- effects ------------------------------------------------------------------------------------------------------

    def _begin(self, method: str, request_id: str, effect: Callable[[], OperationError | None]) -> Operation:
        return self.operations.begin(
            project=self.spec.project,
            scope=self.spec.scope,
            kind=f"compute.instanceGroupManagers.{method}",
            target=self.spec.path,
            target_id=self.id,
            request_id=request_id,
            effect=effect,
        )

    def _create(self, names: Sequence[str], preserved: Mapping[str, Document]) -> OperationError | None:
        if self.spec.update_type == "PROACTIVE" and self.spec.replacement_method == "SUBSTITUTE":
            return PROACTIVE_SUBSTITUTE
        present = [name for name in names if name in self.members]
        if present and self.switches.duplicate_name is not Duplicate.IGNORE:
            return self._already(present[0])
        for name in names:
            if name not in self.members:
                self._add(Member(name, self._next_zone(), preserved=preserved.get(name, {})))
        return None

    def _next_zone(self) -> str:
        zones = self.spec.all_zones
        return zones[len(self.members) % len(zones)]

    def _add(self, member: Member) -> None:
        self.members[member.name] = member
        self.target_size += 1
        self._show(member)
        self._schedule(member, self.world.lognormal(*self.timings.schedule))

    def _each(self, names: Sequence[str], effect: Callable[[Member], None]) -> None:
        for name in names:
            member = self.members.get(name)
            if member and member.action not in LEAVING:
                effect(member)

    def _delete(self, member: Member) -> None:
        self.target_size -= 1
        self._act(member, "DELETING")
        if member.vm:
            self.vms.delete(member.vm)
        elif member.failures or self.switches.cancel_creating or member.previous:
            self._leave(member)

    def _abandon(self, member: Member) -> None:
        self.target_size -= 1
        self._act(member, "ABANDONING")
        if member.vm:
            member.vm.watcher = None
        self._leave(member)

    def _recreate(self, member: Member) -> None:
        self._act(member, "RECREATING")
        if member.vm:
            self.vms.delete(member.vm)
        else:
            self._schedule(member, 0.0)

    def _resize(self, size: int) -> None:
        while self.target_size < size:
            self._add(Member(self._random_name(), self._next_zone(), configured=False))
        victims = [member for member in self.members.values() if member.action not in LEAVING]
        for member in victims[: max(0, self.target_size - size)]:
            self._delete(member)

    # --- attempts -----------------------------------------------------------------------------------------------------

    def _schedule(self, member: Member, delay: float) -> None:
        """Try to create the member's VM after ``delay``."""
        self.world.after(delay, lambda: self._queue(member))

    def _queue(self, member: Member) -> None:
        """Try it as soon as the MIG's throughput allows."""
        at = max(self.world.now, self._next_insert)
        if self.timings.inserts_per_second:
            self._next_insert = at + 1.0 / self.timings.inserts_per_second
        self.world.after(at - self.world.now, lambda: self._attempt(member))

    def _attempt(self, member: Member) -> None:
        if self.members.get(member.name) is not member or member.vm or member.leaving:
            return
        error = self._obstacle(member)
        if error is None:
            like, metadata = self._identity(member), member.preserved.get("metadata", {})
            member.vm = self.vms.insert(self.spec, member.zone, member.name, like=like, metadata=metadata)
            member.vm.watcher = lambda vm: self._noticed(member, vm)
            self._show(member)
            if fault := self.world.strikes("false_start", member.name, self.spec.name, member.zone):
                seconds = float(fault.params.get("seconds", 5.0))
                self.world.after(seconds, partial(self._give_up, member, member.vm))
        elif member.action == "DELETING":
            self._leave(member)
        else:
            self._log_failed(member, error)
            self._fail(member, error)

    def _give_up(self, member: Member, vm: Vm) -> None:
        """There is no room for a VM that has been begun."""
        if member.vm is not vm or vm.status not in STARTING:
            return
        error = stockout(self.spec, member.zone)
        member.vm = None
        self.vms.withdraw(vm, insert_error(error))
        if member.action == "DELETING":
            self._leave(member)
        else:
            self._fail(member, error)

    def _identity(self, member: Member) -> Vm | None:
        return member.previous if self.switches.recreate_keeps_id else None

    def _fail(self, member: Member, error: Document) -> None:
        member.errors = (error,)
        member.failures += 1
        self.errors.append(self._error_row(member, error))
        self._show(member)
        gap = min(self.timings.retry_first * 2.0 ** (member.failures - 1), self.timings.retry_last)
        self._schedule(member, gap)

    def _log_failed(self, member: Member, error: Document) -> None:
        """An insert that came to nothing is two entries all the same."""
        path = f"projects/{self.spec.project}/zones/{member.zone}/instances/{member.name}"
        operation = self.vms.audit.begin("instances.insert", path)
        self.vms.audit.end("instances.insert", path, operation, insert_error(error))

    def _obstacle(self, member: Member) -> Document | None:
        """Why the member's VM cannot be inserted now, as an entry of ``lastAttempt.errors``."""
        spec, zone = self.spec, member.zone
        targets = (member.name, spec.name, zone)
        if self.world.strikes("name_taken", *targets) and member.name not in self.vms.zone(spec.project, zone):
            self.vms.insert(spec, zone, member.name)
        if member.name in self.vms.zone(spec.project, zone):
            path = f"projects/{spec.project}/zones/{zone}/instances/{member.name}"
            return failed(member.name, "RESOURCE_ALREADY_EXISTS", f"The resource '{path}' already exists")
        if fault := self.world.strikes("stockout", *targets):
            return stockout(spec, zone, str(fault.params.get("code", STOCKOUT)))
        if spec.capacity is not None and sum(1 for other in self.members.values() if other.vm) >= spec.capacity:
            return stockout(spec, zone)
        if fault := self.world.strikes("quota", *targets):
            return quota(spec, zone, member.name, fault)
        if self.world.strikes("ip_exhausted", *targets):
            subnet = f"projects/{spec.project}/regions/{region_of(zone)}/subnetworks/default"
            return failed(member.name, "IP_SPACE_EXHAUSTED", f"IP space of '{subnet}' is exhausted.")
        if fault := self.world.strikes("attempt_error", *targets):
            message = str(fault.params.get("message", "Internal error. Please try again."))
            return {"code": str(fault.params.get("code", "INTERNAL_ERROR")), "message": message}
        return None

    # --- what becomes of VMs ------------------------------------------------------------------------------------------

    def _noticed(self, member: Member, vm: Vm) -> None:
        """A member's VM changed its status."""
        if member.vm is not vm:
            return
        if vm.status == "RUNNING":
            self._booted(member, vm)
        elif not vm.exists:
            self._ended(member, vm)
        elif vm.status == "TERMINATED" and self.repairs:
            self._repair_later(member)
        self._show(member)

    def _booted(self, member: Member, vm: Vm) -> None:
        member.failures, member.errors = 0, ()
        if member.action == "DELETING":
            self.vms.delete(vm)
        else:
            member.action = "NONE"
            self._disturb(member)

    def _disturb(self, member: Member) -> None:
        """What others will do to a member that has just begun to run."""
        for mode, act in (("abandoned", self._abandon), ("recreated", self._recreate)):
            if fault := self.world.strikes(mode, member.name, self.spec.name, member.zone):
                self.world.after(float(fault.params.get("seconds", 60.0)), partial(self._each, [member.name], act))

    def _ended(self, member: Member, vm: Vm) -> None:
        member.vm, member.previous = None, vm
        if member.action == "DELETING":
            self._leave(member)
        elif member.action in ("CREATING", "RECREATING"):
            self._schedule(member, 0.0)
        elif self.repairs:
            self._repair_later(member)
        elif self.switches.dead_member_stays:
            member.action = "NONE"
        else:
            self.target_size -= 1
            self._act(member, "DELETING")
            self._leave(member)

    def _repair_later(self, member: Member) -> None:
        dead = member.vm or member.previous
        self.world.after(self.world.lognormal(*self.timings.repair), lambda: self._repair(member, dead))

    def _repair(self, member: Member, dead: Vm | None) -> None:
        """Recreate the member whose VM died, unless something else has happened to it meanwhile."""
        if self.members.get(member.name) is not member or (member.vm or member.previous) is not dead:
            return
        if member.action == "NONE":
            path = f"projects/{self.spec.project}/zones/{member.zone}/instances/{member.name}"
            self.vms.audit.system("instances.repair.recreateInstance", path, REPAIRED)
            self._recreate(member)

    def _leave(self, member: Member) -> None:
        member.leaving = True
        self.world.after(self.world.lognormal(*self.timings.leave), lambda: self._left(member))

    def _left(self, member: Member) -> None:
        if self.members.get(member.name) is member:
            del self.members[member.name]
            self.shelf.put(member.name, None)

    def _act(self, member: Member, action: str) -> None:
        member.action = action
        self._show(member)

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check_count(self, instances: Sequence[str]) -> None:
        if not instances:
            raise ApiError(400, "required", "Required field 'resource.instances' not specified")
        if len(instances) > MAX_PER_CALL:
            raise _invalid(f"Too many instances: {len(instances)}. At most {MAX_PER_CALL} may be given in one request.")

    def _check_size(self, size: int) -> None:
        fault = self.world.strikes("size_limit", self.spec.name)
        limit = int(fault.params.get("limit", 1)) if fault else self.spec.limit
        if size > limit:
            raise _invalid(f"Invalid value for field 'size': '{size}'. Must be less than or equal to {limit}")

    def _members_named(self, urls: Sequence[str], *, skip_invalid: bool) -> list[str]:
        """The names of members that the URLs stand for; 400 for what is malformed, elsewhere, or no member."""
        self._check_count(urls)
        names = []
        for url in urls:
            zone, name = self._parse(url)
            member = self.members.get(name)
            if member and member.zone == zone and member.action not in LEAVING:
                names.append(name)
            elif not skip_invalid:
                raise _invalid(f"Invalid value for field 'resource.instances': '{url}' is not a member of the group.")
        return names

    def _parse(self, url: str) -> tuple[str, str]:
        match = INSTANCE_URL.fullmatch(url)
        if not match or match["project"] not in (None, self.spec.project) or match["zone"] not in self.spec.all_zones:
            raise _invalid(f"Invalid value for field 'resource.instances': '{url}'. The URL is malformed or elsewhere.")
        return match["zone"], match["name"]

    def _already(self, name: str) -> OperationError:
        message = f"The instance '{name}' already exists in the instance group manager '{self.spec.path}'"
        return OperationError("RESOURCE_ALREADY_EXISTS", message, 409)

    def _random_name(self) -> str:
        base = self.spec.base_instance_name or self.spec.name
        while True:
            name = f"{base}-{''.join(self.world.random.choices('bcdfghjklmnpqrstvwxz0123456789', k=4))}"
            if name not in self.members:
                return name

    # --- documents ----------------------------------------------------------------------------------------------------

    def _show(self, member: Member) -> None:
        if self.members.get(member.name) is member:
            self.shelf.put(member.name, self._member_document(member))

    def _member_document(self, member: Member) -> Document:
        document: Document = {
            "name": member.name,
            "instance": self._instance_url(member),
            "currentAction": member.action,
            "targetStatus": member.target,
        }
        if member.vm:
            document["id"] = str(member.vm.id)
            document["instanceStatus"] = member.vm.status
            if member.preserved:
                document["preservedStateFromConfig"] = member.preserved
        if member.action not in LEAVING:
            made_from = member.vm.spec if member.vm else self.spec
            document["version"] = {"instanceTemplate": BASE + made_from.template}
        if member.errors:
            document["lastAttempt"] = {"errors": {"errors": list(member.errors)}}
        return document

    def _error_row(self, member: Member, error: Mapping[str, str]) -> Document:
        return {
            "timestamp": timestamp(self.world.wall()),
            "error": {"code": error["code"], "message": error["message"]},
            "instanceActionDetails": {
                "action": member.action,
                "instance": self._instance_url(member),
                "version": {"instanceTemplate": BASE + self.spec.template},
            },
        }

    def _instance_url(self, member: Member) -> str:
        return f"{BASE}projects/{self.spec.project}/zones/{member.zone}/instances/{member.name}"


def _invalid(message: str) -> ApiError:
    return ApiError(400, "invalid", message)
