"""The true events of a run, and the broken laws. The loop's observations may be false, and do not change the true
events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from provisioner.lab.cloud.world import World
from provisioner.lab.virtual.place import Member
from provisioner.model import HOUR, PoolLimits

MINUTE = 60.0


@dataclass(slots=True)
class Sample:
    """The true numbers of machines at one moment."""

    at: float
    wanted: int
    usable: int
    """Number of machines that run and that HostFactory has."""
    running: int
    pending: int
    window: int
    """Number of machines that may be pending, over all pools; 0 if the controller has no such limit."""


@dataclass
class Tally:
    """Sums over all machines of a run."""

    created: int = 0
    gone: int = 0
    ran: int = 0
    pending_seconds: float = 0.0
    """Sum over all machines of the seconds from the create until the machine ran or ended."""
    seconds: float = 0.0
    """Sum over all machines of the seconds from the create until the machine was gone."""
    idle_seconds: float = 0.0
    """Sum of the seconds of running machines beyond the wanted number."""
    cost: float = 0.0


@dataclass
class Ledger:
    """A ``Witness`` that counts the true events in all places, and records broken laws."""

    world: World
    limits: dict[str, PoolLimits]
    prices: dict[str, float]
    """Price of a machine for an hour, by pool."""
    orphan_grace: float
    """Seconds for which a machine of ours may exist without a request."""
    judge_from: float = 0.0
    """The virtual time from which ``most_ran_at`` is measured, in seconds."""
    most_ran_at: float | None = None
    """The first virtual time from ``judge_from`` on at which 90 % of the wanted machines ran; None if they never
    did."""
    tally: Tally = field(default_factory=Tally)
    samples: list[Sample] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """The first hundred breaches of laws, each with its virtual time and a description."""
    counts: Counter[str] = field(default_factory=Counter)
    """The number of breaches, by law."""
    wanted: int = 0
    peak: int = 0
    """The largest number of machines beyond the wanted number, as measured at each create."""
    made: Counter[str] = field(default_factory=Counter)
    """The number of machines that were made, by pool."""
    hosts: Collection[str] = ()
    """The names of the machines that are in use. A running machine that is in use must not be deleted. See ``use``."""
    running: set[str] = field(default_factory=set)
    """The names of the machines that run."""
    pending: int = 0
    _alive: Counter[tuple[str, str]] = field(default_factory=Counter)
    _starting: Counter[tuple[str, str]] = field(default_factory=Counter)
    _names: set[str] = field(default_factory=set)
    _usable: int | None = None
    """The number of machines that run and are in use; None if it has to be computed again."""
    _since: float = 0.0

    def breach(self, law: str, text: str) -> None:
        """Record that ``law`` was broken. ``text``: a description."""
        self.counts[law] += 1
        if len(self.broken) < 100:
            self.broken.append(f"{self.world.now:.0f} s: {law}: {text}")

    # --- what happens in the places -----------------------------------------------------------------------------------

    def created(self, pool: str, member: Member) -> None:
        self._advance()
        key, limits = (pool, member.template), self.limits[pool]
        if member.name in self._names:
            self.breach("double", f"{member.name} was made twice")
        self._names.add(member.name)
        self.tally.created += 1
        self.made[pool] += 1
        self.pending += 1
        self.peak = max(self.peak, len(self.running) + self.pending - self.wanted)
        self._alive[key] += 1
        self._starting[key] += 1
        if not member.template:
            return  # made outside the provisioner
        if limits.max_machines is not None and self._alive[key] > limits.max_machines:
            self.breach("cap", f"{self._alive[key]} machines of {key}, at most {limits.max_machines}")
        total = sum(machines for (of, template), machines in self._alive.items() if of == pool and template)
        if limits.max_machines_total is not None and total > limits.max_machines_total:
            self.breach("cap", f"{total} machines of {pool}, at most {limits.max_machines_total}")
        if self._starting[key] > limits.max_pending:
            self.breach("cap", f"{self._starting[key]} machines pending of {key}, at most {limits.max_pending}")

    def ran(self, pool: str, member: Member) -> None:
        if not member.is_ours:
            return
        self._advance()
        self.tally.ran += 1
        self.pending -= 1
        self.running.add(member.name)
        self._usable = None
        if self.most_ran_at is None and self.world.now >= self.judge_from and self._has_most_running():
            self.most_ran_at = self.world.now
        self._starting[pool, member.template] -= 1

    def _has_most_running(self) -> bool:
        return self.wanted > 0 and len(self.running) >= 0.9 * self.wanted

    def deleting(self, pool: str, member: Member) -> None:
        if not member.is_ours:
            self.breach("killed", f"{member.name} is not ours")
        elif member.is_running and member.name in self.hosts:
            self.breach("killed", f"{member.name} ran, and HostFactory had not returned it")
        elif not member.template and self.world.now - member.asked < self.orphan_grace:
            self.breach("killed", f"{member.name} was deleted within its grace period")

    def ended(self, pool: str, member: Member) -> None:
        if not member.is_ours:
            return
        self._advance()
        if member.ran is not None:
            self.running.discard(member.name)
            self._usable = None
        else:
            self.pending -= 1
            self._starting[pool, member.template] -= 1

    def gone(self, pool: str, member: Member) -> None:
        if not member.is_ours:
            return
        self.tally.gone += 1
        self._alive[pool, member.template] -= 1
        seconds = self.world.now - member.asked
        self.tally.seconds += seconds
        self.tally.cost += seconds / HOUR * self.prices[pool]

    def want(self, machines: int) -> None:
        """Set the number of machines that HostFactory wants from now on."""
        self._advance()
        self.wanted = machines

    def use(self, hosts: Collection[str]) -> None:
        """Set the names of the machines that are in use.

        After a change of these names, the caller must pass a new collection. The ledger does not read the same
        collection twice.
        """
        if hosts is not self.hosts:
            self.hosts, self._usable = hosts, None

    def usable(self) -> int:
        """Return the number of machines that run and are in use."""
        if self._usable is None:
            self._usable = len(self.running.intersection(self.hosts))
        return self._usable

    def _advance(self) -> None:
        seconds = self.world.now - self._since
        self._since = self.world.now
        self.tally.pending_seconds += seconds * self.pending
        self.tally.idle_seconds += seconds * max(0, len(self.running) - self.wanted)

    def close(self, alive: dict[str, list[Member]]) -> None:
        """End the run. For each machine that still exists, add its time and its cost until now."""
        self._advance()
        for pool, members in alive.items():
            seconds = sum(self.world.now - member.asked for member in members)
            self.tally.seconds += seconds
            self.tally.cost += seconds / HOUR * self.prices[pool]
        self.audit(sum(map(len, alive.values())))

    def audit(self, there: int) -> None:
        """Record a breach of the law ``books`` if the number of our existing machines is wrong.

        ``there``: the number of our existing machines. This number must be the machines made minus the machines gone.
        """
        if self.tally.created - self.tally.gone != there and not self.counts["books"]:
            self.breach("books", f"{self.tally.created} made, {self.tally.gone} gone, {there} there")
