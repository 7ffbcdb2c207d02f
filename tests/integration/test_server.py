"""The HTTP server beside the loop, asked over a real socket: its response to each caller, by TLS, token, method and
name."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from provisioner.model import Limits, PoolLimits, TemplateLimits
from provisioner.settings.definitions import Server as Readers
from provisioner.telemetry import authentication, http_connections
from provisioner.telemetry.authentication import NO_AUTHENTICATION
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.server import PROBES, Health, ListenError, Server
from tests.support.status_page import TIDY, grid, page, served
from tests.support.waiting import PATIENCE, until

LIMITS = Limits(prefix="hf", pools={"pool": PoolLimits("pool")}, templates={"T": TemplateLimits("T", ("pool",))})
SECONDS = 5 * PATIENCE
TOKEN = "s3cret-täken"
BEARER = {"Authorization": f"Bearer {TOKEN}".encode()}
WRONG = {"Authorization": "Bearer x"}
PATHS = ("/", "/status.json", "/status", "/metrics", f"/pool/{TIDY}", "/nothing")
Start = Callable[..., Server]


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Metrics(registry).configure(LIMITS)
    return registry


@pytest.fixture
def start(registry: CollectorRegistry) -> Iterator[Start]:
    """Start servers, and stop them afterwards."""
    servers: list[Server] = []

    def begin(
        listen: str = "127.0.0.1:0",
        health: Callable[[], Health] = lambda: Health(True, True, "fine"),
        status: Callable[[], Mapping[str, Any]] = dict,
        files: Readers = NO_AUTHENTICATION,
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
    """Yield the address of a grid's status page, which demands the token."""
    with served(page(tmp_path_factory.mktemp("grid"), *grid()), Readers(token_file=token)) as url:
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


def test_an_address_that_is_any_of_ipv6_is_any_of_ipv4_too(start: Start) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6 and IPv4 on one socket")
    port = address(start("[::]:0"))[1]
    assert requests.get(f"http://127.0.0.1:{port}/healthz", timeout=SECONDS).status_code == 200


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
def test_everything_is_answered_with_the_token_and_nothing_without_it(url: str, path: str) -> None:
    for headers in ({}, {"Authorization": f"Bearer {TOKEN}x".encode()}):
        refused = requests.get(url + path, headers=headers, timeout=SECONDS)
        assert (refused.status_code, TIDY in refused.text) == (401, False)
        assert refused.headers["WWW-Authenticate"] == 'Bearer realm="provisioner"'
    admitted = requests.get(url + path, headers=BEARER, timeout=SECONDS)
    assert admitted.status_code == (404 if path == "/nothing" else 200)
    for response in (refused, admitted):
        protects(response)


def protects(response: requests.Response) -> None:
    """Assert that the response has the headers that protect the page."""
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
            assert refused.text == (
                f"This server answers on 127.0.0.1:0 and under no other host name: open {url}/ instead.\n"
            )
        for path in ("/metrics", "/healthz", "/readyz"):
            assert asked_as("10.0.0.7:9464", path).status_code == 200
        with socket.create_connection(("127.0.0.1", int(url.split(":")[-1])), timeout=SECONDS) as line:
            line.sendall(b"GET /status.json HTTP/1.0\r\n\r\n")
            assert line.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n", "no browser asks without a host"


@pytest.mark.parametrize(("with_token", "listen"), [(False, "127.0.0.1:0"), (True, "0.0.0.0:0"), (False, "0.0.0.0:0")])
def test_who_listens_beyond_this_host_without_a_token_says_so_and_is_asked_by_any_name(
    start: Start, token: Path, caplog: pytest.LogCaptureFixture, with_token: bool, listen: str
) -> None:
    server = start(listen, files=Readers(token_file=token) if with_token else NO_AUTHENTICATION)
    beyond = listen.startswith("0.0.0.0")
    is_logged = "The status page is readable without a token" in caplog.text
    assert is_logged is (beyond and not with_token)
    here = server.url.replace("0.0.0.0", "127.0.0.1")
    asked = requests.get(f"{here}/status", headers={"Host": "grid.example:9464"} | BEARER, timeout=SECONDS)
    assert asked.status_code == (200 if beyond else 421)


