"""TLS before a server that speaks none, as it stands before an API server."""

from __future__ import annotations

import socket
import socketserver
import ssl
from contextlib import suppress

from tests.support.network.beside import Beside
from tests.support.network.proxy import Address, join


class Front(Beside, socketserver.ThreadingTCPServer):
    """``with Front(context) as front``; whoever comes is led to ``target``."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.context = context
        self.target: Address = ("127.0.0.1", 0)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}"


class _Connection(socketserver.BaseRequestHandler):
    server: Front

    def handle(self) -> None:
        with (
            suppress(OSError),
            self.server.context.wrap_socket(self.request, server_side=True) as ours,
            socket.create_connection(self.server.target) as server,
        ):
            join(ours, server)
