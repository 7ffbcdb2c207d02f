"""A watch on a server that answers as no API server should: the snapshot is complete, or the observation fails."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from provisioner.backends import BackendError
from provisioner.backends.gke import pod_cache
from provisioner.backends.gke.api import KubeApi, KubeError, KubeTimes
from provisioner.backends.gke.own_pods import ID_LABEL, POOL_LABEL, Identity
from provisioner.backends.gke.pod_cache import PodCache
from provisioner.backends.gke.pod_watch import PodWatch
from provisioner.backends.gke.shared_connections import Namespace
from provisioner.backends.gke.shared_pod_caches import PodCaches
from provisioner.model import Create, ErrorClass, Failure
from tests.support.clients.kube_access import Plain
from tests.support.waiting import until

IDENTITY = Identity("demo", "gke-main")
SELECTOR = f"{ID_LABEL}=demo"
NAME = "hf-abcdefghij-000001"
OTHER = "hf-abcdefghij-000002"
THIRD = "hf-abcdefghij-000003"
FOURTH = "hf-abcdefghij-000004"
TIMES = KubeTimes(
    call=1.0, silence=1.0, blind=0.3, first_observation=5.0, stream=30.0, first_retry=0.02, last_retry=0.05
)


def pod(version: int, name: str = NAME, identity: Identity = IDENTITY) -> dict[str, Any]:
    labels = identity.labels(Create(name, identity.pool, "small", "abcdefghij"))
    return {"metadata": {"name": name, "uid": "u", "resourceVersion": str(version), "labels": labels}}


def page(*pods: Any, version: str = "10", **metadata: Any) -> bytes:
    return json.dumps({"kind": "PodList", "metadata": {"resourceVersion": version} | metadata, "items": pods}).encode()


def event(kind: str, item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def bookmark(version: int, *, ends_list: bool = False) -> bytes:
    annotations = {"annotations": {"k8s.io/initial-events-end": "true"}} if ends_list else {}
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version), **annotations}})


def kind_of(query: dict[str, list[str]]) -> str:
    """Return the name of a query's sort: a list, a watch, or a streamed list, which is a watch that begins with a
    list."""
    return "streamed list" if "sendInitialEvents" in query else "watch" if "watch" in query else "list"


SILENCE = b"(nothing more, and no end)"


class Scripted:
    """A server with a script of responses for each sort of query. After the last response of a script, the server
    repeats it."""

    def __init__(self) -> None:
        self.lists: list[bytes] = [page()]
        self.watches: list[list[bytes]] = [[]]
        self.streamed: list[int | list[bytes]] = [422]
        """Streamed lists: their lines, or the status by which they are refused."""
        self.seen: list[dict[str, list[str]]] = []
        """Queries in order."""
        self.closing = threading.Event()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                script.seen.append(query)
                kind = kind_of(query)
                response = script.next(
                    {"list": script.lists, "watch": script.watches, "streamed list": script.streamed}[kind]
                )
                self.send_response(response if isinstance(response, int) else 200)
                if isinstance(response, list):
                    self._stream(response)
                else:
                    self._whole(response if isinstance(response, bytes) else b"{}")

            def _whole(self, body: bytes) -> None:
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _stream(self, lines: list[bytes]) -> None:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in lines:
                    if line is SILENCE:
                        script.closing.wait(20)
                        return
                    self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: object) -> None:
                """Log nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.api = KubeApi(Plain(f"http://127.0.0.1:{self._server.server_address[1]}"), TIMES)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def next(self, script: list[Any]) -> Any:
        return script.pop(0) if len(script) > 1 else script[0]

    def queries(self, kind: str) -> list[dict[str, list[str]]]:
        return [query for query in self.seen if kind_of(query) == kind]

    def count(self, kind: str) -> int:
        return len(self.queries(kind))

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def cache() -> PodCache:
    return PodCache(IDENTITY)


@pytest.fixture
def caches(cache: PodCache) -> PodCaches:
    caches = PodCaches()
    caches.add(cache)
    return caches


