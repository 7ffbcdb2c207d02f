"""Hypothesis tells stories: HF asks, polls and returns, places fail, the loop dies between any two steps. After every
step the judge checks that what cannot happen twice, or at all, has not happened.

``STORIES=1000 pytest tests/simulation`` tells more of them, and others each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from provisioner.lab.cloud.compute.settings import Switches
from provisioner.lab.cloud.world import Fault
from provisioner.model import ErrorClass, Failure, HoldKind
from tests.simulation.story import Story, WatchedGke, crash, disk_is_full
from tests.support.clouds.direct import Mishap
from tests.support.clouds.switches import FLIPS

STORIES = int(os.environ.get("STORIES", "100"))
STEPS = int(os.environ.get("STORY_STEPS", "40"))
QUICK = max(1, STORIES // 4)
"""The stories of `make test`; `make test-slow` tells as many as there are."""

pytestmark = pytest.mark.timeout(900)  # a story that fails is told shorter and shorter, for up to five minutes

pools = st.sampled_from(["alpha", "beta", "gamma"])
calls_of_hf = st.sampled_from([Story.poll_all, Story.list_hosts, Story.return_all])

FOREIGNER = "hf-abcdefghij-000001"
"""Somebody else's pod whose name has our shape."""

some_pools = st.lists(pools, unique=True, max_size=3)

REFUSALS = [
    Mishap(Failure(error, f"{error} on purpose"))
    for error in (ErrorClass.QUOTA, ErrorClass.DENIED, ErrorClass.STOCKOUT, ErrorClass.INVALID, ErrorClass.OTHER)
]
THROTTLED = Mishap(Failure(ErrorClass.THROTTLED, "too many calls"))
LOST_ANSWERS = [Mishap(Failure(ErrorClass.TIMEOUT, "no answer"), after) for after in (None, 0.0, 0.0, 7.0, 40.0)]
NOT_STARTED = Mishap(None)
MISHAPS = [*REFUSALS, THROTTLED, *LOST_ANSWERS, NOT_STARTED]
FAULTS = ["stockout", "image_pull", "never_ready", "slow_start", "crash", "quota", "stuck", "stuck_provisioning"]


class Telling(RuleBasedStateMachine):
    """Begins a story, and at its end lets everything come to rest."""

    story: Story

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()

    def teardown(self) -> None:
        try:
            self.story.settle()
        finally:
            self.story.close()


