"""Times as text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.utc import END, FIRST, format_utc


@given(st.integers(int(FIRST) + 1000 * 365 * 86_400, int(END) - 1))
def test_a_moment_is_written_as_the_calendar_has_it(wall: int) -> None:
    assert datetime.fromisoformat(format_utc(wall)) == datetime.fromtimestamp(wall, UTC)


def test_milliseconds_are_cut_off() -> None:
    assert format_utc(1_790_000_000.9999, milliseconds=True) == "2026-09-21T14:13:20.999Z"
    assert format_utc(1_790_000_000.25) == "2026-09-21T14:13:20Z"


@pytest.mark.parametrize("wall", [float("nan"), float("inf"), 1e18, END, -1e18])
def test_what_no_calendar_has_is_said_in_words(wall: float) -> None:
    assert format_utc(wall) == f"an impossible time ({wall:g})"
