"""Random simulations by Hypothesis. HF requests, polls and returns, places fail, and the loop dies between any two
steps. The judge checks the laws after each step.

``RUNS=1000 pytest tests/simulation`` plays more simulations, which differ in each run.
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
from tests.simulation.simulation import Simulation, WatchedGke, crash, disk_is_full
from tests.simulation.stores import FileStore, KubeStore, Store
from tests.support.clouds.direct import Mishap
from tests.support.clouds.switches import FLIPS

RUNS = int(os.environ.get("RUNS", "100"))
STEPS = int(os.environ.get("RUN_STEPS", "40"))
QUICK = max(1, RUNS // 4)
"""The simulations of `make test`; `make test-slow` plays all."""

pytestmark = pytest.mark.timeout(900)  # a failed simulation is made shorter and shorter, for up to five minutes

pools = st.sampled_from(["alpha", "beta", "gamma"])
calls_of_hf = st.sampled_from([Simulation.poll_all, Simulation.list_hosts, Simulation.return_all])

FOREIGNER = "hf-abcdefghij-000001"
"""The name of a pod of others that has our shape."""

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


class SimulationMachine(RuleBasedStateMachine):
    """A state machine of Hypothesis whose events happen in a simulation. At its end, the simulation is settled."""

    sim: Simulation
    store: type[Store] = FileStore

    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation(store=self.store)

    def teardown(self) -> None:
        try:
            self.sim.settle()
        finally:
            self.sim.close()


class Laws(SimulationMachine):
    """All events that may happen while the state is intact."""

    # --- HostFactory ----------------------------------------------------------------------------------------------

    @initialize(template=st.sampled_from(["wide", "pods", "vms"]), count=st.integers(1, 6))
    def first_request(self, template: str, count: int) -> None:
        self.sim.request(template, count)
        self.sim.cycle()

    @precondition(lambda self: len(self.sim.requests) < 5)
    @rule(template=st.sampled_from(["wide", "pods", "vms"]), count=st.integers(1, 6))
    def hf_requests(self, template: str, count: int) -> None:
        self.sim.request(template, count)

    @rule(data=st.data())
    def hf_polls(self, data: st.DataObject) -> None:
        ids = sorted(self.sim.requests) + sorted(self.sim.returns)
        self.sim.poll(data.draw(st.sampled_from(ids)))

    @rule()
    def hf_polls_all(self) -> None:
        self.sim.poll_all()

    @rule(data=st.data(), returns=st.booleans(), cycles=st.integers(1, 3))
    def hf_polls_slowly(self, data: st.DataObject, returns: bool, cycles: int) -> None:
        """Poll with a slow script.

        After the script has read a terminal answer and before it settles the answer, HF may return a machine, and the
        loop runs cycles.
        """
        id_ = data.draw(st.sampled_from(sorted(self.sim.requests) + sorted(self.sim.returns)))
        names = sorted(self.sim.requests[id_].listed - set(self.sim.returned)) if id_ in self.sim.requests else []

        def meanwhile() -> None:
            if returns and names:
                self.sim.return_machines(names[:1])
            for _ in range(cycles):
                self.sim.cycle()

        self.sim.poll(id_, meanwhile)

    @rule(data=st.data())
    def hf_returns(self, data: st.DataObject) -> None:
        listed = {name for wanted in self.sim.requests.values() for name in wanted.listed}
        names = sorted(listed - set(self.sim.returned))
        if names:
            self.sim.return_machines(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)))

    @rule()
    def hf_returns_all(self) -> None:
        self.sim.return_all()

    @rule()
    def hf_lists_hosts(self) -> None:
        self.sim.list_hosts()

    @rule(name=st.sampled_from(["someone-elses-host", FOREIGNER]))
    def hf_returns_an_unknown_machine(self, name: str) -> None:
        self.sim.return_machines([name])

    # --- the loop -------------------------------------------------------------------------------------------------

    @rule()
    def cycle(self) -> None:
        self.sim.cycle()

    @rule(blind=some_pools, late=some_pools, seconds=st.sampled_from([0.0, 1.0, 40.0, 120.0]))
    def cycle_with_bad_observations(self, blind: list[str], late: list[str], seconds: float) -> None:
        self.sim.advance(seconds)
        self.sim.cycle(blind=blind, late=late)

    @rule(at=st.integers(1, 25))
    def cycle_that_dies(self, at: int) -> None:
        self.sim.fuse.light(at, crash)
        self.sim.cycle()

    @rule(at=st.integers(1, 4) | st.integers(1, 25), act=calls_of_hf)
    def cycle_while_hf_calls(self, at: int, act: Callable[[Simulation], None]) -> None:
        self.sim.fuse.light(at, lambda _: act(self.sim))
        self.sim.cycle()

    @rule(at=st.integers(1, 8))
    def cycle_that_cannot_write(self, at: int) -> None:
        self.sim.fuse.light(at, disk_is_full)
        self.sim.cycle()

    @rule()
    def loop_restarts(self) -> None:
        self.sim.restart()

    @rule()
    def loop_ends_cleanly(self) -> None:
        self.sim.life.actors.release()
        self.sim.life.reconciler.settle()
        self.sim.restart()

    @rule()
    def status_is_deleted(self) -> None:
        self.sim.lose(["status"], restarted=False)

    @rule()
    def another_loop_takes_over(self) -> None:
        self.sim.take_over()

    @rule()
    def old_loop_wakes(self) -> None:
        self.sim.ghost_cycle()

    # --- time -----------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.sim.advance(seconds)
        self.sim.cycle()

    @rule(seconds=st.sampled_from([60.0, 300.0, 900.0]))
    def loop_works_for_a_while(self, seconds: float) -> None:
        self.sim.run(seconds, 4)

    @rule(turns=st.integers(1, 8), remembers_at=st.none() | st.integers(1, 4))
    def hf_forgets_its_requests(self, turns: int, remembers_at: int | None) -> None:
        for turn in range(turns):
            self.sim.advance(200.0)
            self.sim.list_hosts()
            if remembers_at is not None and turn == turns - 1:
                self.sim.fuse.light(remembers_at, lambda _: self.sim.poll_all())
            self.sim.cycle()

    @rule(seconds=st.sampled_from([600.0, 1800.0, 7200.0]))
    def no_loop_runs_for_a_while(self, seconds: float) -> None:
        self.sim.advance(seconds)

    @rule(seconds=st.sampled_from([-3600.0, -60.0, 60.0, 7200.0]))
    def wall_clock_jumps(self, seconds: float) -> None:
        self.sim.skew += seconds

    # --- trouble --------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def machines_are_preempted(self, data: st.DataObject) -> None:
        names = sorted(self.sim.machines())
        if names:
            self.sim.preempt(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)))

    @rule(data=st.data())
    def machine_vanishes(self, data: st.DataObject) -> None:
        names = sorted(self.sim.machines())
        if names:
            self.sim.vanish(data.draw(st.sampled_from(names)))

    @rule(data=st.data())
    def machine_is_made_again_by_others(self, data: st.DataObject) -> None:
        names = sorted(self.sim.machines())
        if names:
            self.sim.recreate(data.draw(st.sampled_from(names)))

    @rule(data=st.data())
    def node_is_lost(self, data: st.DataObject) -> None:
        names = [node.name for node in self.sim.cluster.stores["nodes"].select("")]
        if names:
            self.sim.lose_node(data.draw(st.sampled_from(names)))

    @rule(pool=pools, paused=st.booleans())
    def pool_is_paused(self, pool: str, paused: bool) -> None:
        self.sim.pause(pool, paused=paused)

    @rule(pool=pools, kind=st.sampled_from([HoldKind.PAUSE, HoldKind.DRAIN]))
    def pool_is_held(self, pool: str, kind: HoldKind) -> None:
        self.sim.set_hold(kind, pool)

    @rule(cycles=st.integers(0, 3))
    def all_is_stopped(self, cycles: int) -> None:
        self.sim.set_hold(HoldKind.STOP_ALL)
        for _ in range(cycles):
            self.sim.cycle()

    @rule(data=st.data())
    def something_is_cancelled(self, data: st.DataObject) -> None:
        names = sorted({*self.sim.requests, *self.sim.judge.hosts()})
        self.sim.set_hold(HoldKind.CANCEL, data.draw(st.sampled_from(names)))

    @rule()
    def holds_are_let_go(self) -> None:
        self.sim.release_holds()

    @rule(pool=st.sampled_from(["alpha", "gamma"]), spec=st.sampled_from(["pod", "another pod"]))
    def pod_spec_changes(self, pool: str, spec: str) -> None:
        backend = self.sim.backends[pool]
        assert isinstance(backend, WatchedGke)
        backend.spec = spec

    @rule(mode=st.sampled_from(FAULTS), rate=st.sampled_from([0.5, 1.0]), seconds=st.sampled_from([30.0, 600.0]))
    def place_has_a_fault(self, mode: str, rate: float, seconds: float) -> None:
        now = self.sim.world.now
        self.sim.world.set_faults([Fault(mode, rate=rate, start=now, end=now + seconds)])

    @rule(pool=pools, mishap=st.sampled_from(MISHAPS), calls=st.integers(1, 3))
    def calls_go_wrong(self, pool: str, mishap: Mishap, calls: int) -> None:
        self.sim.lines[pool].mishaps.extend([mishap] * calls)

    @rule(lag=st.sampled_from([0.0, 10.0, 29.0]))
    def lists_lag(self, lag: float) -> None:
        self.sim.lines["beta"].lag = lag

    @rule(pool=pools)
    def pool_is_slow(self, pool: str) -> None:
        self.sim.slow.add(pool)

    @rule()
    def slow_pools_answer(self) -> None:
        self.sim.life.actors.release()

    @precondition(lambda self: len(self.sim.judge.orphans) < 8)
    @rule(count=st.sampled_from([1, 2, 7]), number=st.integers(0, 99))
    def orphans_appear(self, count: int, number: int) -> None:
        request = f"orphan{len(self.sim.judge.orphans):02d}{number:02d}"
        self.sim.add_orphans(request, count)

    @rule()
    def operator_releases_the_brake(self) -> None:
        self.sim.recover()

    @precondition(lambda self: not self.sim.judge.foreigners)
    @rule()
    def foreigner_appears(self) -> None:
        self.sim.add_foreigner(FOREIGNER)


Laws.TestCase.settings = settings(
    max_examples=RUNS,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # The same simulations each time, unless RUNS asks for more.
    derandomize="RUNS" not in os.environ,
    # Not "explain", which traces every line, and a simulation has many lines.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


class TestLaws(Laws.TestCase):
    """A quarter of the simulations of ``Laws``. Every run of the tests plays them."""

    settings = settings(Laws.TestCase.settings, max_examples=QUICK)


@pytest.mark.slow
class TestLawsAtLength(Laws.TestCase):
    """All simulations of ``Laws``. Only a run of the slow tests plays them."""


class KubeLaws(Laws):
    """All events, with the state in the Kubernetes API."""

    store = KubeStore


KubeLaws.TestCase.settings = Laws.TestCase.settings


class TestKubeLaws(KubeLaws.TestCase):
    """A quarter of the simulations of ``KubeLaws``. Every run of the tests plays them."""

    settings = settings(Laws.TestCase.settings, max_examples=QUICK)


@pytest.mark.slow
class TestKubeLawsAtLength(KubeLaws.TestCase):
    """All simulations of ``KubeLaws``. Only a run of the slow tests plays them."""


@pytest.mark.parametrize("switches", FLIPS, indirect=True)
def test_laws_with_undocumented_behaviours_flipped(switches: Switches) -> None:
    """Play a share of the simulations for each flip in ``FLIPS``. All shares together are as many simulations as a run
    without a flip."""
    play_some(Laws, switches)


def play_some(sims: type[SimulationMachine], switches: Switches) -> None:
    """Play simulations while ``switches`` are in effect: the usual number of simulations, divided by the number of
    ``FLIPS``."""
    with closing(Simulation()) as sim:
        assert sim.groups.switches == switches
    usual = sims.TestCase.settings
    run_state_machine_as_test(sims, settings=settings(usual, max_examples=max(1, usual.max_examples // len(FLIPS))))
