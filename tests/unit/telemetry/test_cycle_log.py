"""The log line ``Cycle``: actions done, not planned; causes of missing actions; DEBUG if there is no news."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from provisioner.loop.batch_threads import Results
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import (
    Action,
    Brake,
    BrakeReason,
    Create,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    LossCause,
    Outcome,
    PendingReason,
    Plan,
    Verdict,
    Window,
)
from provisioner.telemetry.cycle_log import CycleLog, cycle_facts
from tests.support.parts import alter
from tests.unit.core import BROKEN, NOW, STOCKOUT, TEMPLATE, failed_observation, memory, name, snapshot
from tests.unit.core import ended as closed

CREATE = Create(name(0), "a", TEMPLATE, "aaaaaaaaaa")
DELETE = Delete(name(1), "a", DeleteReason.RETURNED)
DEFERRED = {("a", TEMPLATE, PendingReason.BACKOFF): 7}
QUIET = CycleReport(1, NOW, 0.0, {"a": snapshot()}, memory(), None, {})
BLIND = replace(QUIET, observations={"a": failed_observation()})


def ended(*outcomes: Outcome, unsent: Sequence[Action] = ()) -> CycleReport:
    """Return the report of a cycle that received the outcomes of a batch."""
    return replace(QUIET, results=(Results("a", outcomes, tuple(unsent)),))


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param(
            replace(QUIET, plan=Plan(memory(), creates=(CREATE,), deletes=(DELETE,))),
            {"creates": 0, "deletes": 0, "failures": 0},
            id="a plan is not done yet",
        ),
        pytest.param(
            ended(Outcome(CREATE), Outcome(CREATE, STOCKOUT), Outcome(DELETE), Outcome(DELETE, BROKEN)),
            {"creates": 1, "deletes": 1, "failures": 2},
            id="a refused call did nothing",
        ),
        pytest.param(ended(unsent=(CREATE, DELETE)), {"creates": 0, "deletes": 0, "failures": 0}, id="nor an unsent"),
        pytest.param(replace(QUIET, deferred=DEFERRED), {"creates": 0, "deferred": 7}, id="deferred machines"),
        pytest.param(BLIND, {"result": "partial"}, id="a pool that cannot be seen"),
    ],
)
def test_the_cycle_line_counts_actions_that_were_done(report: CycleReport, expected: dict[str, object]) -> None:
    assert expected.items() <= cycle_facts(report).items()


@pytest.mark.parametrize(
    ("report", "causes"),
    [
        pytest.param(QUIET, "", id="nothing"),
        pytest.param(ended(Outcome(CREATE)), "", id="a machine that HF asked for"),
        pytest.param(ended(*[Outcome(CREATE, STOCKOUT)] * 3), "3 not created in a: stockout", id="refused creates"),
        pytest.param(
            ended(Outcome(DELETE), Outcome(DELETE, Failure(ErrorClass.DENIED, "no"))),
            "1 deleted in a: returned; 1 not deleted in a: denied",
            id="deletes",
        ),
        pytest.param(
            replace(
                QUIET,
                transitions=[
                    closed(0, Verdict.FAILED, STOCKOUT),
                    closed(1, Verdict.LOST, cause=LossCause.PREEMPTED),
                    closed(2, Verdict.WITHDRAWN, pool="b"),
                ],
            ),
            "1 failed in a: stockout; 1 lost in a: preempted; 1 withdrawn in b",
            id="slots",
        ),
        pytest.param(replace(QUIET, deferred=DEFERRED), "7 deferred in a: backoff", id="a back-off without its reason"),
        pytest.param(
            replace(
                QUIET,
                deferred=DEFERRED,
                memory=memory(windows={("a", TEMPLATE): Window(1, level=1, failure=STOCKOUT)}),
            ),
            "7 deferred in a: backoff after stockout",
            id="a back-off",
        ),
        pytest.param(BLIND, "a unseen: unavailable", id="a pool that cannot be seen"),
    ],
)
def test_the_cycle_line_names_the_causes(report: CycleReport, causes: str) -> None:
    assert cycle_facts(report)["causes"] == causes


@pytest.mark.parametrize(
    ("reports", "levels"),
    [
        pytest.param([QUIET, QUIET], ["DEBUG", "DEBUG"], id="nothing is done"),
        pytest.param([replace(QUIET, plan=Plan(memory(), creates=(CREATE,)))], ["DEBUG"], id="planned, not done yet"),
        pytest.param([ended(Outcome(CREATE)), QUIET], ["INFO", "DEBUG"], id="a machine is made"),
        pytest.param([replace(QUIET, transitions=[closed(0, Verdict.LOST)])], ["INFO"], id="a slot ends"),
        pytest.param(
            [replace(QUIET, deferred=DEFERRED)] * 3 + [QUIET] * 2,
            ["INFO", "DEBUG", "DEBUG", "INFO", "DEBUG"],
            id="machines are held back, and no longer",
        ),
        pytest.param([BLIND, BLIND, QUIET], ["INFO", "DEBUG", "INFO"], id="a pool goes blind, and comes back"),
    ],
)
def test_the_cycle_line_is_info_when_something_is_new_and_debug_when_quiet(
    reports: list[CycleReport], levels: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log = CycleLog()
    for report in reports:
        log.record_cycle(report)
    assert [record.levelname for record in caplog.records if record.message == "Cycle"] == levels


def test_a_problem_is_logged_when_it_begins_and_not_with_each_cycle(caplog: pytest.LogCaptureFixture) -> None:
    log, broken = CycleLog(), replace(QUIET, memory=None, problem="intent.json does not parse")
    for report in (broken, broken, QUIET, broken):
        log.record_cycle(report)
    assert [entry.message for entry in caplog.records if entry.levelname == "ERROR"] == ["Cycle failed"] * 2


def test_a_brake_is_logged_once_when_it_latches_and_once_when_it_is_released(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A brake must be logged when it latches and when it is released, and not in other cycles. Cycles that cannot plan
    must log it too."""
    monkeypatch.setattr("time.time", lambda: NOW + 1_000_000.0)
    caplog.set_level("INFO")
    log, words = CycleLog(), "8 of 9 machines have no request."
    latched = memory(brake=Brake(BrakeReason.TOO_MANY_ORPHANS, NOW - 50, words, "a"), orphans={"hf-a": 1.0, "hf-b": 2})
    for remembered in (memory(), latched, alter(latched, orphans={}), memory(), memory()):
        log.record_cycle(replace(QUIET, memory=remembered))
    log.record_cycle(replace(QUIET, memory=latched, problem="intent.json is missing"))
    reported = [record for record in caplog.records if "rake" in record.message]
    assert [record.levelname for record in reported] == ["ERROR", "INFO", "ERROR"]
    cycle_facts = {name: vars(reported[0])[name] for name in ("reason", "detail", "pool", "since", "orphans")}
    since = "1970-01-12T16:32:30Z"
    assert cycle_facts == {"reason": "too_many_orphans", "detail": words, "pool": "a", "since": since, "orphans": 2}
    assert "provisioner recover --release-brake" in reported[0].message
