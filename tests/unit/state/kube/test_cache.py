"""The copies of objects: what a list, a stream and their ends prove."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from provisioner.state.errors import StateDenied, StateError, StateUnreachable
from provisioner.state.kube import cache as module
from provisioner.state.kube import objects
from provisioner.state.kube.cache import ListedObjects, ObjectCache
from provisioner.state.kube.waits import Waits
from tests.support.kube_state_server import MemoryApiServer, Response
from tests.support.waiting import until

PATH = objects.collection("hf", objects.NOTES, fieldSelector=objects.own("demo"))
Event = dict[str, Any]


def one(name: str, version: int) -> Event:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def listed(version: int, *items: Event, more: str = "") -> Response:
    return Response(200, {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)}, 0.0)


def event(kind: str, name: str, version: int) -> Event:
    return {"type": kind, "object": one(name, version)}


def bookmark(version: int) -> Event:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}


GONE = {"type": "ERROR", "object": {"kind": "Status", "metadata": {}, "code": 410, "message": "too old"}}
BROKEN = StateUnreachable("cut")


class Played:
    """A server that plays a script of responses and streams. Time passes during each stream."""

    namespace, name = "hf", "https://played"

    def __init__(self, *script: Response | StateError | tuple[float, list[Event | StateError]]) -> None:
        self.script, self.paths = list(script), list[str]()
        self.time, self.newest = 0.0, 99
        self.pauses = list[float]()

    @property
    def waits(self) -> Waits:
        return Waits(lambda: self.time, self._wait)

    def _wait(self, end: threading.Event, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds

    def call(self, method: str, path: str, *_: object, **__: object) -> Response:
        if path.endswith("limit=1"):
            return listed(self.newest)
        self.paths.append(path)
        found = self.script.pop(0)
        if isinstance(found, StateError):
            raise found
        assert isinstance(found, Response)
        return found

    def watch(self, path: str, seconds: float) -> PlayedStream:
        self.paths.append(path)
        found = self.script.pop(0)
        if isinstance(found, StateError):
            raise found
        assert isinstance(found, tuple)
        return PlayedStream(self, *found)

    def kinds(self) -> list[str]:
        return ["watch" if "watch=true" in path else "list" for path in self.paths]


class PlayedStream:
    def __init__(self, server: Played, seconds: float, events: list[Event | StateError]) -> None:
        self._server, self._seconds, self._events = server, seconds, events

    def __iter__(self) -> Iterator[Event]:
        self._server.time += self._seconds
        for one in self._events:
            if isinstance(one, StateError):
                raise one
            yield one

    def close(self) -> None: ...


def stepped(server: Played) -> ObjectCache:
    """A cache that has gone through the whole script."""
    cache = ObjectCache(server, PATH, waits=server.waits)
    while server.script:
        cache.step()
    return cache


def test_a_list_is_read_in_pages_and_a_stream_follows_it() -> None:
    server = Played(
        listed(7, one("a", 3), more="next page"),
        listed(7, one("b", 5)),
        (1.0, [event("MODIFIED", "a", 8), event("ADDED", "c", 9), event("DELETED", "b", 10), bookmark(12)]),
        (20.0, []),
    )
    cache = stepped(server)
    assert dict(cache.objects) == {"a": one("a", 8), "c": one("c", 9)}
    assert (cache.version, cache.resource_version) == (4, "12")
    assert server.paths[0] == f"{PATH}&limit=500"
    assert server.paths[1].endswith("&continue=next%20page")
    assert [f"resourceVersion={version}&" in path for version, path in zip((7, 12), server.paths[2:], strict=True)]
    assert all("allowWatchBookmarks=true" in path for path in server.paths[2:])
    cache.check()


@pytest.mark.parametrize(
    ("script", "kinds", "found"),
    [
        ([(5.0, [GONE]), listed(9, one("b", 9))], ["watch", "list"], {"b": 9}),
        ([(5.0, [event("ADDED", "b", 8), BROKEN]), (5.0, [])], ["watch", "watch"], {"a": 3, "b": 8}),
        ([(5.0, [BROKEN]), (5.0, [])], ["watch", "watch"], {"a": 3}),
        ([BROKEN, listed(9)], ["watch", "list"], {}),
        ([StateDenied("no"), listed(9)], ["watch", "list"], {}),
        ([(0.1, []), listed(9)], ["watch", "list"], {}),
        ([(0.1, [bookmark(8)]), (5.0, [])], ["watch", "watch"], {"a": 3}),
        ([(5.0, [bookmark(6)]), listed(6, one("a", 2))], ["watch", "list"], {"a": 2}),
        ([(5.0, [event("STRANGE", "b", 8)]), listed(9)], ["watch", "list"], {}),
        ([(5.0, [{"type": "ADDED", "object": "?"}]), listed(9)], ["watch", "list"], {}),
    ],
    ids=[
        "too old",
        "broken off after an event",
        "broken off",
        "not opened",
        "refused",
        "ended at once",
        "ended after a bookmark",
        "the versions went back",
        "an unknown kind of event",
        "an event without an object",
    ],
)
def test_what_follows_a_stream(script: list[Any], kinds: list[str], found: dict[str, int]) -> None:
    server = Played(listed(7, one("a", 3)), *script)
    cache = stepped(server)
    assert server.kinds() == ["list", *kinds]
    assert {name: int(one["metadata"]["resourceVersion"]) for name, one in cache.objects.items()} == found
    cache.check()


def test_a_server_that_has_not_reached_the_version_yet_is_not_followed() -> None:
    server = Played(listed(7, one("a", 3)), listed(6))
    server.newest = 6
    cache = stepped(server)
    assert (server.kinds(), dict(cache.objects)) == (["list", "list"], {})


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(BROKEN, id="no answer"),
        pytest.param(Response(410, {"message": "the page is too old"}, 0.0), id="too old"),
        pytest.param(Response(200, {"metadata": {"resourceVersion": "9"}}, 0.0), id="no items"),
        pytest.param(Response(200, {"metadata": {"resourceVersion": "?"}, "items": []}, 0.0), id="no version"),
    ],
)
def test_a_list_that_fails_is_not_an_empty_list(refused: Any) -> None:
    server = Played(listed(7, one("a", 3)), (5.0, [GONE]), refused)
    cache = stepped(server)
    assert cache.objects.keys() == {"a"}
    assert cache.version == 1
    server.time += module.BLIND_SECONDS
    with pytest.raises(StateUnreachable, match="no contact for"):
        cache.check()


def test_before_the_first_list_nothing_is_known() -> None:
    server = Played(StateDenied("HTTP 403"))
    cache = ObjectCache(server, PATH, waits=server.waits)
    with pytest.raises(StateError, match="has not ended yet"):
        cache.check()
    cache.step()
    with pytest.raises(StateDenied, match="HTTP 403"):
        cache.wait_synced(0.0)


@pytest.mark.parametrize("refusal", [StateDenied("HTTP 403"), StateDenied("HTTP 401")], ids=str)
def test_a_watch_that_is_denied_is_reported_at_once_and_until_it_is_allowed(refusal: StateDenied) -> None:
    server = Played(listed(7), refusal)
    cache = stepped(server)
    with pytest.raises(StateDenied, match=str(refusal)):
        cache.check()
    server.script += [listed(7), (20.0, [])]
    for _ in range(2):
        cache.step()
    cache.check()
    assert cache.resource_version == "7"


def test_a_silent_server_is_noticed_and_streams_that_end_in_time_prove_contact() -> None:
    server = Played(listed(7), *[(20.0, [])] * 3)
    cache = stepped(server)
    cache.check()
    server.time += module.BLIND_SECONDS + 0.1
    with pytest.raises(StateUnreachable, match="no contact for 3"):
        cache.check()


def test_failures_in_a_row_are_tried_more_and_more_seldom_and_a_success_at_once() -> None:
    server = Played(*[BROKEN] * 12, listed(7), (5.0, []), (5.0, []))
    stepped(server)
    assert server.pauses[:3] == sorted(server.pauses[:3])
    assert max(server.pauses) <= module.LAST_RETRY
    assert server.pauses[11] >= module.LAST_RETRY / 2
    assert server.pauses[12] <= module.FIRST_RETRY, "after a stream"


def test_a_watch_that_is_cut_every_second_goes_on_without_a_list_and_without_haste() -> None:
    server = Played(listed(7), *[(1.0, [BROKEN])] * 20)
    stepped(server)
    assert server.kinds() == ["list", *["watch"] * 20]
    assert min(server.pauses) >= module.FIRST_RETRY / 2


def test_unchanged_objects_stay_the_same_values_and_count_as_no_change() -> None:
    server = Played(listed(7, one("a", 3), one("b", 4)), listed(9, one("a", 3), one("b", 4)), listed(9, one("a", 3)))
    listed_objects = ListedObjects(server, PATH)
    listed_objects.wait_synced(0.0)
    before = listed_objects.objects
    listed_objects.check()
    assert listed_objects.objects is before
    listed_objects.refresh()
    assert listed_objects.objects["a"] is before["a"]
    assert listed_objects.version == 2


def test_an_object_of_the_same_version_from_a_restored_server_is_another_value() -> None:
    other = one("a", 3) | {"spec": {"listed": 2}}
    cache = stepped(Played(listed(7, one("a", 3)), (5.0, [GONE]), listed(4, other)))
    assert cache.objects == {"a": other}
    assert cache.version == 2


# --- with a thread ----------------------------------------------------------------------------------------------------


@pytest.fixture
def api() -> MemoryApiServer:
    return MemoryApiServer()


def add(api: MemoryApiServer, name: str) -> None:
    body = objects.body(objects.NOTES, name, {"provisioner": "demo"})
    assert api.call("POST", objects.collection("hf", objects.NOTES), body).status == 201


def remove(api: MemoryApiServer, name: str) -> None:
    api.call("DELETE", objects.item("hf", objects.NOTES, name))


@pytest.fixture
def cache(api: MemoryApiServer) -> Iterator[ObjectCache]:
    add(api, "a")
    made = ObjectCache(api, PATH)
    made.start_following()
    made.wait_synced(10.0)
    yield made
    made.stop_following()


def until_names(cache: ObjectCache, *names: str) -> None:
    until(lambda: cache.objects.keys() == set(names), 10.0, what=f"the cache has {names}")


DISTURBANCES: dict[str, Callable[[MemoryApiServer], None]] = {
    "nothing": lambda api: None,
    "its streams are cut": lambda api: api.server.cut_watches(),
    "versions are forgotten": lambda api: api.server.forget_events(),
    "it was restored": lambda api: api.server.restore(api.server.snapshot()),
}


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_the_thread_follows_the_server(api: MemoryApiServer, cache: ObjectCache, disturbance: str) -> None:
    add(api, "b")
    until_names(cache, "a", "b")
    DISTURBANCES[disturbance](api)
    remove(api, "a")
    add(api, "c")
    until_names(cache, "b", "c")
    cache.check()


def test_a_deletion_while_the_server_was_out_of_reach_is_seen(api: MemoryApiServer, cache: ObjectCache) -> None:
    api.set_unreachable()
    api.server.answer("DELETE", objects.item("hf", objects.NOTES, "a"))
    assert cache.objects.keys() == {"a"}
    api.set_unreachable(False)
    until_names(cache)


def test_an_older_state_that_was_restored_is_seen(api: MemoryApiServer, cache: ObjectCache) -> None:
    old = api.server.snapshot()
    add(api, "b")
    until_names(cache, "a", "b")
    api.server.restore(old)
    until_names(cache, "a")


def test_the_thread_ends_with_the_cache(api: MemoryApiServer) -> None:
    made = ObjectCache(api, PATH)
    made.start_following()
    made.wait_synced(10.0)
    made.stop_following()
    assert not any(thread.name.startswith("watch /apis") for thread in threading.enumerate())
