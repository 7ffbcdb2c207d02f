"""The settings of a simulated MIG, the model's durations, and switches between possible behaviours.

Durations are seconds of simulated time. This module does no I/O, reads no clock and does not log.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from provisioner.lab.cloud.timing import Delay, parse_seconds, parse_timings

ZONAL_SIZE_LIMIT = 1000
REGIONAL_SIZE_LIMIT = 2000
"""Google's default limits of VMs in a zonal and in a regional MIG."""

MAX_PER_CALL = 1000
"""Maximum number of instances that a call on a MIG may name."""


@dataclass(frozen=True, kw_only=True)
class MigSpec:
    """A managed instance group and its instance template. Exactly one of ``zone`` and ``region`` is given."""

    project: str
    name: str
    zone: str = ""
    region: str = ""
    zones: tuple[str, ...] = ()
    """Zones of a regional MIG; default: ``<region>-a``, ``-b`` and ``-c``."""
    base_instance_name: str = ""
    """First part of the random names that a resize makes; empty: the MIG's name."""
    update_type: str = "OPPORTUNISTIC"
    replacement_method: str = "SUBSTITUTE"
    """The replacement method of updates. With PROACTIVE updates and SUBSTITUTE, createInstances is refused."""
    default_action_on_failure: str = "REPAIR"
    """The action on failure. With REPAIR, dead VMs and VMs that fail their health check are made again under the same
    name."""
    redistribution: str = "PROACTIVE"
    """PROACTIVE: VMs of a regional MIG move from the fullest zone to the emptiest. NONE: no redistribution."""
    target_shape: str = "EVEN"
    """The target shape of a regional MIG. Only MIGs of shape EVEN are redistributed."""
    autoscaler_mode: str = ""
    """Mode of the attached autoscaler, which never acts: ON, OFF or ONLY_SCALE_OUT; empty: no autoscaler."""
    list_results: str = "PAGELESS"
    """The paging of listManagedInstances. PAGELESS, Google's default, ignores maxResults and pageToken."""
    provisioning_model: str = "STANDARD"
    termination_action: str = "STOP"
    """The result of a preemption: a TERMINATED VM (STOP) or no VM (DELETE)."""
    max_run_seconds: float | None = None
    """The template's maxRunDuration in seconds. After this time, Compute ends each VM, as ``termination_action``
    says."""
    machine_type: str = "n2-standard-4"
    template_name: str = ""
    """Name of the instance template; empty: ``<name>-template``."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The template's labels, which every VM carries."""
    capacity: int | None = None
    """Number of VMs for which this MIG has room. Each attempt to make more is a stock-out. None: no limit."""
    size_limit: int | None = None
    """Maximum number of members. None: Google's default, 1,000 or 2,000 if regional."""

    def __post_init__(self) -> None:
        if bool(self.zone) == bool(self.region):
            raise ValueError(f"MIG {self.name}: give either a zone or a region")

    @property
    def location(self) -> str:
        """The zone or region."""
        return self.zone or self.region

    @property
    def scope(self) -> str:
        """The location in the form of URLs: ``zones/<zone>`` or ``regions/<region>``."""
        return f"zones/{self.zone}" if self.zone else f"regions/{self.region}"

    @property
    def path(self) -> str:
        """The MIG's own relative URL."""
        return f"projects/{self.project}/{self.scope}/instanceGroupManagers/{self.name}"

    @property
    def autoscaler(self) -> str:
        """Relative URL of the autoscaler, if the MIG has one."""
        return f"projects/{self.project}/{self.scope}/autoscalers/{self.name}"

    @property
    def reference(self) -> str:
        """The value of ``created-by`` in a VM: the path with the project's number."""
        return f"projects/{project_number(self.project)}/{self.scope}/instanceGroupManagers/{self.name}"

    @property
    def template(self) -> str:
        """Relative URL of the instance template."""
        return f"projects/{self.project}/global/instanceTemplates/{self.template_name or self.name + '-template'}"

    @property
    def all_zones(self) -> tuple[str, ...]:
        """The zones in which the MIG's VMs may be."""
        return (self.zone,) if self.zone else self.zones or tuple(f"{self.region}-{letter}" for letter in "abc")

    @property
    def limit(self) -> int:
        """Maximum number of members that the group may have."""
        return self.size_limit or (ZONAL_SIZE_LIMIT if self.zone else REGIONAL_SIZE_LIMIT)


ADVISED: Mapping[str, Any] = MappingProxyType({"default_action_on_failure": "DO_NOTHING", "redistribution": "NONE"})
"""Settings for the MIG of a grid, as in our docs and Terraform files. With Google's defaults, the MIG itself would end,
replace or move machines."""


def project_number(project: str) -> int:
    """Return the number of a project, the same in every run."""
    return 100_000_000_000 + zlib.crc32(project.encode())


