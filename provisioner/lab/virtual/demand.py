"""``provisioner demand`` in virtual time, with the production loop. The model of the queue has jobs that each use one
whole machine."""

from __future__ import annotations

from collections.abc import Sequence

from provisioner.demand.plan import LastValue, Levels, Ours, combine, plan_step
from provisioner.demand.settings import Demand
from provisioner.demand.sources import Reading, Running
from provisioner.lab.virtual.hostfactory import Grid
from provisioner.lab.virtual.place import Member
from provisioner.lab.virtual.run import Provisioner, Stage
from provisioner.lab.virtual.state import VirtualState

UNLIMITED = 10**9


class DemandGrid(Grid):
    """A ``Grid`` that decides by the steps of ``provisioner demand``. The grid makes the same calls as HostFactory."""

    def __init__(self, stage: Stage, state: VirtualState) -> None:
        super().__init__(stage.scenario, state, stage.world)
        self.settings = Demand(sources={})
        self._stage = stage
        self._value = LastValue()
        self._past_levels: Levels = {}
        self._idle_since: dict[str, float] = {}

    def running(self, template: str) -> Sequence[Member]:
        """Return the running machines of a template that have not been returned. The oldest come first, because the n
        oldest machines have work if n machines are wanted."""
        members = [member for place in self._stage.places.values() for member in place.ours() if member.is_running]
        ours = [one for one in members if one.template == template and one.name not in self._given]
        return sorted(ours, key=lambda member: (member.ran or 0.0, member.name))

    def _balance(self, template: str) -> None:
        now, wanted = self._world.now, self.wanted[template]
        running = self.running(template)
        idle = {one.name: self._idle_since.get(one.name, now) for one in running[wanted:]}
        self._idle_since = {
            name: at for name, at in self._idle_since.items() if self.hosts.get(name) != template
        } | idle
        reading = Reading({**self.wanted}, {name: now - at for name, at in self._idle_since.items()})
        self._value = self._value.after_reading(reading, now)
        wish = combine({"queue": self._value}, {template: UNLIMITED}, self.settings)
        coming = sum(count for of, count, _ in self._open.values() if of == template)
        ours = Ours(
            {template: coming + sum(of == template for of in self.hosts.values())},
            {one.name: Running(template, one.ran or 0.0) for one in running},
            {one.name for one in running if one.name in self.hosts},
        )
        step = plan_step(wish, ours, {}, self.settings, self._past_levels, now)
        self._past_levels = {**self._past_levels, **step.levels}
        self._return_machines([*step.returns])
        self._request_machines(template, step.requests.get(template, 0))


class DemandService(Provisioner):
    """The controller that consists of the production loop and ``provisioner demand`` with its default settings."""

    name = "demand"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.grid: DemandGrid = DemandGrid(stage, self.state)

    def _round(self) -> None:
        """Let the grid make its calls. Then record in the ledger which machines have work. A running machine gets a job
        at once, even if the request of the machine has not ended yet."""
        super()._round()
        wanted = self.grid.wanted
        working = [one for template in wanted for one in self.grid.running(template)[: wanted[template]]]
        self._ledger.use([one.name for one in working])
