"""The driver of the production loop's cycles in virtual time. A ``VirtualLoop`` can be woken, paused and killed like a
process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from provisioner.backends import BackendError
from provisioner.lab.cloud.world import World
from provisioner.lab.virtual.backend import VirtualActors, VirtualBackend
from provisioner.lab.virtual.place import Place
from provisioner.lab.virtual.state import VirtualState
from provisioner.loop.clock import gap
from provisioner.loop.cycle_report import CycleReport, Mandate, SupersededError
from provisioner.loop.reconciler import Reconciler
from provisioner.model import NEVER, Memory, Observation, ObservationFailed, Uptime
from provisioner.settings.definitions import Settings

GATHER = 0.1
"""Seconds from a change to the cycle that the change causes, as in production."""


class VirtualClock:
    """The clock of a loop on one host. The host's uptime is virtual time, and scenarios set its wall clock."""

    def __init__(self, world: World, before: Memory | None, moved: float) -> None:
        self._world = world
        self.moved = moved
        """Seconds by which the wall clock was set forward."""
        start = self.wall() if before is None else before.written.time + gap(before, self.uptime(), self.wall())
        self.ahead = start - world.now
        """Seconds by which loop time is ahead of virtual time."""

    def now(self) -> float:
        return self._world.now + self.ahead

    def wall(self) -> float:
        return self._world.start_wall + self._world.now + self.moved

    def uptime(self) -> Uptime:
        return Uptime("virtual", self._world.now)


class VirtualLoop:
    """A process of the loop, from its start to its end."""

    def __init__(
        self,
        world: World,
        state: VirtualState,
        places: Mapping[str, Place],
        settings: Settings,
        heard: Callable[[CycleReport], None],
        moved: float,
    ) -> None:
        """Start the loop. ``moved``: seconds by which the host's wall clock was set forward. ``heard``: a function that
        gets the report of each cycle."""
        self._world, self._state, self._places = world, state, places
        self._pace = settings.loop
        self._heard = heard
        self.clock = VirtualClock(world, state.memory.latest, moved)
        self.backends = {name: VirtualBackend(place, world) for name, place in places.items()}
        self.actors = VirtualActors(self.backends, places, world)
        self.actors.act_seconds = settings.loop.act_seconds
        self.actors.wake = self.wake
        self._epoch = state.loop_lock.raise_epoch()
        self.reconciler = Reconciler(
            clock=self.clock,
            state=state,
            actors=self.actors,
            limits=settings.limits(),
            provisioner=settings.id,
            mandate=Mandate(self._epoch, self._check_epoch),
        )
        self._observations: dict[str, Observation] = {}
        self._next = NEVER
        """The virtual time of the next cycle."""
        self._earliest = world.now
        """The earliest virtual time of the next cycle. All changes until then are handled by this cycle."""
        self._due = NEVER
        """The virtual time at which the next plan is due, even without a change."""
        self.alive = True
        self.paused_until = 0.0
        for backend in self.backends.values():
            backend.start(partial(self._changed, backend))
        state.watchers.append(self.wake)
        self.wake()

    def end(self) -> None:
        """Kill the process. Calls under way still take effect, but the loop never gets their outcomes."""
        if self.alive:
            self.alive = self.actors.alive = False
            self._state.watchers.remove(self.wake)
            for backend in self.backends.values():
                backend.close()

    def pause(self, seconds: float) -> None:
        """Stop the process for some seconds. Calls that are under way still take effect."""
        self.paused_until = self._world.now + seconds
        self.wake()

    def wake(self) -> None:
        """Begin a cycle in ``GATHER`` seconds. This cycle also handles all changes until then."""
        self._cycle_at(max(self._world.now + GATHER, self._earliest))

    def _changed(self, backend: VirtualBackend) -> None:
        """Wake the loop after a change in a place. If the place is not watched, wait until its next observation."""
        if self._places[backend.pool].pool.watched:
            self.wake()
        else:
            pace = backend.pace
            self._cycle_at(max((self._world.now // pace + 1) * pace, self._earliest))

    def _cycle_at(self, when: float) -> None:
        when = max(when, self.paused_until)
        if when < self._next:
            self._next = when
            self._world.after(when - self._world.now, partial(self._cycle, when))

    def _cycle(self, when: float) -> None:
        if not self.alive or when != self._next:
            return
        if self._world.now < self.paused_until:
            self._next = NEVER
            self.wake()
            return
        self._next = NEVER
        sought = self.reconciler.sought()
        self._observations = {name: self._observe(name, sought.get(name, {})) for name in self.backends}
        try:
            report = self.reconciler.cycle(self._observations)
        except SupersededError:
            self.end()
            return
        self._heard(report)
        if report.plan is not None:
            self._earliest, self._due = (
                self._world.now + self._pace.floor_seconds,
                report.plan.due_at - self.clock.ahead,
            )
        due = self._due
        if report.problem or any(
            isinstance(observation, ObservationFailed) for observation in self._observations.values()
        ):
            due = min(due, self._world.now + self._pace.interval_seconds)
        if due < NEVER:
            self._cycle_at(max(due, self._earliest, self._world.now + GATHER))

    def _observe(self, name: str, sought: Mapping[str, str]) -> Observation:
        backend, now = self.backends[name], self._world.now
        if not self._places[name].pool.watched:
            now = now // backend.pace * backend.pace
            before = self._observations.get(name)
            if before is not None and before.began_at == now + self.clock.ahead and not sought:
                return before
        began = now + self.clock.ahead
        try:
            return backend.observe(began, sought)
        except BackendError as error:
            return ObservationFailed(name, began, error.failure)

    def _check_epoch(self) -> None:
        if self._state.loop_lock.epoch() != self._epoch:
            raise SupersededError("A newer loop works on this state.")
