"""Tests of observers: the times of their observations, and failed observations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import pytest

from provisioner.backends import BackendError
from provisioner.loop import observers
from provisioner.loop.clock import LoopClock
from provisioner.loop.observers import Observer
from provisioner.model import (
    ErrorClass,
    ObservationFailed,
    Snapshot,
)
from tests.support.slow_place import SlowPlace
from tests.support.waiting import PATIENCE, until


@contextmanager
def observing(place: SlowPlace, wake: Callable[[], None] = lambda: None) -> Iterator[Observer]:
    observer = Observer(place, LoopClock(), wake)
    observer.start()
    try:
        yield observer
    finally:
        observer.stop()


def test_a_failed_observation_is_no_snapshot_and_a_later_success_is() -> None:
    place, wakes = SlowPlace(), []
    place.error = BackendError(ErrorClass.DENIED, "no rights")
    with observing(place, lambda: wakes.append(1)) as observer:
        blind = until(lambda: place.observations >= 2 and observer.latest({}), 30)
        assert isinstance(blind, ObservationFailed)
        assert blind.failure.text == "no rights"
        place.error = None
        until(lambda: isinstance(observer.latest({}), Snapshot), 30)
        assert wakes, "the loop is woken"


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ErrorClass.THROTTLED, "WARNING"),
        (ErrorClass.DENIED, "ERROR"),
        (ErrorClass.NOT_FOUND, "ERROR"),
        (ErrorClass.INVALID, "WARNING"),
    ],
)
def test_why_a_pool_cannot_be_seen_is_logged_once(
    error: ErrorClass, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each series of failures is logged once, also if it begins with the first observation. The level is error if no
    later observation will fix the cause."""
    place = SlowPlace()
    place.error = BackendError(error, "why")
    with caplog.at_level("WARNING", "provisioner"), observing(place) as observer:
        until(lambda: place.observations >= 3, 30)
        place.error = None
        until(lambda: isinstance(observer.latest({}), Snapshot), 30)
        place.error = BackendError(error, "again")
        until(lambda: isinstance(observer.latest({}), ObservationFailed), 30)
    logged = [(record.levelname, getattr(record, "text", "")) for record in caplog.records]
    assert logged == [(level, "why"), (level, "again")]


def test_a_pool_is_observed_again_at_once_when_unknown_names_are_sought() -> None:
    place = SlowPlace()
    place.pace = 600.0
    with observing(place) as observer:
        until(lambda: isinstance(observer.latest({}), Snapshot), 30)
        asked = {"theirs": ""}
        until(
            lambda: getattr(observer.latest(asked), "asked", None) == asked.keys(),
            30,
            what="an observation that asks about them",
        )
        assert place.observations == 2


def test_a_hint_that_comes_during_an_observation_is_not_lost() -> None:
    """A hint that arrives during an observation must cause another observation, because the change may have happened
    after the first one began."""
    place = SlowPlace()
    place.pace = 600.0
    place.slow.clear()
    with observing(place):
        until(lambda: place.observations, 30, what="an observation under way")
        place.hint()
        place.slow.set()
        until(lambda: place.observations > 1, 30, what="another observation")
        assert place.observations == 2


def test_a_hint_waits_for_others_before_it_causes_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint must wait for further hints before it causes an observation. Otherwise a burst of events would cause a
    burst of lists."""
    slept: list[float] = []
    monkeypatch.setattr(observers, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    place = SlowPlace()
    place.pace = 600.0
    with observing(place) as observer:
        until(lambda: isinstance(observer.latest({}), Snapshot), 30)
        place.hint()
        until(lambda: place.observations == 2, 30, what="another observation")
        assert slept == [observers.GATHER_SECONDS]


def test_observations_that_hang_delay_the_end_together_and_not_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Observations that hang must delay the end of the loop together, and not one after the other. Otherwise, twelve
    groups of a silent cloud would delay it by a minute, and systemd would kill the service."""
    done: list[str] = []
    never = threading.Event()

    class Hanging(Observer):
        def stop(self, seconds: float = 0.0) -> None:
            done.append("stop")
            never.wait(10 * PATIENCE)
            done.append("stopped")

    monkeypatch.setattr(observers, "CLOSE_SECONDS", 0.2)
    observers.stop_all([Hanging(SlowPlace(), LoopClock(), lambda: None) for _ in range(12)])
    assert done == ["stop"] * 12
    never.set()


@pytest.mark.parametrize(
    "error",
    [
        BackendError(ErrorClass.UNAVAILABLE, "the provisioner ends"),
        RuntimeError("cannot schedule new futures after shutdown"),
    ],
)
def test_an_observation_that_the_end_breaks_off_is_not_logged(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    place = SlowPlace()
    place.slow.clear()
    place.error = error
    observer = Observer(place, LoopClock(), lambda: None)
    observer.start()
    until(lambda: place.observations, 30, what="an observation under way")
    observer.stop(0.0)
    place.slow.set()
    observer.stop()
    assert caplog.records == []


def test_a_backend_that_breaks_blinds_its_pool_only() -> None:
    place = SlowPlace()
    place.error = ZeroDivisionError("a bug")
    with observing(place) as observer:
        observation = until(lambda: place.observations >= 2 and observer.latest({}), 30)
        assert isinstance(observation, ObservationFailed)
        assert "a bug" in observation.failure.text


def test_a_place_that_asks_for_a_pause_is_not_observed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now, began = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        now[0] += seconds

    class Noted(SlowPlace):
        def observe(self, at: float, sought: Mapping[str, str]) -> Snapshot:
            began.append(now[0])
            return super().observe(at, sought)

    monkeypatch.setattr(observers, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    place = Noted()
    place.error = BackendError(ErrorClass.UNAVAILABLE, "busy", 30.0)
    with observing(place) as observer:
        until(lambda: len(began) >= 3, 30)
        observer.observe_now()
        place.error = None
        until(lambda: isinstance(observer.latest({}), Snapshot), 30)
    pauses = [later - earlier for earlier, later in pairwise(began)]
    assert all(pause >= 30.0 for pause in pauses[:2]), pauses
