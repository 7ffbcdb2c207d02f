"""Every setting of provisioner.yaml as a type: its default, its unit, and why.

What a value has to be stands in its type, as a check and as words. No I/O, no clock, no logger.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from provisioner.model import Limits, PoolLimits, TemplateLimits
from provisioner.names import MAX_PREFIX_LENGTH
from provisioner.settings.problems import Expects, Section

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""What Kubernetes takes as a label's value: ids and names become labels of the pods."""

STUCK_SECONDS = 60.0
"""A kubelet confirms an end within seconds of the grace period; a pod that is there a minute later needs a person."""

COMPUTE_ADDRESS = "https://compute.googleapis.com"
"""Google's own Compute API."""


def _nameable(path: Path) -> Path:
    """A path that a file can have; ValueError for one with a NUL."""
    if "\0" in str(path):
        raise ValueError("a NUL ends a path")
    return path


Count = Annotated[int, Field(ge=1), Expects("a whole number ≥ 1")]
Cap = Annotated[int | None, Field(ge=1), Expects("a whole number ≥ 1")]
CountOrZero = Annotated[int, Field(ge=0), Expects("a whole number ≥ 0")]
Duration = Annotated[float, Field(gt=0), Expects("a number > 0")]
DurationOrZero = Annotated[float, Field(ge=0), Expects("a number ≥ 0")]
OptionalDuration = Annotated[float | None, Field(ge=0), Expects("a number ≥ 0")]
EarlySeconds = Annotated[float, Field(ge=0, le=3600), Expects("a number ≥ 0, at most 3600")]
UnlistedHours = Annotated[float | None, Field(ge=1), Expects("a number ≥ 1")]
Switch = Annotated[bool, Expects("true or false")]
Text = Annotated[str, StringConstraints(min_length=1), Expects("a text")]
OptionalText = Annotated[str | None, StringConstraints(min_length=1), Expects("a text")]
Label = Annotated[
    str,
    StringConstraints(pattern=rf"^{LABEL_VALUE.pattern}$"),
    Expects("1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"),
]
Prefix = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=MAX_PREFIX_LENGTH),
    Expects(f"a lower-case letter, then letters, digits or '-', not ending in '-', at most {MAX_PREFIX_LENGTH} in all"),
]
AdoptPrefixes = Annotated[
    tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][-a-z0-9]*$")], ...],
    Field(strict=False),
    Expects("a list of name prefixes such as [sym-]"),
]
Namespace = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
    Expects("the name of a Kubernetes namespace"),
]
PlaceName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z]([-a-z0-9.:]*[a-z0-9])?$"),
    Expects("lower-case letters, digits and '-', beginning with a letter"),
]
Zone = Annotated[
    str | None, StringConstraints(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z0-9]+$"), Expects("a zone such as us-central1-a")
]
Region = Annotated[
    str | None, StringConstraints(pattern=r"^[a-z]+-[a-z]+[0-9]+$"), Expects("a region such as us-central1")
]
File = Annotated[Path, Field(strict=False), AfterValidator(_nameable), Expects("a path")]
OptionalFile = File | None
Endpoint = Annotated[
    str | None,
    StringConstraints(pattern=r"^https?://[^\s/]+"),
    Expects("an address beginning with http:// or https://"),
]
Listen = Annotated[
    str,
    StringConstraints(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):[0-9]{1,5}$"),
    Expects("HOST:PORT such as 127.0.0.1:9464"),
]


class Loop(Section):
    """The pace of the loop."""

    interval_seconds: Duration = 5.0
    """Seconds between two cycles when nothing wakes the loop; default 5. A lost wake-up costs no more than this."""
    floor_seconds: DurationOrZero = 0.5
    """Least seconds between two cycles of a busy loop; default 0.5. Changes gather, instead of one plan for each."""
    act_seconds: Duration = 2.0
    """Seconds after which a cycle starts no new call to a cloud; default 2. The rest is planned anew on newer facts."""
    intent_poll_seconds: Duration = 0.1
    """Seconds between two looks at intent.json's signature; default 0.1. Works on NFS, where no notice is sent."""


