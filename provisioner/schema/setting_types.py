"""Types of settings, each with a check and a description; the settings that every pool has, and the settings that pools
share.

No I/O, no clock, no logger.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationInfo
from pydantic.fields import FieldInfo

from provisioner.model import PoolLimits
from provisioner.schema.validation import Expects, Section, all_notes

SPILL_SECONDS = 180.0
"""Default of ``spill_after_seconds`` for machines that no queue holds."""

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Pattern of a label value that Kubernetes accepts. Ids and names become label values of pods."""


class FileUse(Enum):
    """The permission for commands to print or copy a file that a setting names. A file is printed or copied only if its
    setting has the mark ``CARRIED``."""

    CARRIED = "carried"
    """The ConfigMap of the loop's pod contains the file."""
    SECRET = "secret"
    """The file may hold a key, so no command ever prints or copies it."""


def file_use(field: FieldInfo) -> FileUse | None:
    """Return the ``FileUse`` of a setting; None if the setting has none. It marks settings that name a file."""
    return next((note for note in all_notes(field) if isinstance(note, FileUse)), None)


def _resolve_path(written: object, info: ValidationInfo) -> object:
    """Resolve a relative path against the directory of the configuration, which the validation's context names. Without
    a context, return the path unchanged."""
    return info.context.beside(written) if info.context else written


def _check_path(path: Path) -> Path:
    """Return the path. Raises ValueError for an empty path and for a path with a NUL.

    Python would read an empty path as ".".
    """
    if path == Path() or "\0" in str(path):
        raise ValueError("no file has this path")
    return path


Count = Annotated[int, Field(ge=1), Expects("a whole number ≥ 1")]
Cap = Annotated[int | None, Field(ge=1), Expects("a whole number ≥ 1")]
TotalCap = Annotated[int | None, Field(ge=1, le=100_000), Expects("a whole number from 1 to 100000")]
Duration = Annotated[float, Field(gt=0), Expects("a number > 0")]
DurationOrZero = Annotated[float, Field(ge=0), Expects("a number ≥ 0")]
OptionalDuration = Annotated[float | None, Field(ge=0), Expects("a number ≥ 0")]
Price = Annotated[float | None, Field(ge=0), Expects("a number ≥ 0")]
EarlySeconds = Annotated[float, Field(ge=0, le=3600), Expects("a number ≥ 0, at most 3600")]
MassLossSeconds = Annotated[float, Field(ge=0, le=90), Expects("a number ≥ 0, at most 90")]
Share = Annotated[float, Field(gt=0, le=1), Expects("a number > 0, at most 1")]
Switch = Annotated[bool, Expects("true or false")]
Text = Annotated[str, StringConstraints(min_length=1), Expects("a text")]
OptionalText = Annotated[str | None, StringConstraints(min_length=1), Expects("a text")]
Texts = Annotated[tuple[Text, ...], Field(strict=False), Expects("a list of texts")]
Argv = Annotated[
    tuple[str, ...], Field(min_length=1, strict=False), Expects("a list of texts: the program and its arguments")
]
Label = Annotated[
    str,
    StringConstraints(pattern=rf"^{LABEL_VALUE.pattern}$"),
    Expects("1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"),
]
PlaceName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z]([-a-z0-9.:]*[a-z0-9])?$"),
    Expects("lower-case letters, digits and '-', beginning with a letter"),
]
File = Annotated[
    Path, Field(strict=False), BeforeValidator(_resolve_path), AfterValidator(_check_path), Expects("a path")
]
OptionalFile = File | None
CarriedFile = Annotated[File, FileUse.CARRIED]
OptionalCarriedFile = CarriedFile | None
SecretFile = Annotated[File, FileUse.SECRET]
OptionalSecretFile = SecretFile | None
Endpoint = Annotated[
    str | None,
    StringConstraints(pattern=r"^https?://[^\s/]+"),
    Expects("an address beginning with http:// or https://"),
]