@pytest.fixture
def watch(server: Scripted, caches: PodCaches) -> Iterator[Callable[[], PodWatch]]:
    """Start a watch, and end it after the test."""
    watches: list[PodWatch] = []

    def begin() -> PodWatch:
        watches.append(PodWatch(server.api, "symphony", SELECTOR, caches))
        watches[0].start()
        return watches[0]

    yield begin
    for one in watches:
        one.close()


def is_live(watch: PodWatch) -> bool:
    try:
        watch.check()
    except BackendError:
        return False
    return True


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(page(pod(5))[:-20], id="half a list"),
        pytest.param(b'{"kind": "PodList", "metadata": {"resourceVersion": "1"}}', id="no items"),
        pytest.param(b'{"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": null}', id="null items"),
        pytest.param(b'{"kind": "PodList", "metadata": {}, "items": []}', id="no version"),
        pytest.param(b"<html>Sign in</html>", id="a proxy's page"),
        pytest.param(page(pod(5) | {"status": {"conditions": [None]}}), id="a pod that cannot be read"),
        pytest.param(page(None), id="an item that is no pod"),
    ],
)
def test_an_incomplete_list_is_a_failed_look(server: Scripted, caches: PodCaches, body: bytes) -> None:
    server.lists = [body]
    with pytest.raises(BackendError) as caught:
        PodWatch(server.api, "symphony", SELECTOR, caches).list_pods()
    assert caught.value.failure.error is ErrorClass.UNAVAILABLE


def test_every_page_is_read_with_the_token_of_the_page_before(server: Scripted, caches: PodCaches) -> None:
    server.lists = [page(pod(5), **{"continue": "next"}), page(pod(6, OTHER), version="10")]
    pods, version = PodWatch(server.api, "symphony", SELECTOR, caches).list_pods()
    assert version == "10"
    assert [machine.name for machine, _ in pods.readings(IDENTITY)] == [NAME, OTHER]
    assert [query.get("continue") for query in server.seen] == [None, ["next"]]
    assert all(query["labelSelector"] == [SELECTOR] for query in server.seen)


def test_a_watch_resumes_from_the_last_version_it_heard(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    server.watches = [[event("ADDED", pod(11))], [event("BOOKMARK", {"metadata": {"resourceVersion": "20"}})], []]
    watch()
    until(lambda: server.count("watch") > 3, 30)
    versions = [query["resourceVersion"][0] for query in server.queries("watch")]
    assert versions[:4] == ["10", "11", "20", "20"]
    assert server.count("list") == 1
    assert list(cache.machines(0.0)) == [NAME]


def test_an_event_that_is_cut_in_two_is_put_together(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    whole = event("ADDED", pod(11))
    server.watches = [[whole[:30], whole[30:] + b"\n"], []]
    watch()
    until(lambda: list(cache.machines(0.0)) == [NAME], 30)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"garbage\n", id="no JSON"),
        pytest.param(event("ADDED", None), id="no pod"),
        pytest.param(event("ADDED", {"metadata": {}}), id="no version"),
        pytest.param(event("ADDED", {"metadata": {"resourceVersion": "11"}}), id="no name"),
        pytest.param(event("ERROR", {"code": 410, "reason": "Expired", "message": "too old"}), id="410"),
        pytest.param(event("ERROR", {"code": 500, "message": "RequestWatchProgress is disabled"}), id="500"),
    ],
)
def test_a_stream_that_cannot_be_followed_leads_to_a_new_list(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch], line: bytes
) -> None:
    server.lists = [page(), page(pod(12), version="15")]
    server.watches = [[line], []]
    live = watch()
    until(lambda: list(cache.machines(0.0)) == [NAME], 30)
    until(lambda: is_live(live), 30)
    assert server.count("list") == 2
    assert [kind_of(query) for query in server.seen][:4] == ["streamed list", "list", "watch", "list"]


