"""Losses: a line for each pool and cause, and what needs an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from provisioner.model import DAY, HOUR, ErrorClass, Failure, LossCause, Memory, Slot, Verdict
from provisioner.telemetry.losses import loss_lines
from provisioner.telemetry.pool_windows import format_local_time
from provisioner.telemetry.status_model import StatusModel, status_model
from provisioner.utc import format_utc
from tests.support.desk import make_status_inputs
from tests.unit.core import NOW, memory, record, running

EXIT = Failure(ErrorClass.OTHER, "main: Error: exit code 3")
KILLED = Failure(ErrorClass.OTHER, "main: OOMKilled: exit code 137")
STOPPED = Failure(ErrorClass.OTHER, "The instance is TERMINATED")
Ended = Sequence[Slot]


def ended(count: int, cause: LossCause | None, at: float = NOW, *, first: int = 0, **changes: Any) -> list[Slot]:
    """Return ``count`` machines that ended one second apart. The last machine ended at ``at``."""
    verdict = changes.pop("verdict", Verdict.LOST)
    return [
        running(first + number, verdict, cause=cause, closed_at=at - count + 1 + number, is_gone=True, **changes)
        for number in range(count)
    ]


def seen(*slots: Slot) -> StatusModel:
    remembered: Memory = memory(record(*slots))
    return status_model(make_status_inputs(remembered))


def clock(at: float) -> str:
    return format_local_time(format_utc(at))


DELETED, EXITED, PREEMPTED, LOST = LossCause.DELETED, LossCause.EXITED, LossCause.PREEMPTED, Verdict.LOST
NEEDS: dict[str, tuple[Ended, str]] = {
    "exits with a code": (ended(3, EXITED, failure=EXIT), "exited: main: Error: exit code 3; the program of"),
    "too little memory": (ended(3, EXITED, failure=KILLED), "exited: main: OOMKilled: exit code 137; the program"),
    "exits before the request ended": (ended(3, EXITED, failure=EXIT, verdict=Verdict.FAILED), "exited: main: Error"),
    "deletes by others": (ended(3, DELETED), "deleted by others; see the problems of the pool, and search the audit"),
    "stops by others": (
        ended(3, LossCause.UNKNOWN, failure=STOPPED),
        "unknown: The instance is TERMINATED; search the",
    ),
    "announced deletes, returned in time": (ended(3, DELETED, verdict=Verdict.RETURNED), "deleted by others; "),
}
PASSES: dict[str, tuple[Ended, str]] = {
    "Spot reclaims": (ended(3, PREEMPTED), "preempted"),
    "announced Spot reclaims, returned in time": (ended(3, PREEMPTED, verdict=Verdict.RETURNED), "preempted"),
    "a drained node": (ended(3, LossCause.EVICTED), "evicted"),
}


@pytest.mark.parametrize(("slots", "words"), NEEDS.values(), ids=NEEDS)
def test_losses_that_do_not_pass_by_themselves_are_an_alarm_with_the_next_step(slots: Ended, words: str) -> None:
    status = seen(*slots)
    (alarm,) = status.alarms
    since = f"{clock(NOW - 2)}, the last at {clock(NOW)}"
    assert alarm.startswith(f"LOSSES: 3 lost in a since {since}: {words}")
    assert (status.alarm_counts, list(loss_lines(status.losses))) == ({"LOSSES": 1}, [])


@pytest.mark.parametrize(("slots", "words"), PASSES.values(), ids=PASSES)
def test_losses_that_pass_by_themselves_are_a_line(slots: Ended, words: str) -> None:
    status = seen(*slots)
    since = f"{clock(NOW - 2)}, the last at {clock(NOW)}"
    assert (status.alarms, list(loss_lines(status.losses))) == ([], [f"3 lost in a since {since}: {words}"])


def test_each_pool_cause_and_exit_code_has_its_line() -> None:
    slots = (
        *ended(1, EXITED, failure=EXIT),
        *ended(1, EXITED, failure=KILLED, first=1),
        *ended(2, EXITED, failure=EXIT, first=2, pool="b"),
        *ended(1, PREEMPTED, first=4, pool="b"),
    )
    lines = [line.partition(" since ")[0] for line in loss_lines(seen(*slots).losses)]
    assert lines == ["1 lost in a", "1 lost in a", "2 lost in b", "1 lost in b"]


@pytest.mark.parametrize(
    ("slots", "is_alarm"),
    [
        pytest.param(ended(2, EXITED), False, id="two machines"),
        pytest.param([*ended(3, EXITED), *map(running, range(3, 32))], True, id="more than a tenth of those that run"),
        pytest.param([*ended(3, EXITED), *map(running, range(3, 33))], False, id="a tenth of those that run"),
        pytest.param([*ended(3, EXITED, NOW - HOUR), *ended(1, EXITED, first=3)], False, id="most are hours old"),
    ],
)
def test_few_losses_need_no_operator(slots: Ended, is_alarm: bool) -> None:
    assert [one["quiet"] for one in seen(*slots).losses] == [not is_alarm]


def test_losses_are_counted_for_a_day_and_shown_while_the_newest_is_recent() -> None:
    new, old, older = ended(1, EXITED), ended(1, EXITED, NOW - HOUR, first=1), ended(1, EXITED, NOW - DAY, first=2)
    assert seen(*old).losses == []
    (one,) = seen(*new, *old, *older).losses
    assert (one["machines"], one["since"], one["last"]) == (2, format_utc(NOW - HOUR), format_utc(NOW))


@pytest.mark.parametrize(
    "slots",
    [
        pytest.param(ended(3, EXITED, verdict=Verdict.FAILED, ran_at=None), id="machines that never ran"),
        pytest.param(ended(3, None, verdict=Verdict.RETURNED), id="machines that HostFactory returned"),
        pytest.param([running(number, Verdict.SUCCEEDED, cause=DELETED) for number in range(3)], id="machines that go"),
    ],
)
def test_what_is_no_loss(slots: Ended) -> None:
    assert seen(*slots).losses == []


def test_a_machine_that_hf_returned_after_its_end_was_announced_is_in_the_column_of_the_lost() -> None:
    slots = (
        *ended(2, PREEMPTED, verdict=Verdict.RETURNED),
        *ended(1, None, verdict=Verdict.RETURNED, first=2),
        *ended(1, LossCause.UNKNOWN, first=3),
    )
    assert [row.lost for row in seen(*slots).pools] == [3]
