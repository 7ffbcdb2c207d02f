"""Connections to several addresses within the time of one call."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3

from provisioner.backends import client_connections
from tests.support.waiting import until

CALL = 12.0


class Network:
    """Addresses of which at most one accepts connections, and a clock that each try to connect sets forward."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int = 10, answers: int | None = None) -> None:
        self.now, self.tried = 100.0, dict[str, float]()
        self.socket, self._other = socket.socketpair()
        self._answers = answers
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{number}", 443)) for number in range(count)]
        patch.setattr(socket, "getaddrinfo", lambda *_: found)
        patch.setattr(client_connections, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(urllib3.connection.connection, "create_connection", self._connect)

    def _connect(self, address: tuple[str, int], timeout: float, **_: Any) -> socket.socket:
        self.tried[address[0]] = timeout
        if self._answers is not None and address[0].endswith(f".{self._answers}"):
            self.now += 1.0
            return self.socket
        self.now += timeout
        raise TimeoutError

    def connect(self) -> Any:
        connection = client_connections.Bounded("cloud.example", 443, timeout=CALL)
        connection.connect()
        return connection


def test_all_addresses_of_a_host_have_the_time_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch)
    with pytest.raises(urllib3.exceptions.ConnectTimeoutError, match=r"192\.0\.2\.9 timed out"):
        network.connect()
    assert network.tried == {f"192.0.2.{number}": pytest.approx(CALL / 10) for number in range(10)}


def test_the_last_of_many_addresses_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, answers=9)
    assert network.connect().sock is network.socket
    assert len(network.tried) == 10


def test_the_next_address_is_tried_and_the_rest_of_the_call_has_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(monkeypatch, count=2, answers=1)
    connection = network.connect()
    assert (connection.sock.gettimeout(), connection.host, connection.timeout) == (6.0, "cloud.example", CALL)
    network.now += 2.0
    connection.putrequest("GET", "/x")
    assert connection.sock.gettimeout() == 4.0
    assert network.tried["192.0.2.0"] == client_connections.CONNECT_SECONDS


def test_a_resolver_that_hangs_ends_each_call_in_its_time_and_keeps_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups, end = list[str](), threading.Event()

    def hang(host: str, *_: Any) -> list[Any]:
        lookups.append(host)
        end.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        for _ in range(3):
            with pytest.raises(urllib3.exceptions.ConnectTimeoutError, match=r"cloud\.example: .* was resolved"):
                client_connections.Bounded("cloud.example", 443, timeout=0.01).connect()
        assert lookups == ["cloud.example"]
    finally:
        end.set()
    until(lambda: not client_connections._lookups, 5.0)
    with pytest.raises(urllib3.exceptions.NameResolutionError):
        client_connections.Bounded("cloud.example", 443, timeout=CALL).connect()
