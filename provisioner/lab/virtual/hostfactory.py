"""HostFactory in virtual time: its demand, its calls, and the machines that it believes it has.

This HostFactory gets machines only from terminal answers. In each round, HostFactory lists its hosts and returns lost
and unwanted machines. Then HostFactory requests the missing machines.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from provisioner.lab.cloud.world import World
from provisioner.lab.virtual.scenario import PROVISIONER, Demand, Scenario
from provisioner.state.errors import StateError
from provisioner.state.protocols import ScriptState


class Levels:
    """The demand over time: the number of wanted machines of each template."""

    def __init__(self, demand: tuple[Demand, ...], chance: random.Random) -> None:
        self._demand = demand
        self._chance = chance
        self._walks = {number: 0 for number, one in enumerate(demand) if one.walk}

    def step(self, now: float) -> Counter[str]:
        """Return the number of wanted machines by template. For a demand that varies by chance, each call moves the
        number by one random step."""
        wanted: Counter[str] = Counter()
        for number, one in enumerate(self._demand):
            level = one.level(now)
            if one.walk:
                walked = self._walks[number] + self._chance.randint(-one.walk, one.walk)
                level = self._walks[number] = min(max(0, walked), level)
            wanted[one.template] += level
        return wanted


class Grid:
    """A HostFactory. The caller calls ``round`` every ``poll_seconds``."""

    def __init__(self, scenario: Scenario, state: ScriptState, world: World) -> None:
        self.wanted: Counter[str] = Counter()
        self.hosts: Mapping[str, str] = {}
        """By machine: the template of each machine that HostFactory has. Each change makes a new mapping."""
        self.failures: Counter[str] = Counter()
        """The number of failed machines, by message of the failure."""
        self.broken: list[str] = []
        """Descriptions of answers that a provider must never give."""
        self.lost: list[str] = []
        """Machines that getReturnRequests reported in the last round as lost."""
        self.ended = 0
        self.silent_until = 0.0
        self.asked = 0
        self._scenario, self._habits = scenario, scenario.hostfactory
        self._state, self._world = state, world
        self._numbers: Counter[str] = Counter()
        """The number of HostFactory's machines by template."""
        self._chance = random.Random(f"{world.seed} grid")
        self._levels = Levels(scenario.demand, self._chance)
        self._open: dict[str, tuple[str, int, float]] = {}
        """By request: its template, number of machines and start. Only requests whose end HostFactory has not read."""
        self._returns: dict[str, float] = {}
        """By return request: its start. Only return requests whose end HostFactory has not read."""
        self._late: set[str] = set()
        self._patience = scenario.ends_within()
        self._answers: dict[str, str] = {}
        self._given: set[str] = set()
        """The machines that HostFactory has returned."""
        self._never_made: list[str] = []
        """Names of machines that were never made. The next round returns these names."""
        self._since: dict[str, float] = {}
        """By machine: the virtual time at which HostFactory got the machine."""
        self._idle: dict[str, float] = {}
        """By machine: the virtual time since which the machine has been unwanted."""

    def forget(self) -> None:
        """Restart HostFactory with an empty database."""
        self._have({})
        self._open, self._idle = {}, {}
        self._returns, self._answers = {}, {}

    def _have(self, hosts: Mapping[str, str]) -> None:
        self.hosts, self._numbers = hosts, Counter(hosts.values())

    def return_unknown_machines(self, machines: int) -> None:
        """Let the next round return machines that were never made. ``machines``: their number."""
        names = [f"{self._scenario.provisioner().name_prefix}-unknown{number:02d}-000000" for number in range(machines)]
        self._never_made += names

    def round(self) -> None:
        """Make the calls of one round, in this order: poll requests, ask which machines are lost, and request or return
        machines. In a silent time (``silent_until``), make no call."""
        now = self._world.now
        self.wanted = self._levels.step(now)
        if now < self.silent_until:
            return
        try:
            self._poll()
            self._return_machines(self._never_made)
            self._never_made = []
            self._ask_for_losses()
            for template in self._scenario.templates:
                self._balance(template)
        except StateError:
            return  # the script ends with exit code 1, and HF calls it again in the next round

    def _poll(self) -> None:
        ids = [*self._open, *self._returns, *self._some_answered()]
        for id_, answer in self._state.poll(ids).answers.items():
            if answer is None or not answer.ended:
                self._check_deadline(id_)
            elif id_ in self._answers:
                if self._answers[id_] != answer.text:
                    self.broken.append(f"{id_}: a terminal answer has changed")
            elif id_ in self._open:
                self._read_answer(id_, answer.text)
            else:
                self._returns.pop(id_, None)

    def _some_answered(self) -> list[str]:
        """In one of ten rounds, return the id of a random ended request, because HostFactory sometimes polls an ended
        request again. In the other rounds, return an empty list."""
        return [self._chance.choice(list(self._answers))] if self._answers and self._chance.random() < 0.1 else []

    def _check_deadline(self, id_: str) -> None:
        since = self._open[id_][2] if id_ in self._open else self._returns.get(id_, self._world.now)
        if self._patience is not None and self._world.now - since > self._patience and id_ not in self._late:
            self._late.add(id_)
            self.broken.append(f"{id_}: has not ended after {self._patience:.0f} s")

    def _read_answer(self, id_: str, text: str) -> None:
        template, count, _ = self._open.pop(id_)
        entry = json.loads(text)
        self.ended += 1
        got = [machine["name"] for machine in entry["machines"] if machine["result"] == "succeed"]
        failed = [machine for machine in entry["machines"] if machine["result"] == "fail"]
        if len(got) > count or len(set(got)) < len(got):
            self.broken.append(f"{id_}: {len(got)} machines reported, {count} wanted")
        if entry["status"] == "complete" and len(got) < count:
            self.broken.append(f"{id_}: complete with {len(got)} of {count}")
        if again := self._given.intersection(got) | self.hosts.keys() & set(got):
            self.broken.append(f"{id_}: reports {min(again)}, which was reported before")
        self.failures.update(machine["message"] for machine in failed)
        self._have({**self.hosts, **dict.fromkeys(got, template)})
        self._since |= dict.fromkeys(got, self._world.now)
        if len(self._answers) < 50:
            self._answers[id_] = text

    def _ask_for_losses(self) -> None:
        self.lost = []
        if not self.hosts:
            return
        lost = self._state.lost(self.hosts)
        self.lost = [name for name, loss in lost.items() if not loss.grace]
        self._state.note_hosts(self.hosts)
        self._return_machines(list(lost))

    def _balance(self, template: str) -> None:
        """Request the machines that are missing, or return the surplus."""
        have, wanted = self._numbers[template], self.wanted[template]
        coming = sum(count for of, count, _ in self._open.values() if of == template)
        missing = wanted - have - coming
        if missing > 0:
            self._request_machines(template, missing)
        if self._idle or have > wanted:
            self._settle_idle(template, max(0, have - wanted))

    def _request_machines(self, template: str, machines: int) -> None:
        for some in self._in_calls(range(machines)):
            recorded = self._state.record_request(
                PROVISIONER, template, len(some), created_wall=self._wall(), rc_account=""
            )
            self._open[recorded.id] = (template, len(some), self._world.now)
            self.asked += len(some)

    def _settle_idle(self, template: str, surplus: int) -> None:
        """Make return requests for those machines of a template that have been unwanted for ``idle_minutes`` and that
        may be returned now.

        ``surplus``: the number of unwanted machines. This HostFactory keeps the newest machines, so the oldest are
        unwanted.
        """
        now = self._world.now
        have = [name for name, of in self.hosts.items() if of == template]
        idle = {name: self._idle.get(name, now) for name in have[:surplus]}
        self._idle = {name: since for name, since in self._idle.items() if self.hosts.get(name) != template} | idle
        due = [name for name, since in idle.items() if now - since >= 60 * self._habits.idle_minutes]
        self._return_machines([name for name in due if self._may_return(name)])

    def _may_return(self, name: str) -> bool:
        minute = (self._world.now - self._since[name]) % 3600 / 60
        return not self._habits.hourly_billing or 50 <= minute < 57

    def _in_calls(self, all_: Sequence[Any]) -> list[Sequence[Any]]:
        """Split a sequence of machines into parts. Each part has as many machines as HostFactory names in one call."""
        size = self._habits.batch or max(1, len(all_))
        return [all_[start : start + size] for start in range(0, len(all_), size)]

    def _wall(self) -> float:
        return self._world.start_wall + self._world.now

    def _return_machines(self, names: list[str]) -> None:
        for some in self._in_calls(names):
            recorded = self._state.record_return(PROVISIONER, some, created_wall=self._wall())
            self._returns[recorded.id] = self._world.now
            self._given.update(some)
            left = set(some)
            self._have({name: of for name, of in self.hosts.items() if name not in left})
            for name in some:
                self._idle.pop(name, None)
                self._since.pop(name, None)

    def open_requests(self) -> list[str]:
        """Return the ids of the requests whose end HostFactory has not read."""
        return list(self._open)

    def facts(self) -> Mapping[str, int]:
        """Return the numbers of HostFactory's requests in this run: all, ended and open."""
        return {"requests": self.ended + len(self._open), "ended": self.ended, "open": len(self._open)}
