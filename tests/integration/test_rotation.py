"""Changes of the credentials and addresses of an API server while the loop runs. The next call uses the new values.

The server has real TLS. It refuses withdrawn credentials on kept connections, too, as API servers do.
"""

from __future__ import annotations

import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from provisioner.backends import BackendError, client_connections
from provisioner.backends.gke.api import KubeApi
from provisioner.backends.gke.login import connect
from provisioner.backends.gke.settings import GkePool
from tests.support.network.authority import Authority

HOST = "127.0.0.1"
PODS = "/api/v1/namespaces/n/pods"


class Server(ThreadingHTTPServer):
    """An API server that accepts some users, by certificate or token."""

    daemon_threads = True

    def __init__(self, known: set[str], authority: Authority, clients: Authority) -> None:
        self.known, self.opened = known, 0
        self._clients, self._open = clients, list[ssl.SSLSocket]()
        self.present(authority)
        super().__init__((HOST, 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def present(self, authority: Authority) -> None:
        """Show a certificate of this authority to every client that connects from now on."""
        self._context = authority.context(HOST)
        self._context.verify_mode = ssl.CERT_OPTIONAL
        self._context.load_verify_locations(self._clients.file)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        wrapped = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self._open.append(wrapped)
        self.opened += 1
        return wrapped, address

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that break off because they do not trust the server."""

    def hang_up(self) -> None:
        """End every connection."""
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)
        self._open.clear()

    @property
    def address(self) -> str:
        return f"https://{HOST}:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # a response is one packet
    server: Server

    def do_GET(self) -> None:
        subject = (self.connection.getpeercert() or {}).get("subject", ())
        name = dict(pair for pairs in subject for pair in pairs).get("commonName", "")
        token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        known = {name, token} & self.server.known
        body = json.dumps({"kind": "Pod"} if known else {"message": "Unauthorized"}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing on stderr."""


class Site:
    """A kubeconfig with the files that it names, and two servers that it may lead to."""

    def __init__(self, directory: Path, chance: random.Random, form: str = "") -> None:
        self._directory, self._chance, self._count = directory, chance, 0
        self._clients, self._authority = Authority(directory, "clients"), Authority(directory, "first")
        self._known: set[str] = set()
        self.servers = [Server(self._known, self._authority, self._clients) for _ in range(2)]
        self._server = self.servers[0]
        self.form = form or chance.choice(["certificate", "token", "tokenFile"])
        self._secret = ""
        (directory / "ca.crt").write_bytes(self._authority.file.read_bytes())
        for write in self._new_secret():
            write()
        self._withdraw()
        self._write_kubeconfig()
        spec = directory / "pod.yaml"
        spec.write_text("containers: [{name: main, image: busybox}]")
        self.api: KubeApi = connect(
            GkePool(name="gke-main", namespace="n", pod_spec=spec, kubeconfig=directory / "kubeconfig")
        )

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.hang_up()
            server.server_close()

    def asks(self) -> None:
        """Make a call. Raises BackendError if it fails."""
        assert self.api.get(PODS) == {"kind": "Pod"}

    def rotate(self) -> str:
        """Change one credential or address, and return its name. If several files change, they change in any order, so
        calls in between may fail."""
        what, writes = self._chance.choice([self._someone_else, self._another_authority, self._another_address])()
        self._chance.shuffle(writes)
        for write in writes:
            write()
            if self._chance.random() < 0.5:
                with suppress(BackendError):
                    self.asks()
        self._withdraw()
        if self._chance.random() < 0.3:
            self._server.hang_up()
        return what

    # --- what changes -------------------------------------------------------------------------------------------------

    def _someone_else(self) -> tuple[str, list[Callable[[], None]]]:
        return f"another {self.form}", self._new_secret()

    def _new_secret(self) -> list[Callable[[], None]]:
        self._count += 1
        self._secret = f"grid-{self._count}"
        if self.form == "token":
            return [self._write_kubeconfig]
        if self.form == "tokenFile":
            secret = self._secret
            return [lambda: self._write("token", secret.encode())]
        key, certificate = self._clients.signed(self._secret)
        return [lambda: self._write("tls.key", key), lambda: self._write("tls.crt", certificate)]

    def _another_authority(self) -> tuple[str, list[Callable[[], None]]]:
        self._count += 1
        authority = Authority(self._directory, f"authority {self._count}")

        def presented() -> None:
            for server in self.servers:
                server.present(authority)
                server.hang_up()

        return "another authority", [presented, lambda: self._write("ca.crt", authority.file.read_bytes())]

    def _another_address(self) -> tuple[str, list[Callable[[], None]]]:
        before, self._server = self._server, next(one for one in self.servers if one is not self._server)
        self._server.known = self._known

        def gone() -> None:
            before.known = set()

        return "another address", [gone, self._write_kubeconfig]

    def _withdraw(self) -> None:
        """Accept only the newest credentials."""
        self._known.clear()
        self._known.add(self._secret)

    # --- files --------------------------------------------------------------------------------------------------------

    def _write(self, name: str, content: bytes) -> None:
        """Write a file in place, or replace it by a rename."""
        path = self._directory / name
        if self._chance.random() < 0.5 and path.exists():
            aside = path.with_suffix(".aside")
            aside.write_bytes(content)
            aside.replace(path)
        else:
            path.write_bytes(content)

    def _write_kubeconfig(self) -> None:
        users = {
            "certificate": {"client-certificate": "tls.crt", "client-key": "tls.key"},
            "token": {"token": self._secret},
            "tokenFile": {"tokenFile": "token"},
        }
        document = {
            "clusters": [{"name": "c", "cluster": {"server": self._server.address, "certificate-authority": "ca.crt"}}],
            "users": [{"name": "u", "user": users[self.form]}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self._write("kubeconfig", json.dumps(document).encode())


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 300), marks=pytest.mark.slow)], ids=str)
@pytest.mark.timeout(600)
def test_whatever_rotates_the_next_call_goes_by_it(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        directory = tmp_path / str(seed)
        directory.mkdir()
        site = Site(directory, random.Random(seed))
        try:
            site.asks()
            for turn in range(4):
                what = site.rotate()
                try:
                    site.asks()
                except BackendError as error:
                    raise AssertionError(f"seed {seed}, turn {turn}, {what}: {error.failure.text}") from error
        finally:
            site.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, random.Random(3))
    yield made
    made.close()


