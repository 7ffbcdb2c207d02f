"""levers.json, and the loop that reads it: nothing but a person lets go of a lever."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.loop.levers import HeldLevers
from provisioner.model import NO_LEVERS, Lever, LeverKind, Levers
from provisioner.state.directory import STATE_FILES, StateDir
from provisioner.state.errors import StateDenied, StateError, StateMissing, StateTooNew, StateUnreadable
from provisioner.state.journal import stamp
from provisioner.state.levers import let_go, pulled
from tests.support.cycle_bench import Bench
from tests.unit.core import limits

STOP = Lever(LeverKind.STOP_ALL, "", "ann", 1.5, "cloud is down")
PAUSE = Lever(LeverKind.PAUSE, "a", "bob", 2.0)
DRAIN = Lever(LeverKind.DRAIN, "a", "bob", 3.0, "zone is sick")
CANCEL = Lever(LeverKind.CANCEL, "aaaaaaaaaa", "eve", 4.0, "wrong job")
LIMITS = limits()


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def pull(state: StateDir, *levers: Lever) -> None:
    for lever in levers:
        state.levers.change(lambda held, lever=lever: pulled(held, lever))  # type: ignore[misc]


def release(state: StateDir, *kinds: LeverKind, target: str = "a") -> None:
    by = Lever(kinds[0], target, "joe", 9.0, "all is well")
    state.levers.change(lambda held: let_go(held, kinds, by))


# --- the file ---------------------------------------------------------------------------------------------------------


def test_before_the_first_lever_there_is_no_file_and_none_is_held(state: StateDir) -> None:
    assert (state.levers.read(), os.listdir(state.path)) == (NO_LEVERS, [])
    assert os.path.basename(state.levers.path) in STATE_FILES


def test_what_was_pulled_is_there_for_the_next_process(state: StateDir) -> None:
    pull(state, STOP, PAUSE, DRAIN, CANCEL)
    assert StateDir(state.path).levers.read() == Levers((STOP, PAUSE, DRAIN, CANCEL))
    assert os.stat(state.levers.path).st_mode & 0o777 == 0o660


def test_a_lever_that_is_held_already_is_as_it_was_and_nothing_is_written(state: StateDir) -> None:
    pull(state, PAUSE)
    before = state.levers.signature()
    pull(state, Lever(LeverKind.PAUSE, "a", "ann", 9.0, "me too"))
    release(state, LeverKind.STOP_ALL, target="")
    assert (state.levers.read().held, state.levers.signature()) == ((PAUSE,), before)


def test_who_lets_go_of_what_is_kept(state: StateDir) -> None:
    pull(state, STOP, PAUSE, DRAIN)
    release(state, LeverKind.PAUSE, LeverKind.DRAIN)
    levers = state.levers.read()
    assert levers.held == (STOP,)
    assert [(lever.kind, lever.target, lever.who, lever.reason) for lever in levers.released] == [
        ("pause", "a", "joe", "all is well"),
        ("drain", "a", "joe", "all is well"),
    ]


def cut(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def put_back(path: str) -> None:
    """As it was two writes ago, by its generation."""
    document = json.loads(Path(path).read_text())
    document["meta"]["state"]["generation"] -= 2
    document["held"] = {}
    Path(path).write_text(json.dumps(document))


def strange(path: str) -> None:
    document = json.loads(Path(path).read_text())
    document["held"]["pause a"]["kind"] = "shove"
    Path(path).write_text(json.dumps(document))


def headless(path: str) -> None:
    document = json.loads(Path(path).read_text())
    del document["held"]
    Path(path).write_text(json.dumps(document))


def newer(path: str) -> None:
    Path(path).write_text(Path(path).read_text().replace('"schema":1', '"schema":2'))


DAMAGES: list[tuple[Callable[[str], None], type[StateError]]] = [
    (os.unlink, StateMissing),
    (cut, StateUnreadable),
    (put_back, StateUnreadable),
    (strange, StateUnreadable),
    (headless, StateUnreadable),
    (newer, StateTooNew),
]


@pytest.mark.parametrize(("damage", "error"), DAMAGES, ids=lambda one: one.__name__)
def test_a_file_that_cannot_be_used_is_refused_and_left_alone(
    damage: Callable[[str], None], error: type[StateError], state: StateDir
) -> None:
    pull(state, PAUSE, STOP)
    damage(state.levers.path)
    before = state.levers.signature()
    with pytest.raises(error):
        state.levers.read()
    with pytest.raises(error):
        pull(state, DRAIN)
    assert state.levers.signature() == before


@pytest.mark.parametrize(("damage", "error"), DAMAGES[:-1], ids=lambda one: one.__name__)
def test_anew_begins_with_none_and_keeps_the_old_file_aside(
    damage: Callable[[str], None], error: type[StateError], state: StateDir
) -> None:
    pull(state, PAUSE, STOP)
    damage(state.levers.path)
    there = os.path.exists(state.levers.path)
    state.levers.change(lambda held: held, anew=True)
    assert state.levers.read() == NO_LEVERS
    assert any("aside" in name for name in os.listdir(state.path)) is there
    pull(state, DRAIN)
    assert state.levers.read().held == (DRAIN,)


def test_a_file_of_a_newer_version_is_not_begun_anew(state: StateDir) -> None:
    pull(state, PAUSE)
    newer(state.levers.path)
    with pytest.raises(StateTooNew):
        state.levers.change(lambda held: held, anew=True)


# --- the loop that reads it -------------------------------------------------------------------------------------------


def in_force(held: HeldLevers) -> tuple[Lever, ...]:
    return held.on(LIMITS).levers.held


def test_without_levers_the_limits_are_the_very_same_and_else_as_long_as_both_are(state: StateDir) -> None:
    held = HeldLevers(state)
    assert held.on(LIMITS) is LIMITS
    pull(state, PAUSE)
    first = held.on(LIMITS)
    assert [one.name for one in first.pools.values() if one.paused] == ["a"]
    assert held.on(LIMITS) is first, "an unchanged plan is not made again"
    release(state, LeverKind.PAUSE)
    assert held.on(LIMITS) is LIMITS


def test_a_file_that_did_not_change_is_not_read_again(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    pull(state, PAUSE)
    held = HeldLevers(state)
    assert in_force(held) == (PAUSE,)
    monkeypatch.setattr(type(state.levers), "read", lambda _: pytest.fail("read"))
    assert in_force(held) == (PAUSE,)


@pytest.mark.parametrize(("damage", "error"), DAMAGES, ids=lambda one: one.__name__)
def test_a_damaged_file_releases_nothing_that_was_held(
    damage: Callable[[str], None], error: type[StateError], state: StateDir, caplog: pytest.LogCaptureFixture
) -> None:
    pull(state, PAUSE)
    held = HeldLevers(state)
    in_force(held)
    pull(state, STOP)
    damage(state.levers.path)
    assert [in_force(held), in_force(held)] == [(PAUSE,), (PAUSE,)]
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "once"
    state.levers.set_aside() if error is StateTooNew else None
    state.levers.change(lambda levers: pulled(levers, DRAIN), anew=True)
    assert in_force(held) == (DRAIN,)


@pytest.mark.parametrize(("damage", "error"), DAMAGES, ids=lambda one: one.__name__)
def test_where_a_new_loop_knows_of_no_lever_all_is_stopped(
    damage: Callable[[str], None], error: type[StateError], state: StateDir
) -> None:
    pull(state, PAUSE, DRAIN)
    damage(state.levers.path)
    (stop,) = in_force(HeldLevers(state))
    assert (stop.kind, stop.who) == (LeverKind.STOP_ALL, "provisioner")
    assert "levers.json" in stop.reason


def test_a_file_that_this_user_may_not_read_stops_all_until_it_can_be(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: object) -> Levers:
        raise StateDenied("levers.json: cannot be read")

    pull(state, PAUSE)
    held = HeldLevers(state)
    with monkeypatch.context() as patched:
        patched.setattr(type(state.levers), "read", denied)
        assert in_force(held)[0].kind is LeverKind.STOP_ALL
    assert in_force(held) == (PAUSE,)


# --- who is told ------------------------------------------------------------------------------------------------------


def told(held: HeldLevers, state: StateDir, caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str, str]]:
    """What one cycle says of levers: the log's sentence, the lever, who and why; and the journal says the same."""
    caplog.clear()
    held.on(LIMITS)
    held.tell(7, 100.0)
    said = [
        (record.message, record.__dict__["lever"], record.__dict__["who"], record.__dict__["reason"])
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]
    path = Path(state.journal.path)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    newest = [line for line in lines if line["event"] == "lever"][-len(said) :] if said else []
    assert [(f"Lever {line['result']}", line["lever"], line["who"], line["text"]) for line in newest] == said
    return said


