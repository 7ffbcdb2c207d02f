"""The API server in memory that the tests of the state use. tests/kube compares it with a real server."""

from __future__ import annotations

import threading

import pytest

from provisioner.state.errors import StateUnreachable
from provisioner.state.kube.connection import MERGE
from provisioner.state.kube.objects import REQUESTS, body, collection, item
from tests.support.kube_schema import Schema
from tests.support.kube_state_cases import SPEC, STEPS, pages, path_of, play, post, random_steps, watched
from tests.support.kube_state_server import MemoryApiServer, ObjectServer
from tests.support.waiting import until

ALL, ONE = collection("hf", REQUESTS), item("hf", REQUESTS, "r000000001")
WATCH = collection("hf", REQUESTS, watch="true", allowWatchBookmarks="true", resourceVersion="1")


@pytest.fixture
def api() -> MemoryApiServer:
    return MemoryApiServer()


def make(api: MemoryApiServer, *names: str) -> None:
    for name in names:
        assert api.call("POST", ALL, body(REQUESTS, name, SPEC)).status == 201


def test_each_call_gets_the_answer_of_a_real_server(api: MemoryApiServer) -> None:
    answers = [(step, play(api, step).summary) for step in STEPS]
    assert [(step, got) for step, got in answers if got != step.expected] == []


def test_calls_by_chance_get_the_same_answers_each_time() -> None:
    first, second = MemoryApiServer(), MemoryApiServer()
    answers = [(play(first, step), play(second, step)) for step in random_steps(7, 300)]
    assert [one for one, _ in answers] == [other for _, other in answers]
    assert {one.summary[:3] for one, _ in answers} >= {"200", "201", "404", "409", "422"}


def test_a_list_comes_in_pages(api: MemoryApiServer) -> None:
    a, b, c, d, e = names = [10 * letter for letter in "abcde"]
    make(api, *names)
    assert list(pages(api, REQUESTS)) == [[a, b, "3"], [c, d, "1"], [e, ""]]


def test_a_watch_gets_what_changes_after_its_version(api: MemoryApiServer) -> None:
    make(api, "r000000001")
    api.call("PATCH", ONE, {"metadata": {"annotations": {"a": "b"}}}, content=MERGE)
    api.call("DELETE", ONE)
    path = f"{REQUESTS}?watch=true&resourceVersion="
    assert [kind for kind, _ in watched(api, f"{path}1", 3)] == ["ADDED", "MODIFIED", "DELETED"]
    api.server.forget_events()
    assert [(kind, found["code"]) for kind, found in watched(api, f"{path}1", 1)] == [("ERROR", 410)]


@pytest.mark.parametrize("end", ["close", "cut", "events", "unreachable", "silence", "timeout"])
def test_a_watch_ends(api: MemoryApiServer, end: str) -> None:
    make(api, "r000000001", "r000000002")
    api.events_a_watch = 2 if end == "events" else None
    watch = api.watch(WATCH + ("&timeoutSeconds=0" if end == "timeout" else ""), 0.05 if end == "silence" else 60)
    found: list[object] = []

    def read() -> None:
        try:
            for event in watch:
                found.append(event["type"])
        except StateUnreachable as error:
            found.append(type(error))

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: len(found) >= 2, 10, what="both events came")
    ways = {"close": watch.close, "cut": api.server.cut_watches, "unreachable": api.set_unreachable}
    ways.get(end, lambda: None)()
    reader.join(10)
    last = {"unreachable": [StateUnreachable], "silence": [StateUnreachable], "timeout": ["BOOKMARK"]}.get(end, [])
    assert found == ["ADDED", "ADDED", *last]


def test_a_watch_from_a_later_version_gets_neither_events_nor_bookmarks(api: MemoryApiServer) -> None:
    old = api.server.snapshot()
    make(api, "r000000001", "r000000002", "r000000003")
    ahead = WATCH.replace("resourceVersion=1", f"resourceVersion={api.server.version}&timeoutSeconds=0")
    api.server.restore(old)
    make(api, "r000000004")
    assert list(api.watch(ahead, 60)) == []
    assert [event["type"] for event in api.watch(ahead.replace("&resourceVersion", "&old"), 60)] == [
        *["ADDED", "BOOKMARK", "BOOKMARK"]
    ]


def test_the_way_of_one_client_fails_and_that_of_another_does_not() -> None:
    server = ObjectServer()
    api, other = MemoryApiServer(server), MemoryApiServer(server)
    api.after = lambda call: 0 if call.number == 1 else None
    assert api.call("POST", ALL, body(REQUESTS, "r000000001", SPEC)).status == 409, "an unanswered call is repeated"
    api.before = lambda call: 503
    with pytest.raises(StateUnreachable):
        api.call("GET", ONE)
    api.before = lambda call: 409
    assert api.call("DELETE", ONE).status == 409
    api.set_unreachable()
    with pytest.raises(StateUnreachable):
        api.call("GET", ONE)
    with pytest.raises(StateUnreachable):
        api.watch(WATCH, 60)
    assert other.call("GET", ONE).status == 200


def test_a_server_without_our_kinds_says_so(api: MemoryApiServer) -> None:
    api.server.remove_kinds()
    assert play(api, post(f"{REQUESTS}/r000000001", SPEC, "")).summary == "StateMissing"
    assert api.call("GET", path_of("hf", "leases")).status == 200


def test_the_date_is_that_of_the_clock() -> None:
    api = MemoryApiServer(clock=lambda: 1_790_000_000.75)
    assert api.call("GET", ALL).at == 1_790_000_000.0


def test_an_unknown_limit_or_rule_is_an_error() -> None:
    with pytest.raises(ValueError):
        Schema({"type": "object", "not": {}})
    with pytest.raises(ValueError):
        Schema({"type": "object", "x-kubernetes-validations": [{"rule": "self.a == 1", "message": ""}]})
