"""The HTTP server beside the loop, asked over a real socket."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import requests
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from provisioner.model import Limits, PoolLimits, TemplateLimits
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.server import Health, ListenError, Server

LIMITS = Limits(prefix="hf", pools={"pool": PoolLimits("pool")}, templates={"T": TemplateLimits("T", ("pool",))})
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
    ) -> Server:
        servers.append(Server(listen, registry, health, status))
        servers[-1].start()
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def get(server: Server, path: str) -> requests.Response:
    return requests.get(server.url + path, timeout=5)


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

    assert json.loads(response.content) == {"cycle": 7, "note": "größer"}
    assert response.headers["Content-Type"].startswith("application/json")


def test_an_unknown_path_says_which_there_are(start: Start) -> None:
    response = get(start(), "/nothing")

    words = "there are / /status.json /metrics /healthz /readyz /status\n"
    assert (response.status_code, response.text) == (404, words)


def test_a_head_request_gets_no_body(start: Start) -> None:
    host, _, port = start().url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"HEAD /healthz HTTP/1.0\r\n\r\n")
        with connection.makefile("rb") as stream:
            head, _, body = stream.read().partition(b"\r\n\r\n")

    assert b" 200 OK" in head
    assert b"Content-Length: 5" in head
    assert body == b""


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


def test_a_server_that_was_not_started_has_no_address(registry: CollectorRegistry) -> None:
    server = Server("127.0.0.1:0", registry, lambda: Health(True, True, ""), dict)

    with pytest.raises(RuntimeError, match="not been started"):
        _ = server.url


def test_an_ipv6_address_is_written_in_brackets(start: Start) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6 on the loopback interface")

    server = start("[::1]:0")

    assert server.url.startswith("http://[::1]:")
    assert get(server, "/healthz").status_code == 200
