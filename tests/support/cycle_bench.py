"""A state directory, two places and a reconciler. The test itself makes each cycle, each observation and each
second."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from provisioner.backends import MayStart
from provisioner.lab.fake_backend import Entry, FakeBackend, FakePool
from provisioner.loop.cycle_report import CycleReport, Mandate, SupersededError
from provisioner.loop.reconciler import Reconciler
from provisioner.model import (
    Create,
    Delete,
    ErrorClass,
    Failure,
    Limits,
    Observation,
    ObservationFailed,
    Outcome,
    PoolLimits,
    TemplateLimits,
)
from provisioner.state.directory import StateDir
from tests.support.inline_actors import InlineActors
from tests.support.steered_place import SteeredPlace
from tests.support.stores import add_request, add_return

LIMITS = Limits(
    "hf",
    {"pool": PoolLimits("pool", initial_window=1000), "other": PoolLimits("other")},
    {"T": TemplateLimits("T", ("pool",)), "U": TemplateLimits("U", ("other",))},
)
BLIND = Failure(ErrorClass.UNAVAILABLE, "no route")


class Clock:
    time = 1_000_000.0
    ahead = 0.0
    """Seconds from loop time to the wall clock."""

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time + self.ahead

    def uptime(self) -> None:
        """Return None for an unknown uptime, so that the wall clock counts across a restart."""


class Place(FakeBackend):
    """The fake backend with two additions: machines run only after the test boots them, and chosen creates fail."""

    place: SteeredPlace

    def __init__(self, name: str, state: StateDir, clock: Clock) -> None:
        pool = FakePool(name=name, boot_seconds=1e12)
        super().__init__(pool, SteeredPlace(pool, clock.now), provisioner="demo")
        self.fails: dict[int, Failure] = {}
        """Failures of creates, by the number of the create among all creates so far."""
        self.created: list[str] = []
        self.deleted: list[Delete] = []
        self.recorded: list[bool] = []
        """For each create: True if memory.json named the machine when the call was made."""
        self._state = state

    @property
    def machines(self) -> dict[str, Entry]:
        return self.place.present()

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        outcomes = []
        for create in creates:
            if not may_start():
                break
            self.recorded.append(bool(memory_of(self._state, create.name)))
            failure = self.fails.get(len(self.created))
            self.created.append(create.name)
            outcomes += [Outcome(create, failure)] if failure else super().create([create], lambda: True)
        return outcomes

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        self.deleted += deletes
        return super().delete(deletes, may_start)

    def lose(self, *names: str) -> None:
        """Delete these machines at the place, as another user could."""
        for name in names:
            self.place.delete(self.machines[name], at_once=True)


def memory_of(state: StateDir, name: str) -> bool:
    records = state.memory.read().requests.values()
    return any(slot.name == name for record in records for slot in record.slots.values())


class Bench:
    """A state directory, two places and a reconciler, whose cycles the test runs one by one."""

    def __init__(self, path: Path) -> None:
        self.state = StateDir(path)
        self.clock = Clock()
        self.places = {name: Place(name, self.state, self.clock) for name in LIMITS.pools}
        self.superseded = False
        self.reconciler = self.restarted()

    @property
    def place(self) -> Place:
        return self.places["pool"]

    def restarted(self) -> Reconciler:
        self.reconciler = Reconciler(
            clock=self.clock,
            state=self.state,
            actors=InlineActors(self.places),
            limits=LIMITS,
            provisioner="demo",
            mandate=Mandate(check=self.check),
        )
        return self.reconciler

    def check(self) -> None:
        if self.superseded:
            raise SupersededError("a newer loop")

    def request(self, count: int, template: str = "T", *, skew: float = 0.0) -> str:
        """Record a request; HF's clock is ``skew`` seconds ahead of the loop's."""
        return add_request(self.state, template, count, created_wall=self.clock.time + skew, create_for="demo")

    def return_machines(self, *names: str) -> str:
        return add_return(self.state, names, created_wall=self.clock.time)

    def cycle(self, times: int = 1, blind: Collection[str] = ()) -> CycleReport:
        for _ in range(times):
            self.clock.time += 5.0
            report = self.reconciler.cycle(self.observations(blind))
        return report

    def observations(self, blind: Collection[str] = ()) -> dict[str, Observation]:
        """Return an observation of each pool. It fails if the pool is in ``blind``."""
        return {
            name: ObservationFailed(name, self.clock.time, BLIND)
            if name in blind
            else place.observe(self.clock.time, self.reconciler.sought().get(place.pool, {}))
            for name, place in self.places.items()
        }

    def anew(self, observations: Mapping[str, Observation]) -> dict[str, Observation]:
        """Return the same observations, as if they had begun at the present time."""
        return {name: replace(observation, began_at=self.clock.time) for name, observation in observations.items()}

    def at_rest(self) -> dict[str, Observation]:
        """Run cycles with the same observations until the loop skips planning, and return these observations."""
        observations = self.observations()
        for _ in range(2):
            self.reconciler.cycle(observations)
        assert self.reconciler.cycle(observations).plan is None
        return observations

    def succeed(self, count: int) -> str:
        """Make a request, run cycles until it is complete and reported to HF, and return the request's id."""
        id_ = self.request(count)
        self.cycle(2)
        self.place.place.boot()
        self.cycle(2)
        assert json.loads(self.answer(id_))["status"] == "complete"
        self.hears(id_)
        self.cycle()
        return id_

    def hears(self, id_: str) -> None:
        """Poll an ended request, as HF does, so that its answer counts as reported."""
        self.state.seen.touch(id_)
        self.state.terminal_answers.settle_reported(id_, self.answer(id_))

    def answer(self, id_: str) -> str:
        answer = self.state.status.read_answers([id_]).get(id_)
        assert answer is not None
        return answer.text


def hf_calls(bench: Bench, seconds: float) -> None:
    """Run a cycle each minute for ``seconds``. Before each cycle, HF calls getReturnRequests with a host that is not
    ours."""
    for _ in range(round(seconds / 60)):
        bench.clock.time += 55.0
        bench.state.inventory.write([f"other{bench.clock.time:.0f}"])
        bench.cycle()