class Backoff(Section):
    """How long a pool that refuses machines is left alone."""

    first_seconds: Duration = 5.0
    """Seconds before the first probe after a refusal; default 5. Doubles with each further refusal, with jitter."""
    last_seconds: Duration = 1800.0
    """Most seconds between two probes; default 1800. A stock-out that ends is noticed within half an hour."""


class Compute(Section):
    """How the Compute Engine API is used."""

    calls_per_minute: Annotated[int, Field(ge=60), Expects("a whole number ≥ 60")] = 600
    """Most calls a project gets from us in any minute; default 600. Google's limit is about 1,500 for each kind of call
    and region, shared with everything else in the project. Past ours looks wait; 12 groups with 10,000 instances need
    about 220 when nothing changes. Read at the start."""


class Events(Section):
    """Pub/Sub messages that wake the loop and announce preemptions. Hints only: losing them all loses no machine."""

    project: PlaceName
    """Google Cloud project of the subscription. No default."""
    subscription: Text
    """Name of the subscription, without ``projects/…``. No default. It must be ours alone: messages are taken."""


class Pool(Section):
    """A place that makes machines, and what it may be asked for."""

    name: Label
    """The key under ``pools``: label of pods, label of metrics, word in templates."""
    max_machines: Cap = None
    """Most machines of one template here, in whatever phase; default no cap. Guards the bill and the address range."""
    max_pending: Count = 1000
    """Most machines of one template asked for that do not run yet; default 1000. The window never grows past it."""
    initial_window: Count = 100
    """Machines an unproven pool may be asked for at first; default 100. Each that runs lets one more be asked for."""
    boot_deadline_seconds: Duration = 600.0
    """Seconds from its create until a machine has to run; default 600. A new GKE node may take five minutes to join."""
    early_loss_seconds: EarlySeconds = 300.0
    """Seconds that a machine has to run; default 300; 0 asks for none. One that ends sooner by itself counts as a
    failed boot: what breaks after joining the grid does so in minutes, and HF asks anew for each machine that it loses.
    Preempted, evicted, deleted and returned ones do not count, nor those whose node went. Less, or 0, where machines
    are meant to end sooner; at most 3600, as a stop of the loop counts for an hour at most."""
    spill_after_seconds: Duration = 180.0
    """Seconds a machine may wait here before the template's next pool makes it; default 180."""
    lag_seconds: DurationOrZero = 0.0
    """Seconds two looks must begin apart to prove that a machine is gone; default 0 for gke, 30 for mig."""
    observe_seconds: Duration = 1.0
    """Seconds between two looks; default 1 for gke (a look at a watched cache), 10 for mig (lists that cost quota)."""
    paused: Switch = False
    """True: no new machines here; those that exist are kept and can be returned. Default false."""
    require_dns: Switch = False
    """True: a machine runs only once its name resolves; default false. For grids that find their hosts by DNS."""

    def limits(self) -> PoolLimits:
        """What the plan needs to know of this pool. A look is stale after a minute, or six times its pace."""
        return PoolLimits(
            name=self.name,
            max_machines=self.max_machines,
            max_pending=self.max_pending,
            initial_window=min(self.initial_window, self.max_pending),
            boot_deadline=self.boot_deadline_seconds,
            early_loss=self.early_loss_seconds,
            spill_after=self.spill_after_seconds,
            lag=self.lag_seconds,
            stale_after=max(60.0, 6 * self.observe_seconds),
            paused=self.paused,
        )


