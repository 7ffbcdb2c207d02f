"""The connections of the HTTP server, in a separate thread. Each connection serves one request and is limited in size
and time. The number of connections is limited, too."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import IPv6Address, IPv6Network
from ssl import SSLContext
from typing import Any

from tornado import httputil
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

log = logging.getLogger(__name__)

HEAD_SECONDS = 10.0
"""Maximum seconds from the start of a connection, including its TLS handshake, to the end of the request's head."""
RESPONSE_SECONDS = 30.0
"""Maximum seconds from the end of the request's head until the client has received the response."""
HEAD_BYTES, LINE_BYTES = 32_768, 8_192
"""Maximum number of bytes of a request's head, and of one line in the head."""
UNSENT_BYTES = 32 * 1024 * 1024
"""Maximum total size, in bytes, of the responses that clients have not received yet."""
CONNECTIONS, SHARE = 256, 4
"""Maximum number of open connections, and a divisor: connections use at most 1/``SHARE`` of the file descriptors that
the process may open, because the loop needs the rest."""
LEAST_SECONDS = 0.5
"""Minimum age in seconds of a connection that is closed to make room for a new one. If every open connection is
younger, the new one waits. This age is enough for a TLS handshake and a request."""
PAUSE_SECONDS = 0.1
"""Seconds for which the server pauses after it could not accept a connection, if the client did not cause the
failure."""
WORKERS = 2
"""Number of threads that make responses. The number is small, because the loop's thread waits while Python runs another
thread."""
STOP_SECONDS = 2.0
"""Seconds for which a stopping server still sends responses that it has begun."""

TEXT = "text/plain; charset=utf-8"

SECURITY = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every response. The status page adds its own style to the Content-Security-Policy."""


@dataclass(frozen=True, slots=True)
class Question:
    """A client's request: path, query, the headers that the server uses, and the client's address or network."""

    path: str
    query: str = ""
    accept: str = ""
    authorization: str = ""
    host: str = ""
    client: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request."""

    status: HTTPStatus
    type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    pause_seconds: float = 0.0
    """Seconds for which the server waits before it sends the response."""


class Connections(httputil.HTTPServerConnectionDelegate):
    """The connections of a listening socket, from ``start`` to ``stop``."""

    def __init__(
        self,
        listening: socket.socket,
        tls: Callable[[], SSLContext | None],
        respond: Callable[[Question], Response],
        rejected: Callable[[str], None],
        prompt: Collection[str],
    ) -> None:
        """Set the inputs. ``tls``: function that returns the TLS context of a new connection, or None without TLS.

        ``rejected``: function that is called with "request" for a malformed request, and with "room" if a connection is
        closed to make room. ``prompt``: paths that the server's own thread answers at once. A worker thread answers
        requests with a token, because logging a wrong token may take time.
        """
        self._socket, self._tls = listening, tls
        self.respond, self.rejected, self.prompt = respond, rejected, prompt
        self.open = _OpenConnections(rejected)
        self.workers = ThreadPoolExecutor(WORKERS, "respond")
        self._end: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server", daemon=True)

    def start(self) -> None:
        """Start the thread that accepts connections and answers requests."""
        self._thread.start()

    def stop(self) -> None:
        """Close the socket and every connection."""
        self._end.set_result(None)
        self._thread.join()

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> _Exchange:
        """Return the object that receives the head of a request."""
        return _Exchange(self, request_conn)

    async def _serve(self) -> None:
        limits = {"idle_connection_timeout": HEAD_SECONDS, "max_header_size": HEAD_BYTES, "chunk_size": LINE_BYTES}
        server = HTTPServer(self, no_keep_alive=True, **limits)
        accepting = asyncio.ensure_future(self._accept_connections(server))
        await asyncio.wrap_future(self._end)
        accepting.cancel()
        self._socket.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await server.close_all_connections()
        self.workers.shutdown(wait=False, cancel_futures=True)

    async def _accept_connections(self, server: HTTPServer) -> None:
        """Accept connections one at a time. After each connection, let the open connections proceed."""
        while True:
            line: socket.socket | _Stream | None = None
            pause_seconds = 0.0
            try:
                line, address = await asyncio.get_running_loop().sock_accept(self._socket)
                await self.open.make_room()
                line = stream = self._stream(line)
                self.open.add(stream, address[0])
                server.handle_stream(stream, address)
            except Exception as error:
                level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
                log.log(level, "Connection cannot be accepted", exc_info=error)
                if line is not None:
                    line.close()
                if line is None or level == logging.ERROR:  # no file descriptor is left, or the program has a bug
                    pause_seconds = PAUSE_SECONDS
            await asyncio.sleep(pause_seconds)

    def _stream(self, connection: socket.socket) -> _Stream:
        if (context := self._tls()) is None:
            return _Stream(connection)
        return _TlsStream(context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False))


