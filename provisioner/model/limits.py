"""Limits from the configuration, in the form in which the plan needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provisioner.model.enums import DAY


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of one pool. Durations are in seconds."""

    name: str
    max_machines: int | None = None
    """Maximum number of observed and submitted machines of each template. None: no cap."""
    max_machines_total: int | None = None
    """Maximum number of observed and submitted machines over all templates. None: no cap."""
    max_pending: int = 1000
    initial_window: int = 100
    boot_deadline_seconds: float = 600.0
    announce_seconds: float = 3600.0
    """Seconds before the known end of a machine at which the end is reported to HF."""
    least_life_seconds: float = 0.0
    """Minimum seconds that a machine must still have until its known end. A machine with less time fails before it
    counts as running."""
    down_seconds: float = 900.0
    """Seconds for which a machine that ran may be down before it counts as lost. If many machines are down at once,
    they do not count as lost. 0: no limit."""
    early_loss_seconds: float = 300.0
    """Seconds after a machine began to run. A machine that ends by itself within these seconds counts as a failed boot.
    0: never."""
    spill_after_seconds: float = 180.0
    queue_spill_seconds: float | None = None
    """Seconds that a machine waits in a queue of its place before another pool may make the machine. None: the machine
    stays in the queue."""
    lag_seconds: float = 0.0
    """Minimum seconds between the starts of two snapshots that together prove that a machine is gone."""
    mass_loss_seconds: float = 60.0
    """Minimum seconds between the starts of two lists that together prove that many machines are gone at once. 0: the
    same as ``lag_seconds``."""
    stale_after_seconds: float = 60.0
    """Age in seconds above which a snapshot is not acted upon."""
    is_paused: bool = False
    stuck_after_seconds: float = 60.0
    """Seconds after the end of the grace period from which a machine that is being deleted counts as stuck."""
    force_after_seconds: float | None = None
    """Seconds after the end of the grace period from which a closed slot's machine is deleted by force. None: never."""
    where: str = ""
    """Description of the place without its address, because the address may change while the place has machines."""
    price_per_hour: float | None = None
    """Hourly price of a machine whose template has no price of its own. None: no price is configured."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """The limits of a template: its pools in order, its cap, and its machines' lifetime and price.

    Further limits say when the loop gives up the last machines of a request.
    """

    id: str
    pools: tuple[str, ...]
    max_machines: int | None = None
    """HF's maxNumber. None: unlimited."""
    straggler_after_seconds: float = 0.0
    """Seconds without a change of a request after which its last machines fail. 0: only the request's deadline
    applies."""
    straggler_share: float = 0.9
    """Share of a request's machines that must run before ``straggler_after_seconds`` applies."""
    tries: int = 3
    """Number of failed tries after which a wanted machine is given up. 0: the request's deadline is the only limit."""
    max_lifetime_seconds: float | None = None
    """Seconds that a machine runs before HF is asked to return it. None: no limit."""
    price_per_hour: float | None = None
    """Hourly price of a machine of the template in any pool. None: the price of the pool applies."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the cost of all machines together."""

    per_hour: float | None = None
    """Highest hourly cost of all machines that exist or were requested. None: no limit."""
    per_month: float | None = None
    """Maximum cost of a calendar month (UTC). Once this cost is reached, no further machine is requested. None: no
    limit."""
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Backoff:
    """The limits of a back-off: the seconds for which a pool gets no creates after failures."""

    first_seconds: float = 5.0
    last_seconds: float = 1800.0
    no_room_seconds: float = 180.0
    """Longest back-off of a pool that only lacks room. A short back-off is enough, because a probe costs only one
    call."""


@dataclass(frozen=True, slots=True)
class OrphanLimits:
    """Limits on the deletion of orphans. Durations are in seconds."""

    grace_seconds: float = 600.0
    cap_per_hour: int = 20
    unlisted_after_seconds: float | None = None
    """Seconds after which a machine is deleted if HF's lists do not name it. None: the machine is only reported to
    operators."""


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits that the plan takes from the configuration. Durations are in seconds."""

    prefix: str
    pools: Mapping[str, PoolLimits]
    templates: Mapping[str, TemplateLimits]
    request_deadline_seconds: float = 3600.0
    return_deadline_seconds: float = 3600.0
    orphans: OrphanLimits = OrphanLimits()
    cancel_after_seconds: float = 1800.0
    retention_seconds: float = DAY
    backoff: Backoff = Backoff()
    adopt_prefixes: tuple[str, ...] = ()
    budget: Budget = Budget()
    usage_days: int = 92
    """Number of days for which usage is kept."""

    def price(self, template: str, pool: str) -> float | None:
        """Return the hourly price of a machine: the price of its template, or else the price of its pool; None if
        neither is configured."""
        own = self.templates.get(template)
        if own is not None and own.price_per_hour is not None:
            return own.price_per_hour
        where = self.pools.get(pool)
        return where.price_per_hour if where else None

    def pools_after(self, template: str, pool: str) -> tuple[str, ...]:
        """Return the pools of a template that follow ``pool`` in the template's order."""
        own = self.templates.get(template)
        pools = own.pools if own else ()
        return pools[pools.index(pool) + 1 :] if pool in pools else ()

    def template_problem(self, template: str) -> str:
        """Return a text that says why no machine of a template can be made. The text also says what an operator has to
        do.

        Return an empty text if machines can be made.
        """
        own = self.templates.get(template)
        if own is None:
            return f"the loop has no template {template}; bring HostFactory's templates file to it"
        if not own.pools:
            return f"template {template} has no pools; name some in HostFactory's templates file"
        return f"template {template} has a maxNumber of 0; raise it" if own.max_machines == 0 else ""
