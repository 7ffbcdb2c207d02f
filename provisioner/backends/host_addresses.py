"""Addresses of the hosts on which machines run, for places that only name the hosts."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from provisioner.backends import BackendError
from provisioner.backends.responses import translated_errors
from provisioner.model import ErrorClass, Failure, Machine, Phase

ADDRESS_SECONDS, RETRY_SECONDS = 60.0, 10.0
"""Seconds for which the address of a host is remembered, and its lack."""


class HostAddresses:
    """The addresses of hosts. Thread-safe."""

    def __init__(self, look_up: Callable[[str], str] = str) -> None:
        """``look_up``: return the address or the full name of a host; by default the name itself."""
        self._look_up = look_up
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str, str]] = {}
        """By host, the monotonic time until which the answer counts, the address, and why there is none."""
        self._next_lookup_at = float("-inf")
        """Monotonic time of the next look-up. A failed one delays it by its own duration, as many are slow at once."""

    def locate(self, machine: Machine, host: str, known: str = "") -> Machine:
        """Return a running machine with the address of its host. ``known``: the address, if it need not be looked up.

        Without an address, HostFactory cannot use the machine yet. Other machines are not affected.
        """
        ip, reason = (known, "") if known else self._find(host)
        if not ip:
            return replace(machine, phase=Phase.PENDING, failure=Failure(ErrorClass.OTHER, reason), is_nameless=True)
        return replace(machine, ip=ip, fingerprint=machine.fingerprint._replace(ip=ip))

    def _find(self, host: str) -> tuple[str, str]:
        """Return the IP address of a host, and why there is none. A known address stays if it cannot be renewed."""
        now = time.monotonic()
        with self._lock:
            until, address, reason = self._known.get(host, (now, "", "the address of its host is not known yet"))
            if now < until or now < self._next_lookup_at:
                return address, reason
        try:
            with translated_errors():
                address = _resolve(self._look_up(host) or host)
            until = now + ADDRESS_SECONDS
        except BackendError as error:
            until, reason = now + RETRY_SECONDS, error.failure.text
            self._next_lookup_at = 2 * time.monotonic() - now
        with self._lock:
            self._known[host] = until, address, reason
        return address, reason


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
