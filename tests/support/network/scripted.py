"""A TLS server whose responses a test writes byte by byte."""

from __future__ import annotations

import json
import re
import socketserver
import ssl
from collections import deque
from contextlib import suppress
from typing import Any

from tests.support.network.beside import Beside

DATE = "Fri, 27 Nov 2026 15:43:14 GMT"


def response(status: int, document: object = None, *headers: str) -> bytes:
    """Return a response with a JSON document, as an API server sends it."""
    body = json.dumps(document or {"kind": "Status"}).encode()
    lines = [f"HTTP/1.1 {status} Word", f"Date: {DATE}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Scripted(Beside, socketserver.ThreadingTCPServer):
    """Server that gives scripted responses: ``with Scripted(context) as server``.

    Each request gets the next of ``server.responses``. If there is none, the server closes the connection. ``asked``
    has the heads of the requests with the number of the connection. ``bodies`` has the bodies.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.context = context
        self.responses: deque[bytes] = deque()
        self.asked: list[tuple[int, str]] = []
        self.bodies: list[Any] = []
        self.connections = 0

    @property
    def address(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.server_address[1]}"

    def header(self, number: int, name: str) -> str:
        """Return a header of a request; empty if the request lacks the header."""
        found = re.search(rf"(?im)^{name}: (.*?)\r$", self.asked[number][1])
        return found[1] if found else ""


class _Connection(socketserver.StreamRequestHandler):
    server: Scripted

    def handle(self) -> None:
        with suppress(OSError):
            if self.server.context:
                self.request = self.server.context.wrap_socket(self.request, server_side=True)
                self.rfile, self.wfile = self.request.makefile("rb"), self.request.makefile("wb", 0)
            self.server.connections += 1
            connection = self.server.connections
            while head := self._head():
                length = re.search(r"(?im)^content-length: ([0-9]+)", head)
                body = self.rfile.read(int(length[1]) if length else 0)
                self.server.asked.append((connection, head))
                self.server.bodies.append(json.loads(body) if body else None)
                if not self.server.responses or not (answer := self.server.responses.popleft()):
                    return
                self.wfile.write(answer)
                if not re.search(rb"(?i)\r\n(content-length:|transfer-encoding:)", answer) or b"tion: close" in answer:
                    return

    def _head(self) -> str:
        head = b""
        while (line := self.rfile.readline()).strip():
            head += line
        return head.decode()

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
            self.request.close()
