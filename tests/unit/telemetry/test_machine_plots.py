"""The samples of the last hours, and their plots."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model import PendingReason, Verdict
from provisioner.telemetry.machine_plots import (
    ALL,
    HEIGHT,
    KEPT_SAMPLES,
    SAMPLE_SECONDS,
    WIDTH,
    Moment,
    Point,
    Samples,
    plot,
)
from tests.unit.core import TEMPLATE, memory, record, running, slot

MACHINES = memory(record(running(0), running(1, pool="b"), slot(2), running(3, Verdict.LOST)))
DEFERRED = {("a", TEMPLATE, PendingReason.CAP): 4}


def test_wanted_is_what_runs_is_pending_or_deferred() -> None:
    samples = Samples()
    samples.add(MACHINES, DEFERRED, 0.0)
    found = {subject: samples.get_moments(subject)[0].point for subject in (ALL, ("pool", "a"), ("template", TEMPLATE))}
    assert found == {ALL: (7, 2, 1), ("pool", "a"): (6, 1, 1), ("template", TEMPLATE): (7, 2, 1)}


def test_a_pool_without_machines_then_has_zeros_then() -> None:
    samples = Samples()
    samples.add(memory(), {}, 0.0)
    samples.add(MACHINES, {}, SAMPLE_SECONDS)
    assert [moment.point.running for moment in samples.get_moments(("pool", "b"))] == [0, 1]


def test_a_sample_is_taken_a_minute_and_when_the_clock_was_set_back() -> None:
    samples = Samples()
    samples.add(None, {}, 0.0)
    assert samples.get_moments(ALL) == [], "there is no memory yet"
    for wall in (1000.0, 1001.0, 1000.0 + SAMPLE_SECONDS, 1001.0 + SAMPLE_SECONDS, 5.0):
        samples.add(replace(MACHINES), {}, wall)
    assert [moment.wall for moment in samples.get_moments(ALL)] == [1000.0, 1000.0 + SAMPLE_SECONDS, 5.0]


def test_a_day_is_kept_and_no_more() -> None:
    samples = Samples()
    for minute in range(KEPT_SAMPLES + 10):
        samples.add(MACHINES, {}, minute * SAMPLE_SECONDS)
    kept = samples.get_moments(ALL)
    assert (len(kept), kept[0].wall) == (KEPT_SAMPLES, 10 * SAMPLE_SECONDS)


MOMENTS = st.lists(st.builds(Moment, st.floats(0, 1e6), st.builds(Point, *[st.integers(0, 50_000)] * 3)), min_size=2)


@given(MOMENTS)
def test_every_line_stays_within_the_picture(moments: list[Moment]) -> None:
    drawn = plot(sorted(moments), "all pools")
    assert drawn
    for path in (drawn.wanted, drawn.running, drawn.pending, drawn.area):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
        assert all(0 <= number <= WIDTH for number in numbers)
        assert all(0 <= float(y) <= HEIGHT for y in re.findall(r"V(-?[\d.]+)", path))
    assert drawn.top >= max(max(moment.point) for moment in moments)


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (1, 1), (2, 2), (3, 5), (6, 10), (11, 20), (10_000, 10_000), (10_001, 20_000)]
)
def test_the_upper_edge_is_a_round_number(most: int, top: int) -> None:
    drawn = plot([Moment(0.0, Point(most)), Moment(1.0, Point())], "x")
    assert drawn
    assert drawn.top == top


def test_a_plot_describes_itself_in_words() -> None:
    assert plot([Moment(0.0, Point())], "all pools") is None, "one moment is no line"
    drawn = plot([Moment(0.0, Point(5, 1, 4)), Moment(60.0, Point(5, 5, 0))], "pool a")
    assert drawn
    assert "wanted 5 at first and 5 at last, running 1 and 5, pending 4 and 0; at most 5 ran." in drawn.description
