"""The limits of the configuration, as the plan needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provisioner.model.enums import DAY


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What one pool may be asked for. Durations in seconds."""

    name: str
    max_machines: int | None = None
    """Cap per template, on observed + submitted machines. None: no cap."""
    max_machines_total: int | None = None
    """The same over all templates."""
    max_pending: int = 1000
    initial_window: int = 100
    boot_deadline: float = 600.0
    announce: float = 3600.0
    """Seconds before a known end of a machine from which the end is reported to HF."""
    least_life: float = 0.0
    """Seconds that a machine must have left when it begins to run, if its end is known."""
    down: float = 900.0
    """Seconds that a machine that ran may be down until it counts as lost, unless many are down. 0: for ever."""
    early_loss: float = 300.0
    """A machine lost sooner than this after it ran, by nobody's doing, counts as a failed boot. 0: none does."""
    gated_deadline: float = 3600.0
    spill_after: float = 180.0
    lag: float = 0.0
    """How far apart two snapshots must begin before both prove an absence."""
    mass_loss: float = 60.0
    """How far apart two lists must begin before both prove that many machines are gone at once. 0: as for a few."""
    stale_after: float = 60.0
    """A snapshot older than this is no longer acted upon."""
    paused: bool = False
    stuck_after: float = 60.0
    """Seconds after the end of its grace period from which a machine that is being deleted counts as stuck."""
    force_after: float | None = None
    """How long after the end of its grace period a machine of a closed slot is deleted by force. None: never."""
    where: str = ""
    """The place, in words; not how it is reached, which may change while its machines run."""
    price_per_hour: float | None = None
    """What a machine costs, where its template has no price of its own. None: nobody has said."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Where a template's machines may be made, in order, how many of them, and when the last ones are given up."""

    id: str
    pools: tuple[str, ...]
    max_machines: int | None = None
    """HF's maxNumber. None: unlimited."""
    straggler_after: float = 0.0
    """Seconds without a change of a request after which the last of its machines fail. 0: they have its deadline."""
    straggler_share: float = 0.9
    """The share of a request's machines that has to run before."""
    tries: int = 3
    """Tries of one wanted machine that may fail before it is given up. 0: as many as the request's deadline allows."""
    max_lifetime: float | None = None
    """Seconds that a machine runs before it is offered to HF. None: it never is."""
    price_per_hour: float | None = None
    """What a machine costs, in whatever pool. None: what the pool says."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What all machines together may cost."""

    per_hour: float | None = None
    """Most that those which are there or asked for may cost in an hour. None: any."""
    per_month: float | None = None
    """What machines may have cost in a calendar month (UTC) when another one is asked for. None: any."""
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a pool is not asked after a failure, in seconds."""

    first: float = 5.0
    last: float = 1800.0
    no_room: float = 180.0
    """Longest back-off of a pool that only has no room: a probe of it costs a call."""


@dataclass(frozen=True, slots=True)
class OrphanLimits:
    """How slowly orphans go."""

    grace: float = 600.0
    cap_per_hour: int = 20
    unlisted_after: float | None = None
    """Seconds after which a machine goes that no list of HF names. None: it is only shown."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Everything the plan takes from the configuration. Durations in seconds."""

    prefix: str
    pools: Mapping[str, PoolLimits]
    templates: Mapping[str, TemplateLimits]
    request_deadline: float = 3600.0
    return_deadline: float = 3600.0
    orphans: OrphanLimits = OrphanLimits()
    cancel_after: float = 1800.0
    retention: float = DAY
    backoff: Backoff = Backoff()
    adopt_prefixes: tuple[str, ...] = ()
    budget: Budget = Budget()
    usage_days: int = 92
    """Days of which usage is kept."""

    def price(self, template: str, pool: str) -> float | None:
        """What a machine costs in an hour: its template's price, else its pool's. None: nobody has said."""
        own = self.templates.get(template)
        if own is not None and own.price_per_hour is not None:
            return own.price_per_hour
        where = self.pools.get(pool)
        return where.price_per_hour if where else None
