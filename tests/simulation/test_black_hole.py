"""Machines that run for half a minute and die, in virtual time: HostFactory asks anew for each one that it loses.

The loop's own code on real state files; two namespaces of the embedded cloud; HostFactory as small as it can be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.loop.cycle import CycleReport, Reconciler
from provisioner.model import Create, ErrorClass, Failure, Limits, PoolLimits, TemplateLimits, Window
from provisioner.simulator.kubernetes.pods import Cluster
from provisioner.simulator.kubernetes.store import Stored
from provisioner.simulator.world import Fault, World
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateMissing
from tests.support.clouds.direct import DirectGke
from tests.support.clouds.virtual_site import SPEC, VirtualSite, limits_of, succeeded
from tests.support.inline_actors import InlineActors

WANTED = 200
CALLS = 30.0
"""Seconds between two rounds of HostFactory's calls."""

DAY, HOUR = 86400.0, 3600.0
EARLY = 300.0

LIMITS = Limits(
    prefix="hf",
    pools={name: PoolLimits(name, early_loss=EARLY) for name in ("first", "second")},
    templates={"T": TemplateLimits("T", ("first",)), "both": TemplateLimits("both", ("first", "second"))},
    retention=HOUR,
)


def dies(seconds: float = 30.0, pool: str = "first", rate: float = 1.0, **when: float) -> Fault:
    """Pods of the pool end by themselves so many seconds after their containers began."""
    return Fault("crash", target=f"ns-{pool}", rate=rate, params={"seconds": seconds}, **when)


class Counted(DirectGke):
    """A namespace that knows how many pods were made in it."""

    made = 0

    def _create(self, create: Create) -> Failure | None:
        failure = super()._create(create)
        self.made += failure is None
        return failure


