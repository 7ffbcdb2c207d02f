"""The settings of a pool of Slurm jobs. No I/O, no clock, no logger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from provisioner.schema.setting_types import (
    CarriedFile,
    DurationOrZero,
    OptionalCarriedFile,
    OptionalText,
    Pool,
    SecretFile,
    Switch,
)
from provisioner.schema.validation import Expects

Address = Annotated[
    str,
    StringConstraints(pattern=r"^(https?://[^\s/]+|unix:///)\S*$"),
    Expects("an address beginning with http://, https:// or unix:///"),
]
ApiVersion = Annotated[
    str, StringConstraints(pattern=r"^(auto|v0\.0\.(3[7-9]|4\d))$"), Expects("auto, or a version as v0.0.41")
]
Word = Annotated[str, StringConstraints(pattern=r"^\S+$"), Expects("a word")]
OptionalNumber = Annotated[int | None, Field(gt=0), Expects("a whole number > 0")]


class SlurmPool(Pool):
    """Jobs of one user in one partition of a Slurm cluster. Each job is a machine. All jobs run the same script."""

    kind: Literal["slurm"] = "slurm"
    """Kind of the place."""
    endpoint: Address
    """Address of slurmrestd: https://HOST:PORT, or unix:///PATH of its socket. Use http:// only for a host that only
    trusted users reach, because the token is then sent in clear text. No default."""
    user: Word
    """Slurm user who owns the jobs. No default."""
    token_file: SecretFile
    """File with the user's JSON web token. The file is read before each call, so you can renew the token at any time.
    No default."""
    api_version: ApiVersion = "auto"
    """Version of slurmrestd's API (v0.0.37 to v0.0.45). Default auto: the newest version that both the loop and
    slurmrestd know."""
    partition: Word
    """Partition of the jobs. No default."""
    script_file: CarriedFile
    """File in the configuration's directory: the batch script of each job. It starts the machine's daemons, and stays
    in the foreground. ``HF_MACHINE_NAME`` in its environment is the machine's name. No default."""
    account: OptionalText = None
    """Account that the jobs are charged to. Default the user's own."""
    qos: OptionalText = None
    """Quality of service of the jobs. Default the account's."""
    reservation: OptionalText = None
    """Reservation whose nodes the jobs use; default none."""
    constraints: OptionalText = None
    """Features that a node must have, as in ``sbatch --constraint``; default none."""
    tres_per_node: OptionalText = None
    """Further resources of a job's node, for example ``gres/gpu:1``. Default none."""
    cpus: OptionalNumber = None
    """CPUs of each job. Default Slurm's own default, one."""
    memory_mb: OptionalNumber = None
    """Memory of each job in MiB (2^20 bytes). Default the partition's."""
    time_limit_minutes: OptionalNumber = None
    """Minutes after which Slurm ends a job. The loop names the machine to HF for return before this time. Default the
    partition's limit."""
    exclusive: Switch = True
    """True: each job has a node for itself, and so its own host name. False: several machines share a node's name, so
    the script must give each machine its own host name. Default true."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Further variables of the script's environment; default none."""
    working_directory: Word = "/tmp"
    """Directory in which the script runs. A user's home may be missing on the nodes. Default /tmp."""
    ca_file: OptionalCarriedFile = None
    """Certificate authority (PEM) of slurmrestd. Default ``ca_bundle``, else the system's authorities."""
    lag_seconds: DurationOrZero = 0.0
    """The loop counts a machine as gone after two observations that lack the machine and begin at least this many
    seconds apart. Default 0, because slurmctld lists a job as soon as it has accepted the job."""
    observe_seconds: DurationOrZero = 5.0
    """Seconds between two observations. A list of 1,000 jobs costs slurmctld half a second; all pools of a cluster
    share the list. Default 5."""

    read_at_start: ClassVar[tuple[str, ...]] = (*Pool.read_at_start, "api_version")

    @property
    def where(self) -> str:
        """Return the partition in words."""
        return f"partition {self.partition} at {self.endpoint}"

    @property
    def cluster(self) -> tuple[str, ...]:
        """Return a key of cluster and credentials. Pools with the same cluster and credentials have the same key."""
        return (self.endpoint, self.user, str(self.token_file), str(self.ca_file or ""), self.api_version)

    @property
    def identity(self) -> tuple[str, ...]:
        """Return a key that distinguishes the pool. Two pools with the same key would have the same jobs."""
        return ("slurm", self.endpoint, self.user, self.partition, self.account or "", str(self.script_file))
