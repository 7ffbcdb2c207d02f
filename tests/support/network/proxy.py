"""A proxy that accepts only CONNECT. Only the proxy knows the names of the servers behind it."""

from __future__ import annotations

import re
import select
import socket
import socketserver
import ssl
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from tests.support.network.beside import Beside

Address = tuple[str, int]
Target = tuple[Address, ssl.SSLContext | None]
"""The address that a name leads to, and the TLS context of a server without TLS of its own."""

BEARER = re.compile(rb"(?im)^authorization: bearer (\S+)\r$")


class Proxy(Beside, socketserver.ThreadingTCPServer):
    """Proxy for these names: ``with Proxy({"kube.bank.test": (address, context)})``. ``asked`` records all requests."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, targets: dict[str, Target], login: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.targets, self.login = targets, login
        self.asked: list[str] = []
        """The first line of each request."""
        self.bearers: defaultdict[str, set[str]] = defaultdict(set)
        """Tokens that clients sent to each name for which the proxy ends TLS."""

    @property
    def url(self) -> str:
        login = f"{self.login}@" if self.login else ""
        return f"http://{login}127.0.0.1:{self.server_address[1]}"

    @property
    def hosts(self) -> set[str]:
        """Return the names that clients requested."""
        return {line.split()[1].rpartition(":")[0] for line in self.asked}


class _Connection(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        line, headers = self.rfile.readline().decode(), b""
        while (header := self.rfile.readline()).strip():
            headers += header
        self.server.asked.append(line.strip())
        method, target, _ = line.split()
        known = f"basic {b64encode(self.server.login.encode()).decode()}".lower()
        if self.server.login and known not in headers.decode().lower():
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        elif method != "CONNECT" or target.rpartition(":")[0] not in self.server.targets:
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        else:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            host = target.rpartition(":")[0]
            address, context = self.server.targets[host]
            seen = b""

            def hear(block: bytes) -> None:
                nonlocal seen
                seen = seen[-65_536:] + block
                self.server.bearers[host].update(token.decode() for token in BEARER.findall(seen))

            with suppress(OSError):
                ours = context.wrap_socket(self.connection, server_side=True) if context else self.connection
                with socket.create_connection(address) as server:
                    join(ours, server, hear)


def join(one: socket.socket, other: socket.socket, hear: Callable[[bytes], object] = len) -> None:
    """Forward bytes between two connections until one of them closes. Call ``hear`` with the bytes from ``one``.

    One thread forwards both directions, because OpenSSL allows only one thread for a connection.
    """
    sinks = {one: other, other: one}
    with suppress(OSError):
        while blocks := {source: source.recv(65_536) for source in _with_bytes(one, other)}:
            hear(blocks.get(one, b""))
            for source, block in blocks.items():
                sinks[source].sendall(block)
            if not all(blocks.values()):
                break
    for end in sinks:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _with_bytes(*ends: socket.socket) -> list[socket.socket]:
    """Return the connections that can be read without waiting.

    A TLS connection may have bytes that select does not see.
    """
    pending = [end for end in ends if isinstance(end, ssl.SSLSocket) and end.pending()]
    return pending or select.select(ends, (), ())[0]
