"""The HTTP server beside the loop, asked over a real socket: who is answered what, by TLS, token, method and name."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from provisioner.model import Limits, PoolLimits, TemplateLimits
from provisioner.telemetry.access import NOBODY_ASKED, AccessFiles
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.server import Health, ListenError, Server
from tests.support.status_page import TIDY, grid, page, served
from tests.support.waiting import PATIENCE

LIMITS = Limits(prefix="hf", pools={"pool": PoolLimits("pool")}, templates={"T": TemplateLimits("T", ("pool",))})
SECONDS = 5 * PATIENCE
TOKEN = "s3cret-täken"
BEARER = {"Authorization": f"Bearer {TOKEN}".encode()}
PATHS = ("/", "/status.json", "/status", "/metrics", f"/pool/{TIDY}", "/nothing")
Start = Callable[..., Server]


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Metrics(registry).configure(LIMITS)
    return registry


@pytest.fixture
def start(registry: CollectorRegistry) -> Iterator[Start]:
    """Starts servers; stops them afterwards."""
    servers: list[Server] = []

    def begin(
        listen: str = "127.0.0.1:0",
        health: Callable[[], Health] = lambda: Health(True, True, "fine"),
        status: Callable[[], Mapping[str, Any]] = dict,
        files: AccessFiles = NOBODY_ASKED,
    ) -> Server:
        servers.append(Server(listen, registry, health, status, files=files))
        servers[-1].start()
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, token: Path) -> Iterator[str]:
    """The status page of a grid, for who has the token."""
    with served(page(tmp_path_factory.mktemp("grid"), *grid()), AccessFiles(token)) as url:
        yield url


def get(server: Server, path: str) -> requests.Response:
    return requests.get(server.url + path, timeout=SECONDS)


def test_metrics_are_what_prometheus_reads(start: Start) -> None:
    response = get(start(), "/metrics")
    names = {family.name for family in text_string_to_metric_families(response.text)}
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    assert "hf_provisioner_machines_desired" in names


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian package prometheus)")
def test_promtool_finds_no_fault_with_the_metrics(start: Start) -> None:
    text = get(start(), "/metrics").text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


HEALTH = {
    "before the first complete cycle": (Health(True, False, "no complete cycle yet"), 200, 503),
    "while all is well": (Health(True, True, "last cycle 2 s ago"), 200, 200),
    "when the loop stands still": (Health(False, True, "no cycle for 300 s"), 503, 503),
}


@pytest.mark.parametrize(("health", "alive", "ready"), HEALTH.values(), ids=HEALTH)
def test_health(start: Start, health: Health, alive: int, ready: int) -> None:
    server = start(health=lambda: health)
    responses = [get(server, path) for path in ("/healthz", "/readyz")]
    assert [response.status_code for response in responses] == [alive, ready]
    assert [response.text for response in responses] == [f"{health.detail}\n"] * 2


def test_status_is_the_json_that_the_loop_gives(start: Start) -> None:
    response = get(start(status=lambda: {"cycle": 7, "note": "größer"}), "/status?now")
    assert response.json() == {"cycle": 7, "note": "größer"}
    assert response.headers["Content-Type"].startswith("application/json")


def test_an_unknown_path_says_which_there_are(start: Start) -> None:
    response = get(start(), "/nothing")
    words = "there are / /status.json /metrics /healthz /readyz /status\n"
    assert (response.status_code, response.text) == (404, words)


def test_a_question_that_breaks_is_answered_and_the_next_one_too(start: Start) -> None:
    def broken() -> Mapping[str, Any]:
        raise ValueError("no memory")

    server = start(status=broken)
    assert (get(server, "/status").status_code, get(server, "/status").text) == (500, "ValueError: no memory\n")
    assert get(server, "/healthz").status_code == 200


def test_a_silent_client_does_not_keep_others_waiting(start: Start) -> None:
    server = start()
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as silent:
        silent.sendall(b"GET /metrics HTT")
        assert get(server, "/healthz").status_code == 200


def test_a_taken_port_is_said_plainly(start: Start) -> None:
    taken = start().url.removeprefix("http://")
    with pytest.raises(ListenError) as caught:
        start(taken)
    assert str(caught.value) == (
        f"cannot listen on {taken}: another program uses the port; choose another with --listen HOST:PORT"
    )


@pytest.mark.parametrize("listen", ["192.0.2.1:0", "no-such-host.invalid:0", "127.0.0.1:99999"])
def test_an_address_that_is_not_ours_is_said_plainly(start: Start, listen: str) -> None:
    with pytest.raises(ListenError, match=f"^cannot listen on {listen}: ."):
        start(listen)


def test_a_stopped_server_frees_its_port_and_may_be_stopped_again(start: Start) -> None:
    first = start()
    address = first.url.removeprefix("http://")
    first.stop()
    first.stop()
    assert get(start(address), "/healthz").status_code == 200
    with pytest.raises(RuntimeError, match="not been started"):
        _ = first.url


def test_an_ipv6_address_is_written_in_brackets(start: Start) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6 on the loopback interface")
    server = start("[::1]:0")
    assert server.url.startswith("http://[::1]:")
    assert get(server, "/healthz").status_code == 200


# --- who may read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_told_and_with_it_everything(url: str, path: str) -> None:
    for headers in ({}, {"Authorization": f"Bearer {TOKEN}x".encode()}):
        refused = requests.get(url + path, headers=headers, timeout=SECONDS)
        assert (refused.status_code, TIDY in refused.text) == (401, False)
        assert "Basic realm" in refused.headers["WWW-Authenticate"]
    told = requests.get(url + path, headers=BEARER, timeout=SECONDS)
    assert told.status_code == (404 if path == "/nothing" else 200)
    for response in (refused, told):
        protects(response)


def protects(response: requests.Response) -> None:
    """Assert that the answer has the headers that protect it."""
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cache-Control"] == "no-store"
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert ("script" in policy, "unsafe" in policy) == (False, False)


def test_probes_work_without_the_token_and_tell_no_words(url: str) -> None:
    for path in ("/healthz", "/readyz"):
        asked = requests.get(url + path, timeout=SECONDS)
        assert (asked.status_code, asked.text) == (200, "OK\n")
    assert requests.get(f"{url}/healthz", headers=BEARER, timeout=SECONDS).text == f"fine, says {TIDY}\n"


def test_on_the_loopback_only_probes_and_prometheus_may_ask_by_another_name(tmp_path: Path) -> None:
    def asked_as(host: str, path: str) -> requests.Response:
        return requests.get(url + path, headers={"Host": host}, timeout=SECONDS)

    with served(page(tmp_path, *grid())) as url:
        for path in ("/", "/status.json", "/status", f"/pool/{TIDY}"):
            refused = asked_as("evil.example", path)
            assert (asked_as("localhost", path).status_code, refused.status_code) == (200, 421)
            assert refused.text == f"This answers on 127.0.0.1:0, and not as another host: open {url}/ instead.\n"
        for path in ("/metrics", "/healthz", "/readyz"):
            assert asked_as("10.0.0.7:9464", path).status_code == 200
        with socket.create_connection(("127.0.0.1", int(url.split(":")[-1])), timeout=SECONDS) as line:
            line.sendall(b"GET /status.json HTTP/1.0\r\n\r\n")
            assert line.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n", "no browser asks without a host"


@pytest.mark.parametrize(("with_token", "listen"), [(False, "127.0.0.1:0"), (True, "0.0.0.0:0"), (False, "0.0.0.0:0")])
def test_who_listens_beyond_this_host_without_a_token_says_so_and_is_asked_by_any_name(
    start: Start, token: Path, caplog: pytest.LogCaptureFixture, with_token: bool, listen: str
) -> None:
    server = start(listen, files=AccessFiles(token) if with_token else NOBODY_ASKED)
    beyond = listen.startswith("0.0.0.0")
    said = "Everybody who reaches this address can read the status page" in caplog.text
    assert said is (beyond and not with_token)
    here = server.url.replace("0.0.0.0", "127.0.0.1")
    asked = requests.get(f"{here}/status", headers={"Host": "grid.example:9464"} | BEARER, timeout=SECONDS)
    assert asked.status_code == (200 if beyond else 421)


def test_a_start_without_a_usable_token_is_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ListenError, match=f"^server.token_file {tmp_path}/none: "):
        start(files=AccessFiles(tmp_path / "none"))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(url: str, method: str) -> None:
    response = requests.request(method, f"{url}/", data="x" * 100, timeout=SECONDS)
    assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD")


def test_a_head_has_no_body(url: str) -> None:
    response = requests.head(f"{url}/", headers=BEARER, timeout=SECONDS)
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["Content-Length"]) > 1000


# --- TLS --------------------------------------------------------------------------------------------------------------


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate of this name for 127.0.0.1, signed by itself."""
    cert, key = directory / "tls.crt", directory / "tls.key"
    options = f"-x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name}"
    about = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{key}.new", "-out", f"{cert}.new"]
    subprocess.run(["openssl", "req", *options.split(), *about], check=True, capture_output=True)
    for file in (cert, key):
        os.replace(f"{file}.new", file)
    return cert, key


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl (Debian package openssl)")


