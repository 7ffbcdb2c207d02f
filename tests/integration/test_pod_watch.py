"""A watch on a server that answers as no API server should: whatever comes, the pool is complete or unobserved."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3

from provisioner.backends import BackendError
from provisioner.backends.kube_api import KubeApi, KubeTimes
from provisioner.backends.pod_cache import PodCache
from provisioner.backends.pod_watch import PodWatch, list_pods
from provisioner.backends.pods import Identity
from provisioner.model import Create, ErrorClass
from tests.waiting import until

IDENTITY = Identity("demo", "gke-main")
PATH = "/api/v1/namespaces/symphony/pods"
NAME = "hf-abcdefghij-000001"
TIMES = KubeTimes(call=1.0, silence=1.0, blind=0.3, first_look=5.0, stream=30.0, first_retry=0.02, last_retry=0.05)


def pod(version: int, **metadata: Any) -> dict[str, Any]:
    labels = IDENTITY.labels(Create(NAME, "gke-main", "small", "abcdefghij"))
    return {"metadata": {"name": NAME, "uid": "u", "resourceVersion": str(version), "labels": labels} | metadata}


def page(*pods: Any, version: str = "10", **metadata: Any) -> bytes:
    return json.dumps({"kind": "PodList", "metadata": {"resourceVersion": version} | metadata, "items": pods}).encode()


def event(kind: str, item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


class Scripted:
    """A server that answers lists and watches from two scripts; when one is at its end, its last answer is repeated."""

    def __init__(self) -> None:
        self.lists: list[bytes] = [page()]
        self.watches: list[list[bytes]] = [[]]
        self.seen: list[dict[str, list[str]]] = []
        """Queries in order."""
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                script.seen.append(query)
                self.send_response(200)
                if "watch" in query:
                    self._stream(script.next(script.watches))
                else:
                    self._whole(script.next(script.lists))

            def _whole(self, body: bytes) -> None:
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _stream(self, lines: list[bytes]) -> None:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in lines:
                    self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: object) -> None:
                """Nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.api = KubeApi(
            f"http://127.0.0.1:{self._server.server_address[1]}", urllib3.PoolManager(maxsize=4), dict, TIMES
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def next(self, script: list[Any]) -> Any:
        return script.pop(0) if len(script) > 1 else script[0]

    def count(self, *, watches: bool) -> int:
        return sum(("watch" in query) == watches for query in self.seen)

    def close(self) -> None:
        self.api.connections.clear()
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
def watch(server: Scripted, cache: PodCache) -> Iterator[Callable[[], PodWatch]]:
    """Starts a watch; ends it after the test."""
    begun: list[PodWatch] = []

    def begin() -> PodWatch:
        begun.append(PodWatch(server.api, PATH, IDENTITY, cache, wake=lambda: None))
        begun[0].start()
        return begun[0]

    yield begin
    for one in begun:
        one.close()


def looks_live(watch: PodWatch) -> bool:
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
        pytest.param(b"{}", id="an empty object"),
        pytest.param(b'{"kind": "PodList", "metadata": {"resourceVersion": "1"}}', id="no items"),
        pytest.param(b'{"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": null}', id="null items"),
        pytest.param(b'{"kind": "PodList", "metadata": {}, "items": []}', id="no version"),
        pytest.param(b"<html>Sign in</html>", id="a proxy's page"),
        pytest.param(page(pod(5) | {"status": {"conditions": [None]}}), id="a pod that cannot be read"),
        pytest.param(page(None), id="an item that is no pod"),
    ],
)
def test_an_incomplete_list_is_a_failed_look(server: Scripted, body: bytes) -> None:
    server.lists = [body]
    with pytest.raises(BackendError) as caught:
        list_pods(server.api, PATH, IDENTITY)
    assert caught.value.failure.error is ErrorClass.UNAVAILABLE


def test_every_page_is_read_with_the_token_of_the_page_before(server: Scripted) -> None:
    server.lists = [page(pod(5), **{"continue": "next"}), page(pod(6), version="10")]
    readings, version = list_pods(server.api, PATH, IDENTITY)
    assert (len(readings), version) == (2, "10")
    assert [query.get("continue") for query in server.seen] == [None, ["next"]]
    assert all(query["labelSelector"] == [IDENTITY.selector] for query in server.seen)


def test_a_watch_resumes_from_the_last_version_it_heard(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    server.watches = [[event("ADDED", pod(11))], [event("BOOKMARK", {"metadata": {"resourceVersion": "20"}})], []]
    watch()
    until(lambda: server.count(watches=True) > 3, 5)
    versions = [query["resourceVersion"][0] for query in server.seen if "watch" in query]
    assert versions[:4] == ["10", "11", "20", "20"]
    assert server.count(watches=False) == 1
    assert list(cache.machines(0.0)) == [NAME]


def test_an_event_that_is_cut_in_two_is_put_together(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    whole = event("ADDED", pod(11))
    server.watches = [[whole[:30], whole[30:] + b"\n"], []]
    watch()
    until(lambda: list(cache.machines(0.0)) == [NAME], 5)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"garbage\n", id="no JSON"),
        pytest.param(b"[]\n", id="no object"),
        pytest.param(event("ADDED", None), id="no pod"),
        pytest.param(event("ADDED", {"metadata": {}}), id="no version"),
        pytest.param(event("ADDED", {"metadata": {"resourceVersion": "11"}}), id="no name"),
        pytest.param(event("ADDED", {"metadata": []}), id="metadata of another kind"),
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
    until(lambda: list(cache.machines(0.0)) == [NAME], 5)
    until(lambda: looks_live(live), 5)
    assert server.count(watches=False) == 2


def test_where_watches_only_err_the_pods_are_listed_again_and_again(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    server.watches = [[event("ERROR", {"message": "no watch today"})]]
    live = watch()
    until(lambda: looks_live(live), 5)
    server.lists = [page(pod(12), version="15")]
    until(lambda: list(cache.machines(0.0)) == [NAME], 5)
    assert looks_live(live)
    server.lists = [b"{}"]
    until(lambda: not looks_live(live), 5)


def test_where_streams_bring_nothing_the_pods_are_listed_once_they_were_silent_for_too_long(
    server: Scripted, cache: PodCache, watch: Callable[[], PodWatch]
) -> None:
    server.lists = [page(), page(pod(12), version="15")]
    live = watch()
    until(lambda: list(cache.machines(0.0)) == [NAME], 5)
    assert looks_live(live)
    assert server.count(watches=False) <= 3 < server.count(watches=True)
