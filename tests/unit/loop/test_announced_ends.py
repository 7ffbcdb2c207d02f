"""Tests of announced ends: a notice is added to an observed machine until an observation can show the end itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from provisioner.loop.announced_ends import RETENTION_SECONDS, Notices
from provisioner.model import ErrorClass, Failure, LossCause, Machine, Notice, ObservationFailed, Phase, Snapshot

LAG = 30.0
NOTICE = Notice(LossCause.PREEMPTED, 130.0)


def snapshot(began: float = 100.0, **machines: Machine) -> Snapshot:
    return Snapshot("mig", began, machines)


def machine(name: str, phase: Phase = Phase.RUNNING, notice: Notice | None = None) -> Machine:
    return Machine(name, phase, notice=notice)


def announced(*names: str) -> Notices:
    notices = Notices()
    for name in names:
        notices.add(name, NOTICE, 100.0)
    return notices


def shown(notices: Notices, observation: Snapshot) -> Mapping[str, Machine]:
    after = notices.add_to(observation, LAG)
    assert isinstance(after, Snapshot)
    return after.machines


def test_a_notice_is_added_to_the_machine_it_is_about_and_to_nothing_else() -> None:
    observation = snapshot(a=machine("a"), b=machine("b"))
    machines = shown(announced("a", "elsewhere"), observation)
    assert machines == {"a": machine("a", notice=NOTICE), "b": machine("b")}
    assert machines["b"] is observation.machines["b"]
    assert observation.machines["a"].notice is None, "the observation itself stays as it was"


@pytest.mark.parametrize(
    ("phase", "counts"),
    [
        (Phase.RUNNING, True),
        (Phase.STOPPING, True),
        (Phase.PENDING, False),
        (Phase.GONE, False),
    ],
)
def test_only_what_lives_can_be_announced_to_end(phase: Phase, counts: bool) -> None:
    assert (shown(announced("a"), snapshot(a=machine("a", phase)))["a"].notice is NOTICE) is counts


@pytest.mark.parametrize(
    ("began", "counts"),
    [(100.0, True), (131.0, True), (160.0, True), (160.1, False)],
    ids=["before the end", "a list may show what was before the end", "for as long as lists lag", "not any longer"],
)
def test_an_observation_begun_after_the_announced_end_needs_no_notice(began: float, counts: bool) -> None:
    assert (shown(announced("a"), snapshot(began, a=machine("a")))["a"].notice is NOTICE) is counts


@pytest.mark.parametrize(("ends", "first"), [(120.0, False), (140.0, True)])
def test_the_nearer_end_counts(ends: float, first: bool) -> None:
    seen = Notice(LossCause.PREEMPTED, ends)
    machines = shown(announced("a"), snapshot(a=machine("a", Phase.STOPPING, seen)))
    assert machines["a"].notice is (NOTICE if first else seen)


def test_the_first_announcement_of_an_end_stands() -> None:
    notices = announced("a")
    notices.add("a", Notice(LossCause.PREEMPTED, 155.0), 125.0)
    assert shown(notices, snapshot(a=machine("a")))["a"].notice is NOTICE


def test_what_has_not_changed_is_the_same_object_so_that_nothing_is_planned_anew() -> None:
    notices, observation = announced("a"), snapshot(a=machine("a"), b=machine("b"))
    first = shown(notices, observation)
    assert shown(notices, replace(observation, began_at=110.0)) is first
    notices.add("elsewhere", NOTICE, 110.0)
    assert shown(notices, observation) is first
    notices.add("b", NOTICE, 110.0)
    assert shown(notices, observation)["b"].notice is NOTICE
    assert shown(notices, replace(observation, began_at=200.0)) is observation.machines


def test_a_failed_observation_stays_one() -> None:
    failed = ObservationFailed("mig", 100.0, Failure(ErrorClass.UNAVAILABLE, "no answer"))
    assert announced("a").add_to(failed, LAG) is failed


def test_notices_are_forgotten_long_after_their_end() -> None:
    notices = announced("a")
    notices.add("b", Notice(LossCause.PREEMPTED, 2000.0), NOTICE.ends_at + RETENTION_SECONDS)
    assert shown(notices, snapshot(a=machine("a"), b=machine("b")))["a"].notice is None


def test_a_machine_announced_again_after_its_notice_was_forgotten_ends_then() -> None:
    """Notices are removed in the order of their arrival. So an expired notice stays while an earlier notice is still
    valid. A new notice for the machine must replace the expired one."""
    notices, again = Notices(), Notice(LossCause.PREEMPTED, 2000.0)
    notices.add("late", Notice(LossCause.PREEMPTED, 1500.0), 100.0)
    notices.add("a", NOTICE, 100.0)
    notices.add("a", again, NOTICE.ends_at + RETENTION_SECONDS)
    assert shown(notices, snapshot(a=machine("a")))["a"].notice is again


def test_a_storm_of_announcements_costs_each_no_more_than_the_first() -> None:
    """If many machines are announced at once, each announcement must cost no more than the first. Otherwise ten
    thousand announcements would block other threads for seconds."""
    asked = []

    class End(float):
        def __add__(self, other: float) -> float:
            asked.append(other)
            return float(self) + other

    notices = Notices()
    for number in range(100):
        notices.add(str(number), Notice(LossCause.PREEMPTED, End(130.0)), 100.0)
    assert len(asked) <= 2 * 100
