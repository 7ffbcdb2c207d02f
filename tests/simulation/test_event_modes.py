"""The same simulation with events that come once, twice, out of order, an hour late, or not at all.

Machines, verdicts and answers must be equal in all modes. Only the time at which HF learns of a preemption may differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from itertools import cycle

import pytest

from provisioner.backends.pubsub_events import Hint, Sieve
from provisioner.lab.cloud.compute.settings import Switches, Timings
from provisioner.lab.cloud.world import Fault
from provisioner.model import LossCause, Notice, PoolLimits, TemplateLimits
from tests.simulation.laws import Law
from tests.simulation.simulation import LIMITS, PREFIX, SPEC, Simulation
from tests.support.clouds import switches

EXACT = Timings(
    operation=(0.0, 0.0),
    schedule=(2.0, 2.0),
    inserts_per_second=0.0,
    boot=(20.0, 20.0),
    delete_spot=(10.0, 10.0),
    leave=(3.0, 3.0),
    audit=(2.0, 6.0),
)
"""Durations without chance; only the log entries are left to chance."""

BETA = PoolLimits(
    "beta",
    initial_window=50,
    boot_deadline_seconds=200.0,
    spill_after_seconds=150.0,
    lag_seconds=30.0,
    stale_after_seconds=90.0,
)
EVENTFUL = replace(
    LIMITS,
    pools=LIMITS.pools | {"beta": BETA},
    templates=LIMITS.templates | {"spot": TemplateLimits("spot", ("beta",))},
)

OFF = "off"
UNREAD = "unread for an hour"
"""A mode in which entries are in Pub/Sub in time but are not pulled."""

FAULTS: Mapping[str, Sequence[Fault]] = {
    OFF: [],
    "complete": [],
    "lossy": [Fault("event_lost", rate=0.5)],
    "duplicated": [Fault("event_twice")],
    "reordered": [Fault("event_late", rate=0.5, params={"seconds": 20.0})],
    "an hour late": [Fault("event_late")],
    UNREAD: [],
    "garbled": [
        Fault("event_malformed", rate=0.3),
        Fault("event_number", rate=0.5),
        Fault("event_unfinished", rate=0.5),
    ],
}

PREEMPTED_AT = 200
HOUR = 3600


@dataclass
class End:
    """The state at the end of a simulation."""

    machines: set[str] = field(default_factory=set)
    """The machines that truly exist after the trouble."""
    verdicts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The verdict of every slot, with the cause of its loss."""
    answers: list[str] = field(default_factory=list)
    """The last answer of each request."""
    leads: dict[str, float] = field(default_factory=dict)
    """Seconds from the first report to HF until the end of the notice, by preempted machine."""


