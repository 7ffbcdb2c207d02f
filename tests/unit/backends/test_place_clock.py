"""The messages about a place whose calls are slow, and about a place whose clock differs from ours."""

from __future__ import annotations

from email.utils import formatdate
from functools import partial
from types import SimpleNamespace

import pytest

from provisioner.backends import place_clock
from provisioner.backends.place_clock import LATELY, SLOW_SECONDS, PlaceClock, clock_message
from provisioner.backends.proxies_and_authorities import seconds_until


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        pytest.param([], "", id="no call yet"),
        pytest.param([7.0, 7.0], "", id="too few to tell"),
        pytest.param([0.1, 7.0, 7.0, 7.0], "calls take 7 s", id="slow of late"),
        pytest.param([7.0, 7.0, 7.0, 0.1], "", id="quick again"),
        pytest.param([5.0, 10.0, 6.0], "calls take 7 s", id="their mean"),
        pytest.param([SLOW_SECONDS] * 3, "calls take 3 s", id="just slow"),
        pytest.param([SLOW_SECONDS - 0.01] * 3, "", id="not quite slow"),
        pytest.param([60.0, 0.1, 60.0], "", id="a quick one between"),
    ],
)
def test_a_place_is_slow_while_its_last_calls_all_are(taken: list[float], said: str) -> None:
    clock = PlaceClock()
    for seconds in taken:
        clock.hear(None, seconds)
    assert "".join(clock.slowness()).partition(":")[0] == said


def test_slow_calls_of_long_ago_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5000.0]
    monkeypatch.setattr(place_clock, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    clock = PlaceClock()
    for _ in range(3):
        clock.hear(None, 7.0)
    assert clock.slowness()
    now[0] += LATELY
    assert not clock.slowness()


def test_a_clock_that_is_set_after_the_last_response_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"time": 1e9, "monotonic": 50.0}
    clocks = {name: partial(now.get, name) for name in now}
    monkeypatch.setattr(place_clock, "time", SimpleNamespace(**clocks))
    clock = PlaceClock()
    clock.hear(formatdate(1e9, usegmt=True))
    now.update(time=1e9 - 600, monotonic=60.0)
    assert clock.ahead() == 610.0


@pytest.mark.parametrize(
    ("ahead", "words"),
    [(None, ""), (0.4, ""), (60.0, ""), (-60.0, ""), (61.0, "61 s behind the place's"), (-420.0, "7 min ahead of the")],
)
def test_only_a_difference_of_more_than_a_minute_is_reported(ahead: float | None, words: str) -> None:
    """A difference of up to a minute must not be reported, because a ``Date`` is rounded to seconds and its response
    may arrive seconds later."""
    message = clock_message(ahead)
    assert (words in message, bool(message)) == (True, bool(words))


@pytest.mark.parametrize(
    "date", ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Mon, 01 Jan 2026 00:00:00 +99999999999999"]
)
def test_a_date_that_no_calendar_has_is_no_date(date: str) -> None:
    clock = PlaceClock()
    clock.hear(date, 0.1)
    assert (clock.now(), clock.ahead()) == (None, None)
    assert seconds_until(date) is None
