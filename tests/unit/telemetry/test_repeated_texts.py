"""Texts that occur more than once in a status. Such a text gets a number, and is written out once, at a place that
shows it in full. The other places show only the number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.commands.status_text import status_lines
from provisioner.model import ErrorClass, Failure, LossCause, PendingReason, Unmet, Verdict, Window
from provisioner.state.marker_files import UNSEEN
from provisioner.telemetry.pool_status import StandingRefusal
from provisioner.telemetry.pool_windows import format_pool_line
from provisioner.telemetry.repeated_texts import make_numbering, number_repeated_texts
from provisioner.telemetry.status_inputs import StatusInputs
from provisioner.telemetry.status_model import status_model
from tests.support.desk import make_status_inputs
from tests.unit.core import NOW, OTHER, REQUEST, TEMPLATE, limits, memory, record, running, slot

FULL = Failure(ErrorClass.STOCKOUT, "the zone has no room for machines of this type; " * 2)


def test_a_text_that_occurs_again_is_a_number_and_others_stay() -> None:
    texts = ["a" * 50, "b" * 50, "c", "b" * 50, "c"]
    assert list(map(make_numbering(texts), texts)) == ["a" * 50, "[1] " + "b" * 50, "c", "[1]", "c"]


def test_the_first_request_has_the_text_and_later_ones_and_pools_have_the_number() -> None:
    waits = [record(slot(0, failure=FULL)), record(slot(0, request=OTHER, failure=FULL), id_=OTHER)]
    window = Window(1, level=1, is_probing=True, blocked_at=NOW - 5, retry_at=NOW + 50, failure=FULL)
    status = status_model(make_status_inputs(memory(*waits, windows={("a", TEMPLATE): window})))
    numbered = number_repeated_texts(status, "pressure")
    assert [one["missing"][0]["text"] for one in numbered.requests] == [f"[1] {FULL.text}", "[1]"]
    line = format_pool_line(numbered.pressure[0])
    assert (line.count("[1]"), FULL.text in line) == (1, False), line
    cells = [row.last_error["text"] for rows in (numbered.pools, numbered.templates) for row in rows if row.last_error]
    assert cells == ["[1]", "[1]"]


DENIED, IMAGE = (replace(FULL, error=error) for error in (ErrorClass.DENIED, ErrorClass.INVALID))
LOST = running(1, Verdict.LOST, failure=FULL, cause=LossCause.EXITED, closed_at=NOW - 9)
SEEN_TWICE: dict[str, StatusInputs] = {
    "a refused create": make_status_inputs(
        memory(record(slot(0, failure=DENIED))), refused=[StandingRefusal("a", "create", TEMPLATE, NOW, FULL.text)]
    ),
    "an unseen pool": make_status_inputs(
        memory(record(slot(0))),
        pools={"a": [UNSEEN + FULL.text]},
        unmet={REQUEST: (Unmet("a", PendingReason.UNSEEN, 1, since=NOW),)},
    ),
    "a failing pool": make_status_inputs(memory(record(slot(0, failure=IMAGE)))),
    "lost machines": make_status_inputs(memory(record(LOST, slot(0, failure=FULL), count=2))),
}


@pytest.mark.parametrize("inputs", SEEN_TWICE.values(), ids=SEEN_TWICE)
def test_a_screen_has_a_text_once(inputs: StatusInputs) -> None:
    status = status_model(inputs)
    assert "\n".join(status_lines(status)).count(FULL.text) > 1, "it would be repeated"
    screen = "\n".join(status_lines(number_repeated_texts(status, "pressure")))
    assert screen.count(FULL.text) == screen.count(f"[1] {FULL.text}") == 1, screen


def test_a_cell_keeps_a_text_that_the_screen_does_not_show_in_full() -> None:
    window = Window(1, level=1, is_probing=True, blocked_at=NOW - 5, retry_at=NOW + 50, failure=FULL)
    status = status_model(make_status_inputs(memory(record(running(0)), windows={("a", TEMPLATE): window})))
    for more, cell in ((["pressure"], "[1]"), ([], FULL.text)):
        numbered = number_repeated_texts(status, *more)
        assert [row.last_error["text"] for row in numbered.templates if row.last_error] == [cell]
        line = format_pool_line(numbered.pressure[0])
        assert (line.count(FULL.text), line.count("[1]")) == (1, len(more)), "the back-off and the last error share it"
    assert numbered.pressure == status.pressure


def test_machines_of_one_pool_and_reason_stay_one_line_and_have_the_text_once() -> None:
    facts = {"down_since": NOW, "failure": FULL}
    down = [running(number, Verdict.SUCCEEDED, pool="ab"[number // 3], **facts) for number in range(6)]
    stuck = [slot(number, pool="a", is_stuck=True, hindrance=FULL) for number in range(6, 8)]
    alarms = number_repeated_texts(status_model(make_status_inputs(memory(record(*down, *stuck)), limits()))).alarms
    assert [(alarm.partition(" ")[0], alarm.rpartition(": ")[2]) for alarm in alarms] == [
        ("DOWN", f"[1] {FULL.text}"),
        ("DOWN", "[1]"),
        ("STUCK", "[1]"),
    ]