class _Stream(IOStream):
    """A connection that delivers the whole response to its client, even if the server has not read all bytes that the
    client sent."""

    client = ""
    accepted_at = 0.0
    """The monotonic time at which the connection was accepted."""
    unsent_bytes = 0
    """Size of the connection's response in bytes; 0 before the response is known."""

    def close_fd(self) -> None:
        """Shut down the sending side before the socket is closed. A close alone would reset the connection, and the
        client would lose the response."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        super().close_fd()


class _TlsStream(_Stream, SSLIOStream):
    """A connection that uses TLS."""


class _OpenConnections:
    """The open connections, the oldest first.

    If there is no room, the client with the most connections loses its oldest connection.
    """

    def __init__(self, rejected: Callable[[str], None]) -> None:
        self._rejected = rejected
        self._streams: list[_Stream] = []
        self._max_open = most_connections()

    async def make_room(self) -> None:
        """Wait until one more connection may be opened. If too many connections are open, close one as soon as it is
        older than ``LEAST_SECONDS``."""
        while True:
            self._streams = [stream for stream in self._streams if not stream.closed()]
            if len(self._streams) < self._max_open:
                return
            if time.monotonic() - _next_to_close(self._streams).accepted_at >= LEAST_SECONDS:
                self._close_one(self._streams)
            else:
                await asyncio.sleep(0.01)

    def add(self, stream: _Stream, host: str) -> None:
        """Add a connection from the address ``host``."""
        stream.client, stream.accepted_at = network_of(host), time.monotonic()
        self._streams.append(stream)

    def reserve(self, stream: _Stream, size: int) -> None:
        """Reserve ``size`` bytes for the response on a connection. While the unsent responses of all connections exceed
        ``UNSENT_BYTES``, close one connection after the other."""
        stream.unsent_bytes = size
        sending = [other for other in self._streams if other.unsent_bytes and not other.closed()]
        while sum(other.unsent_bytes for other in sending) > UNSENT_BYTES and len(sending) > 1:
            sending.remove(self._close_one(sending))

    def _close_one(self, among: Sequence[_Stream]) -> _Stream:
        stream = _next_to_close(among)
        stream.close()
        self._rejected("room")
        return stream


def _next_to_close(among: Sequence[_Stream]) -> _Stream:
    """Return the connection to close next: the oldest of the client with the most connections."""
    ((greediest, _),) = Counter(stream.client for stream in among).most_common(1)
    return next(stream for stream in among if stream.client == greediest)


def most_connections() -> int:
    """Return the largest number of connections that may be open at once."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS if limit == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, limit // SHARE))


def network_of(host: str) -> str:
    """Return the address of a client. For an IPv6 address, return its /64 network, because a client may use the whole
    network."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or IPv6Network((address, 64), strict=False))


class _Exchange(httputil.HTTPMessageDelegate):
    """A request and its response. The server reads no body and no second request. It closes the connection after the
    response."""

    def __init__(self, shared: Connections, connection: Any) -> None:
        self._shared, self._connection = shared, connection
        self._stream: _Stream = connection.stream

    async def headers_received(self, start_line: Any, headers: httputil.HTTPHeaders) -> None:
        """Answer the request when its head is complete."""
        start: httputil.RequestStartLine = start_line
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                response = self._refusal(start, headers) or await self._response(start.path, headers)
                await asyncio.sleep(response.pause_seconds)
                self._shared.open.reserve(self._stream, len(response.body))
                fields = {"Content-Type": response.type, "Content-Length": str(len(response.body))}
                await self._connection.write_headers(
                    httputil.ResponseStartLine("HTTP/1.1", response.status, response.status.phrase),
                    httputil.HTTPHeaders({**fields, **SECURITY, **response.headers}),
                    b"" if start.method == "HEAD" else response.body,
                )
        except (TimeoutError, StreamClosedError):
            log.debug("Response was not received", extra={"path": start.path})
        finally:
            self._connection.detach().close()  # without detach, Tornado would answer a second request

    def _refusal(self, start: httputil.RequestStartLine, headers: httputil.HTTPHeaders) -> Response | None:
        """Return the response that refuses a malformed request; None if the request is well-formed."""
        lines = (start.path, *(f"{name}: {value}" for name, value in headers.get_all()))
        if start.method not in ("GET", "HEAD"):
            allowed = {"Allow": "GET, HEAD"}
            response = Response(HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"only GET and HEAD\n", allowed)
        elif "Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0":
            response = Response(HTTPStatus.BAD_REQUEST, TEXT, b"no request has a body\n")
        elif max(map(len, lines)) > LINE_BYTES:
            response = Response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TEXT, b"a line of the head is too long\n")
        else:
            return None
        self._shared.rejected("request")
        return response

    async def _response(self, target: str, headers: httputil.HTTPHeaders) -> Response:
        path, _, query = target.partition("?")
        accept, authorization, host = (headers.get(name, "") for name in ("Accept", "Authorization", "Host"))
        question = Question(path, query, accept, authorization, host, self._stream.client)
        # A request with a token goes to a worker, because the log line of a failed login may take time.
        if path in self._shared.prompt and not authorization:
            return self._make_response(question)
        return await asyncio.get_running_loop().run_in_executor(self._shared.workers, self._make_response, question)

    def _make_response(self, question: Question) -> Response:
        """Return the response to a request. If the client has closed the connection, return an empty response."""
        if self._stream.closed():
            return Response(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"")
        try:
            return self._shared.respond(question)
        except Exception as error:
            log.exception("Answer failed", extra={"path": question.path})
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, f"{type(error).__name__}: {error}\n".encode())