def test_where_watches_only_err_the_pods_are_listed_again_and_again(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    server.watches = [[event("ERROR", {"message": "no watch today"})]]
    live = watch()
    until(lambda: is_live(live), 30)
    server.lists = [page(pod(12), version="15")]
    until(lambda: list(cache.machines(0.0)) == [NAME], 30)
    assert is_live(live)
    server.lists = [b"{}"]
    until(lambda: not is_live(live), 30)


def test_where_streams_bring_nothing_the_pods_are_listed_once_they_were_silent_for_too_long(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    server.lists = [page(), page(pod(12), version="15")]
    live = watch()
    until(lambda: list(cache.machines(0.0)) == [NAME], 30)
    assert is_live(live)
    assert server.count("list") <= 3 < server.count("watch")


# --- streamed lists ---------------------------------------------------------------------------------------------------


def test_a_streamed_list_counts_from_its_end_and_the_same_stream_is_followed(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    cache.add_created(pod(3, THIRD))
    server.streamed = [[event("ADDED", pod(5)), bookmark(10, ends_list=True), event("ADDED", pod(11, OTHER)), SILENCE]]
    live = watch()
    until(lambda: sorted(cache.machines(0.0)) == [NAME, OTHER], 30)
    assert is_live(live)
    (query,) = server.seen
    assert "resourceVersion" not in query, "a list of version 0 may be older than what was seen before"
    assert query["resourceVersionMatch"] == ["NotOlderThan"]
    assert query["allowWatchBookmarks"] == ["true"]
    assert query["labelSelector"] == [SELECTOR]


def test_a_broken_stream_is_resumed_after_its_list_and_not_listed_again(
    server: Scripted, watch: Callable[[], PodWatch]
) -> None:
    server.streamed = [[event("ADDED", pod(5)), bookmark(10, ends_list=True)]]
    watch()
    until(lambda: server.count("watch") > 1, 30)
    assert server.queries("watch")[0]["resourceVersion"] == ["10"]
    assert (server.count("streamed list"), server.count("list")) == (1, 0)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([], id="nothing"),
        pytest.param([event("ADDED", pod(6, OTHER))], id="some of the pods"),
        pytest.param([event("ADDED", pod(6)), event("ERROR", {"code": 410, "message": "too old"})], id="410 in it"),
        pytest.param([event("ADDED", pod(6)), b'{"type": "BOOK'], id="half a bookmark"),
        pytest.param([event("ADDED", pod(6) | {"status": {"conditions": [None]}})], id="a pod that cannot be read"),
    ],
)
def test_a_streamed_list_without_its_end_is_no_list(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch], lines: list[bytes]
) -> None:
    reading = IDENTITY.read(pod(5))
    assert reading is not None
    cache.replace([reading], "5")
    before = cache.machines(0.0)
    server.streamed = [lines]
    live = watch()
    until(lambda: server.count("streamed list") > 2, 30)
    assert not is_live(live)
    assert cache.machines(0.0) is before
    assert (server.count("watch"), server.count("list")) == (0, 0)
    server.streamed = [[bookmark(20, ends_list=True), SILENCE]]
    until(lambda: cache.machines(0.0) == {}, 30)
    until(lambda: is_live(live), 30)


