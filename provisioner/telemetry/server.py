"""The HTTP server for /metrics, /healthz, /readyz, /status and the status page. It never blocks the loop."""

from __future__ import annotations

import errno
import json
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from provisioner.process_end import CommandFailed
from provisioner.settings import definitions
from provisioner.settings.warnings import is_loopback
from provisioner.telemetry.authentication import NO_AUTHENTICATION, WRONG_SECONDS, Access, AccessError, is_own_host
from provisioner.telemetry.http_connections import TEXT, Connections, Question, Response

log = logging.getLogger(__name__)

JSON = "application/json; charset=utf-8"

PROBES = ("/healthz", "/readyz")
"""Paths that a platform may request without a token. Without a token the response is only a status code, without texts
of clouds."""

SCRAPED = ("/metrics", *PROBES)
"""Paths that may be requested under any host name, because their responses name neither machines, addresses nor
requests."""

BACKLOG = 1024
"""Maximum number of connections that wait until the server accepts them."""

PATHS = "/ /status.json /metrics /healthz /readyz /status"

REFUSALS = {
    HTTPStatus.UNAUTHORIZED: Response(
        HTTPStatus.UNAUTHORIZED,
        TEXT,
        b"A token is required: Authorization: Bearer TOKEN\n",
        {"WWW-Authenticate": 'Bearer realm="provisioner"'},
    ),
    HTTPStatus.TOO_MANY_REQUESTS: Response(
        HTTPStatus.TOO_MANY_REQUESTS,
        TEXT,
        b"Too many wrong tokens came from this address, and this token is wrong, too.\n",
        {"Retry-After": "60"},
        WRONG_SECONDS,
    ),
}
"""Responses to requests without the right token, by status."""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the loop. ``detail``: a sentence for operators."""

    alive: bool
    """True while cycles end in time. If False, the platform should restart the process."""
    ready: bool
    """True if some cycle has observed every pool and the last cycle could plan, or if the loop is a standby."""
    detail: str


Page = Callable[[str, str], Response | None]
"""A function that takes a path and a query, and returns the response; None if the path has no page."""


class ListenError(CommandFailed):
    """Raised if the server cannot listen. The text names address and reason."""


class Server:
    """The HTTP server. Its threads call ``health``, ``status`` or ``page`` for a request."""

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        status: Callable[[], Mapping[str, Any]],
        page: Page = lambda path, query: None,
        files: definitions.Server = NO_AUTHENTICATION,
    ) -> None:
        self._listen, self._registry, self._health, self._status = listen, registry, health, status
        self._page, self._files = page, files
        self._access = Access()
        self._socket: socket.socket | None = None
        self._connections: Connections | None = None
        self.rejected: Callable[[str], None] = lambda reason: None
        """A function that is called for each refused login, request or connection, with the reason."""

    @property
    def url(self) -> str:
        """Return the URL of the server, with the port on which the server listens. Raise RuntimeError before
        ``start``."""
        if self._socket is None:
            raise RuntimeError("the server has not been started")
        host, port = self._socket.getsockname()[:2]
        scheme = "https" if self._access.context else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def start(self) -> None:
        """Listen, and answer requests from now on. Raise ListenError if the server cannot listen."""
        host, _, port = self._listen.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = family is socket.AF_INET6 and socket.has_dualstack_ipv6()
        try:
            self._access = Access(self._files, lambda reason: self.rejected(reason))
            address = host.strip("[]"), int(port)
            self._socket = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
        except AccessError as error:
            raise ListenError(str(error)) from error
        except (OSError, OverflowError) as error:
            raise ListenError(f"cannot listen on {self._listen}: {_format_error(error)}") from error
        self._socket.setblocking(False)
        if not is_loopback(self._listen) and self._files.token_file is None:
            log.warning("The status page is readable without a token", extra={"listen": self._listen})
        self._access.follow()
        self._connections = Connections(
            self._socket, lambda: self._access.context, self.respond, lambda reason: self.rejected(reason), PROBES
        )
        self._connections.start()

    def stop(self) -> None:
        """Stop answering requests and free the port. If the server was not started, do nothing."""
        self._access.close()
        if self._connections is not None:
            self._connections.stop()
        self._socket = self._connections = None

    def respond(self, question: Question) -> Response:
        """Return the response to a request."""
        if question.path not in SCRAPED and is_loopback(self._listen) and not is_own_host(question.host, self._listen):
            message = f"This server answers on {self._listen} and under no other host name: open {self.url}/ instead.\n"
            return Response(HTTPStatus.MISDIRECTED_REQUEST, TEXT, message.encode())
        verdict = self._access.judge(question.authorization, question.client)
        if verdict in REFUSALS and question.path not in PROBES:
            return REFUSALS[verdict]
        response = self._fixed_path(question.path, question.accept) or self._page(question.path, question.query)
        if response is None:
            return Response(HTTPStatus.NOT_FOUND, TEXT, f"there are {PATHS}\n".encode())
        if verdict in REFUSALS:
            body = f"{response.status.phrase}\n".encode()
            return replace(response, body=body, pause_seconds=REFUSALS[verdict].pause_seconds)
        return response

    def _fixed_path(self, path: str, accept: str) -> Response | None:
        """Return the response to one of the paths for programs, for example /metrics; None for any other path.
        ``accept`` chooses the format of the metrics."""
        if path == "/metrics":
            encode, kind = choose_encoder(accept)
            return Response(HTTPStatus.OK, kind, encode(self._registry))
        if path in PROBES:
            health = self._health()
            good = health.alive and (health.ready or path == "/healthz")
            status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
            return Response(status, TEXT, f"{health.detail}\n".encode())
        if path == "/status":
            body = json.dumps(self._status(), ensure_ascii=False, indent=2) + "\n"
            return Response(HTTPStatus.OK, JSON, body.encode())
        return None


def _format_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "another program uses the port; choose another with --listen HOST:PORT"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
