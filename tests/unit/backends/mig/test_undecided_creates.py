"""Creates whose result is not known yet, and the fate of their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from provisioner.backends.mig import undecided_creates
from provisioner.backends.mig.undecided_creates import UndecidedCreates
from provisioner.model import ErrorClass, Failure, Machine, Phase
from tests.support.waiting import until

RUNNING = {"name": "op", "status": "RUNNING"}
DONE = {"name": "op", "status": "DONE"}


def failed(code: str, status: int) -> dict[str, Any]:
    return {**DONE, "error": {"errors": [{"code": code, "message": "No."}]}, "httpErrorStatusCode": status}


def asked(waiting: UndecidedCreates, response: Mapping[str, Any] | None, members: Collection[str] = ()) -> list[str]:
    """Return the names of the operations that are read. Each read gets the given response."""
    names: list[str] = []

    def read(name: str) -> Mapping[str, Any] | None:
        names.append(name)
        return response

    waiting.read_operations(read, members)
    return names


@pytest.fixture
def waiting() -> UndecidedCreates:
    made = UndecidedCreates(lag=0.3)
    made.expect("op", ["a", "b"])
    return made


@pytest.mark.parametrize("response", [None, RUNNING], ids=["it cannot be read", "it is not decided"])
def test_it_is_asked_for_until_it_is_decided(waiting: UndecidedCreates, response: Mapping[str, Any] | None) -> None:
    assert asked(waiting, response) == ["op"]
    assert asked(waiting, DONE) == ["op"]
    assert asked(waiting, DONE) == []
    assert waiting.refused_machines(()) == {}


def test_it_is_not_asked_for_once_all_its_names_are_members(waiting: UndecidedCreates) -> None:
    assert asked(waiting, None, ["a"]) == ["op"]
    assert asked(waiting, None, ["a", "b"]) == []
    assert asked(waiting, None) == []


def test_of_many_some_are_asked_for_at_a_time_and_all_in_turn() -> None:
    waiting = UndecidedCreates(lag=0.0)
    for number in range(undecided_creates.MOST + 1):
        waiting.expect(f"op-{number}", ["a"])
    first, second = asked(waiting, None), asked(waiting, None)
    assert len(first) == len(second) == undecided_creates.MOST
    assert {*first, *second} == {f"op-{number}" for number in range(undecided_creates.MOST + 1)}


def test_names_that_were_refused_are_gone_until_they_are_deleted(waiting: UndecidedCreates) -> None:
    asked(waiting, failed("QUOTA_EXCEEDED", 403))
    gone = Machine("a", Phase.GONE, failure=Failure(ErrorClass.QUOTA, "QUOTA_EXCEEDED: No."))
    assert waiting.refused_machines(()) == {"a": gone, "b": Machine("b", Phase.GONE, failure=gone.failure)}
    assert waiting.refused_machines(["b"]) == {"a": gone}, "a member was asked for twice"
    waiting.forget(["a"])
    assert list(waiting.refused_machines(())) == ["b"]


def test_names_that_may_exist_are_listed_first(waiting: UndecidedCreates) -> None:
    asked(waiting, failed("RESOURCE_ALREADY_EXISTS", 409))
    assert waiting.refused_machines(()) == {}
    until(lambda: list(waiting.refused_machines(["a"])) == ["b"], 30, what="the name that no list shows")


def test_one_that_is_never_decided_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecided_creates, "GIVE_UP_SECONDS", -1.0)
    waiting = UndecidedCreates(lag=0.0)
    waiting.expect("op", ["a"])
    assert asked(waiting, RUNNING) == ["op"]
    assert asked(waiting, RUNNING) == []
    assert waiting.refused_machines(()) == {}


def test_a_response_that_is_not_understood_is_not_asked_for_again(waiting: UndecidedCreates) -> None:
    """If the response about an operation is not understood, the operation must be forgotten, because its response would
    fail each later observation too. The lists of machines still show which of its names exist."""
    with pytest.raises(AttributeError):
        asked(waiting, {**DONE, "error": "No."})
    assert asked(waiting, DONE) == []