def test_a_streamed_list_that_falls_silent_is_a_failed_look_and_begun_anew(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    server.streamed = [
        [event("ADDED", pod(5)), SILENCE],
        [event("ADDED", pod(5)), bookmark(10, ends_list=True), SILENCE],
    ]
    with pytest.raises(BackendError) as caught:
        watch().check()
    assert caught.value.failure.error is ErrorClass.TIMEOUT
    until(lambda: list(cache.machines(0.0)) == [NAME], 30)


def test_changes_of_a_pod_before_the_list_ends_are_in_the_list(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    moved = pod(8) | {"status": {"podIP": "10.0.0.9"}}
    server.streamed = [
        [
            event("ADDED", pod(5)),
            event("ADDED", pod(6, OTHER)),
            event("MODIFIED", moved),
            event("DELETED", pod(9, OTHER)),
            event("ADDED", pod(10, THIRD)),
            bookmark(10, ends_list=True),
            SILENCE,
        ]
    ]
    watch()
    until(lambda: cache.machines(0.0), 30)
    assert sorted(cache.machines(0.0)) == [NAME, THIRD]
    assert cache.machines(0.0)[NAME].ip == "10.0.0.9"


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(422, id="422"),
        pytest.param([event("ERROR", {"code": 500, "message": "RequestWatchProgress is disabled"})], id="500 in it"),
        pytest.param([event("ADDED", pod(5)), event("ERROR", {"message": "no lists"})], id="an error without a code"),
        pytest.param([event("ADDED", pod(5)), bookmark(6)], id="a watch that begins without a list"),
    ],
)
def test_a_server_that_streams_no_lists_is_asked_for_pages_from_then_on(
    server: Scripted,
    cache: PodCache,
    watch: Callable[[], PodWatch],
    caplog: pytest.LogCaptureFixture,
    refusal: int | list[bytes],
) -> None:
    server.streamed, server.lists = [refusal], [page(pod(7, OTHER))]
    server.watches = [[event("ERROR", {"code": 410, "message": "too old"})]]
    with caplog.at_level("INFO"):
        live = watch()
        until(lambda: server.count("list") > 2, 30)
        assert is_live(live)
    assert list(cache.machines(0.0)) == [OTHER]
    assert server.count("streamed list") == 1
    assert [record.message for record in caplog.records].count("Server does not stream lists, asking for pages") == 1


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(403, id="403"),
        pytest.param(429, id="429"),
        pytest.param([event("ERROR", {"code": 429, "message": "storage is (re)initializing"})], id="429 in it"),
    ],
)
def test_a_streamed_list_that_only_fails_is_asked_for_again(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch], failure: int | list[bytes]
) -> None:
    server.streamed = [failure, failure, [event("ADDED", pod(5)), bookmark(10, ends_list=True), SILENCE]]
    watch()
    until(lambda: list(cache.machines(0.0)) == [NAME], 30)
    assert (server.count("streamed list"), server.count("list")) == (3, 0)


@pytest.mark.parametrize(
    ("failure", "message", "text"),
    [
        pytest.param(410, "Watch failed", "HTTP 410", id="a watch that is refused"),
        pytest.param(503, "Watch failed", "HTTP 503", id="a server that is away"),
        pytest.param([event("ADDED", pod(5))], "Watch failed", "ended before it was complete", id="half a list"),
        pytest.param(
            [event("ERROR", {"code": 410, "message": "too old"})], "Pods are listed again", "too old", id="410 in it"
        ),
        pytest.param(
            [event("ADDED", pod(5) | {"metadata": {"resourceVersion": ""}})],
            "Pods are listed again",
            "a ADDED event without a version",
            id="no version",
        ),
        pytest.param([b"no JSON\n"], "Pods are listed again", "an event is not understood", id="no JSON"),
        pytest.param(
            [event("ADDED", {"metadata": {}})], "Pods are listed again", "an event is not understood", id="no pod"
        ),
    ],
)
def test_why_a_watch_is_begun_again_is_in_the_log(
    server: Scripted,
    watch: Callable[[], PodWatch],
    caplog: pytest.LogCaptureFixture,
    failure: int | list[bytes],
    message: str,
    text: str,
) -> None:
    server.streamed = [failure]
    watch()
    until(lambda: caplog.records, 30, what="the failure is logged")
    assert caplog.records[0].message == message
    assert text in vars(caplog.records[0])["text"]


def test_a_list_of_too_many_pods_is_logged_as_a_failed_watch(
    server: Scripted,
    watch: Callable[[], PodWatch],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_cache, "MOST_PODS", 0)
    server.streamed = [[event("ADDED", pod(5)), bookmark(10, ends_list=True)]]
    watch()
    until(lambda: caplog.records, 30, what="the failure is logged")
    assert caplog.records[0].message == "Watch failed"


# --- several pools without a watch ------------------------------------------------------------------------------------


def test_a_look_without_a_watch_asks_for_the_pods_of_its_own_pool_alone(server: Scripted, cache: PodCache) -> None:
    spot = Identity("demo", "gke-spot")
    namespace = Namespace(server.api, "symphony", "demo")
    for one in (cache, PodCache(spot)):
        namespace.join(one)
    server.lists = [page(pod(5), pod(6, OTHER, spot) | {"status": {"conditions": [None]}})]
    namespace.refresh(cache)
    assert set(cache.machines(0.0)) == {NAME}, "another pool's pod that cannot be read does not fail the look"
    assert [query["labelSelector"] for query in server.seen] == [[f"{ID_LABEL}=demo,{POOL_LABEL}=gke-main"]]


