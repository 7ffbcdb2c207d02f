"""Tests of the current holds: an unreadable holds.json releases no hold, and each change is logged once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.loop.holds import CurrentHolds
from provisioner.model import Hold, HoldKind, Holds
from provisioner.planning.core.holds import DRAINED
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateDenied, StateError
from provisioner.state.holds import with_hold
from tests.support.cycle_bench import Bench
from tests.support.holds import CANCEL, DRAIN, PAUSE, STOP, release, set_holds
from tests.support.stores import altered, outdate


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def in_force(current_holds: CurrentHolds) -> tuple[Hold, ...]:
    return current_holds.read().current


def test_a_file_that_did_not_change_is_not_read_again(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    set_holds(state, PAUSE)
    current_holds = CurrentHolds(state)
    assert in_force(current_holds) == (PAUSE,)
    monkeypatch.setattr(type(state.holds), "read", lambda _: pytest.fail("read"))
    assert in_force(current_holds) == (PAUSE,)


def cut(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def newer(path: str) -> None:
    altered(path, outdate)


DAMAGES = pytest.mark.parametrize("damage", [os.unlink, cut, newer], ids=["missing", "unreadable", "too new"])


@DAMAGES
def test_a_damaged_file_releases_nothing_that_was_held(
    damage: Callable[[str], None], state: StateDir, caplog: pytest.LogCaptureFixture
) -> None:
    set_holds(state, PAUSE)
    current_holds = CurrentHolds(state)
    in_force(current_holds)
    set_holds(state, STOP)
    damage(state.holds.path)
    assert [in_force(current_holds), in_force(current_holds)] == [(PAUSE,), (PAUSE,)]
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "once"
    if damage is newer:
        state.holds.set_aside()
    state.holds.change(lambda holds: with_hold(holds, DRAIN), replace_unusable=True)
    assert in_force(current_holds) == (DRAIN,)


@DAMAGES
def test_where_a_new_loop_knows_of_no_hold_all_is_stopped(damage: Callable[[str], None], state: StateDir) -> None:
    set_holds(state, PAUSE, DRAIN)
    damage(state.holds.path)
    (stop,) = in_force(CurrentHolds(state))
    assert (stop.kind, stop.who) == (HoldKind.STOP_ALL, "provisioner")
    assert "holds.json" in stop.reason


def test_a_file_that_this_user_may_not_read_stops_all_until_it_can_be(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: object) -> Holds:
        raise StateDenied("holds.json: cannot be read")

    set_holds(state, PAUSE)
    current_holds = CurrentHolds(state)
    with monkeypatch.context() as patched:
        patched.setattr(type(state.holds), "read", denied)
        assert in_force(current_holds)[0].kind is HoldKind.STOP_ALL
    assert in_force(current_holds) == (PAUSE,)


def logged_lines(current_holds: CurrentHolds, caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str, str]]:
    """Return a cycle's log lines of holds: message, hold, operator and reason. Check that the cycle's changes have the
    same content."""
    caplog.clear()
    current_holds.read()
    changes = current_holds.log_changes()
    messages = [
        (record.message, record.__dict__["hold"], record.__dict__["who"], record.__dict__["reason"])
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]
    assert [(f"Hold {word}", hold.kind, hold.who, hold.reason) for word, hold in changes] == messages
    return messages


def test_log_and_journal_record_each_change_once_with_operator_and_reason(
    state: StateDir, caplog: pytest.LogCaptureFixture
) -> None:
    current_holds = CurrentHolds(state)
    assert logged_lines(current_holds, caplog) == []
    set_holds(state, DRAIN, CANCEL)
    assert logged_lines(current_holds, caplog) == [
        ("Hold set", "drain", "bob", "zone is sick"),
        ("Hold set", "cancel", "eve", "wrong job"),
    ]
    assert logged_lines(current_holds, caplog) == []
    release(state, HoldKind.DRAIN)
    assert logged_lines(current_holds, caplog) == [("Hold released", "drain", "joe", "all is well")]
    state.holds.change(lambda holds: Holds((), holds.released))
    assert logged_lines(current_holds, caplog) == [], "a cancel that is forgotten was done"


def test_a_start_logs_the_holds_in_force(state: StateDir, caplog: pytest.LogCaptureFixture) -> None:
    set_holds(state, STOP)
    assert logged_lines(CurrentHolds(state), caplog) == [("Hold in force", "stop-all", "ann", "cloud is down")]


def test_the_journal_records_changes_of_holds(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.succeed(1)
    set_holds(bench.state, STOP)
    bench.cycle()
    (line,) = [line for line in bench.state.journal.find("stop-all").lines if line["event"] == "hold"]
    assert (line["result"], line["who"], "cycle" in line) == ("set", "ann", True)


def test_a_journal_that_cannot_be_written_stops_nothing_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise StateError("no space left")

    bench = Bench(tmp_path)
    bench.succeed(1)
    monkeypatch.setattr(type(bench.state.journal), "append", full)
    set_holds(bench.state, STOP)
    assert bench.cycle().holds.current == (STOP,)
    assert caplog.messages[-1] == "Journal could not be written"


def test_a_hold_is_followed_although_nothing_else_has_changed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.succeed(3)
    observations = {name: place.observe(bench.clock.time, {}) for name, place in bench.places.items()}
    while bench.reconciler.cycle(observations).plan is not None:
        pass
    set_holds(bench.state, STOP)
    stopped = bench.reconciler.cycle(observations)
    assert (stopped.plan is not None, stopped.holds.stop) == (True, STOP)
    assert bench.reconciler.cycle(observations).plan is None
    release(bench.state, HoldKind.STOP_ALL, target="")
    assert bench.reconciler.cycle(observations).plan is not None


def test_a_preview_follows_holds_and_logs_no_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path)
    bench.request(2)
    set_holds(bench.state, STOP)
    observations = {name: place.observe(bench.clock.time, {}) for name, place in bench.places.items()}
    made = bench.reconciler.preview(observations)
    assert made is not None
    assert made.creates == ()
    assert sum(made.deferred.values()) == 2
    assert not [record for record in caplog.records if record.message.startswith("Hold")]
    assert not Path(bench.state.journal.path).exists()


def test_a_cycle_plans_and_publishes_by_the_holds(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.succeed(1)
    (name,) = bench.place.machines
    set_holds(bench.state, replace(DRAIN, target="pool"), STOP)
    bench.cycle()
    assert bench.state.status.read_lost() == {name: DRAINED}
    back = bench.return_machines(name)
    bench.cycle(2)
    assert bench.place.deleted == []
    assert "cloud is down" in bench.answer(back)
    release(bench.state, HoldKind.STOP_ALL, target="")
    bench.cycle()
    assert [delete.name for delete in bench.place.deleted] == [name]
