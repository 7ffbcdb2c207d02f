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
"""Seconds for which the address of a host is remembered, and seconds after which a failed look-up is repeated."""


class HostAddresses:
    """The addresses of hosts. Thread-safe."""

    def __init__(self, look_up: Callable[[str], str] = str) -> None:
        """Store ``look_up``. This function returns a host's address or full name. By default, the function returns the
        given name."""
        self._look_up = look_up
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str, str]] = {}
        """By host: the monotonic time until which the address is not looked up again, the address (empty if unknown),
        and a text that says why the address is unknown."""
        self._next_lookup_at = float("-inf")
        """Monotonic time of the next look-up. After a failed look-up, the next one waits for as long as the failed one
        took, because all look-ups may be slow."""

    def locate(self, machine: Machine, host: str, known: str = "") -> Machine:
        """Return a running machine with the address of its host. ``known``: the address, if the place has given it.

        If the address is unknown, return the machine as pending with the reason. HostFactory cannot use such a machine
        yet.
        """
        ip, reason = (known, "") if known else self._find(host)
        if not ip:
            return replace(machine, phase=Phase.PENDING, failure=Failure(ErrorClass.OTHER, reason), is_nameless=True)
        return replace(machine, ip=ip, fingerprint=machine.fingerprint._replace(ip=ip))

    def _find(self, host: str) -> tuple[str, str]:
        """Return the IP address of a host, which is the last known address if a look-up fails. If no address is known,
        return an empty text and the reason. With an address, the reason has no meaning."""
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
