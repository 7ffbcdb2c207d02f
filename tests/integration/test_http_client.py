"""The HTTP client for kinds that have no client library: socket files, proxies, certificate authorities, silent
servers."""

from __future__ import annotations

import socket
import socketserver
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from provisioner.backends import BackendError
from provisioner.backends.http import Request, connect, exchange
from provisioner.backends.place_clock import PlaceClock
from provisioner.model import ErrorClass
from tests.support.network.authority import Authority
from tests.support.network.beside import Beside
from tests.support.network.proxy import Proxy


class Hello(BaseHTTPRequestHandler):
    """A handler that responds to each GET with the request's path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.path)))
        self.end_headers()
        self.wfile.write(self.path.encode())

    def address_string(self) -> str:
        return "a client"

    def log_message(self, *args: object) -> None:
        """Log nothing, because that would fill the output of the tests."""


class TcpServer(Beside, HTTPServer):
    pass


class FileServer(Beside, socketserver.UnixStreamServer):
    pass


def get(address: str, ca_file: Path | None = None, *, seconds: float = 10.0) -> bytes:
    reply, body = exchange(connect(address, ca_file), Request("GET", "/jobs", seconds, {"n": 1}), PlaceClock())
    assert reply.status == 200
    return body


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Yield the port of a TLS server named localhost, and the file of its certificate authority."""
    authority = Authority(tmp_path)
    server = TcpServer(("127.0.0.1", 0), Hello)
    server.socket = authority.context("localhost").wrap_socket(server.socket, server_side=True)
    with server:
        yield server.server_address[1], authority.file


def test_a_server_may_listen_on_a_socket_file(tmp_path: Path) -> None:
    with FileServer(str(tmp_path / "rest.sock"), Hello):
        assert get(f"unix://{tmp_path}/rest.sock") == b"/jobs?n=1"


def test_a_missing_socket_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=f"{tmp_path}/rest.sock: No such file") as raised:
        get(f"unix://{tmp_path}/rest.sock")
    assert raised.value.failure.error is ErrorClass.UNAVAILABLE


def test_a_server_needs_an_authority_that_is_named(secure: tuple[int, Path]) -> None:
    port, authority = secure
    assert get(f"https://localhost:{port}/base", authority) == b"/base/jobs?n=1"
    with pytest.raises(BackendError, match="certificate verify failed"):
        get(f"https://localhost:{port}")


def test_a_proxy_of_the_environment_is_used_with_its_login(
    secure: tuple[int, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    port, _ = secure
    other = Authority(tmp_path, "Far Root")
    plain = TcpServer(("127.0.0.1", 0), Hello)
    target = ("127.0.0.1", plain.server_address[1]), other.context("slurm.bank.test")
    with plain, Proxy({"slurm.bank.test": target}, login="desk:secret") as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "localhost")
        assert get("https://slurm.bank.test", other.file) == b"/jobs?n=1"
        assert proxy.hosts == {"slurm.bank.test"}
        assert get(f"https://localhost:{port}", secure[1]) == b"/jobs?n=1", "no_proxy names this host"
    assert proxy.hosts == {"slurm.bank.test"}


def test_a_silent_server_is_a_time_out_and_a_closed_port_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(BackendError) as late:
            get(f"http://127.0.0.1:{port}", seconds=0.05)
    assert late.value.failure.error is ErrorClass.TIMEOUT
    with pytest.raises(BackendError) as closed:
        get(f"http://127.0.0.1:{port}")
    assert closed.value.failure.error is ErrorClass.UNAVAILABLE


def test_unusable_authorities_are_an_error_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(BackendError, match=r"ca_file .* cannot be used"):
        connect("https://localhost", tmp_path / "ca.pem")