def test_a_connection_serves_many_calls_until_it_was_idle_for_long(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0.0
    monkeypatch.setattr(client_connections, "time", type("Ahead", (), {"monotonic": lambda: time.monotonic() + ahead}))
    for _ in range(3):
        site.asks()
    assert site.servers[0].opened == 1
    ahead = client_connections.IDLE_SECONDS + 0.1
    site.asks()
    assert site.servers[0].opened == 2, "a firewall may have forgotten the first"


@pytest.mark.parametrize("name", ["tls.key", "tls.crt", "ca.crt"])
def test_half_of_a_change_does_no_harm_to_new_connections_either(tmp_path: Path, name: str) -> None:
    site = Site(tmp_path, random.Random(3), form="certificate")
    try:
        site.asks()
        key, certificate = Authority(tmp_path, "others").signed("grid-9")
        (tmp_path / name).write_bytes({"tls.key": key, "tls.crt": certificate}.get(name, b"half of a file"))
        site.servers[0].hang_up()
        site.asks()
        assert site.servers[0].opened == 2, "by a new connection, with the old pair"
    finally:
        site.close()


def test_a_key_with_a_passphrase_asks_no_terminal_and_is_not_used(tmp_path: Path) -> None:
    site = Site(tmp_path, random.Random(3), form="certificate")
    try:
        site.asks()
        way, _ = site.api.access.now()
        key = serialization.load_pem_private_key((tmp_path / "tls.key").read_bytes(), None)
        form, secret = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
        (tmp_path / "tls.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
        site.asks()
        assert site.api.access.now()[0] is way, "the old key is still in use"
    finally:
        site.close()
