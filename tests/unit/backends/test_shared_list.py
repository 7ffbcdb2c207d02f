"""Shared lists, which are read once for all pools that ask at about the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from provisioner.backends import BackendError, shared_list
from provisioner.backends.shared_list import SharedList
from provisioner.model import ErrorClass
from tests.support.waiting import PATIENCE, until

Items = dict[str, dict[str, int]]
SLOW, DEADLINE = 1000.0, 0.0


class Server:
    """A server that counts the lists. A list may fail, or wait until the test releases it."""

    def __init__(self) -> None:
        self.readings = 0
        self.error: ErrorClass | None = None
        self.retry_after: float | None = None
        self.odd = False
        """True if the response does not have the documented structure."""
        self.free = threading.Event()
        self.free.set()

    def read(self, _deadline: float) -> Items:
        self.readings += 1
        self.free.wait(10 * PATIENCE)
        if self.error:
            raise BackendError(self.error, "no", self.retry_after)
        if self.odd:
            raise KeyError("name")
        return {"a": {"reading": self.readings}}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def shared(server: Server) -> SharedList[Items]:
    return SharedList(server.read)


def began(shared: SharedList[Items], pool: str, now: float, pace: float = SLOW) -> float:
    return shared.newer(pool, now, pace=pace, deadline=DEADLINE).began


def test_pools_that_observe_in_step_share_a_list(server: Server, shared: SharedList[Items]) -> None:
    assert [began(shared, pool, 1.0 + n) for n, pool in enumerate("abc")] == [1.0, 1.0, 1.0]
    assert [began(shared, pool, 11.0 + n) for n, pool in enumerate("cba")] == [11.0, 11.0, 11.0]
    assert server.readings == 2


def test_a_response_that_is_not_understood_is_a_failure_for_all_who_share_it(
    server: Server, shared: SharedList[Items]
) -> None:
    """If a list is not understood, the observations of all pools that share the list must fail. No pool may get an
    older list instead, even if the pool has not had that list."""
    assert began(shared, "a", 1.0) == 1.0
    server.odd = True
    for pool in ("a", "b"):
        with pytest.raises(BackendError, match="not understood: KeyError"):
            began(shared, pool, 11.0)
    assert server.readings == 2


def test_no_pool_gets_a_reading_twice(server: Server, shared: SharedList[Items]) -> None:
    assert [began(shared, "a", now) for now in (1.0, 2.0, 3.0)] == [1.0, 2.0, 3.0]
    assert server.readings == 3


def test_an_old_list_is_not_used(server: Server, shared: SharedList[Items]) -> None:
    assert [began(shared, pool, now, pace=0.0) for now, pool in ((1.0, "a"), (2.0, "b"))] == [1.0, 2.0]
    assert server.readings == 2


def test_who_asks_during_a_reading_waits_for_it(server: Server, shared: SharedList[Items]) -> None:
    server.free.clear()
    results: list[float] = []

    def ask(pool: str) -> None:
        results.append(began(shared, pool, 1.0))

    threads = [threading.Thread(target=ask, args=(pool,)) for pool in ("a", "b")]
    for thread in threads:
        thread.start()
    until(lambda: server.readings == 1, 30)
    server.free.set()
    for thread in threads:
        thread.join(5)
    assert (results, server.readings) == ([1.0, 1.0], 1)


def test_a_failure_is_shared_and_not_repeated_to_the_same_pool(server: Server, shared: SharedList[Items]) -> None:
    server.error = ErrorClass.UNAVAILABLE
    for pool in ("a", "b"):
        with pytest.raises(BackendError, match="no"):
            began(shared, pool, 1.0)
    assert server.readings == 1
    server.error = None
    assert began(shared, "a", 2.0) == 2.0


def test_a_shared_failure_does_not_keep_each_pool_from_its_next_observation(
    server: Server, shared: SharedList[Items]
) -> None:
    """If a list fails, each pool must get an error without Retry-After, so that it can observe again. The project's
    call budget already applies Retry-After to all pools."""
    server.error, server.retry_after = ErrorClass.THROTTLED, 300.0
    for pool in ("a", "b"):
        with pytest.raises(BackendError, match="no") as caught:
            began(shared, pool, 1.0)
        assert (caught.value.failure.error, caught.value.retry_after) == (ErrorClass.THROTTLED, None)


def test_a_reading_that_takes_longer_than_the_pace_serves_all_who_waited_for_it(
    server: Server, shared: SharedList[Items], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list must serve all pools that waited for it, even if it took longer than their pace. Otherwise each pool would
    read a list of its own, one after the other."""
    times = [0.0]

    def clock() -> float:
        times.append(times[0])
        return times[0]

    monkeypatch.setattr(shared_list, "time", SimpleNamespace(monotonic=clock))
    server.free.clear()
    with ThreadPoolExecutor(4) as pools:
        waiting = [pools.submit(began, shared, "a", 1.0, 10.0)]
        until(lambda: server.readings == 1, 30)
        before = len(times)
        waiting += [pools.submit(began, shared, pool, 2.0, 10.0) for pool in "bcd"]
        try:
            until(lambda: len(times) == before + 3, 30, what="three pools that ask")
            times[0] = 20.0
        finally:
            server.free.set()
        assert [one.result() for one in waiting] == [1.0] * 4
    assert server.readings == 1
