"""The members of a simulated managed instance group, and their entries in listManagedInstances and listErrors."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner.lab.cloud.compute.operations import BASE, Document, timestamp
from provisioner.lab.cloud.compute.settings import MigSpec, Switches, Timings
from provisioner.lab.cloud.compute.vms import Shelf, Vm, Vms
from provisioner.lab.cloud.world import World

ERROR_HISTORY = 500
"""Maximum number of entries that listErrors keeps."""

LEAVING = ("DELETING", "ABANDONING")


@dataclass(eq=False)
class Member:
    """A managed instance, with or without a VM."""

    name: str
    zone: str
    vm: Vm | None = None
    action: str = "CREATING"
    failures: int = 0
    """Number of failed attempts to create the VM since the last success."""
    errors: tuple[Document, ...] = ()
    """Errors of the last attempt."""
    previous: Vm | None = None
    """The member's last VM that is gone; None if the member has not lost a VM."""
    leaving: bool = False
    """True once the member has left the group. Lists show the member for some seconds more."""
    keeps_template: bool = False
    """True while a repair makes a new VM from the member's own template."""
    configured: bool = True
    """True if createInstances named the member. Such a member has a per-instance config."""
    preserved: Document = field(default_factory=dict)
    """``preservedState`` of the member's per-instance config."""

    @property
    def target(self) -> str:
        """Return ``targetStatus``, the status that the member's VM should reach."""
        return {"DELETING": "DELETED", "ABANDONING": "ABANDONED"}.get(self.action, "RUNNING")

    @property
    def config(self) -> str:
        """Return the status of the member's per-instance config; empty if there is none."""
        if not self.configured:
            return ""
        if self.action in LEAVING:
            return "DELETING"
        return "EFFECTIVE" if self.vm else "APPLYING"


@dataclass
class Members:
    """The members of a MIG, the settings that apply to them, and the MIG's targetSize."""

    spec: MigSpec
    world: World
    vms: Vms
    timings: Timings
    switches: Switches
    settings: Document = field(default_factory=dict, init=False)
    """Settings from patches that have no field in ``spec``, in the form of the MIG's document."""
    target_size: int = field(default=0, init=False)
    members: dict[str, Member] = field(default_factory=dict, init=False)
    errors: deque[Document] = field(default_factory=lambda: deque(maxlen=ERROR_HISTORY), init=False)
    """The entries of listErrors, oldest first."""

    def __post_init__(self) -> None:
        self.shelf = Shelf(self.world)
        """The documents that listManagedInstances shows."""
        self.created = self.world.wall()

    @property
    def is_repairing(self) -> bool:
        """True if the group recreates dead VMs."""
        chosen = self.spec.default_action_on_failure == "REPAIR"
        return chosen or self.world.strikes("repairs", self.spec.name) is not None

    @property
    def is_healing(self) -> bool:
        """True if the group recreates VMs that fail their health check."""
        lifecycle = self.settings.get("instanceLifecyclePolicy") or {}
        action = lifecycle.get("onFailedHealthCheck") or "DEFAULT_ACTION"
        action = self.spec.default_action_on_failure if action == "DEFAULT_ACTION" else action
        return action == "REPAIR" and bool(self.settings.get("autoHealingPolicies"))

    @property
    def is_updated_on_repair(self) -> bool:
        """True if a repair applies the group's present template."""
        return bool((self.settings.get("instanceLifecyclePolicy") or {}).get("forceUpdateOnRepair") == "YES")

    @property
    def initial_delay(self) -> float:
        """Seconds for which failed health checks of a new member do not count."""
        return max(
            (float(one.get("initialDelaySec") or 0) for one in self.settings.get("autoHealingPolicies") or ()),
            default=0.0,
        )

    def outdated(self, member: Member) -> bool:
        """Return True if an update should replace the member's VM.

        The VM's template must differ from the group's template. The group's update must be PROACTIVE, and must allow
        the replacement of running VMs.
        """
        policy = self.settings.get("updatePolicy") or {}
        gentle = policy.get("mostDisruptiveAllowedAction", "REPLACE") != "REPLACE"
        other = member.vm is not None and member.vm.spec.template != self.spec.template
        return other and self.spec.update_type == "PROACTIVE" and not gentle

    @property
    def is_redistributing(self) -> bool:
        """True if the group evens out its zones."""
        spec = self.spec
        return bool(spec.region) and (spec.redistribution, spec.target_shape) == ("PROACTIVE", "EVEN")

    @property
    def paginated(self) -> bool:
        """True if listManagedInstances has pages."""
        return self.spec.list_results == "PAGINATED" or self.world.strikes("paginated", self.spec.name) is not None

    def actions(self) -> Counter[str]:
        """Return the number of members by current action."""
        return Counter(member.action for member in self.members.values())

    def has_member(self, member: Member) -> bool:
        """Return True while the member has not left and no other member has taken its name."""
        return self.members.get(member.name) is member

    def next_zone(self) -> str:
        """Return the zone of the next member. The zones are used in rotation."""
        zones = self.spec.all_zones
        return zones[len(self.members) % len(zones)]

    def random_name(self) -> str:
        """Return a random name that no member has, in the form of names that resize makes."""
        base = self.spec.base_instance_name or self.spec.name
        while True:
            name = f"{base}-{''.join(self.world.random.choices('bcdfghjklmnpqrstvwxz0123456789', k=4))}"
            if name not in self.members:
                return name

    def join(self, member: Member) -> None:
        """Add a member; targetSize rises."""
        self.members[member.name] = member
        self.target_size += 1
        self.show(member)

    def leave(self, member: Member) -> None:
        """Let the member leave the group. Lists show the member for some seconds more."""
        member.leaving = True
        self.world.after(self.world.lognormal(*self.timings.leave), lambda: self._left(member))

    def _left(self, member: Member) -> None:
        if self.has_member(member):
            del self.members[member.name]
            self.shelf.put(member.name, None)

    def act(self, member: Member, action: str) -> None:
        """Set the member's current action."""
        member.action = action
        self.show(member)

    def show(self, member: Member) -> None:
        """Let lists show the member as it is now, unless it has left."""
        if self.has_member(member):
            self.shelf.put(member.name, self._document(member))

    def log_error(self, member: Member, error: Mapping[str, str]) -> None:
        """Add an entry to listErrors."""
        row: Document = {
            "timestamp": timestamp(self.world.wall()),
            "error": {"code": error["code"], "message": error["message"]},
            "instanceActionDetails": {
                "action": member.action,
                "instance": BASE + self.path(member),
                "version": {"instanceTemplate": BASE + self.spec.template},
            },
        }
        self.errors.append(row)

    def path(self, member: Member) -> str:
        """Return the relative URL of the member's instance."""
        return f"projects/{self.spec.project}/zones/{member.zone}/instances/{member.name}"

    def _document(self, member: Member) -> Document:
        document: Document = {
            "name": member.name,
            "instance": BASE + self.path(member),
            "currentAction": member.action,
            "targetStatus": member.target,
        }
        if member.vm:
            document["id"] = str(member.vm.id)
            document["instanceStatus"] = member.vm.status
            if member.vm.scheduling:
                document["scheduling"] = member.vm.scheduling
            if member.preserved:
                document["preservedStateFromConfig"] = member.preserved
        if member.action not in LEAVING:
            made_from = member.vm.spec if member.vm else self.spec
            document["version"] = {"instanceTemplate": BASE + made_from.template}
        if member.errors:
            document["lastAttempt"] = {"errors": {"errors": list(member.errors)}}
        return document
