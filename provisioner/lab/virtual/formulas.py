"""The formulas by which other programs decide how many machines to add.

The formulas work on the same places and the same demand as the loop. A formula uses neither requests nor machine names.
The constants and the order of the steps come from the other program.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from provisioner.lab.virtual.backend import VirtualBackend
from provisioner.lab.virtual.hostfactory import Levels
from provisioner.lab.virtual.place import Member
from provisioner.lab.virtual.run import Stage
from provisioner.lab.virtual.scenario import Event
from provisioner.model import Create, Delete, DeleteReason, Phase

IDLE_SECONDS = 1200.0
"""Seconds for which PRP and GlideinWMS keep a machine without work."""


class Formula(ABC):
    """A controller that sets the number of machines by a formula. Subclasses define the interval of the rounds and the
    number of machines to add."""

    name = ""
    period = 60.0
    """Seconds between two rounds."""
    idle_seconds = IDLE_SECONDS

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._world, self._ledger = stage.world, stage.ledger
        self._backends = {name: VirtualBackend(place, stage.world) for name, place in stage.places.items()}
        self._levels = Levels(stage.scenario.demand, random.Random(f"{stage.world.seed} grid"))
        self._numbers = 0
        self._idle_since: dict[str, float] = {}

    def begin(self) -> None:
        self._ask()
        self._round()

    def _ask(self) -> None:
        """Update the number of wanted machines every ``poll_seconds``, because HostFactory's demand also changes at
        these times."""
        self._world.after(self._stage.scenario.hostfactory.poll_seconds, self._ask)
        self._ledger.want(sum(self._levels.step(self._world.now).values()))

    def _round(self) -> None:
        self._world.after(self.period, self._round)
        wanted = self._ledger.wanted
        there = [member for place in self._stage.places.values() for member in place.ours() if not member.stopping]
        running = [member for member in there if member.is_running]
        pending = [member for member in there if member.phase is Phase.PENDING]
        self._ledger.use([member.name for member in running[:wanted]])
        more = self.more(max(0, wanted - len(running)), len(pending), len(running))
        for pool, machines in self.spread(more).items():
            self._create(pool, machines)
        self._delete([member for member in there if member.phase is Phase.GONE])
        self._delete(self._unneeded(running[wanted:]))

    @abstractmethod
    def more(self, idle: int, pending: int, running: int) -> int:
        """Return the number of machines to add. ``idle``: the number of wanted machines that do not run. ``pending``,
        ``running``: the numbers of machines in these states."""

    def spread(self, machines: int) -> Mapping[str, int]:
        """Distribute new machines over the pools. Return their number by pool. All machines go to the first pool,
        unless a subclass overrides this method."""
        return {next(iter(self._stage.places)): machines}

    def _create(self, pool: str, machines: int) -> None:
        """Create the machines one by one, until a create fails. The machines that are then missing are left to the next
        round."""
        for _ in range(machines):
            self._numbers += 1
            create = Create(f"hf-formula{self._numbers:06d}", pool, "T", "")
            (outcome,) = self._backends[pool].create([create], _always)
            if outcome.failure is not None:
                return

    def _unneeded(self, surplus: Sequence[Member]) -> list[Member]:
        now = self._world.now
        self._idle_since = {member.name: self._idle_since.get(member.name, now) for member in surplus}
        return [member for member in surplus if now - self._idle_since[member.name] >= self.idle_seconds]

    def _delete(self, members: Sequence[Member]) -> None:
        for member in members:
            pool = next(name for name, place in self._stage.places.items() if member.name in place.members)
            self._backends[pool].delete([Delete(member.name, pool, DeleteReason.RETURNED, member.uid)], _always)

    def happens(self, event: Event) -> None:  # noqa: B027 - empty on purpose
        """Ignore the event, because a formula has neither a state nor a HostFactory."""

    def window(self) -> int:
        return 0

    def check(self) -> None:  # noqa: B027 - empty on purpose
        """Do nothing. A formula promises nothing about names and states, so there is no law to check."""

    def end(self) -> Mapping[str, float | None]:
        return {}

    def reasons(self) -> tuple[str, ...]:
        return ()


class Prp(Formula):
    """The formula of PRP's provisioner, with a round every two minutes.

    For every four idle jobs, about one machine may wait. At most 20 machines may wait in all.

    Source: sfiligoi/prp-htcondor-portal, event_loop.py.
    """

    name = "PRP"
    period = 120.0
    most_waiting = 20

    def more(self, idle: int, pending: int, running: int) -> int:
        if not idle:
            return 0
        least = 1 + idle // 4
        if least > self.most_waiting:
            least = 20 + (least - 20) // 4
        return max(0, min(least, self.most_waiting) - pending)


class GlideinWms(Formula):
    """The formula of GlideinWMS, with a round every minute.

    For every three idle jobs, about one machine may wait. At most 100 machines may wait in all. A round adds at most
    100 machines, evenly over the pools.

    Source: glideinwms, glideinFrontendElement.py (compute_glidein_min_idle) and glideFactoryLib.py (keepIdleGlideins).
    """

    name = "GlideinWMS"
    period = 60.0

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._since: float | None = None
        """The virtual time since which some wanted machine has not run; None if all wanted machines run."""

    def more(self, idle: int, pending: int, running: int) -> int:
        if not idle:
            self._since = None
            return 0
        self._since = self._world.now if self._since is None else self._since
        old = idle if self._world.now - self._since > 600.0 else 0
        pressure = max(1, min(idle // 3 + min(old // 3, 5), 100))
        room = int((idle + running) * 1.15 + 1) - running - pending
        return max(0, min(pressure - pending, room, 100))

    def spread(self, machines: int) -> Mapping[str, int]:
        pools = list(self._stage.places)
        return {pool: machines // len(pools) + (number < machines % len(pools)) for number, pool in enumerate(pools)}


class Exact(Formula):
    """A controller that requests exactly the missing machines, at once and in spite of failures."""

    name = "exact"
    period = 5.0
    idle_seconds = 0.0

    def more(self, idle: int, pending: int, running: int) -> int:
        return max(0, idle - pending)


def _always() -> bool:
    return True


FORMULAS: Mapping[str, Callable[[Stage], Formula]] = {one.name: one for one in (Prp, GlideinWms, Exact)}
