"""Addresses of the hosts on which machines run, for places that only name the hosts."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable

from provisioner.backends import BackendError
from provisioner.model import ErrorClass

ADDRESS_SECONDS = 60.0
"""Seconds for which the address of a host is remembered."""


class HostAddresses:
    """The addresses of hosts. Thread-safe."""

    def __init__(self, look_up: Callable[[str], str] = str) -> None:
        """``look_up``: return the address or the full name of a host; by default the name itself."""
        self._look_up = look_up
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str]] = {}

    def get(self, host: str) -> str:
        """Return the IP address of a host. Raise BackendError if it has none."""
        with self._lock:
            known_at, address = self._known.get(host, (float("-inf"), ""))
        if time.monotonic() < known_at + ADDRESS_SECONDS:
            return address
        address = _resolve(self._look_up(host) or host)
        with self._lock:
            self._known[host] = time.monotonic(), address
        return address


def _resolve(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        text = f"host {host} has no address here ({error.strerror}): let its name resolve"
        raise BackendError(ErrorClass.UNAVAILABLE, text) from error
