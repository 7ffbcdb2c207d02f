"""The same story with events that come, do not come, come twice, in any order or an hour late: what is made, what
became of it and what HF is told agree. Only how early HF hears of a preemption differs.
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

from provisioner.backends.events import Hint, Sieve
from provisioner.lab.cloud.compute.settings import Switches, Timings
from provisioner.lab.cloud.world import Fault
from provisioner.model import LossCause, Notice, PoolLimits, TemplateLimits
from tests.simulation.laws import Law
from tests.simulation.story import LIMITS, PREFIX, SPEC, Story
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
"""Nothing is left to chance but what happens to the entries."""

BETA = PoolLimits("beta", initial_window=50, boot_deadline=200.0, spill_after=150.0, lag=30.0, stale_after=90.0)
EVENTFUL = replace(
    LIMITS,
    pools=LIMITS.pools | {"beta": BETA},
    templates=LIMITS.templates | {"spot": TemplateLimits("spot", ("beta",))},
)

OFF = "off"
UNREAD = "unread for an hour"
"""They are in Pub/Sub in time; nobody takes them from there."""

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
class Told:
    """What came of one story."""

    machines: set[str] = field(default_factory=set)
    """What truly exists after the trouble."""
    verdicts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of every slot, with the cause of its loss."""
    answers: list[str] = field(default_factory=list)
    """What HF was told at last of each request."""
    leads: dict[str, float] = field(default_factory=dict)
    """By preempted machine: seconds from the first word to HF to the end of its notice."""


class Telling:
    """One story, second by second: the loop looks every ten, and at once when an event says so."""

    def __init__(self, mode: str) -> None:
        self.story = Story(limits=EVENTFUL, spec=replace(SPEC, provisioning_model="SPOT"), timings=EXACT)
        self.told = Told()
        self._sieve = Sieve(PREFIX)
        self._news: list[Hint] = []
        self._preempted: set[str] = set()
        self._seconds = 0
        self._faults = FAULTS[mode]
        self.story.world.set_faults(self._faults)
        if mode != OFF:
            self.story.groups.audit.listeners.append(self._hear_late if mode == UNREAD else self._hear)

    def _hear_late(self, data: bytes, published: float) -> None:
        self.story.world.after(HOUR, lambda: self._hear(data, published))

    def _hear(self, data: bytes, published: float) -> None:
        judged = self._sieve.judge(data, datetime.fromtimestamp(published, UTC))
        if judged.news:
            self._news.append(judged.news)

    def run(self, seconds: int, step: int = 1, pace: int = 10) -> None:
        for _ in range(seconds // step):
            self._seconds += step
            self.story.advance(step)
            if self._news or self._seconds % pace == 0:
                self._take_news()
                self.story.cycle()
                self.story.poll_all()
                self._listen()

    def _take_news(self) -> None:
        now = self.story.life.clock.now()
        for hint in self._news:
            if hint.grace is not None:
                self.story.notices.hear(hint.instance, Notice(LossCause.PREEMPTED, now + hint.grace), now)
        self._news.clear()

    def _listen(self) -> None:
        """HF asks what it has to give back; it takes its time to do so."""
        lost = self.story.hf.status.read_lost()
        assert lost.keys() <= self.story.judge.disturbed, f"{Law.PROVEN}: only what is taken away is reported lost"
        for name in lost.keys() & self._preempted:
            self.told.leads.setdefault(name, PREEMPTED_AT + EXACT.notice - self._seconds)

    def _plain(self, text: str) -> str:
        """With the number of each request in place of its id, which depends on how often HF called before."""
        for number, id_ in enumerate(self.story.requests):
            text = text.replace(id_, str(number))
        return text

    def names(self) -> list[str]:
        return sorted(self.story.machines())

    def trouble(self) -> None:
        """Lists lag, machines are preempted, stopped, deleted and recreated, and there is no stock for a while."""
        story = self.story
        first = story.request("spot", 12)
        self.run(PREEMPTED_AT)
        assert len(self.names()) == 12, first
        story.lines["beta"].lag = 29.0
        chosen = self.names()
        self._preempted = set(chosen[:4])
        story.preempt(chosen[:4])
        self.run(100)
        story.vanish(chosen[4])
        story.recreate(chosen[5])
        vm = story.mig.members[chosen[6]].vm
        assert vm is not None
        story.judge.disturbed.add(vm.name)
        story.groups.stop_vm(vm)
        self.run(100)
        story.world.set_faults([*self._faults, Fault("stockout", target=".*-00000[01]")])
        story.request("spot", 5)
        self.run(500)

    def ending(self) -> None:
        story = self.story
        story.lines["beta"].lag = 0.0
        self.run(HOUR + 60, step=10, pace=60)
        self.told.machines = {self._plain(name) for name in story.machines()}
        memory = story.memory()
        assert memory is not None
        self.told.verdicts = {
            self._plain(slot.name): (str(slot.verdict), str(slot.observed.cause or ""))
            for record in memory.requests.values()
            for slot in record.slots.values()
        }
        self.told.answers = [self._plain(str(kept_of(wanted.told))) for wanted in story.requests.values()]
        story.return_all()
        story.settle()
        story.close()


def kept_of(answer: str | None) -> object:
    """What HF keeps of a terminal answer, without when the machines were launched and their addresses."""
    assert answer is not None
    entry = json.loads(answer)
    return entry["status"], sorted((machine["name"], machine["result"]) for machine in entry["machines"])


def tell(mode: str) -> Told:
    return _tell(mode, Switches())


@cache
def _tell(mode: str, _in_force: Switches) -> Told:
    telling = Telling(mode)
    telling.trouble()
    telling.ending()
    return telling.told


MODES = [mode for mode in FAULTS if mode != OFF]
QUICK = "garbled"
"""The one that `make test` tells."""

EACH = [pytest.param("", mode, id=mode, marks=[] if mode == QUICK else pytest.mark.slow) for mode in MODES]
FLIPS = [
    pytest.param(*flip.values, mode, id=f"{flip.id}: {mode}", marks=flip.marks)
    for flip, mode in zip(cycle(switches.FLIPS), MODES)
]
"""Each way that events come, with the undocumented behaviours flipped, in turn."""


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize(("switches", "mode"), [*EACH, *FLIPS], indirect=["switches"])
def test_events_change_nothing_but_how_early_a_preemption_is_told(mode: str) -> None:
    told, without = tell(mode), tell(OFF)
    verdicts = Counter(verdict for verdict, _ in without.verdicts.values())
    assert verdicts == {"succeeded": 10, "lost": 7, "failed": 2}, "the story is one that matters"
    assert told.machines == without.machines
    assert told.verdicts == without.verdicts
    assert told.answers == without.answers
    assert told.leads.keys() == without.leads.keys()
    assert all(told.leads[name] >= lead for name, lead in without.leads.items()), "no event makes it worse"


@pytest.mark.slow
def test_events_give_hf_most_of_the_notice_where_looks_are_too_late() -> None:
    leads = {mode: sorted(tell(mode).leads.values()) for mode in FAULTS}
    assert leads[OFF][-1] <= 1.0
    assert leads["an hour late"] == leads[UNREAD] == leads[OFF]
    assert leads["complete"][0] > 10.0
    assert leads["duplicated"][0] > 10.0
    assert leads["lossy"][-1] > 10.0 >= leads["lossy"][0], "some came, some did not"
