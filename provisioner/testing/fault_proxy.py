"""An HTTP proxy between a backend and its place. The proxy can fail in the ways in which networks and servers fail."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Mapping
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self

import urllib3

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
HOP_HEADERS = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "accept-encoding"})


class Fault(StrEnum):
    """The faults of the connection to a place. A fault is in force until another fault is set."""

    NONE = "none"
    HANG = "hang"
    """No request gets a response."""
    DEAD = "dead"
    """Each connection is closed without a response."""
    LOST_ANSWER = "lost_answer"
    """Writes take effect, and their responses are lost."""
    REFUSE = "refuse"
    """Each request gets a response with status 503."""
    CUT = "cut"
    """Each response ends in the middle."""
    STALE = "stale"
    """Each read gets the response that the same read got before the fault began, if there was such a read."""


class Exchange(NamedTuple):
    """A request that reached the place, with the status of its response."""

    method: str
    path: str
    status: int


class Answer(NamedTuple):
    """The response of the place."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class FaultProxy:
    """A proxy to one server. ``with FaultProxy("http://127.0.0.1:6820") as proxy`` starts it at ``proxy.address``."""

    def __init__(self, server: str, ca_file: str | None = None) -> None:
        """Prepare the proxy. ``server``: address with scheme. ``ca_file``: the certificate authority of the server."""
        self._server = server.rstrip("/")
        self._upstream = urllib3.PoolManager(ca_certs=ca_file, maxsize=64, retries=False)
        self._lock = threading.Lock()
        self._clients: set[socket.socket] = set()
        self._calm = threading.Event()
        self._calm.set()
        self._fault = Fault.NONE
        self._reads: dict[str, Answer] = {}
        self.exchanges: list[Exchange] = []
        """All requests that reached the place."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with proxy._lock:
                    proxy._clients.add(self.connection)

            def finish(self) -> None:
                with contextlib.suppress(OSError):
                    super().finish()
                with proxy._lock:
                    proxy._clients.discard(self.connection)

            def do_GET(self) -> None:
                with contextlib.suppress(OSError):
                    proxy._serve(self)

            do_POST = do_DELETE = do_PATCH = do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                """Write nothing, because ``exchanges`` contains what tests need."""

        class Listener(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: object) -> None:
                """Report all errors except broken connections, because faults break connections on purpose."""
                if not isinstance(error := sys.exc_info()[1], OSError):
                    print(f"fault proxy: {error!r}", file=sys.stderr)

        self._listener = Listener(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)
        self.address = f"http://127.0.0.1:{self._listener.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self.fault = Fault.NONE
        self.cut()
        self._upstream.clear()
        self._thread.join()

    @property
    def fault(self) -> Fault:
        """Return the fault that is in force; ``Fault.NONE`` if there is none."""
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._fault = fault
        if fault is Fault.HANG:
            self._calm.clear()
        else:
            self._calm.set()

    def cut(self) -> None:
        """Close all open connections. New connections are accepted as before."""
        with self._lock:
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        fault = self._fault
        handler.close_connection = fault in (Fault.HANG, Fault.DEAD, Fault.CUT)
        if fault is Fault.HANG:
            self._calm.wait()
        elif fault is Fault.REFUSE:
            _send(handler, Answer(503, {}, b"out of service"))
        elif fault is Fault.STALE and handler.command == "GET" and handler.path in self._reads:
            _send(handler, self._reads[handler.path])
        elif fault is not Fault.DEAD:
            self._pass_on(handler, body, fault)

    def _pass_on(self, handler: BaseHTTPRequestHandler, body: bytes, fault: Fault) -> None:
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP_HEADERS}
        try:
            reply = self._upstream.request(handler.command, self._server + handler.path, body=body, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            print(f"fault proxy: no answer to {handler.command} {handler.path}: {error!r}", file=sys.stderr)
            handler.close_connection = True
            return
        kept = {name: value for name, value in reply.headers.items() if name.lower() not in HOP_HEADERS}
        answer = Answer(reply.status, kept, reply.data)
        with self._lock:
            self.exchanges.append(Exchange(handler.command, handler.path, reply.status))
            if handler.command == "GET" and fault is Fault.NONE:
                self._reads[handler.path] = answer
        if fault is Fault.LOST_ANSWER and handler.command in WRITES:
            handler.close_connection = True
        else:
            _send(handler, answer, half=fault is Fault.CUT)


def _send(handler: BaseHTTPRequestHandler, answer: Answer, *, half: bool = False) -> None:
    """Send a response, or only the first half of its body."""
    handler.send_response(answer.status)
    for name, value in answer.headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(answer.body)))
    handler.end_headers()
    handler.wfile.write(answer.body[: len(answer.body) // 2] if half else answer.body)