class Pool(Section):
    """A place that makes machines, and its limits."""

    name: Label
    """Key under ``pools``; label of pods and metrics, and the pool's name in templates."""
    max_machines: Cap = None
    """Maximum number of machines of one template in this pool, whatever their phase. The limit keeps room for other
    templates. Default no cap."""
    max_machines_total: TotalCap = None
    """Maximum number of machines of all templates together in this pool, whatever their phase. Machines without a
    request count, too. The limit bounds the cost and the IP addresses in use; ``max_machines`` does not, because it
    counts each template separately. Free capacity goes first to the template whose request has waited longest. Default
    no cap."""
    max_pending: Count = 1000
    """Upper limit of the window: the maximum number of machines of one template that are created but do not run yet.
    Default 1000."""
    initial_window: Count = 100
    """First window of a pool. The window is the number of machines of one template that may be created but not running
    yet. Each machine that runs adds two to the window. If most new machines fail, the window is halved. Default 100."""
    boot_deadline_seconds: Duration = 600.0
    """Seconds from a machine's create until it must run. If a queue of the place held the machine, the time begins when
    the queue releases it. A new GKE node may take five minutes to join. Default 600."""
    early_loss_seconds: EarlySeconds = 300.0
    """Minimum seconds that a machine must run. A machine that ends earlier by itself counts as a failed boot, which
    slows creates. Otherwise such machines would be replaced without end, because HF requests a new machine for each
    machine that it loses. Default 300.

    The rule ignores machines that were preempted, evicted, deleted or returned, that expired, or whose node is gone.
    Set a lower value if machines are meant to end sooner; 0 sets no minimum. At most 3600: only one hour of a stop of
    the loop counts, so with a higher limit an old machine could seem to have ended early.
    """
    announce_seconds: DurationOrZero = 3600.0
    """Seconds before a machine's known end at which getReturnRequests names the machine, with the seconds left. The end
    is known from an instance's maximum run duration, or from a pod's ``activeDeadlineSeconds``. At most a tenth of the
    template's machines (but at least one) is named at a time. In its last ten minutes each machine is named. Default
    3600."""
    least_life_seconds: DurationOrZero = 0.0
    """For machines with a known end that do not run yet: minimum seconds until this end. If less is left, the machine
    counts as a failed boot, and another is created. Must be less than the lifetime that the place gives each machine;
    otherwise every machine fails. Default 0, no minimum."""
    down_seconds: DurationOrZero = 900.0
    """Seconds that a machine reported to HF may be not ready (its container crashes, or its readiness probe fails).
    Then the loop deletes the machine as lost. If several machines, and more than a fifth of the pool's, are not ready
    at once, the loop keeps all, because the cause probably lies elsewhere. 0 keeps such machines. Default 900."""
    spill_after_seconds: Annotated[float | None, Field(gt=0), Expects("a number > 0")] = None
    """Seconds that a machine may wait in this pool. Then the template's next pool makes the machine instead. Default
    180. If the place has no room for a machine, the next pool is used at once. A machine in a queue of the place (for
    example Kueue) moves only if you set this; otherwise it stays until its request ends."""
    lag_seconds: DurationOrZero = 0.0
    """The loop counts a machine as gone after two observations that lack the machine and begin at least this many
    seconds apart. Set a higher value if the place lists new machines late. Default 0."""
    mass_loss_seconds: MassLossSeconds = 60.0
    """Stricter rule than ``lag_seconds`` if more than a fifth of the pool's machines (and more than 5) vanish at once.
    They count as gone after two observations that lack them and begin at least this many seconds apart. With 0,
    ``lag_seconds`` applies. Default 60, at most 90.

    Until the second observation the loop creates and deletes no machine of the pool, and reports no loss to HF. One
    list may be wrong, and HF gives up each lost machine. A loss that an event explains is reported at once.
    """
    observe_seconds: Duration = 1.0
    """Seconds between two observations. Kinds whose observations use up a quota have a higher default. Default 1."""
    paused: Switch = False
    """True: the loop creates no machine in this pool. Existing machines stay, and can be returned. Default false."""
    require_dns: Switch = False
    """True: a machine counts as running only after DNS resolves its name. For grids whose hosts find each other by DNS.
    Default false."""

    price_per_hour: Price = None
    """Cost of a machine of this pool per hour, in the currency of ``budget``. Used only for estimates and for the
    budget. A template's own price takes precedence. Default unknown, which counts as 0."""

    kind: str
    """Kind of the place: gke, mig, or a kind that another distribution brings."""

    read_at_start: ClassVar[tuple[str, ...]] = ("observe_seconds", "require_dns")
    """Settings of a pool that are read only when the loop starts."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Return the kind, and words that distinguish this place from all other places of the kind. Two pools with the
        same place have the same identity."""
        return (self.kind, self.name)

    def template_problem(self, template: str) -> str:
        """Return why the pool cannot make machines of the template with this id; empty if it can."""
        return ""

    def limits(self) -> PoolLimits:
        """Return the limits for the plan. An observation is stale after a minute or six times its interval, whichever
        is longer."""
        window, stale_after = min(self.initial_window, self.max_pending), max(60.0, 6 * self.observe_seconds)
        return self.as_limits(
            PoolLimits,
            initial_window=window,
            stale_after_seconds=stale_after,
            spill_after_seconds=self.spill_after_seconds or SPILL_SECONDS,
            queue_spill_seconds=self.spill_after_seconds,
        )


class Compute(Section):
    """Use of the Compute Engine API."""

    calls_per_minute: Annotated[int, Field(ge=60), Expects("a whole number ≥ 60")] = 600
    """Maximum number of calls to a project in any minute. At this number observations wait; creates and deletes count,
    but never wait. Google's limit is about 1,500 for each kind of call and region, for everything in the project. 12
    groups with 10,000 instances in all need about 200 without changes. Read at the start. Default 600."""


@dataclass(frozen=True, slots=True)
class Site:
    """The owner of the machines, and the settings that the pools share."""

    id: str
    """The provisioner's id, which is a label of its pods."""
    prefix: str
    """First part of the machines' names."""
    adopt_prefixes: tuple[str, ...] = ()
    """Name prefixes of another provider's machines. A return may delete these machines."""
    compute: Compute = field(default_factory=Compute)
    """Use of the Compute Engine API."""
    ca_bundle: Path | None = None
    """File with the certificate authorities that every client trusts; None for the system's authorities."""