@needs_openssl
def test_with_a_certificate_it_speaks_tls_and_takes_a_renewed_one(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")
    shown = page(tmp_path, *grid())
    with served(shown, AccessFiles(cert=cert, key=key)) as url:
        assert url.startswith("https://")
        assert requests.get(f"{url}/healthz", verify=str(cert), timeout=SECONDS).status_code == 200
        certificate(tmp_path, "second")
        assert requests.get(f"{url}/healthz", verify=str(cert), timeout=SECONDS).status_code == 200
        cert.write_text("no certificate")
        host, port = url.removeprefix("https://").split(":")
        assert "BEGIN CERTIFICATE" in ssl.get_server_certificate((host, int(port)))


@needs_openssl
def test_who_speaks_no_tls_holds_nobody_up(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    shown = page(tmp_path, *grid())
    with served(shown, AccessFiles(cert=cert, key=key)) as url:
        host, port = url.removeprefix("https://").split(":")
        with (
            socket.create_connection((host, int(port)), timeout=SECONDS) as silent,
            socket.create_connection((host, int(port)), timeout=SECONDS) as plain,
        ):
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert requests.get(f"{url}/healthz", verify=str(cert), timeout=SECONDS).status_code == 200
            assert b"HTTP" not in plain.recv(4096)
            silent.close()