class EventRun:
    """A simulation, second by second. The loop observes every ten seconds, and at once if an event asks for it."""

    def __init__(self, mode: str) -> None:
        self.sim = Simulation(limits=EVENTFUL, spec=replace(SPEC, provisioning_model="SPOT"), timings=EXACT)
        self.reported = End()
        self._sieve = Sieve(PREFIX)
        self._news: list[Hint] = []
        self._preempted: set[str] = set()
        self._seconds = 0
        self._faults = FAULTS[mode]
        self.sim.world.set_faults(self._faults)
        if mode != OFF:
            self.sim.groups.audit.listeners.append(self._hear_late if mode == UNREAD else self._hear)

    def _hear_late(self, data: bytes, published: float) -> None:
        self.sim.world.after(HOUR, lambda: self._hear(data, published))

    def _hear(self, data: bytes, published: float) -> None:
        judged = self._sieve.judge(data, datetime.fromtimestamp(published, UTC))
        if judged.news:
            self._news.append(judged.news)

    def run(self, seconds: int, step: int = 1, pace: int = 10) -> None:
        for _ in range(seconds // step):
            self._seconds += step
            self.sim.advance(step)
            if self._news or self._seconds % pace == 0:
                self._take_news()
                self.sim.cycle()
                self.sim.poll_all()
                self._listen()

    def _take_news(self) -> None:
        now = self.sim.life.clock.now()
        for hint in self._news:
            if hint.grace is not None:
                self.sim.notices.add(hint.instance, Notice(LossCause.PREEMPTED, now + hint.grace), now)
        self._news.clear()

    def _listen(self) -> None:
        """Note the losses that getReturnRequests would name. No machine is returned yet."""
        lost = self.sim.hf.status.read_lost()
        assert lost.keys() <= self.sim.judge.disturbed, f"{Law.PROVEN}: only what is taken away is reported lost"
        for name in lost.keys() & self._preempted:
            self.reported.leads.setdefault(name, PREEMPTED_AT + EXACT.notice - self._seconds)

    def _plain(self, text: str) -> str:
        """Return the text with a number in place of each request id. The ids themselves differ between the modes."""
        for number, id_ in enumerate(self.sim.requests):
            text = text.replace(id_, str(number))
        return text

    def names(self) -> list[str]:
        return sorted(self.sim.machines())

    def trouble(self) -> None:
        """Make trouble.

        Lists lag, machines are preempted, stopped, deleted or recreated, and stock is missing for a while.
        """
        sim = self.sim
        first = sim.request("spot", 12)
        self.run(PREEMPTED_AT)
        assert len(self.names()) == 12, first
        sim.lines["beta"].lag = 29.0
        chosen = self.names()
        self._preempted = set(chosen[:4])
        sim.preempt(chosen[:4])
        self.run(100)
        sim.vanish(chosen[4])
        sim.recreate(chosen[5])
        vm = sim.mig.members[chosen[6]].vm
        assert vm is not None
        sim.judge.disturbed.add(vm.name)
        sim.groups.stop_vm(vm)
        self.run(100)
        sim.world.set_faults([*self._faults, Fault("stockout", target=".*-00000[01]")])
        sim.request("spot", 5)
        self.run(500)

    def ending(self) -> None:
        sim = self.sim
        sim.lines["beta"].lag = 0.0
        self.run(HOUR + 60, step=10, pace=60)
        self.reported.machines = {self._plain(name) for name in sim.machines()}
        memory = sim.memory()
        assert memory is not None
        self.reported.verdicts = {
            self._plain(slot.name): (str(slot.verdict), str(slot.observed.cause or ""))
            for record in memory.requests.values()
            for slot in record.slots.values()
        }
        self.reported.answers = [self._plain(str(kept_of(wanted.reported))) for wanted in sim.requests.values()]
        sim.return_all()
        sim.settle()
        sim.close()


def kept_of(answer: str | None) -> object:
    """Return the parts of a terminal answer that must be equal in all modes: all but launch times and addresses."""
    assert answer is not None
    entry = json.loads(answer)
    return entry["status"], sorted((machine["name"], machine["result"]) for machine in entry["machines"])


def play(mode: str) -> End:
    return _play(mode, Switches())


@cache
def _play(mode: str, _in_force: Switches) -> End:
    event_run = EventRun(mode)
    event_run.trouble()
    event_run.ending()
    return event_run.reported


MODES = [mode for mode in FAULTS if mode != OFF]
QUICK = "garbled"
"""The mode that `make test` plays."""

EACH = [pytest.param("", mode, id=mode, marks=[] if mode == QUICK else pytest.mark.slow) for mode in MODES]
FLIPS = [
    pytest.param(*flip.values, mode, id=f"{flip.id}: {mode}", marks=flip.marks)
    for flip, mode in zip(cycle(switches.FLIPS), MODES)
]
"""Each mode of events, with the undocumented behaviours flipped in turn."""


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize(("switches", "mode"), [*EACH, *FLIPS], indirect=["switches"])
def test_events_only_change_how_early_a_preemption_is_reported(mode: str) -> None:
    reported, without = play(mode), play(OFF)
    verdicts = Counter(verdict for verdict, _ in without.verdicts.values())
    assert verdicts == {"succeeded": 10, "lost": 7, "failed": 2}, "the simulation has all the ends"
    assert reported.machines == without.machines
    assert reported.verdicts == without.verdicts
    assert reported.answers == without.answers
    assert reported.leads.keys() == without.leads.keys()
    assert all(reported.leads[name] >= lead for name, lead in without.leads.items()), "no event makes it worse"


@pytest.mark.slow
def test_events_give_hf_most_of_the_notice_where_observations_are_too_late() -> None:
    leads = {mode: sorted(play(mode).leads.values()) for mode in FAULTS}
    assert leads[OFF][-1] <= 1.0
    assert leads["an hour late"] == leads[UNREAD] == leads[OFF]
    assert leads["complete"][0] > 10.0
    assert leads["duplicated"][0] > 10.0
    assert leads["lossy"][-1] > 10.0 >= leads["lossy"][0], "some events came, some did not"
