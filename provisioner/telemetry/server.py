"""Answers /metrics, /healthz, /readyz, /status and the status page over HTTP, beside the loop, never in its way."""

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

from provisioner.settings import definitions
from provisioner.settings.warnings import is_loopback
from provisioner.telemetry.authentication import NOBODY_ASKED, WRONG_SECONDS, Access, AccessError, is_meant
from provisioner.telemetry.connections import TEXT, Connections, Question, Response

log = logging.getLogger(__name__)

JSON = "application/json; charset=utf-8"

PROBES = ("/healthz", "/readyz")
"""Paths that a platform asks without a token. The response is then the status code alone, without a cloud's words."""

SCRAPED = ("/metrics", *PROBES)
"""Paths that programs may ask under any host name: their responses name no machine, address or request."""

BACKLOG = 1024
"""Connections that wait until the server takes them."""

PATHS = "/ /status.json /metrics /healthz /readyz /status"

REFUSALS = {
    HTTPStatus.UNAUTHORIZED: Response(
        HTTPStatus.UNAUTHORIZED,
        TEXT,
        b"This needs the token: Authorization: Bearer TOKEN\n",
        {"WWW-Authenticate": 'Bearer realm="provisioner"'},
    ),
    HTTPStatus.TOO_MANY_REQUESTS: Response(
        HTTPStatus.TOO_MANY_REQUESTS,
        TEXT,
        b"Many wrong tokens came from this address, and this is another one.\n",
        {"Retry-After": "60"},
        WRONG_SECONDS,
    ),
}
"""The responses to who may not read."""


@dataclass(frozen=True, slots=True)
class Health:
    """How the loop is. ``detail`` is one sentence for people."""

    alive: bool
    """The loop has begun a cycle lately; False asks the platform to start it again."""
    ready: bool
    """True once a first complete cycle has ended."""
    detail: str


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
        files: definitions.Server = NOBODY_ASKED,
    ) -> None:
        self._listen, self._registry, self._health, self._status = listen, registry, health, status
        self._page, self._files = page, files
        self._access = Access()
        self._socket: socket.socket | None = None
        self._connections: Connections | None = None
        self.rejected: Callable[[str], None] = lambda reason: None
        """Called with the reason for each login, request and connection that is turned away."""

    @property
    def url(self) -> str:
        """The URL of the server with the port that it got; only after ``start``."""
        if self._socket is None:
            raise RuntimeError("the server has not been started")
        host, port = self._socket.getsockname()[:2]
        scheme = "https" if self._access.context else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def start(self) -> None:
        """Listen and answer from now on; raises ListenError."""
        host, _, port = self._listen.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = family is socket.AF_INET6 and socket.has_dualstack_ipv6()
        try:
            self._access = Access(self._files, lambda reason: self.rejected(reason))
            self._socket = socket.create_server(
                (host.strip("[]"), int(port)), family=family, backlog=BACKLOG, dualstack_ipv6=both
            )
        except AccessError as error:
            raise ListenError(str(error)) from error
        except (OSError, OverflowError) as error:
            raise ListenError(f"cannot listen on {self._listen}: {_reason(error)}") from error
        self._socket.setblocking(False)
        if not is_loopback(self._listen) and self._files.token_file is None:
            log.warning("Everybody who reaches this address can read the status page", extra={"listen": self._listen})
        self._access.follow()
        self._connections = Connections(
            self._socket, lambda: self._access.context, self.respond, lambda reason: self.rejected(reason), PROBES
        )
        self._connections.start()

    def stop(self) -> None:
        """Answer no more, and free the port. Harmless when it was not started."""
        self._access.close()
        if self._connections is not None:
            self._connections.stop()
        self._socket = self._connections = None

    def respond(self, question: Question) -> Response:
        """The response to a question."""
        if question.path not in SCRAPED and is_loopback(self._listen) and not is_meant(question.host, self._listen):
            meant = f"This answers on {self._listen}, and not as another host: open {self.url}/ instead.\n"
            return Response(HTTPStatus.MISDIRECTED_REQUEST, TEXT, meant.encode())
        verdict = self._access.judge(question.authorization, question.client)
        if verdict in REFUSALS and question.path not in PROBES:
            return REFUSALS[verdict]
        response = self._fixed_path(question.path, question.accept) or self._page(question.path, question.query)
        if response is None:
            return Response(HTTPStatus.NOT_FOUND, TEXT, f"there are {PATHS}\n".encode())
        if verdict in REFUSALS:
            return replace(response, body=f"{response.status.phrase}\n".encode(), pause=REFUSALS[verdict].pause)
        return response

    def _fixed_path(self, path: str, accept: str) -> Response | None:
        """What programs ask for; ``accept`` chooses the format of the metrics."""
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


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "another program uses the port; choose another with --listen HOST:PORT"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
