"""The route of a request to an API server: the address, the proxy, and a new connection after the old one was
closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3

from provisioner.backends.gke.api import KubeApi
from tests.support.clients.kube_access import Plain

PODS = "/api/v1/namespaces/n/pods"


class Server(ThreadingHTTPServer):
    """A server that answers each request with an empty object, and records the requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.asked.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever).start()
        yield running
        running.shutdown()


def test_a_server_below_a_path_is_asked_there(server: Server) -> None:
    api = KubeApi(Plain(f"{server.address}/k8s/clusters/c-1"))
    assert api.get(PODS, {"limit": 5}) == {}
    assert server.asked == [f"/k8s/clusters/c-1{PODS}?limit=5"]


def test_a_proxy_gets_the_whole_address_of_a_plain_server(server: Server) -> None:
    api = KubeApi(Plain("http://cluster.example/k8s", urllib3.ProxyManager(server.address)))
    assert api.get(PODS) == {}
    assert server.asked == [f"http://cluster.example/k8s{PODS}"]
