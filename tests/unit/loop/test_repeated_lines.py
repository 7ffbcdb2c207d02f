"""Tests of repeated lines of the journal: the first few are written in full, the rest is counted."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.loop.repeated_lines import COUNTED_SECONDS, IN_FULL, Repeats


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.floats(0, 900)), max_size=40))
def test_nothing_that_is_counted_is_lost_or_counted_twice(met: list[tuple[str, int, float]]) -> None:
    repeats, wall, written = Repeats(), 0.0, Counter[str]()
    for event, count, seconds in met:
        wall += seconds
        keyed: list[tuple[str, dict[str, object]]] = [(event, {"event": event, "machine": "m"})] * count
        for line in [*repeats.filter_lines(keyed, wall), *repeats.get_due_counts(wall)]:
            written[str(line["event"])] += int(str(line.get("times", 1)))
    for line in repeats.get_due_counts(wall, ending=True):
        written[str(line["event"])] += int(str(line["times"]))
    expected = Counter[str]()
    for event, count, _ in met:
        expected[event] += count
    assert +written == +expected


def test_a_quiet_series_is_forgotten() -> None:
    repeats = Repeats()
    line: dict[str, object] = {"event": "window"}
    assert list(repeats.filter_lines([("key", line)] * IN_FULL, 0.0)) == [line] * IN_FULL
    assert list(repeats.get_due_counts(COUNTED_SECONDS)) == []
    assert list(repeats.filter_lines([("key", line)], COUNTED_SECONDS)) == [line]