class Grid:
    """HostFactory, which wants ``WANTED`` machines of one template at all times, the loop, and the cloud."""

    def __init__(self, directory: Path, *faults: Fault, limits: Limits = LIMITS, template: str = "T") -> None:
        self.world = World(seed=1)
        self.world.set_faults(faults)
        self.limits = limits
        self.template = template
        self.hosts: set[str] = set()
        """The machines that HostFactory was told of and has not given back."""
        self.open: dict[str, int] = {}
        """Requests whose end it has not heard, and their counts."""
        self.told: dict[str, str] = {}
        """Requests whose end it has heard, and how they ended."""
        self.messages: set[str] = set()
        """Why requests ended with an error."""
        self._directory = directory
        self.cluster = cluster = Cluster(self.world, [f"ns-{pool}" for pool in limits.pools])
        self.places = {pool: Counted(pool, cluster, f"ns-{pool}", provisioner="demo") for pool in limits.pools}
        self._state = StateDir(directory)
        self._state.intent.create("demo")
        self._due = self._called = 0.0
        self._report: CycleReport | None = None
        self.restart()

    def now(self) -> float:
        """Loop time."""
        return self.world.now

    def wall(self) -> float:
        """The host's clock."""
        return self.world.start_wall + self.world.now

    def uptime(self) -> None:
        """Nobody knows it: across a restart the wall clock counts."""

    def restart(self) -> None:
        """A process of the loop that knows nothing but the files."""
        self._reconciler = Reconciler(
            clock=self,
            state=StateDir(self._directory),
            actors=InlineActors(self.places),
            limits=self.limits,
            provisioner="demo",
        )

    def run(self, seconds: float) -> None:
        """Time passes: the loop has a cycle a second while something happens, HostFactory calls every half a minute."""
        end = self.now() + seconds
        while self.now() < end:
            event = self.world.next_event()
            soonest = min(self._called + CALLS, self._due, end if event is None else event)
            self.world.advance(min(end, max(soonest, self.now() + 1.0)))
            if self.now() >= self._called + CALLS:
                self._called = self.now()
                self._call()
            self._cycle()

    def _cycle(self) -> None:
        looks = {pool: place.observe(self.now(), ()) for pool, place in self.places.items()}
        self._report = self._reconciler.cycle(looks)
        assert not self._report.problem, self._report.problem
        if self._report.plan is not None:
            self._due = self._report.plan.due

    # --- HostFactory ----------------------------------------------------------------------------------------------

    def _call(self) -> None:
        """getRequestStatus for what has not ended, getReturnRequests, and requestMachines for what is missing."""
        for id_ in list(self.open):
            self._poll(id_)
        self.give_back(self._lost() & self.hosts)
        missing = WANTED - len(self.hosts) - sum(self.open.values())
        if missing > 0:
            with self._state.intent.additions() as intent:
                self.open[intent.add_request(self.template, missing, created_wall=self.wall())] = missing

    def _poll(self, id_: str) -> None:
        self._state.seen.touch(id_)
        try:
            answer = self._state.status.read_answers([id_]).get(id_)
        except StateMissing:
            return
        if answer is None or not answer.ended:
            return
        self._state.seen.touch(id_)
        self._state.told.tell(id_, answer.text)
        del self.open[id_]
        entry = json.loads(answer.text)
        machines = entry["machines"]
        self.told[id_] = entry["status"]
        self.hosts |= {machine["name"] for machine in machines if machine["result"] == "succeed"}
        self.messages |= {machine["message"] for machine in machines if machine["result"] == "fail"}

    def _lost(self) -> set[str]:
        try:
            return set(self._state.status.read_lost())
        except StateMissing:
            return set()

    def give_back(self, names: set[str]) -> None:
        """requestReturnMachines."""
        if names:
            with self._state.intent.additions() as intent:
                intent.add_return(sorted(names), created_wall=self.wall())
            self.hosts -= names

    # --- what is true -------------------------------------------------------------------------------------------------

    def made(self, pool: str | None = None) -> int:
        """Machines that were made so far, in all pools or in one."""
        return sum(place.made for name, place in self.places.items() if pool in (None, name))

    def pods(self) -> list[Stored]:
        """All pods."""
        return [pod for pool in self.places for pod in self.cluster.pods.select(f"ns-{pool}")]

    def pressure(self, pool: str = "first") -> Window:
        """What the loop has learned of the pool."""
        memory = self._state.memory.read()
        return memory.pressures[pool, self.template]

    def deferred(self) -> int:
        """Machines that are wanted and held back now."""
        assert self._report is not None
        return sum(self._report.deferred.values())

    def seconds_until_full(self, patience: float) -> float:
        """Seconds until HostFactory has all that it wants; AssertionError when it has to wait longer."""
        began = self.now()
        while len(self.hosts) < WANTED:
            assert self.now() - began < patience, f"HostFactory has only {len(self.hosts)} of {WANTED} machines"
            self.run(CALLS)
        return self.now() - began


# --- a pool whose machines die ----------------------------------------------------------------------------------------


@pytest.fixture
def grid(tmp_path: Path) -> Callable[..., Grid]:
    """Makes a grid of its own."""
    return lambda *faults, **options: Grid(tmp_path, *faults, **options)


Grids = Callable[..., Grid]

BEFORE = 146_000
"""Machines that were made in such a day for 200 wanted, when each that ran was proof that its pool works."""


def without_rule() -> Limits:
    return replace(LIMITS, pools={name: replace(pool, early_loss=0.0) for name, pool in LIMITS.pools.items()})


def test_a_pool_whose_machines_die_after_half_a_minute_is_tried_with_one_at_a_time(grid: Grids) -> None:
    hole = grid(dies())
    hole.run(2 * HOUR)
    assert WANTED <= hole.made() < 2 * WANTED
    known, why = hole.pressure(), Failure(ErrorClass.OTHER, "Lost in its first 300 s: main: Error: exit code 1")
    assert (known.probing, known.failure, known.early_loss) == (True, why, why)
    assert hole.deferred() >= WANTED - 1, "what is held back is said"
    assert hole.messages == {f"{why.error}: {why.text}"}, "HF hears why"


