"""Lines in capitals at the top of status. Each fires an alert, or docs/alerts.md says why it does not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from provisioner.commands import status_text
from provisioner.model import (
    FAULT,
    Brake,
    BrakeReason,
    Budget,
    ErrorClass,
    Failure,
    RequestStatus,
    Verdict,
    Window,
)
from provisioner.state.errors import Condition
from provisioner.state.marker_files import UNSEEN, Difference
from provisioner.state.refused_calls import Refusals
from provisioner.telemetry import cost, demand_status, holds, pool_alarms, status_inputs, status_model
from provisioner.telemetry.pool_status import LastingFailure, StandingRefusal
from provisioner.telemetry.status_inputs import File, StatusInputs
from tests.support.desk import make_status_inputs
from tests.unit.core import NOW, TEMPLATE, limits, memory, pool, record, running, slot, unsent

ROOT = Path(__file__).parents[3]
MODULES = (status_inputs, demand_status, holds, status_model, pool_alarms, cost, status_text)
"""The modules with the words in capitals."""
WORDS = re.compile(r"\"(?:  )?([A-Z]{2,}(?: [A-Z]{2,})+|[A-Z]{4,})\b")

FINE = make_status_inputs(memory())
FAILURE = LastingFailure(0, "no")


def failing(error: ErrorClass) -> StatusInputs:
    failed = [slot(number, Verdict.FAILED, failure=Failure(error, "no"), closed_at=NOW) for number in range(3)]
    window = Window(1, level=1, is_probing=True, blocked_at=NOW - 5, failure=Failure(error, "no"))
    return make_status_inputs(memory(record(*failed, count=5), windows={("a", TEMPLATE): window}))


def held(hold: str, machines: int | None = None) -> StatusInputs:
    facts = {"target": "a", "who": "me", "since": "1970-01-01T00:00:00Z", "reason": ""}
    return replace(FINE, holds={"current": [{"hold": hold, "machines": machines, **facts}], "problem": ""})


def demanded(**report: object) -> StatusInputs:
    return replace(FINE, demand={"at": NOW - 900, "problem": ""} | report)


def intent_file(condition: Condition, words: str) -> StatusInputs:
    return replace(FINE, intent_file=File(condition, words))


AT_ONCE = record(unsent(verdict=Verdict.FAILED), ended=RequestStatus.COMPLETE_WITH_ERROR, ended_at=NOW - 10)
RUNS = memory(record(running(0), running(1)))
REFUSED_CALLS = Refusals("requestMachines", total=9, recent=7, since=NOW - 90, last=NOW, text="held")
BRAKE = Brake(BrakeReason.INTENT_LOST, NOW, "x")
PRICED = limits(pool("a", price_per_hour=1.0), budget=Budget(per_hour=1.0))
LINES: dict[str, StatusInputs] = {
    "BRAKE": make_status_inputs(memory(brake=BRAKE)),
    "BUDGET": make_status_inputs(memory(record(running(0), count=2)), PRICED),
    "CALLS REFUSED": replace(FINE, calls=replace(FINE.calls, refused=[REFUSED_CALLS])),
    "CONFIGURATION DIFFERS": replace(FINE, differing=[Difference("config", "loop")]),
    "CONFIGURATION REFUSED": make_status_inputs(memory(), configuration=FAILURE),
    "DEMAND FAILS": demanded(problem="requestMachines ended with 1"),
    "DEMAND SOURCE": demanded(sources={"pool": {"read_at": NOW - 400, "problem": "condor_q is away"}}),
    "DEMAND STOPPED": demanded(next_at=NOW - 301, problem="is old, too"),
    "DOWN": make_status_inputs(memory(record(running(0, Verdict.SUCCEEDED, down_since=NOW)))),
    "DRAINED": held("drain", 0),
    "DRAINING": held("drain", 1),
    "FAILING": failing(ErrorClass.INVALID),
    "HOLDS UNKNOWN": replace(FINE, holds={"current": [], "problem": "no"}),
    "HOSTFACTORY SILENT": replace(FINE, calls=replace(FINE.calls, last=NOW - 4000, listed=NOW - 4000)),
    "INTENT LOST": intent_file(Condition.MISSING, "INTENT LOST: x"),
    "INTENT OLD": intent_file(Condition.OLDER, "INTENT OLD: x"),
    "INTENT UNREADABLE": intent_file(Condition.UNREADABLE, "INTENT UNREADABLE: x"),
    "LOCK": replace(FINE, signs=FINE.signs._replace(intent_lock="process 7")),
    "NEVER READY": failing(ErrorClass.OTHER),
    "PLANNING STOPPED": make_status_inputs(memory(), problem=FAILURE),
    "OVER CAP": make_status_inputs(RUNS, limits(pool("a", max_machines=1))),
    "PAUSED": held("pause"),
    "PLACE": make_status_inputs(memory(), pools={"a": [FAULT + "an autoscaler works on it", "calls take 7 s"]}),
    "QUOTA": failing(ErrorClass.QUOTA),
    "REFUSED": make_status_inputs(memory(), refused=[StandingRefusal("a", "create", TEMPLATE, NOW, "no")]),
    "REQUESTS FAIL": make_status_inputs(memory(AT_ONCE), limits(pool("a"), templates={})),
    "SET ASIDE": make_status_inputs(memory(record(running(0, is_set_aside=True)))),
    "STATE DIRECTORY CANNOT BE WRITTEN": replace(FINE, refusal="no space"),
    "STOPPED": held("stop-all"),
    "STUCK": make_status_inputs(memory(record(slot(is_stuck=True)))),
    "UNSEEN": make_status_inputs(memory(), pools={"a": [UNSEEN + "no"]}),
}
"""The lines that the loop counts for OperatorNeeded."""


@pytest.mark.parametrize(("words", "inputs"), LINES.items(), ids=LINES)
def test_a_line_is_counted_by_its_words(words: str, inputs: StatusInputs) -> None:
    status = status_model.status_model(inputs)
    assert status.alarm_counts == {words: 1}
    assert not status.is_fine


def test_every_line_is_counted_or_the_page_says_why_no_alert_of_it_fires() -> None:
    sources = "".join(Path(str(module.__file__)).read_text() for module in MODULES)
    page = (ROOT / "docs" / "alerts.md").read_text().partition("\n## ")[0]
    listed = re.findall(r"(?m)^\* ((?:`[A-Z ]+`(?:, )?)+): ", page)
    exceptions = {words for line in listed for words in re.findall("`([A-Z ]+)`", line)}
    assert {*WORDS.findall(sources)} == {*LINES} | exceptions
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())["groups"][0]["rules"]
    (rule,) = (rule for rule in rules if rule["alert"] == "OperatorNeeded")
    assert "(hf_provisioner_operator_needed > 0)" in rule["expr"], "whatever the words are"
    assert rule["for"] == "1m"


def test_a_fault_of_a_place_is_one_line_at_the_top_and_other_problems_are_notes() -> None:
    status = status_model.status_model(LINES["PLACE"])
    assert status.alarms == ["PLACE of pool a: an autoscaler works on it"]
    assert status.notes == [("a", "calls take 7 s")]


def test_a_hold_without_a_name_has_no_invented_time() -> None:
    """`kubectl edit` sets holds without operator and time."""
    facts = {"hold": "pause", "target": "a", "who": "", "since": "1970-01-01T00:00:00Z", "reason": "r"}
    [line] = holds.hold_alarms({"current": [facts], "problem": ""})
    assert line.endswith("; set without a command: r")