def test_log_and_journal_say_who_pulled_and_let_go_and_why_and_once(
    state: StateDir, caplog: pytest.LogCaptureFixture
) -> None:
    held = HeldLevers(state)
    assert told(held, state, caplog) == []
    pull(state, DRAIN, CANCEL)
    assert told(held, state, caplog) == [
        ("Lever pulled", "drain", "bob", "zone is sick"),
        ("Lever pulled", "cancel", "eve", "wrong job"),
    ]
    assert told(held, state, caplog) == []
    release(state, LeverKind.DRAIN)
    assert told(held, state, caplog) == [("Lever released", "drain", "joe", "all is well")]
    state.levers.change(lambda levers: Levers((), levers.released))
    assert told(held, state, caplog) == [], "a cancel that is forgotten was done"


def test_a_start_says_what_is_held(state: StateDir, caplog: pytest.LogCaptureFixture) -> None:
    pull(state, STOP)
    assert told(HeldLevers(state), state, caplog) == [("Lever held", "stop-all", "ann", "cloud is down")]
    lines = [json.loads(line) for line in Path(state.journal.path).read_text().splitlines()]
    assert (lines[-1]["cycle"], lines[-1]["time"]) == (7, stamp(100.0))


def test_a_journal_that_cannot_be_written_stops_nothing(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StateError("no space left")

    monkeypatch.setattr(type(state.journal), "append", full)
    pull(state, STOP)
    held = HeldLevers(state)
    held.on(LIMITS)
    held.tell(1, 1.0)
    assert in_force(held) == (STOP,)


# --- in the cycle -----------------------------------------------------------------------------------------------------


def test_a_lever_is_obeyed_although_nothing_else_has_changed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.succeed(3)
    looks = {name: place.observe(bench.clock.time, ()) for name, place in bench.places.items()}
    while bench.reconciler.cycle(looks).plan is not None:
        pass
    pull(bench.state, STOP)
    stopped = bench.reconciler.cycle(looks)
    assert (stopped.plan is not None, stopped.levers.stop) == (True, STOP)
    assert bench.reconciler.cycle(looks).plan is None
    release(bench.state, LeverKind.STOP_ALL, target="")
    assert bench.reconciler.cycle(looks).plan is not None


def test_what_is_asked_back_is_published_and_withdrawn_with_the_lever(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.succeed(2)
    pull(bench.state, Lever(LeverKind.DRAIN, "pool"))
    bench.cycle()
    assert {loss.cause for loss in bench.state.status.read_lost().values()} == {"drained"}
    assert len(bench.state.status.read_lost()) == 2
    release(bench.state, LeverKind.DRAIN, target="pool")
    bench.cycle()
    assert bench.state.status.read_lost() == {}


def test_a_preview_heeds_levers_and_tells_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path)
    bench.request(2)
    pull(bench.state, STOP)
    looks = {name: place.observe(bench.clock.time, ()) for name, place in bench.places.items()}
    made = bench.reconciler.preview(looks)
    assert made is not None
    assert made.creates == ()
    assert sum(made.deferred.values()) == 2
    assert not [record for record in caplog.records if record.message.startswith("Lever")]
    assert not Path(bench.state.journal.path).exists()