@pytest.mark.slow
def test_in_a_day_a_pool_whose_machines_die_makes_a_hundredth_of_what_it_made(grid: Grids) -> None:
    hole = grid(dies())
    hole.run(DAY)
    assert hole.made() < BEFORE / 100


@pytest.mark.slow
def test_without_the_rule_they_would_be_replaced_for_ever(grid: Grids) -> None:
    hole = grid(dies(), limits=without_rule())
    hole.run(600.0)
    assert hole.made() * DAY / 600.0 > BEFORE
    assert hole.pressure().level == 0


@pytest.mark.slow
def test_machines_that_die_while_others_of_their_request_boot_close_the_window_too(grid: Grids) -> None:
    """HostFactory never hears of them: they fail before the terminal answer, and are replaced."""
    hole = grid(dies(), Fault("slow_start", rate=0.2, params={"seconds": 280.0}))
    hole.run(HOUR)
    assert not hole.told, "no request came to its end before its deadline"
    assert hole.made() < 2 * WANTED
    assert hole.pressure().early_loss is not None


@pytest.mark.slow
def test_a_loop_that_starts_anew_keeps_the_window_closed(grid: Grids) -> None:
    hole = grid(dies())
    for _ in range(12):
        hole.run(600.0)
        hole.restart()
    assert hole.made() < 2 * WANTED


@pytest.mark.slow
def test_the_next_pool_of_the_template_makes_what_the_first_cannot_keep(grid: Grids) -> None:
    hole = grid(dies(), template="both")
    hole.run(900.0)
    assert hole.made("second") >= WANTED - 1
    assert len(hole.hosts) >= WANTED - 1, "all but a probe run"
    hole.run(6 * HOUR)
    assert len(hole.hosts) >= WANTED - 1
    assert hole.made("first") < 2 * WANTED
    assert hole.made("second") < 2 * WANTED


@pytest.mark.slow
@pytest.mark.parametrize("hours", [0.1, 3.0])
def test_the_pool_recovers_once_a_machine_lives(grid: Grids, hours: float) -> None:
    """It takes a pause of at most half an hour, the minutes that a probe has to outlive, and a few rounds."""
    hole = grid(dies(end=hours * HOUR))
    hole.run(hours * HOUR)
    assert hole.pressure().early_loss is not None
    hole.seconds_until_full(1800.0 + EARLY + 600.0)
    assert hole.pressure().level == 0
    assert hole.pressure().early_loss is None


@pytest.mark.slow
def test_another_pod_spec_is_tried_at_once(grid: Grids) -> None:
    hole = grid(dies(end=3 * HOUR))
    hole.run(3 * HOUR)
    hole.places["first"].spec = "mended"
    assert hole.seconds_until_full(300.0)


# --- a pool that is well ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_healthy_pool_that_loses_a_few_early_is_as_fast_as_one_that_loses_none(grid: Grids, tmp_path: Path) -> None:
    """Five in a hundred die, at any time within the minutes that a machine has to outlive."""
    few = [dies(seconds, rate=0.01) for seconds in (10.0, 30.0, 90.0, 180.0, 290.0)]
    (tmp_path / "other").mkdir()
    fast = Grid(tmp_path / "other").seconds_until_full(600.0)
    lossy = grid(*few)
    assert lossy.seconds_until_full(600.0) <= fast + 2 * CALLS
    lowest = 1000
    for _ in range(120):
        lossy.run(CALLS)
        assert lossy.pressure().level == 0
        lowest = min(lowest, lossy.pressure().window)
    assert lowest >= LIMITS.pools["first"].initial_window
    assert len(lossy.hosts) >= WANTED - 3
    assert WANTED < lossy.made() < WANTED * 1.2


