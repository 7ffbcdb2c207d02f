"""A proxy with TLS before an API server. It counts calls, and can fail as networks do: lose responses, hang, answer
with errors, and break connections."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import urllib3

from tests.support.network.authority import Authority
from tests.support.waiting import PATIENCE

NO_PROGRESS = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "a watch stream was requested by the client but the required storage feature RequestWatchProgress is "
    "disabled",
    "reason": "InternalError",
    "code": 500,
}


class Trouble(StrEnum):
    """A fault of the connections."""

    NONE = "none"
    LOSE = "lose"
    """Creates and deletes are applied, and their responses lost."""
    LOSE_ONCE = "lose once"
    """The response of the next create or patch is lost."""
    BUSY_ONCE = "busy once"
    """The next call is answered with 429."""
    HANG = "hang"
    """Nothing is answered."""
    FAIL = "fail"
    """Everything is answered with 503."""
    NO_STREAMED_LISTS = "no streamed lists"
    """Watches that are to begin with a list are refused inside the stream, as where etcd is older than 3.4.25."""


class Call(NamedTuple):
    """A request that was answered, with the time of the answer."""

    at: float
    """The monotonic time of the answer."""
    method: str
    path: str
    query: str
    status: int

    @property
    def watches(self) -> bool:
        """Return True if the call asked for a stream."""
        return "watch=" in self.query

    @property
    def lists(self) -> bool:
        """Return True if the call asked for all pods, in pages or as the beginning of a stream."""
        return self.method == "GET" and self.path.endswith("/pods") and "resourceVersion=" not in self.query


class Storm:
    """Random refusals of a share of the calls. Equal seeds refuse the same calls. Only a write can be refused with 409,
    a conflict."""

    def __init__(self, seed: int, share: float, statuses: Sequence[int] = (409, 429, 503)) -> None:
        self._chance, self._share, self._statuses = random.Random(seed), share, statuses

    def refusal(self, method: str) -> int:
        """Return the status by which the next call is refused; 0 if it is not refused."""
        if self._chance.random() >= self._share:
            return 0
        status = self._chance.choice(self._statuses)
        return 0 if status == 409 and method == "GET" else status


class Proxy:
    """``with Proxy(server, ca) as proxy``: clients reach the server through ``proxy.address``, and trust the
    certificate authority ``proxy.ca``."""

    def __init__(self, server: str, ca: str | None) -> None:
        self._server = server
        self._upstream = urllib3.PoolManager(ca_certs=ca, maxsize=64, retries=False)
        self._lock = threading.Lock()
        self._clients: set[socket.socket] = set()
        self._watchers: set[socket.socket] = set()
        self._calm = threading.Event()
        self._calm.set()
        self._trouble = Trouble.NONE
        self.storm: Storm | None = None
        self.calls: list[Call] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                proxy._add(proxy._clients, self.connection)

            def finish(self) -> None:
                with contextlib.suppress(OSError):
                    super().finish()
                proxy._drop(self.connection)

            def do_GET(self) -> None:
                with contextlib.suppress(OSError):
                    proxy._serve(self)

            do_POST = do_DELETE = do_PATCH = do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                """Log nothing, because ``calls`` holds what tests need."""

        class Listener(ThreadingHTTPServer):
            request_queue_size = 256

            def handle_error(self, *_: object) -> None:
                """Ignore broken connections, because tests break them on purpose. Report any other error."""
                error = sys.exc_info()[1]
                if not isinstance(error, OSError):
                    print(f"proxy: {error!r}", file=sys.stderr)

        self._listener = Listener(("127.0.0.1", 0), Handler)
        self._listener.daemon_threads = True
        self._listener.block_on_close = False
        self.address = f"https://127.0.0.1:{self._listener.server_port}"
        self._directory = tempfile.TemporaryDirectory()
        authority = Authority(Path(self._directory.name))
        self.ca = authority.file
        self._listener.socket = authority.context("127.0.0.1").wrap_socket(
            self._listener.socket,
            server_side=True,
            do_handshake_on_connect=False,  # a connection's own thread does it
        )
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._calm.set()
        self.cut()
        self._upstream.clear()
        self._thread.join(5 * PATIENCE)
        self._directory.cleanup()

    @property
    def trouble(self) -> Trouble:
        """Return the present fault."""
        return self._trouble

    @trouble.setter
    def trouble(self, trouble: Trouble) -> None:
        self._trouble = trouble
        if trouble is Trouble.HANG:
            self._calm.clear()
        else:
            self._calm.set()

    def cut(self) -> None:
        """Break all connections. New connections are possible."""
        self._break(self._clients)

    def cut_watches(self) -> int:
        """Break all streams, and return their number."""
        return self._break(self._watchers)

    def observations(self) -> list[Call]:
        """Return every list and watch of pods that was answered."""
        with self._lock:
            return [call for call in self.calls if call.method == "GET" and call.path.endswith("/pods")]

    def creates(self) -> list[Call]:
        """Return every create of a pod that the server or the proxy has answered."""
        with self._lock:
            return [call for call in self.calls if call.method == "POST" and call.path.endswith("/pods")]

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if self._trouble is Trouble.HANG:
            self._calm.wait()
            handler.close_connection = True
        elif self._trouble is Trouble.FAIL:
            _refuse(handler, 503, "out of service")
        elif self._trouble is Trouble.BUSY_ONCE:
            self.trouble = Trouble.NONE
            self._note(handler, 429)
            _refuse(handler, 429, "too many", "1")
        elif self.storm and (status := self.storm.refusal(handler.command)):
            self._note(handler, status)
            _refuse(handler, status, "a storm", "1" if status == 429 else None)
        elif self._trouble is Trouble.NO_STREAMED_LISTS and "sendInitialEvents" in handler.path:
            self._note(handler, 200)
            _answer(handler, 200, json.dumps({"type": "ERROR", "object": NO_PROGRESS}).encode() + b"\n")
        else:
            self._forward(handler, body)

    def _note(self, handler: BaseHTTPRequestHandler, status: int) -> None:
        path, _, query = handler.path.partition("?")
        with self._lock:
            self.calls.append(Call(time.monotonic(), handler.command, path, query, status))

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        headers = {
            name: handler.headers[name] for name in ("Authorization", "Content-Type", "Accept") if handler.headers[name]
        }
        try:
            response = self._upstream.request(
                handler.command, self._server + handler.path, body=body, headers=headers, preload_content=False
            )
        except urllib3.exceptions.HTTPError as error:
            print(f"proxy: no answer to {handler.command} {handler.path}: {error!r}", file=sys.stderr)
            handler.close_connection = True
            return
        self._note(handler, response.status)
        if "watch=" in handler.path and response.status == 200:
            self._stream(handler, response)
            return
        content = response.read()
        response.release_conn()
        if self._trouble is Trouble.LOSE and handler.command in ("POST", "DELETE"):
            handler.close_connection = True
        elif self._trouble is Trouble.LOSE_ONCE and handler.command in ("POST", "PATCH"):
            self.trouble = Trouble.NONE
            handler.close_connection = True
        else:
            _answer(handler, response.status, content, response.headers.get("Retry-After"))

    def _stream(self, handler: BaseHTTPRequestHandler, response: urllib3.BaseHTTPResponse) -> None:
        """Pass the pieces of a watch on, until one side ends the watch."""
        self._add(self._watchers, handler.connection)
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.flush()
        try:
            for chunk in response.stream(1 << 16):
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                handler.wfile.flush()
            handler.wfile.write(b"0\r\n\r\n")
        except urllib3.exceptions.HTTPError:
            handler.close_connection = True
        finally:
            response.close()
            with self._lock:
                self._watchers.discard(handler.connection)

    def _add(self, group: set[socket.socket], connection: socket.socket) -> None:
        with self._lock:
            group.add(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            for group in (self._clients, self._watchers):
                group.discard(connection)

    def _break(self, group: set[socket.socket]) -> int:
        with self._lock:
            for connection in group:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)  # that of TLS lets its reader go on in plain
            return len(group)


def _refuse(handler: BaseHTTPRequestHandler, status: int, message: str, retry_after: str | None = None) -> None:
    content = json.dumps({"kind": "Status", "code": status, "message": message}).encode()
    _answer(handler, status, content, retry_after)


def _answer(handler: BaseHTTPRequestHandler, status: int, content: bytes, retry_after: str | None = None) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    if retry_after:
        handler.send_header("Retry-After", retry_after)
    handler.end_headers()
    handler.wfile.write(content)