class Laws(Telling):
    """Everything that may happen."""

    # --- HostFactory ----------------------------------------------------------------------------------------------

    @initialize(template=st.sampled_from(["wide", "pods", "vms"]), count=st.integers(1, 6))
    def first_request(self, template: str, count: int) -> None:
        self.story.request(template, count)
        self.story.cycle()

    @precondition(lambda self: len(self.story.requests) < 5)
    @rule(template=st.sampled_from(["wide", "pods", "vms"]), count=st.integers(1, 6))
    def hf_requests(self, template: str, count: int) -> None:
        self.story.request(template, count)

    @rule(data=st.data())
    def hf_polls(self, data: st.DataObject) -> None:
        ids = sorted(self.story.requests) + sorted(self.story.returns)
        self.story.poll(data.draw(st.sampled_from(ids)))

    @rule()
    def hf_polls_all(self) -> None:
        self.story.poll_all()

    @rule(data=st.data(), returns=st.booleans(), cycles=st.integers(1, 3))
    def hf_polls_slowly(self, data: st.DataObject, returns: bool, cycles: int) -> None:
        """Between reading a terminal answer and settling it HF returns a machine of it, and the loop goes on."""
        id_ = data.draw(st.sampled_from(sorted(self.story.requests) + sorted(self.story.returns)))
        names = sorted(self.story.requests[id_].listed - set(self.story.returned)) if id_ in self.story.requests else []

        def meanwhile() -> None:
            if returns and names:
                self.story.give_back(names[:1])
            for _ in range(cycles):
                self.story.cycle()

        self.story.poll(id_, meanwhile)

    @rule(data=st.data())
    def hf_returns(self, data: st.DataObject) -> None:
        listed = {name for wanted in self.story.requests.values() for name in wanted.listed}
        names = sorted(listed - set(self.story.returned))
        if names:
            self.story.give_back(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)))

    @rule()
    def hf_returns_all(self) -> None:
        self.story.return_all()

    @rule()
    def hf_lists_hosts(self) -> None:
        self.story.list_hosts()

    @rule(name=st.sampled_from(["someone-elses-host", FOREIGNER]))
    def hf_returns_a_stranger(self, name: str) -> None:
        self.story.give_back([name])

    # --- the loop -------------------------------------------------------------------------------------------------

    @rule()
    def cycle(self) -> None:
        self.story.cycle()

    @rule(blind=some_pools, late=some_pools, seconds=st.sampled_from([0.0, 1.0, 40.0, 120.0]))
    def cycle_with_bad_looks(self, blind: list[str], late: list[str], seconds: float) -> None:
        self.story.advance(seconds)
        self.story.cycle(blind=blind, late=late)

    @rule(at=st.integers(1, 25))
    def cycle_that_dies(self, at: int) -> None:
        self.story.fuse.light(at, crash)
        self.story.cycle()

    @rule(at=st.integers(1, 4) | st.integers(1, 25), act=calls_of_hf)
    def cycle_while_hf_calls(self, at: int, act: Callable[[Story], None]) -> None:
        self.story.fuse.light(at, lambda _: act(self.story))
        self.story.cycle()

    @rule(at=st.integers(1, 8))
    def cycle_that_cannot_write(self, at: int) -> None:
        self.story.fuse.light(at, disk_is_full)
        self.story.cycle()

    @rule()
    def loop_restarts(self) -> None:
        self.story.restart()

    @rule()
    def loop_ends_cleanly(self) -> None:
        self.story.life.actors.release()
        self.story.life.reconciler.settle()
        self.story.restart()

    @rule()
    def status_is_deleted(self) -> None:
        self.story.lose(["status"], restarted=False)

    @rule()
    def another_loop_takes_over(self) -> None:
        self.story.take_over()

    @rule()
    def old_loop_wakes(self) -> None:
        self.story.ghost_cycle()

    # --- time -----------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.story.advance(seconds)
        self.story.cycle()

    @rule(seconds=st.sampled_from([60.0, 300.0, 900.0]))
    def loop_works_for_a_while(self, seconds: float) -> None:
        self.story.run(seconds, 4)

    @rule(turns=st.integers(1, 8), remembers_at=st.none() | st.integers(1, 4))
    def hf_forgets_its_requests(self, turns: int, remembers_at: int | None) -> None:
        for turn in range(turns):
            self.story.advance(200.0)
            self.story.list_hosts()
            if remembers_at is not None and turn == turns - 1:
                self.story.fuse.light(remembers_at, lambda _: self.story.poll_all())
            self.story.cycle()

    @rule(seconds=st.sampled_from([600.0, 1800.0, 7200.0]))
    def nobody_runs_for_a_while(self, seconds: float) -> None:
        self.story.advance(seconds)

    @rule(seconds=st.sampled_from([-3600.0, -60.0, 60.0, 7200.0]))
    def wall_clock_jumps(self, seconds: float) -> None:
        self.story.skew += seconds

    # --- trouble --------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def machines_are_preempted(self, data: st.DataObject) -> None:
        names = sorted(self.story.machines())
        if names:
            self.story.preempt(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)))

    @rule(data=st.data())
    def machine_vanishes(self, data: st.DataObject) -> None:
        names = sorted(self.story.machines())
        if names:
            self.story.vanish(data.draw(st.sampled_from(names)))

    @rule(data=st.data())
    def machine_is_made_again_by_others(self, data: st.DataObject) -> None:
        names = sorted(self.story.machines())
        if names:
            self.story.recreate(data.draw(st.sampled_from(names)))

    @rule(data=st.data())
    def node_is_lost(self, data: st.DataObject) -> None:
        names = [node.name for node in self.story.cluster.stores["nodes"].select("")]
        if names:
            self.story.lose_node(data.draw(st.sampled_from(names)))

    @rule(pool=pools, paused=st.booleans())
    def pool_is_paused(self, pool: str, paused: bool) -> None:
        self.story.pause(pool, paused=paused)

    @rule(pool=pools, kind=st.sampled_from([HoldKind.PAUSE, HoldKind.DRAIN]))
    def pool_is_held(self, pool: str, kind: HoldKind) -> None:
        self.story.pull(kind, pool)

    @rule(cycles=st.integers(0, 3))
    def all_is_stopped(self, cycles: int) -> None:
        self.story.pull(HoldKind.STOP_ALL)
        for _ in range(cycles):
            self.story.cycle()

    @rule(data=st.data())
    def something_is_cancelled(self, data: st.DataObject) -> None:
        names = sorted({*self.story.requests, *self.story.judge.hosts()})
        self.story.pull(HoldKind.CANCEL, data.draw(st.sampled_from(names)))

    @rule()
    def holds_are_let_go(self) -> None:
        self.story.let_go()

    @rule(pool=st.sampled_from(["alpha", "gamma"]), spec=st.sampled_from(["pod", "another pod"]))
    def pod_spec_changes(self, pool: str, spec: str) -> None:
        backend = self.story.backends[pool]
        assert isinstance(backend, WatchedGke)
        backend.spec = spec

    @rule(mode=st.sampled_from(FAULTS), rate=st.sampled_from([0.5, 1.0]), seconds=st.sampled_from([30.0, 600.0]))
    def place_has_a_fault(self, mode: str, rate: float, seconds: float) -> None:
        now = self.story.world.now
        self.story.world.set_faults([Fault(mode, rate=rate, start=now, end=now + seconds)])

    @rule(pool=pools, mishap=st.sampled_from(MISHAPS), calls=st.integers(1, 3))
    def calls_go_wrong(self, pool: str, mishap: Mishap, calls: int) -> None:
        self.story.lines[pool].mishaps.extend([mishap] * calls)

    @rule(lag=st.sampled_from([0.0, 10.0, 29.0]))
    def lists_lag(self, lag: float) -> None:
        self.story.lines["beta"].lag = lag

    @rule(pool=pools)
    def pool_is_slow(self, pool: str) -> None:
        self.story.slow.add(pool)

    @rule()
    def slow_pools_answer(self) -> None:
        self.story.life.actors.release()

    @precondition(lambda self: len(self.story.judge.orphans) < 8)
    @rule(count=st.sampled_from([1, 2, 7]), number=st.integers(0, 99))
    def orphans_appear(self, count: int, number: int) -> None:
        request = f"orphan{len(self.story.judge.orphans):02d}{number:02d}"
        self.story.add_orphans(request, count)

    @rule()
    def person_releases_the_brake(self) -> None:
        self.story.recover()

    @precondition(lambda self: not self.story.judge.foreigners)
    @rule()
    def foreigner_appears(self) -> None:
        self.story.add_foreigner(FOREIGNER)


Laws.TestCase.settings = settings(
    max_examples=STORIES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # The same stories each time, unless somebody asks for more of them.
    derandomize="STORIES" not in os.environ,
    # Not "explain": it traces every line, and a story has many.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


class TestLaws(Laws.TestCase):
    """The first stories."""

    settings = settings(Laws.TestCase.settings, max_examples=QUICK)


@pytest.mark.slow
class TestLawsAtLength(Laws.TestCase):
    """All of them."""


@pytest.mark.parametrize("switches", FLIPS, indirect=True)
def test_laws_whatever_is_true_of_what_nobody_documents(switches: Switches) -> None:
    """All together as many stories as without."""
    tell_some(Laws, switches)


def tell_some(stories: type[Telling], switches: Switches) -> None:
    """The share that one half of the behaviours, flipped, has in the stories of a test."""
    with closing(Story()) as story:
        assert story.groups.switches == switches
    usual = stories.TestCase.settings
    run_state_machine_as_test(stories, settings=settings(usual, max_examples=max(1, usual.max_examples // len(FLIPS))))
