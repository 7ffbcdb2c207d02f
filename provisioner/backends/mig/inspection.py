"""Asks Compute whether a managed instance group is as it should be, and how big its instances are. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from provisioner.backends import BackendError, Finding, MachineSize, Severity
from provisioner.backends.mig.checks import (
    NEEDED,
    autoscaler_findings,
    foreign_text,
    group_findings,
    lacking,
    missing,
    missing_place,
    name_findings,
    template_findings,
)
from provisioner.backends.mig.instances import Json, custom_size, zones
from provisioner.backends.mig.project import Project
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.responses import understood
from provisioner.model import ErrorClass

CHECK_FIELDS = "name,autoscalingPolicy/mode,properties(labels,scheduling/maxRunDuration/seconds)"
"""Fields that are read of an autoscaler and of an instance template."""

TYPE_FIELDS = "properties/machineType"


class GroupInspection:
    """The questions about one group. Each takes so many seconds at most, and raises BackendError without a response."""

    def __init__(self, pool: MigPool, project: Project) -> None:
        self._pool, self._project = pool, project

    @understood()
    def findings(self, seconds: float) -> list[Finding]:
        """What of the group's settings will go wrong."""
        deadline = time.monotonic() + seconds
        try:
            group = self._project.api.group(self._pool, deadline)
        except BackendError as error:
            if text := missing_place(self._pool, error.failure):
                return [Finding(self._pool.name, Severity.ERROR, text)]
            if error.failure.error is ErrorClass.NOT_FOUND:
                return [missing(self._pool)]
            raise
        members = self._project.members(self._pool, deadline)
        foreign = self._project.foreign(members)
        return [
            *group_findings(self._pool, group),
            *self._of_resource(autoscaler_findings, group.get("status", {}).get("autoscaler"), deadline),
            *self._of_resource(template_findings, group.get("instanceTemplate"), deadline),
            *name_findings(self._pool, self._project.prefix, members),
            *([Finding(self._pool.name, Severity.WARNING, foreign_text(foreign))] if foreign else []),
        ]

    def rights(self) -> list[Finding]:
        """What we may not do with the group; a warning where Compute does not say."""
        try:
            with understood():
                deadline = time.monotonic() + self._project.times.call
                granted = self._project.api.permissions(self._pool, NEEDED, deadline)
        except BackendError as error:
            text = f"which rights the pool's account has cannot be asked: {error.failure.text}"
            return [Finding(self._pool.name, Severity.WARNING, text)]
        return lacking(self._pool, granted)

    @understood()
    def size(self, seconds: float) -> MachineSize | None:
        """What the machine type in the group's instance template has; None where the template names none."""
        deadline = time.monotonic() + seconds
        group = self._project.api.group(self._pool, deadline)
        template = group.get("instanceTemplate", "").partition("/projects/")[2]
        if not template:
            return None
        properties = self._project.api.resource(f"projects/{template}", TYPE_FIELDS, deadline)["properties"]
        kind = properties["machineType"].rpartition("/")[2]
        size = custom_size(kind) or self._type_size(kind, zones(group, self._pool.zone or ""), deadline)
        return MachineSize(f"machine type {kind}", *size)

    def _type_size(self, kind: str, zones: Collection[str], deadline: float) -> tuple[int, int]:
        """Processors and memory of one of Google's machine types, as the first zone says that has it."""
        unknown = BackendError(ErrorClass.NOT_FOUND, "the group names no zone")
        for zone in sorted(zones):
            path = f"projects/{self._pool.project}/zones/{zone}/machineTypes/{kind}"
            try:
                response = self._project.api.resource(path, "guestCpus,memoryMb", deadline)
            except BackendError as error:
                unknown = error
            else:
                return int(response["guestCpus"]), int(response["memoryMb"])
        raise unknown

    def _of_resource(
        self, findings: Callable[[MigPool, Json], Iterator[Finding]], url: str | None, deadline: float
    ) -> list[Finding]:
        """What is found in a resource that the group names, if it names one."""
        if not url:
            return []
        path = "projects/" + url.partition("/projects/")[2]
        try:
            return [*findings(self._pool, self._project.api.resource(path, CHECK_FIELDS, deadline))]
        except BackendError as error:
            text = f"{path} cannot be read, so it was not checked: {error.failure.text}"
            return [Finding(self._pool.name, Severity.WARNING, text)]
