"""Connecting: several addresses within the time of one call."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3

from provisioner.backends import connections

CALL = 12.0


class Network:
    """Ten addresses that do not answer, but for one, and a clock that waiting for them moves on."""

    def __init__(self, patch: pytest.MonkeyPatch, answers: int | None = None) -> None:
        self.now, self.tried = 100.0, dict[str, float]()
        self.socket, self._other = socket.socketpair()
        self._answers = answers
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{number}", 443)) for number in range(10)]
        patch.setattr(socket, "getaddrinfo", lambda *_: found)
        patch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(urllib3.connection.connection, "create_connection", self._connect)

    def _connect(self, address: tuple[str, int], timeout: float, **_: Any) -> socket.socket:
        self.tried[address[0]] = timeout
        if self._answers is not None and address[0].endswith(f".{self._answers}"):
            self.now += 1.0
            return self.socket
        self.now += timeout
        raise TimeoutError

    def connect(self) -> Any:
        connection = connections._Bounded("cloud.example", 443, timeout=CALL)
        connection.connect()
        return connection


def test_all_addresses_of_a_host_have_the_time_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch)
    with pytest.raises(connections.LateResponse, match=r"cloud\.example:443: .* within 12 s"):
        network.connect()
    assert network.tried == {"192.0.2.0": 5.0, "192.0.2.1": 5.0, "192.0.2.2": 2.0}


def test_the_next_address_is_tried_and_the_rest_of_the_call_has_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(monkeypatch, answers=1)
    connection = network.connect()
    assert (connection.sock.gettimeout(), connection.host, connection.timeout) == (6.0, "cloud.example", CALL)
    network.now += 2.0
    connection.putrequest("GET", "/x")
    assert connection.sock.gettimeout() == 4.0