class GkePool(Pool):
    """Pods in one namespace of one cluster, all from one pod spec."""

    kind: Literal["gke"] = "gke"
    """``gke``."""
    namespace: Namespace = "gcp-symphony"
    """Namespace of the pods; default ``GKE_CRD_NAMESPACE`` of HF's provider config, else gcp-symphony."""
    pod_spec: File
    """File in the configuration's directory: a pod's spec, or a full Pod manifest. No default."""
    kubeconfig: OptionalFile = None
    """File that names cluster and credentials; default ``GKE_KUBECONFIG`` of HF's provider config, then the
    environment's ``KUBECONFIG``, then the service account of the pod that the provisioner runs in."""
    context: OptionalText = None
    """Context within the kubeconfig; default its current one."""
    gated_deadline_seconds: Duration = 3600.0
    """Seconds from its create for which scheduling gates (those of Kueue, say) may hold a pod back; default 3600, as
    long as a request waits. ``boot_deadline_seconds`` counts from when the gates were lifted."""
    endpoint: Endpoint = None
    """Address of the cluster's API server, instead of a kubeconfig; default none. Google credentials open it, except
    that an address with http:// (the embedded cloud) is sent none."""
    ca_file: OptionalFile = None
    """Certificate authority of the endpoint (PEM); default the system's, which knows a GKE cluster's DNS endpoint."""
    credentials: OptionalFile = None
    """Key file of a Google service account, for the endpoint; default ``GCP_CREDENTIALS_FILE`` of HF's provider
    config, else application-default credentials."""
    force_delete_after_seconds: OptionalDuration = None
    """Seconds after the end of its grace period until a pod that we delete and that still terminates is deleted by
    force; default none: never. Its containers may still run on a node that is cut off: set it only where they may."""

    def limits(self) -> PoolLimits:
        """As of every pool; and pods say when their grace period ends, and may be held back by gates."""
        return replace(
            super().limits(),
            gated_deadline=self.gated_deadline_seconds,
            stuck_after=STUCK_SECONDS,
            force_after=self.force_delete_after_seconds,
            where=f"namespace {self.namespace}",  # its cluster may get another address, and a context another name
        )

    @property
    def cluster(self) -> tuple[str, ...]:
        """What makes two pools live in the same cluster, with the same credentials."""
        if self.endpoint is not None:
            return (self.endpoint, str(self.ca_file), str(self.credentials))
        return (str(self.kubeconfig), str(self.context))

    @property
    def place(self) -> tuple[str, ...]:
        """What makes two pools the same: here a namespace may hold several pools, each with its own pod spec."""
        return ("gke", *self.cluster, self.namespace, str(self.pod_spec))


class MigPool(Pool):
    """Instances of one managed instance group."""

    kind: Literal["mig"] = "mig"
    """``mig``."""
    project: PlaceName
    """Google Cloud project of the group; default ``GCP_PROJECT_ID`` of HF's provider config."""
    zone: Zone = None
    """Zone of a zonal group. Either this or ``region``."""
    region: Region = None
    """Region of a regional group. Either this or ``zone``."""
    group: PlaceName
    """Name of the managed instance group. No default."""
    endpoint: Endpoint = None
    """Address of the Compute API; default the environment's ``PROVISIONER_COMPUTE_ENDPOINT``, else Google's own."""
    credentials: OptionalFile = None
    """Key file; default ``GCP_CREDENTIALS_FILE`` of HF's provider config, else application-default credentials."""
    lag_seconds: DurationOrZero = 30.0
    """Seconds two looks must begin apart to prove that a machine is gone; default 30: lists may miss a new instance."""
    observe_seconds: Annotated[float, Field(gt=0, le=30), Expects("a number > 0, at most 30")] = 10.0
    """Seconds between two looks; default 10. Pools of one project share the lists of their zones, a call per 500
    instances; at most 30, so that no machine is unseen for longer."""

    @property
    def address(self) -> str:
        """Of the API, without path. An endpoint may end in ``/compute/v1/``, as gcloud wants it."""
        return (self.endpoint or COMPUTE_ADDRESS).rstrip("/").removesuffix("/compute/v1")

    @property
    def location(self) -> str:
        """The zone or region that holds the group."""
        return self.zone or self.region or ""

    def limits(self) -> PoolLimits:
        """As of every pool, and which group it is."""
        where = f"group {self.group} in {self.location} of project {self.project}"
        return replace(super().limits(), where=where)

    @property
    def place(self) -> tuple[str, ...]:
        """What makes two pools the same: a group belongs to one pool, for its members are known by name alone."""
        return ("mig", self.address, self.project, self.location, self.group)


