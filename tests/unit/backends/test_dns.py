"""Name resolution in the background. A look-up is repeated until the name resolves. After that, no look-up is made
unless the name is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from provisioner.backends.dns import RETRY_SECONDS, Resolver, name_resolves
from tests.support.waiting import PATIENCE, until


class Names:
    """A name server and a clock that the test controls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.resolvable: set[str] = set()
        self.asked: list[str] = []
        self.answering = threading.Event()
        self.answering.set()

    def lookup(self, name: str) -> bool:
        assert self.answering.wait(5 * PATIENCE)
        self.asked.append(name)
        return name in self.resolvable


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
def resolver(names: Names) -> Iterator[Resolver]:
    resolver = Resolver(names.lookup, lambda: names.now)
    yield resolver
    names.answering.set()
    resolver.close()


def test_a_response_is_never_waited_for(names: Names, resolver: Resolver) -> None:
    names.answering.clear()
    assert not resolver.is_resolved("a")
    assert not resolver.is_resolved("a")
    names.resolvable.add("a")
    names.answering.set()
    until(lambda: resolver.is_resolved("a"), 30)
    assert names.asked == ["a"]


def test_a_name_that_does_not_resolve_is_asked_again_only_after_a_while(names: Names, resolver: Resolver) -> None:
    resolver.is_resolved("a")
    until(lambda: names.asked, 30)
    until(lambda: resolver._next_attempt_at["a"] == RETRY_SECONDS, 30)
    resolver.is_resolved("a")
    assert names.asked == ["a"]
    names.now, names.resolvable = RETRY_SECONDS, {"a"}
    assert not resolver.is_resolved("a")
    until(lambda: resolver.is_resolved("a"), 30)
    assert names.asked == ["a", "a"]


def test_a_name_that_resolved_once_is_not_asked_about_again(names: Names, resolver: Resolver) -> None:
    names.resolvable.add("a")
    until(lambda: resolver.is_resolved("a"), 30)
    names.resolvable.clear()
    names.now += 1000.0
    assert resolver.is_resolved("a")
    assert names.asked == ["a"]


def test_a_response_about_a_name_that_was_forgotten_meanwhile_is_not_kept(names: Names, resolver: Resolver) -> None:
    names.resolvable.add("a")
    names.answering.clear()
    resolver.is_resolved("a")
    resolver.forget("a")
    names.answering.set()
    resolver._workers.shutdown()
    assert names.asked == ["a"]
    assert not resolver._resolved


def test_a_forgotten_name_is_asked_about_anew(names: Names, resolver: Resolver) -> None:
    names.resolvable.add("a")
    until(lambda: resolver.is_resolved("a"), 30)
    resolver.forget("a")
    assert not resolver.is_resolved("a")


def test_the_system_knows_localhost_and_no_invalid_name() -> None:
    assert name_resolves("localhost")
    assert not name_resolves("no-such-host.invalid")
