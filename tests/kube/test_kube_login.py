"""Each form of credentials gives access to a real API server, also after the credentials are replaced."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kubernetes.config import incluster_config

from provisioner.backends import BackendError
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.model import Create, Delete, DeleteReason, ErrorClass
from tests.kube.place import SPEC, TIMES
from tests.kube.space import Space
from tests.support.waiting import until

pytestmark = pytest.mark.kube

NAME = "hf-abcdefghij-000001"
VERSION = "client.authentication.k8s.io/v1"


class Bench:
    """A pool in a namespace of the real server. The test chooses the credentials."""

    def __init__(self, space: Space, directory: Path) -> None:
        self.space, self.directory = space, directory
        assert space.admin.ca is not None
        self.authority = Path(space.admin.ca)
        self._spec = directory / "pod.yaml"
        self._spec.write_text(SPEC)
        self._opened: list[GkeBackend] = []

    def backend(self, *, watched: bool = False, **settings: Any) -> GkeBackend:
        pool = GkePool(name="gke-main", namespace=self.space.name, pod_spec=self._spec, **settings)
        self._opened.append(GkeBackend(pool, Namespaces(TIMES), provisioner="demo"))
        if watched:
            self._opened[-1].start(lambda: None)
        return self._opened[-1]

    def close(self) -> None:
        for backend in self._opened:
            backend.close()


@pytest.fixture
def bench(space: Space, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(space, tmp_path)
    yield made
    made.close()


def works(backend: GkeBackend, space: Space) -> None:
    """Make a pod, check that it is seen, and delete it."""
    create = Create(NAME, "gke-main", "T", "abcdefghij")
    assert [one.failure for one in backend.create([create], lambda: True)] == [None]
    uid = backend.observe(0.0, {}).machines[NAME].fingerprint.uid
    delete = Delete(NAME, "gke-main", DeleteReason.RETURNED, uid)
    assert [one.failure for one in backend.delete([delete], lambda: True)] == [None]
    until(lambda: space.names() == set(), 30, what="the pod is gone")


def denied(backend: GkeBackend) -> str:
    """Return why the server refuses our login; empty if it accepts the login."""
    try:
        backend.observe(0.0, {})
    except BackendError as error:
        return error.failure.text if error.failure.error is ErrorClass.DENIED else ""
    return ""


def test_the_account_of_the_pod_that_it_runs_in(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    token, server = bench.directory / "token", urlsplit(bench.space.admin.server)
    token.write_text(bench.space.token())
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(bench.authority))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(server.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    backend = bench.backend(watched=True)
    works(backend, bench.space)
    token.write_text("an old token")
    other = bench.backend()
    assert "Unauthorized" in denied(other)
    token.write_text(bench.space.token())
    works(other, bench.space)
    works(backend, bench.space)


@pytest.fixture
def key_file(bench: Bench) -> Iterator[Path]:
    """Yield a Google service account's key file. Its token server gives tokens of the provisioner's own account."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.dumps({"access_token": bench.space.token(), "expires_in": 3600}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write no log."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = rsa.generate_private_key(65537, 2048).private_bytes(serialization.Encoding.PEM, form, none).decode()
    account = {"type": "service_account", "client_email": "hf@example.iam", "private_key": key}
    path = bench.directory / "key.json"
    path.write_text(json.dumps({**account, "token_uri": f"http://127.0.0.1:{server.server_port}/"}))
    yield path
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_endpoint_with_its_authority_and_google_credentials(bench: Bench, key_file: Path) -> None:
    endpoint = bench.space.admin.server
    works(bench.backend(endpoint=endpoint, ca_file=bench.authority, credentials=key_file, watched=True), bench.space)
