"""A simulated managed instance group (MIG). Calls about the MIG take effect when their operations end.

Fault modes: changes by others, and settings that a fault overrides. Target: the MIG.

* ``resized``: before the next call about the MIG, others have resized the MIG to ``size`` (0)
* ``size_limit``: the MIG accepts no more than ``limit`` (1) members
* ``repairs``: the MIG recreates dead VMs, as if its defaultActionOnFailure were REPAIR
* ``paginated``: listManagedInstances has pages
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from provisioner.lab.cloud.compute.call_checks import check_names, check_size, invalid, members_named
from provisioner.lab.cloud.compute.managed_instance_life import MemberLife
from provisioner.lab.cloud.compute.managed_instances import Members
from provisioner.lab.cloud.compute.operations import (
    PROACTIVE_SUBSTITUTE,
    ApiError,
    Document,
    Operation,
    OperationError,
    Operations,
    Target,
    numeric_id,
)
from provisioner.lab.cloud.compute.settings import Duplicate


@dataclass
class Mig(Members):
    """A managed instance group with the calls that change it."""

    operations: Operations

    def __post_init__(self) -> None:
        super().__post_init__()
        self._life = MemberLife(self)

    @property
    def id(self) -> str:
        """Numeric id."""
        return numeric_id(self.spec.path)

    @property
    def is_stable(self) -> bool:
        """Return True if no member is changing and no call is pending."""
        return set(self.actions()) <= {"NONE"} and not self.operations.pending(self.spec.path)

    def create(
        self, names: Sequence[str], request_id: str = "", preserved: Mapping[str, Document] | None = None
    ) -> Operation:
        """Add members with these names (createInstances). ``preserved``: the ``preservedState`` by name, for names that
        have one."""
        check_names(names)
        check_size(self, self.target_size + len(names))
        conflict = self._conflict(names)
        if conflict and self.switches.duplicate_name is Duplicate.HTTP_CONFLICT:
            raise ApiError(409, "alreadyExists", conflict.message)
        return self._begin("createInstances", request_id, lambda: self._create(names, preserved or {}))

    def delete(self, urls: Sequence[str], *, skip_invalid: bool, request_id: str = "") -> Operation:
        """Delete members and their VMs (deleteInstances); targetSize falls."""
        names = members_named(self, urls, skip_invalid=skip_invalid)
        return self._begin("deleteInstances", request_id, lambda: self._life.each(names, self._life.delete))

    def abandon(self, urls: Sequence[str], request_id: str = "") -> Operation:
        """Let members leave while their VMs run on (abandonInstances); targetSize falls."""
        names = members_named(self, urls)
        return self._begin("abandonInstances", request_id, lambda: self._life.each(names, self._life.abandon))

    def recreate(self, urls: Sequence[str], request_id: str = "") -> Operation:
        """Delete the VMs of members and make new VMs under the same names (recreateInstances)."""
        names = members_named(self, urls)
        return self._begin("recreateInstances", request_id, lambda: self._life.each(names, self._life.recreate))

    def resize(self, size: int, request_id: str = "") -> Operation:
        """Add members with random names, or delete members that the MIG chooses (resize)."""
        if size < 0:
            raise invalid(f"Invalid value for field 'size': '{size}'. Must be greater than or equal to 0")
        check_size(self, size)
        return self._begin("resize", request_id, lambda: self._life.resize(size))

    def patch(self, change: Callable[[Mig], None], size: int | None, request_id: str = "") -> Operation:
        """Begin a patch of the settings. ``change`` is called when the operation ends. ``size``: the new targetSize;
        None leaves the number of members unchanged."""
        if size is not None:
            check_size(self, size)

        def effect() -> None:
            change(self)
            if size is not None:
                self._life.resize(size)

        return self._begin("patch", request_id, effect)

    def follow_settings(self) -> None:
        """Let the members follow changed settings: begin to replace outdated members, and schedule a step that evens
        out the zones."""
        self._life.update()
        self._life.even_out_later()

    def _begin(self, method: str, request_id: str, effect: Callable[[], OperationError | None]) -> Operation:
        target = Target(self.spec.project, self.spec.scope, self.spec.path, self.id)
        return self.operations.begin(f"compute.instanceGroupManagers.{method}", target, request_id, effect)

    def _create(self, names: Sequence[str], preserved: Mapping[str, Document]) -> OperationError | None:
        if self.spec.update_type == "PROACTIVE" and self.spec.replacement_method == "SUBSTITUTE":
            return PROACTIVE_SUBSTITUTE
        conflict = self._conflict(names)
        if conflict and self.switches.duplicate_name is not Duplicate.IGNORE:
            return conflict
        self._life.create(names, preserved)
        return None

    def _conflict(self, names: Sequence[str]) -> OperationError | None:
        """Return the error for the first of ``names`` that a member already has; None if all names are free."""
        for name in names:
            if name in self.members:
                words = f"The instance '{name}' already exists in the instance group manager '{self.spec.path}'"
                return OperationError("RESOURCE_ALREADY_EXISTS", words, 409)
        return None
