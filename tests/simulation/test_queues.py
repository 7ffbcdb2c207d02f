"""Hours in virtual time with a place that holds machines in a queue. A wait in the queue is no failure, whatever else
happens."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.lab.virtual.run import Provisioner, Stage, play
from provisioner.lab.virtual.scenario_file import scenarios
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import DeleteReason, Slot, Transition

BOOT_DEADLINE = 120.0
QUEUE: dict[str, Any] = {
    "capacity": 10,
    "queues": True,
    "boot_seconds": 40,
    "boot_deadline_seconds": BOOT_DEADLINE,
    "initial_window": 30,
    "max_machines": 40,
}
HOURS: dict[str, Any] = {
    "about": "A batch system has room for ten machines, later for more. Its queue holds the others.",
    "hours": 3,
    "settings": {"request_deadline_minutes": 150},
    "pools": {"a": QUEUE},
    "demand": [{"machines": 30, "for_minutes": 120}],
    "events": [
        {"at_minutes": 25, "change": {"capacity": 20}, "pools": ["a"]},
        {"at_minutes": 50, "change": {"capacity": 30}, "pools": ["a"]},
    ],
}
LATER = {"b": {"boot_seconds": 40}}


class Watched(Provisioner):
    """A provisioner that records closed slots, long waits and back-off for a test."""

    def __init__(self, stage: Stage) -> None:
        self.closes: list[Transition] = []
        self.waited: list[Slot] = []
        """The slots whose machines ran after they had been queued for longer than their boot deadline."""
        self.levels: set[int] = set()
        """The levels of the first pool's back-off."""
        super().__init__(stage)

    def _hear(self, report: CycleReport) -> None:
        super()._hear(report)
        self.closes += report.closes
        for one in report.transitions:
            if one.is_first_run and one.slot.life.released_at is not None:
                self.waited += [one.slot] * (one.slot.life.released_at - one.slot.asked_at > BOOT_DEADLINE)
        windows = report.memory.windows.items() if report.memory else ()
        self.levels |= {window.level for (pool, _), window in windows if pool == "a"}


def played(pool: dict[str, Any] | None = None, *events: dict[str, Any], **changes: Any) -> tuple[Watched, list[str]]:
    """Play the hours with other settings of the first pool, and with more events. Return the provisioner and the broken
    laws."""
    pools = {"a": QUEUE | (pool or {})} | changes.pop("more_pools", {})
    body = HOURS | {"pools": pools, "events": [*HOURS["events"], *events]} | changes
    seen: list[Watched] = []

    def begin(stage: Stage) -> Watched:
        seen.append(Watched(stage))
        return seen[0]

    broken = play(scenarios({"queue": body}, "tests")["queue"], 3, begin).broken
    return seen[0], list(broken)


@pytest.mark.parametrize(
    ("pool", "events"),
    [
        pytest.param({}, [], id="nothing else happens"),
        pytest.param({}, [{"at_minutes": n, "do": "restart"} for n in (5, 24.5, 26, 51)], id="the loop dies"),
        pytest.param({"appears_seconds": 5, "lag_seconds": 10, "lost_answers": 0.3}, [], id="answers are lost"),
        pytest.param({}, [{"at_minutes": 10, "for_minutes": 5, "change": {"observations": "failed"}, "pools": ["a"]}],
                     id="the place is not seen for a while"),
    ],
)  # fmt: skip
def test_a_wait_in_a_queue_is_no_failure(pool: dict[str, Any], events: list[dict[str, Any]]) -> None:
    provisioner, broken = played(pool, *events)
    assert not broken
    assert len(provisioner.waited) == 20, "each kept its position beyond its boot deadline, and ran"
    early = [one for one in provisioner.closes if one.slot.deletion.reason is not DeleteReason.RETURNED]
    assert not early, "no machine was given up, so HostFactory has read no failure"
    if not pool:
        assert provisioner.levels <= {0}, "the queue has not let the pool back off"


def test_what_is_queued_when_its_request_ends_fails_without_a_capacity_code() -> None:
    provisioner, broken = played(settings={"request_deadline_minutes": 20}, events=[])
    assert not broken
    failures = [one.slot.failure for one in provisioner.closes if one.slot.deletion.reason is DeleteReason.TIMED_OUT]
    assert len(failures) >= 20
    assert {failure.error.lsf_code for failure in failures if failure is not None} == {""}
    assert all("It was queued in a since " in failure.text for failure in failures if failure is not None)


@pytest.mark.parametrize("seconds", [None, 300.0], ids=["never", "after a while"])
def test_another_pool_takes_queued_machines_only_if_that_is_configured(seconds: float | None) -> None:
    settings = {} if seconds is None else {"spill_after_seconds": seconds}
    provisioner, broken = played(settings, more_pools=LATER)
    assert not broken
    withdrawn = [one for one in provisioner.closes if one.slot.deletion.reason is DeleteReason.WITHDRAWN]
    assert len(withdrawn) == (0 if seconds is None else 20)
    assert provisioner.levels <= {0}
