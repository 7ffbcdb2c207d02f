"""Texts that a status repeats: written out once, where they are shown in full."""

from __future__ import annotations

from provisioner.model import ErrorClass, Failure, Window
from provisioner.telemetry.pool_windows import format_pool_line
from provisioner.telemetry.repeated_texts import make_numbering, number_repeated_texts
from provisioner.telemetry.status_model import status_model
from tests.support.desk import make_status_inputs
from tests.unit.core import NOW, OTHER, TEMPLATE, memory, record, slot

FULL = Failure(ErrorClass.STOCKOUT, "the zone has no room for machines of this type; " * 2)


def test_a_text_that_occurs_again_is_a_number_and_others_stay() -> None:
    texts = ["a" * 50, "b" * 50, "c", "b" * 50, "c"]
    assert list(map(make_numbering(texts), texts)) == ["a" * 50, "[1] " + "b" * 50, "c", "[1]", "c"]


def test_the_first_request_has_the_text_and_later_ones_and_pools_have_the_number() -> None:
    waits = [record(slot(0, failure=FULL)), record(slot(0, request=OTHER, failure=FULL), id_=OTHER)]
    window = Window(1, level=1, is_probing=True, blocked_at=NOW - 5, retry_at=NOW + 50, failure=FULL)
    status = status_model(make_status_inputs(memory(*waits, windows={("a", TEMPLATE): window})))
    numbered = number_repeated_texts(status)
    assert [one["missing"][0]["text"] for one in numbered.requests] == [f"[1] {FULL.text}", "[1]"]
    line = format_pool_line(numbered.pressure[0])
    assert (line.count("[1]"), FULL.text in line) == (1, False), line
    assert numbered.pools == status.pools, "tables have a column for the first words"
