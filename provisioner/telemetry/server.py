"""Answers /metrics, /healthz, /readyz, /status and the status page over HTTP, beside the loop, never in its way."""

from __future__ import annotations

import errno
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from provisioner.settings.advice import is_loopback
from provisioner.telemetry.access import NOBODY_ASKED, Access, AccessError, AccessFiles, is_meant

log = logging.getLogger(__name__)

CLIENT_SECONDS = 10
"""A client that sends or takes nothing for so long is dropped: it must not hold a thread for ever."""

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"

PROBES = ("/healthz", "/readyz")
"""Paths that a platform asks without a token. The response is then the status code alone, without a cloud's words."""

SCRAPED = ("/metrics", *PROBES)
"""Paths that programs may ask under any host name: their responses name no machine, address or request."""

SECURITY = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every response; the status page allows its own style besides."""

PATHS = "/ /status.json /metrics /healthz /readyz /status"

REFUSED_HEADERS = {"WWW-Authenticate": 'Bearer realm="provisioner", Basic realm="provisioner", charset="UTF-8"'}
"""By Basic a browser asks its user for a name, which is ignored, and a password, which is the token."""


@dataclass(frozen=True, slots=True)
class Health:
    """How the loop is. ``detail`` is one sentence for people."""

    alive: bool
    """The loop has begun a cycle lately; False asks the platform to start it again."""
    ready: bool
    """True once a first complete cycle has ended."""
    detail: str


@dataclass(frozen=True, slots=True)
class Question:
    """A client's question: its path, query, and the headers that matter."""

    path: str
    query: str = ""
    accept: str = ""
    authorization: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a path."""

    status: HTTPStatus
    type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Page = Callable[[str, str], Response | None]
"""The response to a path and a query; None: there is no such page."""


class ListenError(Exception):
    """The address cannot be listened on; the text says which and why."""


class Server:
    """The HTTP server. ``health``, ``status`` and ``page`` are called in its threads, once for each question."""

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        status: Callable[[], Mapping[str, Any]],
        page: Page = lambda path, query: None,
        files: AccessFiles = NOBODY_ASKED,
    ) -> None:
        self._listen, self._registry, self._health, self._status = listen, registry, health, status
        self._page, self._files = page, files
        self._access = Access()
        self._server: _Http | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The URL of the server with the port that it got; only after ``start``."""
        if self._server is None:
            raise RuntimeError("the server has not been started")
        host, port = self._server.server_address[:2]
        scheme = "https" if self._access.encrypted else "http"
        return f"{scheme}://[{host!s}]:{port}" if ":" in str(host) else f"{scheme}://{host!s}:{port}"

    def start(self) -> None:
        """Listen and answer from now on; raises ListenError."""
        host, _, port = self._listen.rpartition(":")
        try:
            self._access = Access(self._files)
            self._server = _Http(host.strip("[]"), int(port), self.respond, self._access)
        except AccessError as error:
            raise ListenError(str(error)) from error
        except (OSError, OverflowError) as error:
            raise ListenError(f"cannot listen on {self._listen}: {_reason(error)}") from error
        if not is_loopback(self._listen) and self._files.token is None:
            log.warning("Everybody who reaches this address can read the status page", extra={"listen": self._listen})
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer no more, and free the port. Harmless when it was not started."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
        self._server = self._thread = None

    def respond(self, question: Question) -> Response:
        """The response to a question."""
        if question.path not in SCRAPED and is_loopback(self._listen) and not is_meant(question.host, self._listen):
            meant = f"This answers on {self._listen}, and not as another host: open {self.url}/ instead.\n"
            return Response(HTTPStatus.MISDIRECTED_REQUEST, TEXT, meant.encode())
        allowed = self._access.allows(question.authorization)
        if not (allowed or question.path in PROBES):
            words = b"This needs the token: as Authorization: Bearer TOKEN, or in a browser as the password.\n"
            return Response(HTTPStatus.UNAUTHORIZED, TEXT, words, REFUSED_HEADERS)
        response = self._fixed_path(question.path, question.accept) or self._page(question.path, question.query)
        if response is None:
            return Response(HTTPStatus.NOT_FOUND, TEXT, f"there are {PATHS}\n".encode())
        return response if allowed else replace(response, body=f"{response.status.phrase}\n".encode())

    def _fixed_path(self, path: str, accept: str) -> Response | None:
        """What programs ask for; ``accept`` chooses the format of the metrics."""
        if path == "/metrics":
            encode, kind = choose_encoder(accept)
            return Response(HTTPStatus.OK, kind, encode(self._registry))
        if path in PROBES:
            health = self._health()
            return _sentence(health.alive and (health.ready or path == "/healthz"), health.detail)
        if path == "/status":
            body = json.dumps(self._status(), ensure_ascii=False, indent=2) + "\n"
            return Response(HTTPStatus.OK, JSON, body.encode())
        return None


def _sentence(good: bool, detail: str) -> Response:
    return Response(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, TEXT, f"{detail}\n".encode())


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "another program uses the port; choose another with --listen HOST:PORT"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class _Http(ThreadingHTTPServer):
    """A listening socket with a thread for each connection."""

    daemon_threads = True

    def __init__(self, host: str, port: int, respond: Callable[[Question], Response], access: Access) -> None:
        self.respond, self._access = respond, access
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server for our own name, as the base class would."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection, with TLS if it is wanted."""
        connection, address = super().get_request()
        return self._access.secured(connection), address

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle of a response is not logged."""
        log.debug("Connection ended early", extra={"client": str(client_address), "socket": repr(request)})


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = CLIENT_SECONDS
    server: _Http

    def do_GET(self) -> None:
        """Answer a question."""
        self._send(self._response())

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Refuse every method that would change something."""
        self.close_connection = True  # the body is not read, so the connection cannot be used again
        self._send(Response(HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"only GET and HEAD\n", {"Allow": "GET, HEAD"}))

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in {**SECURITY, **response.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def _response(self) -> Response:
        path, _, query = self.path.partition("?")
        headers = (self.headers.get(name, "") for name in ("Accept", "Authorization", "Host"))
        try:
            return self.server.respond(Question(path, query, *headers))
        except Exception as error:
            log.exception("Answer failed", extra={"path": path})
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, f"{type(error).__name__}: {error}\n".encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Questions are not logged: probes ask every few seconds."""
        log.debug("Answered", extra={"client": self.address_string(), "answer": format % args})
