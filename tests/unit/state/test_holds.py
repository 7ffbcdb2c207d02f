"""holds.json: a hold stays until an operator releases it, and a damaged file is refused."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from provisioner.model import NO_HOLDS, Hold, HoldKind, Holds
from provisioner.state.directory import STATE_FILES, StateDir
from provisioner.state.errors import StateError, StateMissing, StateTooNew, StateUnreadable
from tests.support.holds import CANCEL, DRAIN, PAUSE, STOP, release, set_holds
from tests.support.stores import altered, outdate


def test_before_the_first_hold_there_is_no_file_and_none_is_held(state: StateDir) -> None:
    assert (state.holds.read(), os.listdir(state.path)) == (NO_HOLDS, [])
    assert os.path.basename(state.holds.path) in STATE_FILES


def test_a_hold_that_was_set_is_there_for_the_next_process(state: StateDir) -> None:
    set_holds(state, STOP, PAUSE, DRAIN, CANCEL)
    assert StateDir(state.path).holds.read() == Holds((STOP, PAUSE, DRAIN, CANCEL))
    assert os.stat(state.holds.path).st_mode & 0o777 == 0o660


def test_a_hold_that_is_held_already_is_as_it_was_and_nothing_is_written(state: StateDir) -> None:
    set_holds(state, PAUSE)
    before = state.holds.signature()
    set_holds(state, Hold(HoldKind.PAUSE, "a", "ann", 9.0, "me too"))
    release(state, HoldKind.STOP_ALL, target="")
    assert (state.holds.read().current, state.holds.signature()) == ((PAUSE,), before)


def test_who_lets_go_of_what_is_kept(state: StateDir) -> None:
    set_holds(state, STOP, PAUSE, DRAIN)
    release(state, HoldKind.PAUSE, HoldKind.DRAIN)
    holds = state.holds.read()
    assert holds.current == (STOP,)
    assert [(hold.kind, hold.target, hold.who, hold.reason) for hold in holds.released] == [
        ("pause", "a", "joe", "all is well"),
        ("drain", "a", "joe", "all is well"),
    ]


def cut(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def put_back(path: str) -> None:
    """Make the file look like an old copy of itself: with generation 0 and without holds."""
    altered(path, lambda document: document["meta"]["state"].update(generation=0))
    altered(path, lambda document: document.update(current={}))


def strange(path: str) -> None:
    altered(path, lambda document: document["current"]["pause a"].update(kind="shove"))


def headless(path: str) -> None:
    altered(path, lambda document: document.pop("current"))


def newer(path: str) -> None:
    altered(path, outdate)


DAMAGES: list[tuple[Callable[[str], None], type[StateError]]] = [
    (os.unlink, StateMissing),
    (cut, StateUnreadable),
    (put_back, StateUnreadable),
    (strange, StateUnreadable),
    (headless, StateUnreadable),
    (newer, StateTooNew),
]


@pytest.mark.parametrize(("damage", "error"), DAMAGES, ids=lambda one: one.__name__)
def test_a_file_that_cannot_be_used_is_refused_and_left_alone_until_it_is_begun_anew(
    damage: Callable[[str], None], error: type[StateError], state: StateDir
) -> None:
    set_holds(state, PAUSE, STOP)
    damage(state.holds.path)
    before = state.holds.signature()
    for attempt in (state.holds.read, lambda: set_holds(state, DRAIN)):
        with pytest.raises(error):
            attempt()
    assert state.holds.signature() == before
    if error is StateTooNew:
        with pytest.raises(StateTooNew):
            state.holds.change(lambda held: held, replace_unusable=True)
        return
    state.holds.change(lambda held: held, replace_unusable=True)
    assert state.holds.read() == NO_HOLDS
    assert any("aside" in name for name in os.listdir(state.path)) is (before is not None), "the old file is kept"
    set_holds(state, DRAIN)
    assert state.holds.read().current == (DRAIN,)
