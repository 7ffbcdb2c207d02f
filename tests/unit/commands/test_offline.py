"""Looks of a command: all pools at once, within a time, with a word on what is waited for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from io import StringIO

import pytest

from provisioner.backends import BackendError
from provisioner.commands import offline
from provisioner.commands.offline import all_at_once, look
from provisioner.model import ErrorClass, Snapshot, Unobserved
from tests.support.slow_place import SlowPlace
from tests.support.waiting import PATIENCE


def test_calls_are_made_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=30 * PATIENCE)
    calls: dict[str, Callable[[], int]] = dict.fromkeys("abc", together.wait)
    assert sorted(all_at_once(calls, "pools").values()) == [0, 1, 2]


def test_what_is_waited_for_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(offline, "SAY_SECONDS", 0.05)
    slow = threading.Event()
    said = threading.Timer(0.5, slow.set)
    said.start()
    assert all_at_once({"quick": lambda: True, "slow": slow.wait}, "pools") == {"quick": True, "slow": True}
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "Waiting for pools, 0 s so far: slow"


def test_a_service_that_asks_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(offline, "SAY_SECONDS", 0.02)
    slow = threading.Event()
    threading.Timer(0.2, slow.set).start()
    all_at_once({"slow": slow.wait}, "")
    assert capsys.readouterr().err == ""


def test_what_a_call_raises_is_raised() -> None:
    def fails() -> int:
        raise BackendError(ErrorClass.INVALID, "no such place")

    with pytest.raises(BackendError, match="no such place"):
        all_at_once({"a": lambda: 1, "b": fails}, "pools")


def test_a_call_that_hangs_does_not_hold_up_the_end_of_the_command() -> None:
    hung = threading.Event()
    before = set(threading.enumerate())
    try:
        assert all_at_once({"hung": lambda: hung.wait(30)}, "", 0.05) == {}
        left = set(threading.enumerate()) - before
        assert {thread.daemon for thread in left} == {True}, "Python waits for all other threads"
    finally:
        hung.set()


def test_a_pool_that_does_not_answer_in_time_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "LOOK_SECONDS", 0.5)
    quick, slow = SlowPlace(), SlowPlace()
    slow.slow.clear()
    try:
        seen = look({"quick": quick, "slow": slow}, 0.0, seconds=0.5)
    finally:
        slow.slow.set()
    assert isinstance(seen["quick"], Snapshot)
    assert isinstance(seen["slow"], Unobserved)
    assert seen["slow"].failure.error is ErrorClass.TIMEOUT


class Full(StringIO):
    """A stream on a full disk."""

    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [None, Full()])
def test_a_standard_error_that_takes_nothing_costs_no_answer(
    stream: Full | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(offline, "SAY_SECONDS", 0.02)
    slow = threading.Event()
    threading.Timer(0.2, slow.set).start()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        assert all_at_once({"slow": slow.wait}, "pools") == {"slow": True}
    assert capsys.readouterr().out == ""


def test_a_command_heeds_the_time_that_a_place_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    place = SlowPlace()
    place.error = BackendError(ErrorClass.THROTTLED, "busy", 300.0)
    seen = look({"a": place}, 0.0, seconds=30.0)
    assert isinstance(seen["a"], Unobserved)
    assert place.looks == 1
