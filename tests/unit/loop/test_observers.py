"""Looks at pools, each in a thread of its own: when they are taken, and what a failed one is."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

import pytest

from provisioner.backends import BackendError
from provisioner.backends.fake import Entry, FakeBackend, FakePlace, FakePool
from provisioner.loop import observers
from provisioner.loop.clock import LoopClock
from provisioner.loop.observers import Observer
from provisioner.model import (
    ErrorClass,
    Snapshot,
    Unobserved,
)
from tests.support.waiting import until


class Place(FakeBackend):
    """The fake, whose looks can be made to fail or to take long."""

    def __init__(self) -> None:
        pool = FakePool(name="pool", observe_seconds=0.02)
        super().__init__(pool, FakePlace(pool), provisioner="demo")
        self.error: Exception | None = None
        self.slow = threading.Event()
        self.slow.set()
        self.looks = 0

    @property
    def machines(self) -> dict[str, Entry]:
        return self.place.entries()

    def hint(self) -> None:
        """Tell the loop that something may have changed."""
        for wake in self.place.wakes:
            wake()

    def observe(self, now: float, strangers: Collection[str]) -> Snapshot:
        self.looks += 1
        self.slow.wait(10)
        if self.error is not None:
            raise self.error
        return super().observe(now, strangers)


def test_a_look_that_fails_is_no_snapshot_and_one_that_works_again_is() -> None:
    place, wakes = Place(), []
    place.error = BackendError(ErrorClass.DENIED, "no rights")
    observer = Observer(place, LoopClock(), lambda: wakes.append(1))
    observer.start()
    try:
        blind = until(lambda: place.looks >= 2 and observer.latest(frozenset()), 30)
        assert isinstance(blind, Unobserved)
        assert blind.failure.text == "no rights"
        place.error = None
        until(lambda: isinstance(observer.latest(frozenset()), Snapshot), 30)
        assert wakes, "the loop is told"
    finally:
        observer.stop()


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ErrorClass.UNAVAILABLE, "WARNING"),
        (ErrorClass.THROTTLED, "WARNING"),
        (ErrorClass.DENIED, "ERROR"),
        (ErrorClass.NOT_FOUND, "ERROR"),
    ],
)
def test_why_a_pool_cannot_be_seen_is_logged_once(
    error: ErrorClass, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """From the first look on; as an error where no other look will mend it."""
    place = Place()
    place.error = BackendError(error, "why")
    observer = Observer(place, LoopClock(), lambda: None)
    with caplog.at_level("WARNING", "provisioner"):
        observer.start()
        try:
            until(lambda: place.looks >= 3, 30)
            place.error = None
            until(lambda: isinstance(observer.latest(frozenset()), Snapshot), 30)
            place.error = BackendError(error, "again")
            until(lambda: isinstance(observer.latest(frozenset()), Unobserved), 30)
        finally:
            observer.stop()
    told = [(record.levelname, getattr(record, "text", "")) for record in caplog.records]
    assert told == [(level, "why"), (level, "again")]


def test_a_pool_is_looked_at_again_at_once_when_strangers_are_asked_about() -> None:
    place = Place()
    place.pace = 600.0
    observer = Observer(place, LoopClock(), lambda: None)
    observer.start()
    try:
        until(lambda: isinstance(observer.latest(frozenset()), Snapshot), 30)
        asked = frozenset({"theirs"})
        until(lambda: getattr(observer.latest(asked), "asked", None) == asked, 30, what="a look that asks about them")
        assert place.looks == 2
    finally:
        observer.stop()


def test_a_hint_that_comes_during_a_look_is_not_lost() -> None:
    """What it is about may have happened after the look began."""
    place = Place()
    place.pace = 600.0
    place.slow.clear()
    observer = Observer(place, LoopClock(), lambda: None)
    observer.start()
    try:
        until(lambda: place.looks, 30, what="a look under way")
        place.hint()
        place.slow.set()
        until(lambda: place.looks > 1, 30, what="another look")
        assert place.looks == 2
    finally:
        observer.stop()


def test_a_hint_waits_for_others_before_it_causes_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of events would be a burst of lists."""
    monkeypatch.setattr(observers, "GATHER", 0.3)
    place = Place()
    place.pace = 600.0
    observer = Observer(place, LoopClock(), lambda: None)
    observer.start()
    try:
        until(lambda: isinstance(observer.latest(frozenset()), Snapshot), 30)
        began = time.monotonic()
        place.hint()
        until(lambda: place.looks == 2, 30, what="another look")
        assert time.monotonic() - began >= 0.3
    finally:
        observer.stop()


def test_a_look_that_the_end_breaks_off_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    place.slow.clear()
    place.error = BackendError(ErrorClass.UNAVAILABLE, "the provisioner ends")
    observer = Observer(place, LoopClock(), lambda: None)
    observer.start()
    until(lambda: place.looks, 30, what="a look under way")
    observer.stop(0.0)
    place.slow.set()
    observer.stop()
    assert caplog.records == []


def test_a_backend_that_breaks_blinds_its_pool_only() -> None:
    place = Place()
    place.error = ZeroDivisionError("a bug")
    observer = Observer(place, LoopClock(), lambda: None)
    observer.start()
    try:
        look = until(lambda: place.looks >= 2 and observer.latest(frozenset()), 30)
        assert isinstance(look, Unobserved)
        assert "a bug" in look.failure.text
    finally:
        observer.stop()
