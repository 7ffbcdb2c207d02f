"""The health of the loop by its last cycles: alive, ready, and the time since which it cannot plan."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from provisioner.loop.cycle_report import CycleReport
from provisioner.model import PendingReason
from provisioner.telemetry import reporter as health
from provisioner.telemetry.reporter import LoopHealth
from tests.unit.core import NOW, failed_observation, memory, snapshot

SEEN = CycleReport(7, NOW, 0.5, {"a": snapshot()}, memory(), None, {("a", "T", PendingReason.CAP): 2})
BLIND = replace(SEEN, observations={"a": snapshot(), "b": failed_observation("b")})
LOST = replace(BLIND, memory=None, problem="memory.json is lost. Not observed yet: b.")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the monotonic clock, whose ``now`` a test sets."""
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.mark.parametrize(
    ("reports", "ready", "says"),
    [
        pytest.param([], False, "No cycle has ended yet: the loop starts", id="before any cycle"),
        pytest.param([BLIND], False, "No cycle has seen every pool yet. Pool b cannot be seen: no route", id="blind"),
        pytest.param([LOST], False, "No cycle has planned for 2 s: memory", id="a cycle that could not work"),
        pytest.param([SEEN], True, "The last cycle ended 2.0 s ago.", id="a complete cycle"),
        pytest.param([SEEN, BLIND], True, "The last cycle ended 2.0 s", id="it stays when a pool goes blind later"),
    ],
)
def test_ready_is_a_loop_that_has_seen_every_pool(
    clock: SimpleNamespace, reports: list[CycleReport], ready: bool, says: str
) -> None:
    loop = LoopHealth()
    for report in reports:
        loop.record_cycle(report, clock.now)
    clock.now += 2
    assert (loop.health().alive, loop.health().ready) == (True, ready)
    assert loop.health().detail.startswith(says)


def test_a_loop_that_cannot_plan_is_alive_and_not_ready_with_time_and_reason(clock: SimpleNamespace) -> None:
    """Such a loop must count as alive, because a restarted loop could not plan either."""
    loop = LoopHealth()
    loop.record_cycle(SEEN, clock.now)
    for clock.now in (1010.0, 1040.0):
        loop.record_cycle(LOST, clock.now)
    assert (loop.health().alive, loop.health().ready) == (True, False)
    words = f"No cycle has planned for 30 s: {LOST.problem} Pool b cannot be seen: no route to host"
    assert loop.health().detail == words
    loop.record_cycle(SEEN, clock.now)
    assert loop.health().ready
    loop.record_cycle(LOST, clock.now)
    assert loop.health().detail.startswith("No cycle has planned for 0 s: ")


def test_a_standby_is_ready_to_take_over(clock: SimpleNamespace) -> None:
    """A rollout waits until pods are ready, and a disruption budget counts ready pods. A standby that is never ready
    would block both."""
    loop = LoopHealth()
    loop.stand_by()
    assert (loop.health().ready, loop.health().detail) == (
        True,
        "No cycle has ended yet: the loop stands by for another loop.",
    )
    loop.record_cycle(LOST, clock.now)
    assert not loop.health().ready


@pytest.mark.parametrize("silent", [60, 61])
def test_a_loop_that_stands_still_is_not_alive(clock: SimpleNamespace, silent: int) -> None:
    loop = LoopHealth()
    loop.record_cycle(SEEN, clock.now)
    clock.now += silent
    assert loop.health().alive is (silent == 60)
    assert (loop.health().detail == "No cycle has ended for 61 s.") is (silent == 61)


def test_status_has_the_numbers_of_the_last_cycle(clock: SimpleNamespace) -> None:
    loop = LoopHealth()
    assert loop.status() == {"cycle": 0}
    loop.record_cycle(BLIND, clock.now)
    status = loop.status()
    assert (status["cycle"], status["result"], status["problem"], status["seconds"]) == (7, "partial", "", 0.5)
    assert list(status["pools"]) == ["a", "b"]
    assert status["deferred"] == [{"pool": "a", "template": "T", "reason": "cap", "machines": 2}]
