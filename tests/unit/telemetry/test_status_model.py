"""The status: machines by template and pool, its parts, and the agreement of the parts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model import Brake, BrakeReason, ErrorClass, Failure, Limits, LossCause, RequestStatus, Verdict, Window
from provisioner.state.marker_files import Difference, Side
from provisioner.telemetry.machine_rows import Row
from provisioner.telemetry.pool_status import LastingFailure, StandingRefusal
from provisioner.telemetry.status_filter import narrow_status
from provisioner.telemetry.status_model import StatusModel, status_model
from tests.support.desk import make_status_inputs
from tests.unit.core import (
    NOW,
    OTHER,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    giving_back,
    limits,
    memory,
    pool,
    record,
    running,
    slot,
)

TWO_POOLS = limits(pool("a", max_machines=7), pool("b"), maximum=20)


def row(rows: Any, name: str) -> Row:
    (found,) = (one for one in rows if one.name == name)
    assert isinstance(found, Row)
    return found


def test_what_needs_an_operator_is_counted_by_its_words_in_capitals() -> None:
    refused = [StandingRefusal("a", "create", TEMPLATE, NOW, "no"), StandingRefusal("b", "create", TEMPLATE, NOW, "no")]
    braked = replace(memory(record(slot(is_stuck=True))), brake=Brake(BrakeReason.INTENT_LOST, NOW, "x"))
    seen = status_model(make_status_inputs(braked, TWO_POOLS, refused=refused, problem=LastingFailure(0, "blind")))
    assert seen.alarm_counts == {"PLANNING STOPPED": 1, "REFUSED": 2, "STUCK": 1, "BRAKE": 1}
    assert status_model(make_status_inputs(memory(), TWO_POOLS)).alarm_counts == {}


def test_a_template_sums_up_its_pools_and_its_waiting_machines() -> None:
    failed = slot(3, Verdict.FAILED, failure=STOCKOUT, is_gone=True, closed_at=NOW - 240)
    remembered = memory(
        record(running(0), running(1, pool="b"), slot(2), failed, running(4, Verdict.LOST, is_gone=True), count=9),
        windows={("a", TEMPLATE): Window(1)},
    )
    seen = status_model(make_status_inputs(remembered, TWO_POOLS))
    both, first, second = row(seen.templates, TEMPLATE), row(seen.pools, "a"), row(seen.pools, "b")
    assert (both.running, both.pending, both.failed, both.lost) == (2, 1, 1, 1)
    assert both.wanted == 9
    assert (both.wanted, both.running) == (first.wanted + second.wanted, first.running + second.running)
    assert (both.cap, first.cap, second.cap, first.window) == (20, 7, None, 1)
    assert first.last_error == both.last_error
    assert first.last_error
    assert (first.last_error["error"], first.last_error["at_seconds"]) == ("stockout", 240)


def test_machines_that_hf_has_are_wanted_and_given_up_machines_are_not() -> None:
    remembered = memory(
        record(running(0, Verdict.SUCCEEDED), running(1, Verdict.RETURNED, is_gone=True), ended=RequestStatus.COMPLETE),
        record(slot(0, Verdict.CANCELLED, OTHER, is_gone=True), id_=OTHER, count=1),
    )
    assert row(status_model(make_status_inputs(remembered, TWO_POOLS)).templates, TEMPLATE).wanted == 1


def test_a_pool_and_a_template_without_machines_have_rows() -> None:
    seen = status_model(make_status_inputs(memory(), TWO_POOLS))
    assert [one.name for one in (*seen.templates, *seen.pools)] == [TEMPLATE, "a", "b"]
    assert {one.wanted for one in (*seen.templates, *seen.pools, *seen.machines)} == {0}
    assert seen.is_fine


def test_machines_without_a_pool_count_for_their_template() -> None:
    seen = status_model(make_status_inputs(memory(record(count=3)), Limits("hf", {}, {}), unmet={}))
    assert (row(seen.templates, TEMPLATE).wanted, seen.pools, seen.machines) == (3, [], [])


VERDICTS = st.sampled_from([*Verdict])


@given(st.lists(st.tuples(VERDICTS, st.booleans(), st.sampled_from(["a", "b"])), max_size=12), st.integers(0, 5))
def test_templates_and_pools_add_up_to_the_same(slots: list[tuple[Verdict, bool, str]], more: int) -> None:
    made = [
        (running if ran or verdict is Verdict.SUCCEEDED else slot)(number, verdict, pool=where)
        for number, (verdict, ran, where) in enumerate(slots)
    ]
    seen = status_model(make_status_inputs(memory(record(*made, count=len(made) + more)), TWO_POOLS))
    for name in ("wanted", "running", "pending", "failed", "lost"):
        sums = [sum(getattr(one, name) for one in rows) for rows in (seen.templates, seen.pools, seen.machines)]
        assert len(set(sums)) == 1, name
    for one in seen.templates:
        assert one.wanted >= one.running + one.pending
    assert sum(one["running"] for one in seen.requests) == sum(one.running for one in seen.pools)


# --- parts ------------------------------------------------------------------------------------------------------------


def everything() -> StatusModel:
    """Return the status of two requests. Each has its own template and pool. The status has entries of every kind."""
    first, second = limits(pool("a", max_machines=0), pool("b", max_machines_total=0)), "U"
    allowed = replace(
        first,
        templates={
            TEMPLATE: replace(first.templates[TEMPLATE], pools=("a",)),
            second: replace(first.templates[TEMPLATE], id=second, pools=("b",)),
        },
    )
    lost = [running(1, Verdict.LOST, pool=name, cause=LossCause.NODE, closed_at=NOW, is_gone=True) for name in "ab"]
    remembered = memory(
        record(running(0, is_stuck=True), lost[0], count=3),
        record(running(0, request=OTHER, pool="b"), lost[1], id_=OTHER, template=second, count=2),
        giving_back("hf-bbbbbbbbbb-000000"),
        windows={("a", TEMPLATE): Window(1), ("b", second): Window(2)},
    )
    refused = [StandingRefusal("a", "create", TEMPLATE, 0.0, "no"), StandingRefusal("b", "delete", "", 0.0, "no")]
    return status_model(
        make_status_inputs(
            remembered,
            allowed,
            refused=refused,
            paused=["a", "b"],
            pools={"a": ["odd"], "b": ["odd"]},
            problem=LastingFailure(0, "x"),
            unseen_since={"a": 5.0},
        )
    )


@pytest.mark.parametrize("by", [{"pool": "a"}, {"template": TEMPLATE}, {"request": REQUEST}])
def test_a_part_has_only_the_entries_that_concern_it(by: dict[str, str]) -> None:
    whole = everything()
    part = narrow_status(whole, **by)
    assert [one["id"] for one in part.requests] == [REQUEST]
    assert ([one.name for one in part.pools], [one.name for one in part.templates]) == (["a"], [TEMPLATE])
    assert [one["pool"] for one in part.pressure] == ["a"]
    assert [one["pool"] for one in part.refused] == ["a"]
    assert (part.paused, list(part.problems), part.returns) == (["a"], ["a"], [])
    assert next(alarm for alarm in part.alarms if "OVER CAP" in alarm).startswith("OVER CAP a: 1 machine running,")
    assert ([one["pool"] for one in whole.stuck], [one["pool"] for one in part.stuck]) == (["a"], ["a"])
    assert ([one["pool"] for one in whole.losses], [one["pool"] for one in part.losses]) == (["a", "b"], ["a"])
    assert "PLANNING STOPPED" in part.alarms[0]


def test_a_return_is_a_part_too_and_no_name_is_no_condition() -> None:
    whole = everything()
    part = narrow_status(whole, request="ret-aaaaaaaaaa")
    assert ([one["id"] for one in part.returns], part.requests) == (["ret-aaaaaaaaaa"], [])
    assert narrow_status(whole) == whole
    document = json.loads(json.dumps(whole.document()))
    assert document["pools"][0]["pool"] == "a"
    assert set(document) == set(StatusModel.__dataclass_fields__)


# --- alarms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("newer", "said"), [("scripts", False), ("loop", True), (None, True)])
def test_a_difference_is_no_alarm_while_the_loop_refuses_the_newer_content(newer: Side | None, said: bool) -> None:
    inputs = replace(make_status_inputs(memory()), differing=[Difference("templates", newer)])
    refused = replace(inputs, pool_status=replace(inputs.pool_status, configuration=LastingFailure(0, "x")))
    for one, differs in ((inputs, True), (refused, said)):
        assert any("CONFIGURATION DIFFERS" in alarm for alarm in status_model(one).alarms) is differs


def test_machines_of_one_reason_are_one_line() -> None:
    other = Failure(ErrorClass.OTHER, "it waits for its finalizers")
    down = [running(number, Verdict.SUCCEEDED, down_since=NOW, failure=STOCKOUT) for number in range(3)]
    stuck = [slot(number, is_stuck=True, hindrance=other if number > 5 else None) for number in range(4, 8)]
    lines = status_model(make_status_inputs(memory(record(*down, *stuck)))).alarms
    assert [line.partition(" in pool")[0] for line in lines] == [
        "DOWN 3 machines that HostFactory has",
        "STUCK hf-aaaaaaaaaa-000004 and 1 more",
        "STUCK hf-aaaaaaaaaa-000006 and 1 more",
    ]


def test_a_pool_has_the_cap_of_all_its_templates_as_its_cap() -> None:
    seen = status_model(make_status_inputs(memory(), limits(pool("a", max_machines_total=3), pool("b"))))
    assert [(one.pool, one.cap) for one in (*seen.pools, *seen.machines)] == [("a", 3), ("b", None)] * 2
