"""Checks of a managed instance group at Compute: its settings, our rights, and the size of its instances. The checks
change nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator

from provisioner.backends import BackendError, Finding, MachineSize, Severity
from provisioner.backends.mig.compute_fields import Json, zones
from provisioner.backends.mig.group_checks import (
    NEEDED,
    autoscaler_findings,
    format_foreign_message,
    group_findings,
    missing_group_finding,
    missing_place_message,
    name_findings,
    permission_findings,
    template_findings,
)
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Project
from provisioner.backends.responses import translated_errors
from provisioner.model import ErrorClass

CHECK_FIELDS = "name,autoscalingPolicy/mode,properties(labels,scheduling/maxRunDuration/seconds)"
"""Fields that are read from an autoscaler and from an instance template."""

TYPE_FIELDS = "properties/machineType"

CUSTOM_TYPE = re.compile(r"(?:[a-z0-9]+-)?custom-([0-9]+)-([0-9]+)(?:-ext)?")
"""Name of a custom machine type, which contains the size, such as ``custom-4-8192`` or ``n2-custom-4-8192-ext``. E2
types with shared cores do not match."""


class GroupInspection:
    """Checks of one group. Each check raises BackendError if Compute does not respond in time."""

    def __init__(self, pool: MigPool, project: Project) -> None:
        self._settings, self._project = pool, project

    @translated_errors()
    def check(self, seconds: float) -> list[Finding]:
        """Return the findings about the group's settings, template, autoscaler and members."""
        deadline = time.monotonic() + seconds
        try:
            group = self._project.api.group(self._settings, deadline)
        except BackendError as error:
            if text := missing_place_message(self._settings, error.failure):
                return [Finding(self._settings.name, Severity.ERROR, text)]
            if error.failure.error is ErrorClass.NOT_FOUND:
                return [missing_group_finding(self._settings)]
            raise
        members = self._project.members(self._settings, deadline)
        foreign = self._project.foreign(members)
        return [
            *group_findings(self._settings, group),
            *self.check_autoscaler(group, deadline),
            *self._check_resource(template_findings, group.get("instanceTemplate"), deadline),
            *name_findings(self._settings, self._project.prefix, members),
            *([Finding(self._settings.name, Severity.WARNING, format_foreign_message(foreign))] if foreign else []),
        ]

    def rehearse(self, template: str) -> list[Finding]:
        """Return findings about missing rights. The create itself is not tried, because Compute has no dry run."""
        try:
            with translated_errors():
                deadline = time.monotonic() + self._project.api.times.call
                granted = self._project.api.permissions(self._settings, NEEDED, deadline)
        except BackendError as error:
            text = f"the rights of the pool's account cannot be checked: {error.failure.text}"
            return [Finding(self._settings.name, Severity.WARNING, text)]
        return permission_findings(self._settings, granted)

    @translated_errors()
    def size(self, seconds: float) -> MachineSize | None:
        """Return the size of the machine type in the group's instance template; None if the template does not name a
        type."""
        deadline = time.monotonic() + seconds
        group = self._project.api.group(self._settings, deadline)
        template = group.get("instanceTemplate", "").partition("/projects/")[2]
        if not template:
            return None
        properties = self._project.api.resource(f"projects/{template}", TYPE_FIELDS, deadline)["properties"]
        kind = properties["machineType"].rpartition("/")[2]
        size = custom_size(kind) or self._type_size(kind, zones(group, self._settings.zone or ""), deadline)
        return MachineSize(f"machine type {kind}", *size)

    def _type_size(self, kind: str, zones: Collection[str], deadline: float) -> tuple[int, int]:
        """Return processors and memory of a predefined machine type, from the first zone that offers it."""
        unknown = BackendError(ErrorClass.NOT_FOUND, "the group names no zone")
        for zone in sorted(zones):
            path = f"projects/{self._settings.project}/zones/{zone}/machineTypes/{kind}"
            try:
                response = self._project.api.resource(path, "guestCpus,memoryMb", deadline)
            except BackendError as error:
                unknown = error
            else:
                return int(response["guestCpus"]), int(response["memoryMb"])
        raise unknown

    def check_autoscaler(self, group: Json, deadline: float) -> list[Finding]:
        """Read the group's autoscaler now. Return the findings about it."""
        return self._check_resource(autoscaler_findings, group.get("status", {}).get("autoscaler"), deadline)

    def _check_resource(
        self, findings: Callable[[MigPool, Json], Iterator[Finding]], url: str | None, deadline: float
    ) -> list[Finding]:
        """Return the findings that ``findings`` yields for the resource at ``url``, to which the group refers; empty if
        ``url`` is None."""
        if not url:
            return []
        path = "projects/" + url.partition("/projects/")[2]
        try:
            return [*findings(self._settings, self._project.api.resource(path, CHECK_FIELDS, deadline))]
        except BackendError as error:
            text = f"{path} cannot be read, so it was not checked: {error.failure.text}"
            return [Finding(self._settings.name, Severity.WARNING, text)]


def custom_size(machine_type: str) -> tuple[int, int] | None:
    """Return the processors and memory (in 2^20 bytes) in the name of a custom machine type; None for a predefined
    type."""
    amounts = CUSTOM_TYPE.fullmatch(machine_type)
    return (int(amounts[1]), int(amounts[2])) if amounts else None