# --- several pools behind one watch -----------------------------------------------------------------------------------


def test_each_pod_goes_to_the_pool_that_its_label_names(
    server: Scripted, cache: PodCache, caches: PodCaches, watch: Callable[[], PodWatch]
) -> None:
    spot, gone = Identity("demo", "gke-spot"), Identity("demo", "gke-gone")
    other, woken = PodCache(spot), threading.Event()
    caches.add(other, woken.set)
    server.streamed = [
        [
            event("ADDED", pod(5)),
            event("ADDED", pod(6, OTHER, spot)),
            event("ADDED", pod(7, THIRD, gone)),
            bookmark(10, ends_list=True),
        ]
    ]
    server.watches = [[event("MODIFIED", pod(11, NAME, spot)), event("ADDED", pod(12, FOURTH, gone))], []]
    watch()
    until(lambda: sorted(other.machines(0.0)) == [NAME, OTHER], 30)
    assert woken.is_set()
    until(lambda: cache.machines(0.0) == {}, 30)


def test_only_the_pool_that_has_news_is_woken(
    server: Scripted, cache: PodCache, caches: PodCaches, watch: Callable[[], PodWatch]
) -> None:
    spot = Identity("demo", "gke-spot")
    other, calls = PodCache(spot), Counter[str]()
    caches.add(cache, lambda: calls.update(["main"]))
    caches.add(other, lambda: calls.update(["spot"]))
    server.streamed = [
        [bookmark(10, ends_list=True), *(event("ADDED", pod(n, OTHER, spot)) for n in (11, 12)), SILENCE]
    ]
    watch()
    until(lambda: calls["spot"] == 3, 30)
    assert calls["main"] == 1, "by the list alone"


class Refusing:
    """A server that refuses every watch, and may ask the caller to wait some seconds before the next one."""

    times, streams_lists, access = TIMES, True, Plain("http://127.0.0.1:1")

    def __init__(self, seconds: float | None) -> None:
        self._error = KubeError(429, "", Failure(ErrorClass.THROTTLED, "too many requests"), seconds)

    def stream(self, *_: object) -> Any:
        raise self._error


@pytest.mark.parametrize(("asked", "least"), [(None, 0.0), (1.0, 1.0), (120.0, 120.0)])
def test_a_server_that_asks_for_time_is_watched_again_after_it(asked: float | None, least: float) -> None:
    watch, waited = PodWatch(Refusing(asked), "n", "", PodCaches()), []  # type: ignore[arg-type]

    class Closing(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            self.set()
            return True

    watch._closing = Closing()
    watch._run()
    assert len(waited) == 1
    assert max(least, 0.0) <= waited[0] <= max(least, TIMES.last_retry)


class Moving(Plain):
    """An address that is redirected to another server."""

    def turn(self, host: str) -> None:
        self._way = Plain(host)._way


def test_a_server_at_another_address_is_listed_before_anything_is_said_of_its_pods() -> None:
    servers = [Scripted(), Scripted()]
    for server, name in zip(servers, (NAME, OTHER), strict=True):
        server.lists, server.watches = [page(pod(1, name))], [[SILENCE]]
    access = Moving(servers[0].api.access.host())
    cache = PodCache(IDENTITY)
    caches = PodCaches()
    caches.add(cache)
    watch = PodWatch(KubeApi(access, TIMES), "n", "", caches)
    try:
        watch.start()
        watch.check()
        assert set(cache.machines(0.0)) == {NAME}
        access.turn(servers[1].api.access.host())
        with pytest.raises(BackendError, match="another address"):
            watch.check()
        until(lambda: _checked(watch), 30, what="the other server is listed")
        assert set(cache.machines(0.0)) == {OTHER}
        assert servers[1].count("list") == 1
    finally:
        watch.close()
        for server in servers:
            server.close()


def _checked(watch: PodWatch) -> bool:
    try:
        watch.check()
    except BackendError:
        return False
    return True
