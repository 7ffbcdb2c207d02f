"""Troubles of pools: what needs an operator is an alarm, and what passes by itself is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.model import (
    HOUR,
    ErrorClass,
    Failure,
    Limits,
    LossCause,
    Memory,
    RequestRecord,
    RequestStatus,
    Slot,
    TemplateLimits,
    Verdict,
    Window,
)
from provisioner.state.marker_files import UNSEEN
from provisioner.telemetry.pool_status import StandingRefusal
from provisioner.telemetry.status_model import StatusModel, status_model
from tests.support.desk import make_status_inputs
from tests.unit.core import NOW, STOCKOUT, TEMPLATE, limits, memory, pool, record, running, slot, unsent

IMAGE = Failure(ErrorClass.INVALID, "ErrImagePull: not found")
UNREADY = Failure(ErrorClass.OTHER, "ContainersNotReady: [worker]")
QUOTA = Failure(ErrorClass.QUOTA, "QUOTA_EXCEEDED: CPUS")
ONE_POOL = limits(pool("a"))


def seen(remembered: Memory, allowed: Limits = ONE_POOL, **pool_status: Any) -> StatusModel:
    return status_model(make_status_inputs(remembered, allowed, **pool_status))


def failed(number: int, failure: Failure = UNREADY, **changes: Any) -> Slot:
    return slot(number, Verdict.FAILED, failure=failure, is_gone=True, closed_at=NOW - 90 + number, **changes)


def backing_off(failure: Failure, **changes: Any) -> Memory:
    window = Window(1, level=1, is_probing=True, blocked_at=NOW - 50, retry_at=NOW + 50, failure=failure, **changes)
    return memory(record(count=2), windows={("a", TEMPLATE): window})


UNREADY_THREE = memory(record(*(failed(number) for number in range(3)), count=5))
ALARMS: dict[str, tuple[Memory, str]] = {
    "an image that does not exist": (memory(record(slot(failure=IMAGE))), "FAILING in pool a "),
    "machines that failed at boot": (backing_off(IMAGE, is_boot_failure=True), "FAILING in pool a "),
    "pods that never get ready": (UNREADY_THREE, "NEVER READY in pool a "),
    "a quota": (backing_off(QUOTA), "QUOTA of pool a is used up, "),
    "a quota with room for one of two": (
        memory(record(slot(failure=QUOTA), running(1, ran_at=NOW - 10), count=2)),
        "QUOTA of pool a is used up, ",
    ),
}
HEALS: dict[str, Memory] = {
    "a stock-out": backing_off(STOCKOUT),
    "a throttled call": backing_off(Failure(ErrorClass.THROTTLED, "slow down")),
    "a server that does not answer": backing_off(Failure(ErrorClass.UNAVAILABLE, "503")),
    "two machines that failed": memory(record(failed(0), failed(1), count=5)),
    "an image that one of two machines found": memory(
        record(slot(failure=IMAGE), running(1, ran_at=NOW - 10), count=2)
    ),
    "a machine that ran since": memory(record(*map(failed, range(3)), running(3, ran_at=NOW - 10), count=5)),
    "lost Spot machines": memory(record(*(failed(number, cause=LossCause.PREEMPTED) for number in range(3)), count=5)),
    "failures of a request that has what it wants": memory(record(*map(failed, range(3)), running(3), count=1)),
}


@pytest.mark.parametrize(("remembered", "words"), ALARMS.values(), ids=ALARMS)
def test_a_failure_that_an_operator_has_to_fix_is_an_alarm(remembered: Memory, words: str) -> None:
    status = seen(remembered)
    (alarm,) = status.alarms
    assert alarm.startswith(words)
    (one,) = status.failing
    assert alarm.endswith(f": {one['text']}")
    assert not status.is_fine


@pytest.mark.parametrize("remembered", HEALS.values(), ids=HEALS)
def test_a_failure_that_passes_by_itself_is_no_alarm(remembered: Memory) -> None:
    assert (seen(remembered).alarms, seen(remembered).is_fine) == ([], True)


def test_a_refused_create_is_one_alarm() -> None:
    denied = Failure(ErrorClass.DENIED, "forbidden")
    (alarm,) = seen(backing_off(denied), refused=[StandingRefusal("a", "create", TEMPLATE, NOW, "forbidden")]).alarms
    assert alarm.startswith("REFUSED by pool a: creates of template T since ")


NOWHERE = replace(ONE_POOL, templates={})
AT_ONCE = record(unsent(verdict=Verdict.FAILED, failure=IMAGE), ended=RequestStatus.COMPLETE_WITH_ERROR)


@pytest.mark.parametrize(
    ("allowed", "problem"),
    [
        (NOWHERE, "the loop has no template T; bring HostFactory's templates file to it"),
        (
            replace(ONE_POOL, templates={TEMPLATE: TemplateLimits(TEMPLATE, ())}),
            "template T has no pools; name some in HostFactory's templates file",
        ),
        (limits(pool("a"), maximum=0), "template T has a maxNumber of 0; raise it"),
    ],
)
def test_requests_that_fail_at_once_are_an_alarm_until_machines_can_be_made(allowed: Limits, problem: str) -> None:
    remembered = memory(replace(AT_ONCE, id="b", ended_at=NOW - 10), replace(AT_ONCE, ended_at=NOW - 60))
    status = seen(remembered, allowed)
    (alarm,) = status.alarms
    assert alarm.startswith("REQUESTS FAIL: no machine of T can be made, and requests end at once since ")
    assert alarm.endswith(f": {problem}")
    assert [(one["pool"], one["template"], one["since_seconds"]) for one in status.failing] == [("", "T", 60.0)]
    assert seen(remembered).is_fine, "the template was corrected"


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(replace(AT_ONCE, ended_at=NOW - HOUR), id="an hour ago"),
        pytest.param(replace(AT_ONCE, ended=None, ended_at=None), id="not ended"),
        pytest.param(record(failed(0), ended=RequestStatus.COMPLETE_WITH_ERROR), id="machines were made"),
    ],
)
def test_other_requests_of_such_a_template_are_no_alarm(one: RequestRecord) -> None:
    assert seen(memory(one), NOWHERE).failing == []


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        (limits(pool("a", max_machines=1)), "a: 2 machines running, and the cap is 1:"),
        (limits(pool("a", max_machines_total=1)), "a: 2 machines running, and the cap is 1:"),
        (limits(pool("a"), maximum=0), "T: 2 machines running, and the cap is 0:"),
        (limits(pool("a", max_machines=2, max_machines_total=2), maximum=2), ""),
    ],
)
def test_a_cap_below_what_runs_is_an_alarm(allowed: Limits, words: str) -> None:
    status = seen(memory(record(running(0), running(1))), allowed)
    assert [alarm.removeprefix("OVER CAP ").startswith(words) for alarm in status.alarms] == [True] * bool(words)
    assert status.is_fine is not bool(words)


def test_an_unseen_pool_is_an_alarm_with_its_beginning_and_is_not_named_again() -> None:
    status = seen(memory(), pools={"a": [f"{UNSEEN}no route"]}, unseen_since={"a": NOW})
    (alarm,) = status.alarms
    assert alarm.startswith("UNSEEN pool a since ")
    assert alarm.endswith(": no route")
    assert status.problems == {}


def test_machines_that_are_set_aside_are_an_alarm() -> None:
    (alarm,) = seen(memory(record(slot(is_set_aside=True), slot(1, is_set_aside=True)))).alarms
    assert alarm.startswith("SET ASIDE 2 machines of request aaaaaaaaaa, e.g. hf-aaaaaaaaaa-000000: an operator")