AnyPool = GkePool | MigPool
KINDS: Mapping[object, type[GkePool] | type[MigPool]] = {"gke": GkePool, "mig": MigPool}
SECTIONS: Mapping[str, type[Section]] = {"loop": Loop, "backoff": Backoff, "compute": Compute, "events": Events}


class Settings(Section):
    """The whole configuration. Paths are absolute or relative to the working directory, never to the file."""

    id: Label
    """The provisioner's id: label value on pods; default ``HF_PROVIDER_NAME``.
    Two provisioners that share a namespace need different ids."""
    name_prefix: Prefix = "hf"
    """First part of machine names; default ``GCP_INSTANCE_PREFIX`` of HF's provider config, else hf.
    Two provisioners that share a MIG need different prefixes."""
    request_deadline_minutes: Duration = 60.0
    """Minutes until what is missing of a request fails; default 60. HF counts a running request as supply."""
    return_deadline_minutes: Duration = 60.0
    """Minutes until a return that cannot be carried out ends with an error; default 60."""
    orphan_grace_minutes: Duration = 10.0
    """Minutes an orphan is watched before it is deleted; default 10. Time for a person to notice a mistake."""
    orphan_cap_per_hour: CountOrZero = 20
    """Most orphans deleted in an hour; default 20; 0 keeps them all. Limits what a wrong state file can cost."""
    cancel_after_minutes: Duration = 30.0
    """Minutes without HF asking for a request, while it asks for others, until it is cancelled; default 30."""
    retention_hours: DurationOrZero = 24.0
    """Hours a request stays in the files after HF has seen its end; default 24. HF may ask again."""
    delete_unlisted_after_hours: UnlistedHours = None
    """Hours after which a machine that HF was told of, and that none of its lists names any more, is deleted as an
    orphan, with the orphans' cap and brake; default none: it is only shown. At least 1: lists may come in parts. Only
    for grids that call getReturnRequests with all their hosts."""
    adopt_prefixes: AdoptPrefixes = ()
    """Name prefixes of another provider's machines that a return may delete; default none. For a cut-over.
    Google's connector names instances ``sym-…`` and pods ``g<uuid>-…-pod-<n>``. Its operator makes no pod anew, but
    holds each by a finalizer: let it run until the last is gone, or they stay terminating and their returns fail."""
    loop: Loop = Loop()
    """The pace of the loop."""
    backoff: Backoff = Backoff()
    """How long a pool that refuses machines is left alone."""
    compute: Compute = Compute()
    """How the Compute Engine API is used."""
    listen: Listen = "127.0.0.1:9464"
    """Address of metrics and health; default 127.0.0.1:9464. Port 0 takes a free one."""
    events: Events | None = None
    """Pub/Sub wake-ups; default none."""
    pools: Mapping[str, AnyPool] = Field(strict=False)
    """Every pool by name, those that follow from templates included. At least one."""
    template_limits: Mapping[str, TemplateLimits] = Field(strict=False)
    """HF's templates by id: pools and cap. Not a setting of this file: from HF's templates file."""

    instance: str = ""
    """HF's provider instance, which the scripts write into intent.json: owner of the state directory. Not a setting of
    this file: ``HF_PROVIDER_NAME``, or from the names of HF's two files."""

    def limits(self) -> Limits:
        """What the plan takes from the configuration."""
        return Limits(
            prefix=self.name_prefix,
            pools={name: pool.limits() for name, pool in self.pools.items()},
            templates=self.template_limits,
            request_deadline=60 * self.request_deadline_minutes,
            return_deadline=60 * self.return_deadline_minutes,
            orphan_grace=60 * self.orphan_grace_minutes,
            orphan_cap_per_hour=self.orphan_cap_per_hour,
            cancel_after=60 * self.cancel_after_minutes,
            retention=3600 * self.retention_hours,
            backoff_first=self.backoff.first_seconds,
            backoff_last=self.backoff.last_seconds,
            adopt_prefixes=self.adopt_prefixes,
            delete_unlisted_after=None
            if self.delete_unlisted_after_hours is None
            else 3600 * self.delete_unlisted_after_hours,
        )
