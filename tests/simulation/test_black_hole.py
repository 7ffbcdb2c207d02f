"""Machines that run for half a minute and die, in virtual time. HostFactory replaces each lost machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.lab.cloud.world import Fault
from provisioner.lab.virtual.run import Provisioner, Stage
from provisioner.lab.virtual.scenario_file import scenarios
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import Backoff, ErrorClass, Failure, Window
from tests.simulation.watched import Watched
from tests.support.clouds.virtual_site import SPEC, VirtualSite, limits_of, succeeded

WANTED = 200
CALLS = 30.0
"""Seconds between two rounds of HostFactory's calls."""

HOUR = 3600.0
EARLY = 300.0
HOLE = {"dies": 1.0}
"""An event after which every machine of the pool dies half a minute after its start."""


class Learning(Provisioner):
    """A provisioner that keeps the window of the first pool after each of its cycles."""

    def __init__(self, stage: Stage) -> None:
        self.windows: list[Window] = []
        super().__init__(stage)

    def _hear(self, report: CycleReport) -> None:
        super()._hear(report)
        self.windows += [window for (pool, _), window in report.memory.windows.items() if pool == "a"]


class Hole(Watched):
    """A run of some hours in which ``WANTED`` machines are wanted at all times."""

    def __init__(self, hours: float, *events: dict[str, Any], **pools: dict[str, Any]) -> None:
        body = {
            "about": "Reported.",
            "hours": hours,
            "pools": pools,
            "demand": [{"machines": WANTED}],
            "events": list(events),
            "settings": {"retention_hours": 1.0},
        }
        super().__init__(scenarios({"hole": body}, "tests")["hole"], 1, self._learn)
        assert not self.broken, self.broken

    def _learn(self, stage: Stage) -> Provisioner:
        self.made = stage.ledger.made
        """Machines that were made, by pool."""
        learning = Learning(stage)
        self.windows = learning.windows
        """The state of the first pool, cycle by cycle."""
        return learning


def test_a_pool_whose_machines_die_after_half_a_minute_is_tried_with_one_at_a_time() -> None:
    """Early losses must close the window. ``test_rules.py`` plays the same scenario without the rule about early
    losses."""
    hole = Hole(2.0, a=HOLE)
    assert WANTED <= hole.made["a"] < 2 * WANTED
    known, why = hole.windows[-1], Failure(ErrorClass.OTHER, "Lost in its first 300 s: The machine ended: exit code 1.")
    assert (known.is_probing, known.failure, known.early_loss) == (True, why, why)


@pytest.mark.slow
def test_machines_that_die_while_others_of_their_request_boot_close_the_window_too() -> None:
    """Losses before the terminal answer must close the window too. HostFactory never reads of these losses, because the
    loop replaces the machines."""
    hole = Hole(1.0, a=HOLE | {"boot_p95_seconds": 280.0})
    assert hole.made["a"] < 2 * WANTED
    assert hole.windows[-1].early_loss is not None


@pytest.mark.slow
def test_a_loop_that_starts_anew_keeps_the_window_closed() -> None:
    hole = Hole(2.0, *({"at_minutes": 10.0 * number, "do": "restart"} for number in range(1, 12)), a=HOLE)
    assert hole.made["a"] < 2 * WANTED


@pytest.mark.slow
@pytest.mark.parametrize("hours", [0.25, 6.0])
def test_the_next_pool_of_the_template_makes_what_the_first_cannot_keep(hours: float) -> None:
    hole = Hole(hours, a=HOLE, b={})
    assert hole.missing() <= 1, "all but a probe run"
    assert WANTED - 1 <= hole.made["b"] < 2 * WANTED
    assert hole.made["a"] < 2 * WANTED


@pytest.mark.slow
@pytest.mark.parametrize("hours", [0.1, 3.0])
def test_the_pool_recovers_once_a_machine_lives(hours: float) -> None:
    """A recovery takes at most half an hour of pause, five minutes in which a probe must live, and a few rounds."""
    dies = {"at_minutes": 0.0, "for_minutes": 60 * hours, "change": HOLE}
    hole = Hole(hours + (1800.0 + EARLY + 600.0) / HOUR, dies, a={})
    assert any(window.early_loss for window in hole.windows)
    assert not hole.missing()
    assert (hole.windows[-1].level, hole.windows[-1].early_loss) == (0, None)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [{}, {"max_pending": 8, "initial_window": 8}], ids=["a wide window", "a narrow one"])
@pytest.mark.parametrize("after", [10.0, 90.0, 290.0])
def test_a_healthy_pool_that_loses_a_few_early_stays_open(pool: dict[str, Any], after: float) -> None:
    """Five of a hundred machines die early. In an hour, these are more machines than a narrow window allows at once,
    but the window must not close."""
    lossy = Hole(1.5, a=pool | {"dies": 0.05, "dies_after_seconds": after})
    assert not any(window.level or window.early_loss for window in lossy.windows)
    assert min(window.window for window in lossy.windows) >= 100 or pool
    assert lossy.missing() <= 3
    assert WANTED < lossy.made["a"] < WANTED * 1.2


@pytest.mark.slow
def test_machines_that_are_all_preempted_in_their_first_minutes_close_nothing() -> None:
    """Preemptions must not count against the pool. ``test_ends.py`` of the unit tests names other causes that do not
    count."""
    events = [{"at_minutes": at, "do": "preempt", "share": 1.0} for at in (8.0, 14.0, 20.0)]
    well = Hole(0.5, *events, a={})
    assert not any(window.level or window.early_loss for window in well.windows)
    assert well.made["a"] >= 4 * WANTED


GROUP = replace(SPEC, provisioning_model="STANDARD")


def kept_at(site: VirtualSite, wanted: int, seconds: float) -> None:
    """Keep ``wanted`` machines for these seconds: HF returns lost machines and requests missing ones."""
    hosts: set[str] = set()
    open_ = {site.request(wanted): wanted}
    site.run(CALLS)
    for _ in range(round(seconds / CALLS)):
        for id_ in [id_ for id_ in open_ if site.ended(id_)]:
            hosts |= set(succeeded(site.answer(id_)))
            del open_[id_]
        lost = hosts & site.lost().keys()
        if lost:
            site.return_machines(sorted(lost))
        hosts -= lost
        if missing := wanted - len(hosts) - sum(open_.values()):
            open_[site.request(missing)] = missing
        site.run(CALLS)


@pytest.mark.parametrize(
    ("mode", "closes"),
    [
        pytest.param("stopped", True, id="they stop without a cause"),
        pytest.param("recreated", True, id="the group makes them anew", marks=pytest.mark.slow),
        pytest.param("preemption", False, id="they are preempted", marks=pytest.mark.slow),
    ],
)
def test_instances_that_end_after_half_a_minute(tmp_path: Path, mode: str, closes: bool) -> None:
    limits = limits_of([GROUP.name])
    pool = replace(limits.pools[GROUP.name], initial_window=15, early_loss_seconds=EARLY)
    limits = replace(limits, pools={GROUP.name: pool}, backoff=Backoff())
    spec = GROUP if closes else SPEC
    with VirtualSite(tmp_path, spec, limits=limits, faults=[Fault(mode, params={"seconds": 30.0})]) as site:
        kept_at(site, 10, HOUR / 6)
        memory = site.reports[-1].memory
        assert memory is not None
        known = memory.windows[GROUP.name, "T"]
        slots = [slot for record in memory.requests.values() for slot in record.slots.values()]
        made = sum(slot.submitted_at is not None for slot in slots)
    assert (known.early_loss is not None) is closes
    assert (made < 30) is closes, f"{made} machines"
