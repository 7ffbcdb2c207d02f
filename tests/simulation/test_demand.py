"""The demand service in virtual time, with faults. No request may be doubled, and no machine lost.

The service is killed before and after its calls of the scripts. Scripts fail, the loop restarts, and machines vanish.
``RUNS=300 pytest tests/simulation/test_demand.py`` plays more simulations.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pytest

from provisioner.demand.service import ACCOUNT, DemandService
from provisioner.demand.sources import Fleet, Reading, SourceError
from provisioner.hostfactory.script_calls import HostFactory, ScriptFailed
from provisioner.hostfactory.templates import Template as HfTemplate
from provisioner.lab.virtual.run import Provisioner, Stage, play
from provisioner.lab.virtual.scenario import PROVISIONER, Act, Event, Scenario, Template, VirtualPool
from provisioner.lab.virtual.scenario import Demand as VirtualDemand
from provisioner.lab.virtual.state import VirtualState
from provisioner.names import split_name
from provisioner.state.errors import StateError
from tests.simulation.simulation import Crash, Fuse, crash
from tests.unit.demand.wishes import Said, demand

RUNS = int(os.environ.get("RUNS", "12"))
STORM_SECONDS = 4 * 3600.0
"""Length of the time in which processes die and the wish changes. After it, everything comes to rest."""
HOURS = 8.0
LAST = {"T": 7, "U": 3}
"""Machines wanted at rest."""
YOUNGEST = 300.0
MOST = 40

SIZE = {"type": ("String", "X86_64"), "ncpus": ("Numeric", "4"), "ncores": ("Numeric", "1"), "nram": ("Numeric", "1")}
SETTINGS = demand(fall_after_seconds=120.0, minimum_age_seconds=YOUNGEST, rise_at_once=15)


def scenario(chance: random.Random) -> Scenario:
    """Return a scenario of two templates on a faulty place.

    The loop pauses, restarts, and sometimes cannot read intent.
    """
    acts = [Act.RESTART, Act.PREEMPT, Act.PAUSE, Act.UNREADABLE_INTENT, Act.LOSE_ANSWERS, Act.SECOND_LOOP]
    events = tuple(
        Event(at_minutes=chance.uniform(5, STORM_SECONDS / 60), do=chance.choice(acts), share=0.3, for_minutes=3.0)
        for _ in range(10)
    )
    pool = VirtualPool(name="p", boot_seconds=60.0, boot_p95_seconds=200.0, boot_failures=0.05, hangs=0.02)
    return Scenario(
        name="demand",
        about="The demand service instead of HostFactory.",
        hours=HOURS,
        pools={"p": pool},
        templates={"T": Template(pools=("p",)), "U": Template(pools=("p",))},
        demand=(VirtualDemand(machines=0),),
        events=events,
        settings={"retention_hours": chance.choice([0.2, 24.0])},
    )


class Scripts(HostFactory):
    """The scripts of HostFactory, with a record of their requests and returns."""

    def __init__(self, state: VirtualState, world: Any, chance: random.Random) -> None:
        super().__init__({})
        self._state, self._world, self._chance = state, world, chance
        self.fuse = Fuse()
        self.counts: dict[str, tuple[str, int]] = {}
        """Template and number of each recorded request."""
        self.returned: set[str] = set()
        self.failed: set[str] = set()
        """Machines that an answer has reported as failed."""
        self.launched: dict[str, float] = {}
        self.idle: Mapping[str, float] = {}
        """The idle machines of the last successful reading."""
        self.wanted, self.zeros = Counter[str](), set[str]()
        """The numbers that count, and the templates whose last successful reading was a first 0, which does not count
        yet."""
        self.broken: list[str] = []

    def alive(self, template: str) -> int:
        """Return the number of requested machines that were neither returned nor reported as failed."""
        ids = [split[0] for name in self.returned | self.failed if (split := split_name("hf", name))]
        gone = Counter(self.counts[id_][0] for id_ in ids)
        return sum(count for of, count in self.counts.values() if of == template) - gone[template]

    def note_reading(self, numbers: Mapping[str, int] | None) -> None:
        """Note the numbers that the source wants. ``numbers``: None if the reading failed.

        A template's 0 counts only if it is the second in a row. A failed reading between two zeros starts the count
        again.
        """
        for template, number in (numbers or {}).items():
            if number or template in self.zeros:
                self.wanted[template] = number
        self.zeros = {template for template, number in (numbers or {}).items() if not number}

    def _call(self, name: str, do: Callable[[], Any]) -> Any:
        """Call a script by ``do``.

        The service may be killed before or after the call. The call may also fail, before or after the script has
        recorded the request.
        """
        self.fuse.burn(f"before {name}")
        luck = self._chance.random() if self._world.now < STORM_SECONDS else 1.0
        if luck < 0.03:
            raise ScriptFailed(f"{name} failed")
        try:
            result = do()
        except StateError as error:
            raise ScriptFailed(str(error)) from error
        if luck < 0.06:
            raise ScriptFailed(f"{name} was too slow")
        self.fuse.burn(f"after {name}")
        return result

    def statuses(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], self._call("getRequestStatus", partial(self._statuses, ids)))

    def _statuses(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        for id_, answer in self._state.poll(ids).answers.items():
            waiting = {"requestId": id_, "status": "running", "machines": []}
            entries.append(json.loads(answer.text) if answer else waiting)
            if id_ in self.counts:
                machines = entries[-1]["machines"]
                self.failed |= {one["name"] for one in machines if one["result"] == "fail"}
                self.launched |= {one["name"]: one["launchtime"] for one in machines if one["result"] == "succeed"}
        return entries

    def reclaimed(self, names: Sequence[str]) -> dict[str, int]:
        return cast(dict[str, int], self._call("getReturnRequests", partial(self._reclaimed, names)))

    def _reclaimed(self, names: Sequence[str]) -> dict[str, int]:
        self._state.note_hosts(dict.fromkeys(names))
        return {name: loss.grace for name, loss in self._state.lost(names).items()}

    def request(self, template: str, count: int, rc_account: str = "") -> str:
        return str(self._call("requestMachines", partial(self._request, template, count, rc_account)))

    def _request(self, template: str, count: int, rc_account: str) -> str:
        recorded = self._state.record_request(
            PROVISIONER, template, count, created_wall=self._world.wall(), rc_account=rc_account
        )
        self.counts[recorded.id] = template, count
        if (alive := self.alive(template)) > (wanted := self.wanted[template]):
            self.broken.append(f"{self._world.now:.0f} s: {alive} of {template} asked, {wanted} wanted")
        if rc_account != ACCOUNT:
            self.broken.append(f"{recorded.id} has the account {rc_account!r}")
        return recorded.id

    def return_machines(self, names: Sequence[str]) -> str:
        return str(self._call("requestReturnMachines", partial(self._return_machines, names)))

    def _return_machines(self, names: Sequence[str]) -> str:
        lost = self._state.lost(names)
        for name in names:
            age = self._world.wall() - self.launched[name]
            works = name not in self.idle and (name not in lost or lost[name].grace > 0)
            if name not in self.returned and (works or (name not in lost and age < YOUNGEST)):
                self.broken.append(f"{self._world.now:.0f} s: {name} is {age:.0f} s old, idle: {name in self.idle}")
        self.returned.update(names)
        return self._state.record_return(PROVISIONER, names, created_wall=self._world.wall()).id


class WithDemand(Provisioner):
    """The loop with the demand service in place of HostFactory."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        super().__init__(stage)
        self._chance = chance
        self.scripts = Scripts(self.state, stage.world, chance)
        self._wanted = {"T": 0, "U": 0}
        self._service: DemandService | None = None
        self.deaths: Counter[str] = Counter()

    def _round(self) -> None:
        self._world.after(30.0, self._round)
        storm = self._world.now < STORM_SECONDS
        if not storm:
            self._wanted = LAST
        elif self._chance.random() < 0.2:
            self._wanted = {template: self._chance.choice([0, self._chance.randint(0, MOST)]) for template in LAST}
        self.scripts.fuse.put_out()
        if storm and self._chance.random() < 0.3:
            self.scripts.fuse.light(self._chance.randint(1, 10), crash)
        if self._service is None:
            settings = SETTINGS.model_copy(update={"sources": {"jobs": Said(said=[self._read])}})
            templates = [HfTemplate(name, 1000, SIZE, (), "", "", "", "", {}) for name in LAST]
            self._service = DemandService(settings, templates, [self.state], self.scripts)
        try:
            self._service.step(self._world.wall())
        except Crash as end:
            self.deaths[str(end)] += 1
            self._service = None
        self._ledger.want(sum(self._wanted.values()))

    def _read(self, fleet: Fleet) -> Reading | SourceError:
        if self._world.now < STORM_SECONDS and self._chance.random() < 0.1:
            self.scripts.note_reading(None)
            return SourceError("the scheduler does not answer")
        busy = random.Random(f"{self._world.now // 600}")
        self.scripts.idle = {name: busy.random() for name in sorted(fleet.running) if busy.random() < 0.7}
        self.scripts.note_reading(self._wanted)
        return Reading(self._wanted, self.scripts.idle)


def run(seed: int) -> WithDemand:
    """Play a simulation, and check what must hold in each."""
    chance = random.Random(f"{seed} demand")
    made: list[WithDemand] = []

    def decide(stage: Stage) -> WithDemand:
        made.append(WithDemand(stage, chance))
        return made[0]

    played = scenario(chance)
    result = play(played, seed, decide)
    [ended] = made
    assert ended.scripts.broken == []
    assert result.broken == ()
    assert {template: ended.scripts.alive(template) for template in LAST} == LAST
    assert result.samples[-1].running == sum(LAST.values())
    return ended


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_killed_service_doubles_nothing_and_loses_nothing(seed: int) -> None:
    ended = run(seed)
    assert sum(ended.deaths.values()) > 30
    assert ended.scripts.returned


def test_the_service_dies_before_and_after_each_call() -> None:
    deaths, seed = Counter[str](), 1000
    names = ("getRequestStatus", "getReturnRequests", "requestMachines", "requestReturnMachines")
    while missing := {f"{when} {name}" for when in ("before", "after") for name in names} - deaths.keys():
        deaths += run(seed).deaths
        seed += 1
        assert seed < 1010, missing
    assert set(deaths) <= {f"{when} {name}" for when in ("before", "after") for name in names}
