"""The settings of a pool of instances in a managed instance group. No I/O, no clock, no logger."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from provisioner.schema.setting_types import DurationOrZero, Endpoint, OptionalSecretFile, PlaceName, Pool, Switch
from provisioner.schema.validation import Expects

COMPUTE_ADDRESS = "https://compute.googleapis.com"
"""Google's own Compute API."""

Zone = Annotated[
    str | None, StringConstraints(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z0-9]+$"), Expects("a zone such as us-central1-a")
]
Region = Annotated[
    str | None, StringConstraints(pattern=r"^[a-z]+-[a-z]+[0-9]+$"), Expects("a region such as us-central1")
]


class MigPool(Pool):
    """Instances of one managed instance group."""

    kind: Literal["mig"] = "mig"
    """Kind of the place."""
    project: PlaceName
    """Google Cloud project of the group. Default ``GCP_PROJECT_ID`` of HF's provider config."""
    zone: Zone = None
    """Zone of a zonal group. Set either this or ``region``."""
    region: Region = None
    """Region of a regional group. Set either this or ``zone``."""
    group: PlaceName
    """Name of the managed instance group. No default."""
    endpoint: Endpoint = None
    """Address of the Compute API. ``PROVISIONER_EMBEDDED_CLOUD`` in the environment replaces this address. Default
    ``PROVISIONER_COMPUTE_ENDPOINT`` of the environment, else Google's own."""
    ipv6: Switch = False
    """True: an instance whose network has only IPv6 counts as running, with its IPv6 address. HF's documentation names
    only IPv4 addresses. Default false."""
    credentials: OptionalSecretFile = None
    """Key file of a service account, or configuration of a workload identity federation. Default
    ``GCP_CREDENTIALS_FILE`` of HF's provider config, else application-default credentials."""
    lag_seconds: DurationOrZero = 30.0
    """The loop counts a machine as gone after two observations that lack the machine and begin at least this many
    seconds apart. Default 30, because lists may miss a new instance."""
    observe_seconds: Annotated[float, Field(gt=0, le=30), Expects("a number > 0, at most 30")] = 10.0
    """Seconds between two observations. An observation costs a call per 500 instances; pools of one project share the
    lists of their zones. At most 30, so that the loop sees each change within that time. Default 10."""

    read_at_start: ClassVar[tuple[str, ...]] = (*Pool.read_at_start, "credentials")

    @property
    def address(self) -> str:
        """Return the address of the API without a path. An endpoint may end in ``/compute/v1/``, as gcloud wants it."""
        return (self.endpoint or COMPUTE_ADDRESS).rstrip("/").removesuffix("/compute/v1")

    @property
    def place(self) -> str:
        """Return the zone or region as it is written in paths: ``zones/NAME`` or ``regions/NAME``."""
        return f"zones/{self.zone}" if self.zone else f"regions/{self.region}"

    @property
    def path(self) -> str:
        """Return the path of the group, which identifies it in the whole cloud."""
        return f"projects/{self.project}/{self.place}/instanceGroupManagers/{self.group}"

    @property
    def location(self) -> str:
        """Return the name of the zone or region of the group."""
        return self.zone or self.region or ""

    @property
    def where(self) -> str:
        """Return the group in words, for ``PoolLimits``."""
        return f"group {self.group} in {self.location} of project {self.project}"

    @property
    def identity(self) -> tuple[str, ...]:
        """Return a key that two pools share if they name the same group. The loader refuses the second pool, because a
        group's members are identified only by name."""
        return ("mig", self.address, self.project, self.location, self.group)