def test_a_start_without_a_usable_token_is_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ListenError, match=f"^server.token_file {tmp_path}/none: "):
        start(files=Readers(token_file=tmp_path / "none"))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(url: str, method: str) -> None:
    response = requests.request(method, f"{url}/", data="x" * 100, timeout=SECONDS)
    assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD")


def test_a_head_has_no_body(url: str) -> None:
    response = requests.head(f"{url}/", headers=BEARER, timeout=SECONDS)
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["Content-Length"]) > 1000


def test_wrong_tokens_are_counted_and_soon_refused_as_too_many_and_the_right_one_never_is(
    start: Start, token: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(files=Readers(token_file=token))
    rejected: Counter[str] = Counter()
    server.rejected = lambda reason: rejected.update([reason])

    def asked(path: str = "/status", **headers: bytes) -> int:
        return requests.get(server.url + path, headers=headers, timeout=SECONDS).status_code

    for _ in range(3 * authentication.LOGINS):
        assert asked() == 401, "who sends no token has not failed"
    assert [asked(Authorization=b"Bearer x") for _ in range(authentication.LOGINS)] == [401] * authentication.LOGINS
    refused = requests.get(f"{server.url}/metrics", headers={"Authorization": "Bearer x"}, timeout=SECONDS)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    protects(refused)
    assert (asked(), asked(**BEARER)) == (401, 200), "another client may share the address"
    probes = [{}, {"Authorization": "Bearer x"}, BEARER]
    texts = [requests.get(f"{server.url}/readyz", headers=one, timeout=SECONDS).text for one in probes]
    assert texts == ["OK\n", "OK\n", "fine\n"]
    assert rejected == {"token": authentication.LOGINS, "rate": 2}
    lines = [record for record in caplog.records if record.message == "Wrong token sent"]
    assert [(line.levelname, vars(line)["client"]) for line in lines] == [("WARNING", "127.0.0.1")]
    with from_address(server, "127.0.0.2") as other:
        other.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n")
        assert other.makefile("rb").readline().startswith(b"HTTP/1.1 401 "), "other clients are not concerned"


@pytest.mark.parametrize("path", ["/status", "/readyz"])
def test_of_many_wrong_tokens_the_last_are_answered_after_a_pause_that_holds_up_no_other(
    start: Start, token: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, end = list[float](), threading.Event()

    async def pause(seconds: float) -> None:
        if seconds == authentication.WRONG_SECONDS:
            paused.append(seconds)
            while not end.is_set():
                await sleep(0.01)
        else:
            await sleep(seconds)

    sleep, refused = asyncio.sleep, path not in PROBES
    server = start(files=Readers(token_file=token))
    with ExitStack() as stack:
        stack.callback(end.set)
        for _ in range(authentication.LOGINS):
            response = requests.get(server.url + path, headers=WRONG, timeout=SECONDS)
            assert response.status_code == (401 if refused else 200)
        monkeypatch.setattr(asyncio, "sleep", pause)
        lines = [stack.enter_context(from_address(server)) for _ in range(http_connections.WORKERS + 1)]
        for line in lines:
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n".encode())
        until(lambda: len(paused) == len(lines), SECONDS)
        assert requests.get(server.url + path, headers=BEARER, timeout=SECONDS).status_code == 200
        assert not any(select.select(lines, [], [], 0.0))
        end.set()
        statuses = [line.makefile("rb").readline().split()[1] for line in lines]
    assert statuses == [b"429" if refused else b"200"] * len(lines)


# --- bounds on what comes from outside --------------------------------------------------------------------------------


def address(server: Server) -> tuple[str, int]:
    host, _, port = server.url.partition("://")[2].rpartition(":")
    return host, int(port)


def from_address(server: Server, source: str = "127.0.0.1") -> socket.socket:
    """Return a connection to the server from this address of the loopback."""
    return socket.create_connection(address(server), timeout=SECONDS, source_address=(source, 0))


def exchanged(server: Server, data: bytes) -> bytes:
    """Return all that the server sends for these bytes until it ends the connection."""
    with from_address(server) as line:
        line.sendall(data)
        return line.makefile("rb").read()


def is_closed(line: socket.socket) -> bool:
    """Return True if the server has closed this connection, on which it has sent no byte."""
    line.setblocking(False)
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
REFUSED_FORMS = {
    "a body with its length": (GET + b"Content-Length: 1000000000\r\n\r\n" + b"a" * 1000, 400),
    "a body of chunks": (GET + b"Transfer-Encoding: chunked\r\n\r\nff\r\n", 400),
    "a body that is expected": (GET + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n", 400),
    "a header that is too long": (GET + b"X: " + b"a" * http_connections.LINE_BYTES + b"\r\n\r\n", 431),
    "a path that is too long": (
        b"GET /" + b"a" * http_connections.LINE_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        431,
    ),
    "a method of no standard": (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
}


@pytest.mark.parametrize(("data", "status"), REFUSED_FORMS.values(), ids=REFUSED_FORMS)
def test_a_request_of_a_refused_form_is_answered_once_and_counted(start: Start, data: bytes, status: int) -> None:
    server = start()
    rejected: list[str] = []
    server.rejected = rejected.append
    response = exchanged(server, data)
    assert response.startswith(b"HTTP/1.1 %d " % status)
    assert response.count(b"HTTP/1.1") == 1
    assert b"Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n" in response
    assert rejected == ["request"]


def test_no_response_names_a_program_or_its_version(start: Start) -> None:
    server = start()
    for path in ("/metrics", "/nothing", "/status"):
        response = get(server, path)
        assert "Server" not in response.headers
        protects(response)
    assert b"ornado" not in exchanged(server, b"\x00\xff no request\r\n\r\n")


def test_a_head_that_is_too_large_ends_the_connection_before_it_is_read(start: Start) -> None:
    server = start()
    with from_address(server) as line, pytest.raises(ConnectionError):
        line.sendall(GET + b"".join(b"X%d: %s\r\n" % (number, b"a" * 4000) for number in range(10_000)))
    assert get(server, "/healthz").status_code == 200


def test_a_connection_carries_one_request_and_no_other_is_looked_at(start: Start) -> None:
    server = start()
    rejected: list[str] = []
    server.rejected = rejected.append
    response = exchanged(server, (GET + b"\r\n") + (GET.replace(b"GET", b"PUT") + b"\r\n") * 50)
    assert response.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close\r\n" in response
    for _ in range(3):
        assert get(server, "/metrics").status_code == 200
    assert rejected == []


SLOW_HEADS = {"silent": b"", "in the first line": b"GET /met", "between two headers": GET}


@pytest.mark.parametrize("sent", SLOW_HEADS.values(), ids=SLOW_HEADS)
def test_a_head_has_a_deadline_that_no_byte_puts_off(
    start: Start, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_connections, "HEAD_SECONDS", 0.3)
    with from_address(start()) as line:
        line.sendall(sent)

        def ends() -> bool:
            try:
                line.sendall(b"a" if sent else b"")
            except ConnectionError:
                return True
            return is_closed(line)

        assert until(ends, 10, what="the connection ends though bytes come")


def test_a_response_that_is_not_read_has_a_deadline(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "RESPONSE_SECONDS", 2.0)
    server = start(status=lambda: {"large": "a" * 10_000_000})
    with from_address(server) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert line.recv(8) == b"HTTP/1.1"
        assert until(lambda: not held_by(server), 10, what="the server closes the connection")


def held_by(server: Server) -> Sequence[str]:
    """Return the open connections at the server's port, as Linux lists them."""
    port = f":{address(server)[1]:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [peer for _, local, peer, state, *_ in lines if local.endswith(port) and state == "01"]


def test_the_oldest_connection_of_who_has_most_makes_room_for_a_new_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "CONNECTIONS", 5)
    monkeypatch.setattr(http_connections, "LEAST_SECONDS", 0.05)
    server = start()
    rejected: list[str] = []
    server.rejected = rejected.append
    with ExitStack() as stack:
        modest = stack.enter_context(from_address(server, "127.0.0.2"))
        greedy = [stack.enter_context(from_address(server, "127.0.0.3")) for _ in range(10)]
        until(lambda: sum(map(is_closed, greedy)) >= 6, 10, what="six of the ten are closed")
        assert [is_closed(line) for line in greedy] == [True] * 6 + [False] * 4
        assert get(server, "/healthz").status_code == 200
        assert set(rejected) == {"room"}
        modest.setblocking(True)
        modest.sendall(GET + b"\r\n")
        assert modest.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_young_connection_is_not_closed_and_a_new_one_waits_for_room(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "CONNECTIONS", 2)
    monkeypatch.setattr(http_connections, "LEAST_SECONDS", 3600.0)
    server = start()
    with from_address(server) as first, from_address(server), from_address(server) as third:
        third.sendall(GET + b"\r\n")
        assert not is_closed(first)
        first.setblocking(True)
        for line in (first, third):
            line.sendall(GET + b"\r\n" if line is first else b"")
            assert line.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


def test_responses_that_are_not_read_hold_little_memory(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "UNSENT_BYTES", 25_000_000)
    server = start(status=lambda: {"large": "a" * 10_000_000})
    with ExitStack() as stack:
        for _ in range(5):
            line = stack.enter_context(from_address(server))
            line.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert line.recv(8) == b"HTTP/1.1"
        assert len(held_by(server)) == 2
        assert len(get(server, "/status").content) > 10_000_000, "who reads gets all of it"


def test_probes_are_answered_while_every_maker_of_responses_is_busy(start: Start) -> None:
    released = threading.Event()

    def wait() -> Mapping[str, Any]:
        assert released.wait(SECONDS)
        return {}

    server = start(status=wait)
    with ExitStack() as stack:
        lines = [stack.enter_context(from_address(server)) for _ in range(http_connections.WORKERS + 3)]
        for line in lines:
            line.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert [get(server, path).status_code for path in ("/readyz", "/healthz")] == [200, 200]
        released.set()
        assert {line.makefile("rb").readline() for line in lines} == {b"HTTP/1.1 200 OK\r\n"}


def test_connections_are_taken_again_after_the_process_had_no_descriptor_left(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "provisioner")
    server = start()
    assert get(server, "/healthz").status_code == 200, "it has all that it needs"
    until(lambda: not held_by(server), 10, what="that connection is over")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as line, ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (line.fileno() + 5, hard))
        with suppress(OSError):
            while True:
                stack.callback(os.close, os.dup(line.fileno()))
        line.connect(address(server))
        until(lambda: "Connection cannot be accepted" in caplog.text, 10, what="no descriptor is left")
        stack.close()
        line.settimeout(SECONDS)
        line.sendall(GET + b"\r\n")
        assert line.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_fault_of_ours_costs_its_connection_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    faults = iter([ValueError("odd"), KeyError("odd"), ssl.SSLError("odd")])
    real = http_connections.network_of

    def odd(host: str) -> str:
        for fault in faults:
            raise fault
        return real(host)

    monkeypatch.setattr(http_connections, "network_of", odd)
    for _ in range(3):
        with from_address(server) as line:
            assert line.recv(1) == b"", "the server ends the connection"
    assert get(server, "/healthz").status_code == 200
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2


def test_a_login_that_is_looked_at_for_long_holds_no_probe_up(start: Start, token: Path) -> None:
    server = start(files=Readers(token_file=token))
    released = threading.Event()

    def rejected(_: str) -> None:
        assert released.wait(SECONDS)

    server.rejected = rejected
    with from_address(server) as line:
        line.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n")
        assert get(server, "/readyz").status_code == 200
        released.set()
        assert line.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


def test_no_response_is_made_for_a_connection_that_was_closed_for_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORKERS": 1, "CONNECTIONS": 2, "LEAST_SECONDS": 0.2}.items():
        monkeypatch.setattr(http_connections, name, value)
    released, made = threading.Event(), []

    def wait() -> Mapping[str, Any]:
        made.append(len(made))
        assert released.wait(SECONDS)
        return {}

    server = start(status=wait)
    with ExitStack() as stack:
        first, second = (stack.enter_context(from_address(server)) for _ in range(2))
        first.sendall(b"GET /status HTTP/1.1\r\n\r\n")
        until(lambda: made, 10, what="the first response is being made")
        second.sendall(b"GET /status HTTP/1.1\r\n\r\n")
        others = [stack.enter_context(from_address(server)) for _ in range(2)]
        until(lambda: is_closed(first) and is_closed(second), 10, what="both make room")
        released.set()
        others[0].sendall(b"GET /status HTTP/1.1\r\n\r\n")
        assert others[0].makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"
    assert len(made) == 2


def test_the_loop_keeps_three_of_four_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections.resource, "getrlimit", lambda _: (100, 100))
    assert http_connections.most_connections() == 25
    monkeypatch.setattr(http_connections.resource, "getrlimit", lambda _: (20_000, 20_000))
    assert http_connections.most_connections() == http_connections.CONNECTIONS
    monkeypatch.setattr(http_connections.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert http_connections.most_connections() == http_connections.CONNECTIONS
    monkeypatch.setattr(http_connections.resource, "getrlimit", lambda _: (3, 3))
    assert http_connections.most_connections() == 1


# --- TLS --------------------------------------------------------------------------------------------------------------


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Return a certificate of this name for 127.0.0.1, signed by itself."""
    cert, key = directory / "tls.crt", directory / "tls.key"
    options = f"-x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name}"
    about = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{key}.new", "-out", f"{cert}.new"]
    subprocess.run(["openssl", "req", *options.split(), *about], check=True, capture_output=True)
    for file in (cert, key):
        os.replace(f"{file}.new", file)
    return cert, key


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl (Debian package openssl)")


@needs_openssl
def test_with_a_certificate_it_speaks_tls_and_takes_a_renewed_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate(tmp_path, "first")
    shown = page(tmp_path, *grid())
    with served(shown, Readers(tls_cert=cert, tls_key=key)) as url:
        assert url.startswith("https://")
        assert requests.get(f"{url}/healthz", verify=str(cert), timeout=SECONDS).status_code == 200
        host, port = url.removeprefix("https://").split(":")

        def presented() -> str:
            return ssl.get_server_certificate((host, int(port))).strip()

        certificate(tmp_path, "second")
        until(lambda: presented() == cert.read_text().strip(), 10, what="the renewed certificate is presented")
        assert requests.get(f"{url}/healthz", verify=str(cert), timeout=SECONDS).status_code == 200
        second = presented()
        cert.write_text("no certificate")
        until(lambda: "Certificate cannot be used" in caplog.text, 10, what="the file is looked at")
        assert presented() == second


@needs_openssl
def test_a_client_without_tls_delays_no_other(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    shown = page(tmp_path, *grid())
    with served(shown, Readers(tls_cert=cert, tls_key=key)) as url:
        host, port = url.removeprefix("https://").split(":")
        with (
            socket.create_connection((host, int(port)), timeout=SECONDS) as silent,
            socket.create_connection((host, int(port)), timeout=SECONDS) as plain,
        ):
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert requests.get(f"{url}/healthz", verify=str(cert), timeout=SECONDS).status_code == 200
            assert b"HTTP" not in plain.recv(4096)
            silent.close()


@needs_openssl
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "half a handshake"])
def test_a_handshake_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_connections, "HEAD_SECONDS", 0.3)
    cert, key = certificate(tmp_path, "one")
    with served(page(tmp_path, *grid()), Readers(tls_cert=cert, tls_key=key)) as url:
        host, port = url.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port)), timeout=SECONDS) as line:
            line.sendall(sent)
            assert line.recv(1) == b"", "the server ends the connection"


@needs_openssl
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_clients_that_reset_their_connections_disturb_no_other(tmp_path: Path, sent: bytes) -> None:
    cert, key = certificate(tmp_path, "one")
    with served(page(tmp_path, *grid()), Readers(tls_cert=cert, tls_key=key)) as url:
        host, port = url.removeprefix("https://").split(":")
        for _ in range(50):
            with socket.create_connection((host, int(port)), timeout=SECONDS) as line:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                line.sendall(sent)
        assert requests.get(f"{url}/healthz", verify=str(cert), timeout=SECONDS).status_code == 200
