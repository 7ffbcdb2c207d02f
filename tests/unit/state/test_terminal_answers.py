"""What is settled of a terminal answer: whoever settles it first does so for all, whole, and for good.

The law is: a terminal answer stays.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.state import atomic
from provisioner.state.errors import StateUnreadable, StateUnwritable
from provisioner.state.terminal_answers import Told

ONE, OTHER = '{"requestId":"a","status":"complete"}', '{"requestId":"a","status":"complete_with_error"}'


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(str(tmp_path / "seen"))


def files(told: Told) -> list[str]:
    return sorted(os.listdir(told.path))


def test_nothing_is_settled_before_anybody_has_said_anything(told: Told) -> None:
    assert (told.settled("a"), told.ids(), told.answers()) == (None, frozenset(), {})


def test_what_was_told_first_is_told_by_every_later_call(told: Told) -> None:
    assert told.tell("a", ONE) == ONE
    assert told.tell("a", OTHER) == ONE
    settled = told.settled("a")
    assert settled is not None
    assert (settled.text, settled.ended) == (ONE, True)
    assert (told.ids(), told.answers()) == ({"a"}, {"a": settled})
    assert files(told) == ["a.told-0"]


@pytest.mark.parametrize("text", ["", "\n\n", "told\nx", "ä€", "\udcff", "x" * 3_000_000])
def test_an_answer_is_kept_byte_for_byte(told: Told, text: str) -> None:
    told.tell("a", text)
    assert told.tell("a", OTHER) == text


def test_what_was_told_cannot_be_claimed_otherwise(told: Told) -> None:
    told.tell("a", ONE)
    assert told.claim("a", OTHER) is False
    assert told.claim("a", ONE) is False
    assert told.tell("a", OTHER) == ONE


def test_what_the_loop_claimed_is_what_a_script_tells(told: Told) -> None:
    assert told.claim("a", OTHER) is True
    assert told.ids() == frozenset(), "HF has heard nothing yet"
    assert told.tell("a", ONE) == OTHER
    assert told.ids() == {"a"}
    assert told.claim("a", ONE) is False


def test_a_claim_may_be_superseded_until_it_is_told(told: Told) -> None:
    assert told.claim("a", ONE)
    assert told.claim("a", ONE)
    assert files(told) == ["a.told-0"], "the same claim again is no other"
    assert told.claim("a", OTHER)
    settled = told.settled("a")
    assert settled is not None
    assert settled.text == OTHER
    assert told.tell("a", ONE) == OTHER


def test_who_counts_as_told_is_told_what_is_published_then(told: Told) -> None:
    told.presume("a")
    told.presume("a")
    assert (told.ids(), told.settled("a"), told.answers()) == ({"a"}, None, {})
    assert told.claim("a", OTHER) is False
    assert told.tell("a", ONE) == ONE
    assert told.tell("a", OTHER) == ONE


def test_ids_follow_what_comes_and_goes(told: Told) -> None:
    told.claim("a", ONE)
    told.tell("b", ONE)
    assert told.ids() == {"b"}
    told.tell("a", ONE)
    assert told.ids() == {"a", "b"}
    told.forget(["b"])
    assert told.ids() == {"a"}


def test_forgetting_removes_all_of_an_id_and_leaves_the_marks_of_polls(told: Told) -> None:
    told.claim("a", ONE)
    told.tell("a", ONE)
    told.tell("ab", ONE)
    leftover = Path(told.path, "a.told-2.17-abcd.new")
    leftover.touch()
    Path(told.path, "a").touch()
    told.forget(["a", "never", "../seen"])
    assert files(told) == ["a", "ab.told-0"]


def test_an_interrupted_forgetting_leaves_what_once_stood_there(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    told.claim("a", ONE)
    told.claim("a", OTHER)
    unlink = os.unlink
    doomed: list[str] = []

    def once(path: str) -> None:
        doomed.append(path)
        if len(doomed) > 1:
            raise OSError(5, "Input/output error")
        unlink(path)

    monkeypatch.setattr(os, "unlink", once)
    with pytest.raises(StateUnwritable):
        told.forget(["a"])
    settled = told.settled("a")
    assert settled is not None
    assert settled.text == ONE


def interrupted(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]) -> None:
    """End the process at this step."""

    def ends(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(name, ends)
        patched.setattr(atomic, "discard", lambda path: True)
        with pytest.raises(KeyboardInterrupt):
            act()


@pytest.mark.parametrize("step", ["os.fsync", "os.link", "os.fchmod"])
def test_a_writer_that_dies_has_settled_nothing(told: Told, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    interrupted(monkeypatch, step, lambda: told.tell("a", ONE))
    assert (told.settled("a"), told.ids()) == (None, frozenset())
    assert told.tell("a", OTHER) == OTHER


def test_a_full_disk_settles_nothing_and_leaves_nothing(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "write_all", full)
        with pytest.raises(StateUnwritable, match="No space left"):
            told.tell("a", ONE)
    assert files(told) == []


@pytest.mark.parametrize("content", [b"", b"tol", b"{}\n"])
def test_an_entry_that_is_none_is_named_and_nothing_is_said(told: Told, content: bytes) -> None:
    told.tell("a", ONE)
    Path(told.path, "a.told-0").write_bytes(content)
    for ask in (lambda: told.settled("a"), lambda: told.tell("a", OTHER), lambda: told.claim("a", OTHER)):
        with pytest.raises(StateUnreadable, match=r"a\.told-0: begins with"):
            ask()


def test_of_many_at_once_one_decides_for_all(told: Told) -> None:
    """Scripts that tell one thing and a loop that claims another, time and again."""
    for turn in range(50):
        id_, said, claimed = f"r{turn}", [], []
        start = threading.Barrier(5)

        def tell(id_: str = id_, said: list[str] = said, start: threading.Barrier = start) -> None:
            start.wait()
            said.append(told.tell(id_, ONE))

        def claim(id_: str = id_, claimed: list[bool] = claimed, start: threading.Barrier = start) -> None:
            start.wait()
            claimed.append(told.claim(id_, OTHER))

        threads = [threading.Thread(target=act) for act in (tell, tell, tell, tell, claim)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(said) == {OTHER if claimed == [True] else ONE}
        assert all(".new" not in name for name in files(told))