def region_of(zone: str) -> str:
    """Return the region of a zone."""
    return zone.rpartition("-")[0]


@dataclass(frozen=True)
class Timings:
    """Durations in the model. The defaults are realistic (from public reports and samples); tests and the demo use
    shorter durations."""

    call: Delay = (0.15, 0.6)
    """Duration of an API call."""
    operation: Delay = (1.0, 4.0)
    """Time from the call of a mutation until its operation is DONE."""
    schedule: Delay = (2.0, 8.0)
    """Time from a member's creation to its first insert. The cap on inserts per second may add to this time."""
    inserts_per_second: float = 20.0
    """Maximum number of VMs that a MIG begins to insert per second; 0: no cap."""
    boot: Delay = (18.0, 45.0)
    """Time from insert to RUNNING."""
    delete: Delay = (45.0, 100.0)
    """Time from STOPPING until a VM is gone, if it is no Spot VM."""
    delete_spot: Delay = (35.0, 60.0)
    delete_cap: float = 130.0
    """Longest time from STOPPING until a VM is gone, because Google then switches off the guest."""
    leave: Delay = (3.0, 10.0)
    """Time from a VM's end until its member has left the group."""
    retry_first: float = 60.0
    """First pause between attempts to create a VM. The pause doubles with each failure."""
    retry_last: float = 1200.0
    notice: float = 30.0
    """Time from the moment a preempted VM is STOPPING until it is TERMINATED."""
    repair: Delay = (15.0, 60.0)
    """Time from a VM's death to its recreation, if the MIG repairs."""
    redistribute: Delay = (30.0, 120.0)
    """Time from an uneven state of a regional MIG's zones to a step that evens them out."""
    audit: Delay = (2.0, 15.0)
    """Time from an event to its audit log entry in Pub/Sub."""
    operation_retention: float = 14 * 86400.0
    """Seconds for which an operation can be queried after it ended. Later queries get 404."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Timings:
        """Return timings from JSON. Raise ValueError with the field's name for a mistake."""
        return parse_timings(cls, document)


class Duplicate(StrEnum):
    """The outcome of createInstances if the MIG already has one of the names."""

    OPERATION_ERROR = "operation_error"
    """The operation ends with an error and makes no instance."""
    HTTP_CONFLICT = "http_conflict"
    """The call is refused with 409. None of the named instances is made."""
    IGNORE = "ignore"
    """The name is skipped, and the instances with other names are made."""


class UnknownPlace(StrEnum):
    """The response to a call whose zone or region does not exist."""

    INVALID = "invalid"
    """400, according to most reports. The same error is the response to a mistake in another value of the call."""
    NOT_FOUND = "not_found"
    """404, according to one recent report."""


class UnknownProject(StrEnum):
    """The response to a call whose project does not exist."""

    NOT_FOUND = "not_found"
    """404, according to most reports. A group that does not exist gets the same error."""
    FORBIDDEN = "forbidden"
    """403, as for an existing project in which the caller has no permission."""


@dataclass(frozen=True)
class Switches:
    """Behaviours of Compute Engine that no public text describes. Each default is the behaviour that is the most
    difficult for the caller."""

    duplicate_name: Duplicate = Duplicate.OPERATION_ERROR
    cancel_creating: bool = False
    """True: the delete of a member whose VM is not inserted yet cancels the insert. False: the VM appears and is then
    deleted."""
    dead_member_stays: bool = True
    """True: with DO_NOTHING, a member whose VM was deleted by others stays without a VM and counts in targetSize.
    False: the member leaves."""
    recreate_keeps_id: bool = True
    """True: a recreated VM keeps its id and creation time; only its last start and its IP change."""
    field_mask_header: bool = False
    """True: the header X-Goog-FieldMask also selects fields. The query parameter ``fields`` always selects fields."""
    ip_before_running: bool = False
    """True: the internal IP is shown from PROVISIONING on. False: from RUNNING on."""
    request_id_seconds: float = 900.0
    """Seconds for which a repeated requestId is recognised. After this time, a repeated call is applied again."""
    unknown_place: UnknownPlace = UnknownPlace.INVALID
    unknown_project: UnknownProject = UnknownProject.NOT_FOUND

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Switches:
        """Return switches from JSON. Raise ValueError with the switch's name for a mistake."""
        types = {entry.name: type(entry.default) for entry in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in document.items():
            if name not in types:
                raise ValueError(f"{name}: unknown switch; known: {', '.join(sorted(types))}")
            values[name] = _switch(name, types[name], value)
        return cls(**values)


def _switch(name: str, kind: type, value: object) -> object:
    if issubclass(kind, StrEnum):
        try:
            return kind(str(value))
        except ValueError as error:
            raise ValueError(f"{name}: expected one of {', '.join(kind)}, got {value!r}") from error
    if kind is float:
        return parse_seconds(name, value)
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected true or false, got {value!r}")
    return value
