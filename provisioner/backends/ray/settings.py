"""The settings of a pool of Ray jobs. No I/O, no clock, no logger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from provisioner.schema.setting_types import (
    Duration,
    DurationOrZero,
    OptionalFile,
    OptionalSecretFile,
    Pool,
    Switch,
    Text,
)
from provisioner.schema.validation import Expects

Address = Annotated[
    str, StringConstraints(pattern=r"^https?://[^\s/]+"), Expects("an address beginning with http:// or https://")
]
Amount = Annotated[float, Field(ge=0), Expects("a number ≥ 0")]
Bytes = Annotated[int | None, Field(gt=0), Expects("a whole number > 0")]


class RayPool(Pool):
    """Jobs of one Ray cluster. The entrypoint of each job starts a machine's daemons, so each job is a machine."""

    kind: Literal["ray"] = "ray"
    """Kind of the place."""
    endpoint: Address
    """Address of the cluster's dashboard, for example http://head:8265. No default."""
    entrypoint: Text
    """Shell command that starts the machine's daemons, and stays in the foreground. ``HF_MACHINE_NAME`` in its
    environment is the machine's name. No default."""
    num_cpus: Amount = 1.0
    """CPUs that Ray reserves for a job. With 0, all jobs run on the head. Default 1."""
    num_gpus: Amount = 0.0
    """GPUs that Ray reserves for a job; default 0."""
    memory: Bytes = None
    """Bytes of memory that Ray reserves for a job; default none."""
    resources: Mapping[str, float] = Field(default_factory=dict)
    """Custom resources of Ray that a job needs, for example one for each node. Default none."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Further variables of the entrypoint's environment; default none."""
    token_file: OptionalSecretFile = None
    """File with the token for the dashboard, or for a proxy in front of the dashboard. The file is read before each
    call. Default none."""
    ca_file: OptionalFile = None
    """Certificate authority (PEM) of ``endpoint``. Default ``ca_bundle``, else the system's authorities."""
    exclusive: Switch = True
    """True: no two machines share a host and its name. Ray guarantees this only if ``resources`` or ``num_cpus`` fill a
    node. Default true."""
    lag_seconds: DurationOrZero = 5.0
    """The loop counts a machine as gone after two observations that lack the machine and begin at least this many
    seconds apart. Default 5."""
    observe_seconds: Duration = 5.0
    """Seconds between two observations; default 5."""

    read_at_start: ClassVar[tuple[str, ...]] = Pool.read_at_start

    @property
    def where(self) -> str:
        """Return the cluster in words."""
        return f"jobs at {self.endpoint}"

    @property
    def identity(self) -> tuple[str, ...]:
        """Return a key that two pools share only if they are the same pool."""
        return ("ray", self.endpoint, self.entrypoint, str(sorted(self.resources.items())))
