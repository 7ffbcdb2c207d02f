"""Types of settings, as a check and as words; the settings that every pool has, and what all pools have in common.

No I/O, no clock, no logger.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationInfo

from provisioner.model import PoolLimits
from provisioner.schema.problems import Expects, Section

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""A label's value as Kubernetes takes it: ids and names become labels of the pods."""


def _placed(written: object, info: ValidationInfo) -> object:
    """A path as written, from the configuration's directory, if the validation is told of one."""
    return info.context.beside(written) if info.context else written


def _nameable(path: Path) -> Path:
    """A path that a file can have; ValueError for an empty one, which Python takes for ".", and for one with a NUL."""
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
File = Annotated[Path, Field(strict=False), BeforeValidator(_placed), AfterValidator(_nameable), Expects("a path")]
OptionalFile = File | None
Endpoint = Annotated[
    str | None,
    StringConstraints(pattern=r"^https?://[^\s/]+"),
    Expects("an address beginning with http:// or https://"),
]


class Pool(Section):
    """A place that makes machines, and what it may be asked for."""

    name: Label
    """The key under ``pools``: label of pods, label of metrics, word in templates."""
    max_machines: Cap = None
    """Most machines of one template here, in whatever phase; default no cap. Keeps room for the other templates."""
    max_machines_total: TotalCap = None
    """Most machines of all templates together here, in whatever phase; default no cap. Guards the bill and the address
    range: ``max_machines`` counts each template by itself, so five templates may have five times as many. Those without
    a request count, too. The template whose request has waited longest asks first."""
    max_pending: Count = 1000
    """Most machines of one template asked for that do not run yet; default 1000. The window never grows past it."""
    initial_window: Count = 100
    """Machines an unproven pool may be asked for at first; default 100. Each that runs lets two more be asked for."""
    boot_deadline_seconds: Duration = 600.0
    """Seconds from its create until a machine has to run; default 600. A new GKE node may take five minutes to join."""
    early_loss_seconds: EarlySeconds = 300.0
    """Seconds that a machine has to run; default 300; 0 asks for none. One that ends sooner by itself counts as a
    failed boot: what breaks after joining the grid does so in minutes, and HF asks anew for each machine that it loses.
    Preempted, evicted, deleted and returned ones do not count, nor those whose node went. Less, or 0, where machines
    are meant to end sooner; at most 3600, as a stop of the loop counts for an hour at most."""
    announce_seconds: DurationOrZero = 3600.0
    """Seconds before its end from which getReturnRequests names a machine whose end is known beforehand (a longest run
    of instances, ``activeDeadlineSeconds`` of pods), with the seconds that are left; default 3600. At most a tenth of
    the template's machines, at least one, is named at a time, except in the last ten minutes."""
    least_life_seconds: DurationOrZero = 0.0
    """Seconds that a machine must have left when it begins to run; default 0: any. A machine with a known end before
    that counts as a failed boot, and another is asked for. Must be less than what the place gives each machine."""
    down_seconds: DurationOrZero = 900.0
    """Seconds that a machine which HF was told of may not be ready (a container that crashes again and again, a failing
    readiness probe) until it is lost, and deleted; default 900; 0: it never is. Where more than a fifth of the machines
    here, and more than one, are not ready at once, none is: it is not their doing."""
    spill_after_seconds: Duration = 180.0
    """Seconds a machine may wait here before the template's next pool makes it; default 180."""
    lag_seconds: DurationOrZero = 0.0
    """Seconds two observations must begin apart to prove that a machine is gone; default 0. More for lists that lag."""
    mass_loss_seconds: MassLossSeconds = 60.0
    """Seconds that two lists must begin apart to prove that more than a fifth of the machines here (and more than 5)
    are gone at once; default 60, at most 90; 0 asks for no more than ``lag_seconds``. Until then nothing is made or
    deleted here and HF hears nothing: one wrong list must not cost the grid. What an event explains is told at once."""
    observe_seconds: Duration = 1.0
    """Seconds between two observations; default 1. A kind whose observations cost quota has more."""
    paused: Switch = False
    """True: no new machines here; those that exist are kept and can be returned. Default false."""
    require_dns: Switch = False
    """True: a machine runs only once its name resolves; default false. For grids that find their hosts by DNS."""

    price_per_hour: Price = None
    """What a machine here costs in an hour, in the currency that ``budget`` names; default unknown, and then it counts
    as nothing. A template's own price wins. Only estimates and the budget are made of it."""

    kind: str
    """Which kind of place: gke, mig, or one that another distribution brings."""

    read_at_start: ClassVar[tuple[str, ...]] = ("observe_seconds", "require_dns")
    """Settings that a loop that runs does not follow."""

    @property
    def identity(self) -> tuple[str, ...]:
        """The kind, then words that distinguish this place from all others of the kind; equal for the same place."""
        return (self.kind, self.name)

    def template_problem(self, template: str) -> str:
        """Why no machine of the template with this id can be made here; empty when it can."""
        return ""

    def limits(self) -> PoolLimits:
        """The limits for the plan. An observation is stale after a minute, or six times its pace."""
        window, stale_after = min(self.initial_window, self.max_pending), max(60.0, 6 * self.observe_seconds)
        return self.as_limits(PoolLimits, initial_window=window, stale_after=stale_after)


class Compute(Section):
    """How the Compute Engine API is used."""

    calls_per_minute: Annotated[int, Field(ge=60), Expects("a whole number ≥ 60")] = 600
    """Most calls a project gets from us in any minute; default 600. Google's limit is about 1,500 for each kind of call
    and region, shared with everything else in the project. Past ours looks wait; 12 groups with 10,000 instances need
    about 200 when nothing changes. Read at the start."""


@dataclass(frozen=True, slots=True)
class Site:
    """The owner of the machines, and settings that the pools share."""

    id: str
    """The provisioner's id: a label of its pods."""
    prefix: str
    """First part of the names of its machines."""
    adopt_prefixes: tuple[str, ...] = ()
    """Name prefixes of another provider's machines that a return may delete."""
    compute: Compute = field(default_factory=Compute)
    """How the Compute Engine API is used."""
    ca_bundle: Path | None = None
    """The authorities that every client trusts; None for the system's."""
