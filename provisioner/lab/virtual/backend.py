"""The backend of a virtual place: the observations that the loop gets, and the duration of its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from provisioner.backends import BackendError, MayStart
from provisioner.backends.concurrency import Flow
from provisioner.lab.cloud.world import World
from provisioner.lab.virtual.place import LOST_ANSWER, Member, Place
from provisioner.lab.virtual.scenario import ObservationMode
from provisioner.loop.batch_threads import Batch, Results
from provisioner.model import Action, Create, Delete, ErrorClass, Failure, Machine, Outcome, Snapshot


class VirtualBackend:
    """A ``provisioner.backends.Backend`` of a virtual place. The backend's calls take effect at once. ``VirtualActors``
    adds the duration of the calls."""

    def __init__(self, place: Place, world: World) -> None:
        self.pool = place.name
        self.pace = place.pool.observe_seconds
        self._place = place
        self._world = world
        self._machines: Mapping[str, Machine] = {}
        self._listed: dict[str, Machine] = {}
        """The machines that a complete observation would list now."""
        self._news: dict[str, Member] = {member.name: member for member in place.members.values()}
        """The machines that have changed since the last observation, by name."""
        self._frozen: Mapping[str, Machine] | None = None
        self._wake: Callable[[], None] = lambda: None
        self.observations = 0

    def start(self, wake: Callable[[], None]) -> None:
        """Follow the place. Call ``wake`` from now on when observations begin to show a machine differently, or when
        the place's settings change."""
        self._wake = wake
        self._place.watchers.append(self._hear)
        self._place.behaves.append(wake)

    def close(self) -> None:
        """Stop following the place, so that its changes no longer wake the loop."""
        self._place.watchers.remove(self._hear)
        self._place.behaves.remove(self._wake)

    def _hear(self, member: Member) -> None:
        self._news[member.name] = member
        self._wake()

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return the observation that the scenario chooses, which may be false. Raise BackendError if the scenario lets
        the observation fail."""
        self.observations += 1
        shows = self._place.pool.observations
        if shows is not ObservationMode.FROZEN:
            self._frozen = None
        if shows is ObservationMode.FAILED:
            raise BackendError(ErrorClass.UNAVAILABLE, "The place cannot be seen.")
        if shows is ObservationMode.FROZEN:
            self._frozen = self._list() if self._frozen is None else self._frozen
            machines = self._frozen
        elif shows is ObservationMode.EMPTY:
            machines = {}
        else:
            machines = self._list()
            if shows is ObservationMode.TRUNCATED:
                machines = dict(list(machines.items())[: self._place.pool.page])
        if machines is not self._machines and machines != self._machines:
            self._machines = machines
        members = self._place.members
        foreign = frozenset(name for name in sought if name in members and not members[name].is_ours)
        return Snapshot(
            self.pool,
            now,
            self._machines,
            foreign=foreign,
            spec="virtual",
            asked=frozenset(sought),
            ends=dict(self._place.ends) if self._place.pool.tells_why else {},
        )

    def _list(self) -> Mapping[str, Machine]:
        """Return our machines. Leave out each machine until ``appears_seconds`` after its create took effect. If no
        machine has changed, return the same mapping as at the last call."""
        listed_until = self._world.now - self._place.pool.appears_seconds
        news = [member for member in self._news.values() if member.is_ours and member.asked <= listed_until]
        if news:
            self._listed = dict(self._listed)
        for member in news:
            del self._news[member.name]
            self._listed.pop(member.name, None)
            if self._place.members.get(member.name) is member:
                self._listed[member.name] = member.shown()
        return self._listed

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Create all machines in a single call of the place."""
        return self._call(creates, lambda create: self._place.create(create.name, create.template))

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Delete all machines in a single call of the place."""
        return self._call(deletes, self._delete)

    def _delete(self, delete: Delete) -> None:
        self._place.delete(delete.name, delete.uid)

    def _call(self, actions: Sequence[Action], do: Callable[..., Failure | None]) -> list[Outcome]:
        failure = self._place.take_call()
        if failure is not None:
            return [Outcome(action, failure) for action in actions]
        refusals = [do(action) for action in actions]
        if not self._place.is_answered():
            return [Outcome(action, LOST_ANSWER) for action in actions]
        return [Outcome(action, refusal) for action, refusal in zip(actions, refusals, strict=True)]


@dataclass
class Running:
    """A batch that is under way."""

    batch: Batch
    until: float
    """The virtual time from which no further call of the batch begins."""
    calls: list[tuple[Action, ...]]
    outcomes: list[Outcome] = field(default_factory=list)
    stopped: set[str] = field(default_factory=set)
    """The templates of which this batch creates no more machines, because a create of the template failed."""


class VirtualActors:
    """An executor of batches in virtual time, with several concurrent calls. Each call takes the pool's
    ``call_seconds``."""

    def __init__(self, backends: Mapping[str, VirtualBackend], places: Mapping[str, Place], world: World) -> None:
        self._backends, self._places, self._world = backends, places, world
        self._running: dict[str, Running] = {}
        self._flows = {name: Flow() for name in places}
        self._ended: list[Results] = []
        self.wake: Callable[[], None] = lambda: None
        self.act_seconds = 2.0
        self.alive = True
        """False after the loop's process has ended. Then no further call begins."""

    def busy(self) -> Set[str]:
        """Return the pools whose batch is under way, or has ended and was not collected yet."""
        return frozenset(self._running) | {results.pool for results in self._ended}

    def submit(self, batch: Batch, may_start: Callable[[], bool]) -> None:
        """Begin a batch. ``may_start`` is ignored, because it reads the real clock, and virtual calls take no real
        time."""
        size = self._places[batch.pool].pool.machines_per_call
        running = Running(batch, self._world.now + self.act_seconds, [*_parts(batch.deletes, size)])
        running.calls += _parts(batch.creates, size)
        self._running[batch.pool] = running
        self._next(running)

    def collect(self) -> list[Results]:
        """Return the results of the batches that have ended since the last call of ``collect``."""
        ended, self._ended = self._ended, []
        return ended

    def _next(self, running: Running) -> None:
        """Begin the next calls of a batch. The calls take effect when they end."""
        if not self.alive:
            return
        name, now = running.batch.pool, self._world.now
        pool, flow = self._places[name].pool, self._flows[name]
        if not running.calls or now >= running.until or not flow.open(now):
            self._finish(running)
            return
        most = min(pool.calls_at_once, flow.limit)
        sent, running.calls = running.calls[:most], running.calls[most:]
        self._world.after(pool.call_seconds, partial(self._done, running, sent, now))

    def _done(self, running: Running, calls: Sequence[tuple[Action, ...]], began: float) -> None:
        name = running.batch.pool
        backend = self._backends[name]
        for actions in calls:
            left = [action for action in actions if getattr(action, "template", "") not in running.stopped]
            creates = [action for action in left if isinstance(action, Create)]
            deletes = [action for action in left if isinstance(action, Delete)]
            outcomes = backend.delete(deletes, _always) if deletes else []
            outcomes += backend.create(creates, _always) if creates else []
            running.outcomes += outcomes
            self._learn(name, outcomes, began)
            running.stopped |= {
                outcome.action.template
                for outcome in outcomes
                if isinstance(outcome.action, Create) and outcome.failure and outcome.failure.error.stops_batch
            }
        self._next(running)

    def _learn(self, pool: str, outcomes: Sequence[Outcome], began: float) -> None:
        """Tell the pool's ``Flow``, which limits the number of concurrent calls, that a call has ended. ``began``: the
        virtual time at which the call began."""
        errors = {outcome.failure.error for outcome in outcomes if outcome.failure}
        flow, now = self._flows[pool], self._world.now
        if ErrorClass.THROTTLED in errors:
            flow.refused(began, now, None)
        elif ErrorClass.UNAVAILABLE not in errors:
            flow.answered("call", began, now)

    def _finish(self, running: Running) -> None:
        del self._running[running.batch.pool]
        self._ended.append(Results.of(running.batch, running.outcomes))
        self.wake()


def _always() -> bool:
    return True


def _parts(actions: Sequence[Action], size: int) -> list[tuple[Action, ...]]:
    return [tuple(actions[start : start + size]) for start in range(0, len(actions), size)]