@pytest.mark.slow
def test_a_window_that_stays_narrow_is_not_closed_by_a_few_early_losses_of_many(grid: Grids) -> None:
    """Eight at a time: the losses of an hour are more than the window is wide, and few of the machines that ran."""
    pools = {"first": PoolLimits("first", max_pending=8, initial_window=8, early_loss=EARLY)}
    few = [dies(seconds, rate=0.01) for seconds in (10.0, 30.0, 90.0, 180.0, 290.0)]
    lossy = grid(*few, limits=replace(LIMITS, pools=pools))
    for _ in range(120):
        lossy.run(CALLS)
        assert lossy.pressure().early_loss is None
    assert len(lossy.hosts) >= WANTED - 3
    assert lossy.made() > WANTED


def preempted(grid: Grid) -> None:
    assert len(grid.cluster.preempt([pod.name for pod in grid.pods()])) >= WANTED


def evicted(grid: Grid) -> None:
    for pod in grid.pods():
        grid.cluster.evict(pod)


def drained_by_force(grid: Grid) -> None:
    for node in grid.cluster.stores["nodes"].select(""):
        grid.cluster.fail_node(node)


def deleted(grid: Grid) -> None:
    for pod in grid.pods():
        grid.cluster.delete(pod)


def given_back(grid: Grid) -> None:
    grid.give_back(set(grid.hosts))


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [preempted, evicted, drained_by_force, deleted, given_back])
def test_what_others_do_to_all_machines_in_their_first_minutes_closes_nothing(
    grid: Grids, trouble: Callable[[Grid], None]
) -> None:
    well = grid()
    for _ in range(3):
        well.seconds_until_full(600.0)
        well.run(CALLS)
        trouble(well)
        for _ in range(6):
            well.run(CALLS)
            assert well.pressure().level == 0
            assert well.pressure().early_loss is None
    assert well.made() >= 4 * WANTED


# --- managed instance groups ------------------------------------------------------------------------------------------

GROUP = replace(SPEC, provisioning_model="STANDARD")


def kept_at(site: VirtualSite, wanted: int, seconds: float) -> None:
    """HostFactory gives back what is lost and asks for what is missing."""
    hosts: set[str] = set()
    open_ = {site.request(wanted): wanted}
    site.run(CALLS)
    for _ in range(round(seconds / CALLS)):
        for id_ in [id_ for id_ in open_ if site.ended(id_)]:
            hosts |= set(succeeded(site.answer(id_)))
            del open_[id_]
        lost = hosts & site.lost().keys()
        if lost:
            site.give_back(sorted(lost))
        hosts -= lost
        if missing := wanted - len(hosts) - sum(open_.values()):
            open_[site.request(missing)] = missing
        site.run(CALLS)


@pytest.mark.parametrize(
    ("mode", "closes"),
    [
        pytest.param("stopped", True, id="they stop, nobody knows why"),
        pytest.param("recreated", True, id="the group makes them anew", marks=pytest.mark.slow),
        pytest.param("preemption", False, id="they are preempted", marks=pytest.mark.slow),
    ],
)
def test_instances_that_end_after_half_a_minute(tmp_path: Path, mode: str, closes: bool) -> None:
    limits = limits_of([GROUP.name])
    pool = replace(limits.pools[GROUP.name], initial_window=15, early_loss=EARLY)
    limits = replace(limits, pools={GROUP.name: pool}, backoff_last=1800.0)
    spec = GROUP if closes else SPEC
    with VirtualSite(tmp_path, spec, limits=limits, faults=[Fault(mode, params={"seconds": 30.0})]) as site:
        kept_at(site, 10, HOUR / 2)
        memory = site.reports[-1].memory
        assert memory is not None
        known = memory.pressures[GROUP.name, "T"]
        slots = [slot for record in memory.requests.values() for slot in record.slots.values()]
        made = sum(slot.submitted is not None for slot in slots)
    assert (known.early_loss is not None) is closes
    assert (made < 30) is closes, f"{made} machines"
