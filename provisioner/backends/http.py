"""HTTP calls to the server of a place, for kinds that have no client library. Each call is tried once.

The time-out of a call covers its whole response. Connections use the proxy and the certificate authorities of the
process. An idle connection is replaced, because a firewall may have forgotten it.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

from provisioner.backends import BackendError
from provisioner.backends.client_connections import Bounded, make_connections, read_body
from provisioner.backends.concurrency import MOST
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.proxies_and_authorities import failed_call, get_ca_bundle, proxy_login
from provisioner.backends.responses import json_object, words
from provisioner.model import ErrorClass

JSON = "application/json"
UNIX = "unix://"
"""Beginning of the address of a server that listens on a socket file."""

Document = dict[str, Any]
Query = Mapping[str, str | int]


class Way:
    """The address of a server and the connections to it."""

    def __init__(self, host: str, connections: urllib3.PoolManager) -> None:
        """Store the connections and make no call. ``host``: ``scheme://host[:port]``, perhaps followed by a path."""
        self.host = host
        # A proxy needs the whole address in each request to a plain HTTP server.
        by_proxy = connections.proxy is not None and host.startswith("http://")
        self._prefix = host if by_proxy else urlsplit(host).path
        self._pool = connections.connection_from_url(host)
        """Connection pool of the server. The pool is stored, because a look-up takes a quarter of the time of a
        call."""

    def urlopen(self, method: str, path: str, **options: Any) -> urllib3.response.BaseHTTPResponse:
        """Send one request to a path of the server."""
        return self._pool.urlopen(method, self._prefix + path, assert_same_host=False, **options)


class _SocketFile(Bounded):
    """A connection to a server that listens on a socket file."""

    def __init__(self, path: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._path = path

    def _new_conn(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(self.timeout)
        try:
            made.connect(self._path)
        except OSError as error:
            made.close()
            raise urllib3.exceptions.NewConnectionError(self, f"{self._path}: {error.strerror or error}") from error
        return made


def connect(address: str, ca_file: Path | None = None) -> Way:
    """Return the ``Way`` to a server, without a call. ``address``: ``http://``, ``https://``, or ``unix:///PATH``.

    Raise BackendError if the file of certificate authorities (``ca_file``) cannot be used.
    """
    options: dict[str, Any] = {"maxsize": MOST}
    if address.startswith(UNIX):
        made = make_connections(None, **options)
        way = Way("http://localhost", made)
        socket_file = partial(_SocketFile, address.removeprefix(UNIX))
        made.connection_from_url(way.host).ConnectionCls = socket_file  # type: ignore[assignment]
        return way
    parts = urlsplit(address)
    if parts.scheme == "https":
        try:
            options["ssl_context"] = ssl.create_default_context(cafile=ca_file or get_ca_bundle())
        except OSError as error:
            text = f"ca_file {ca_file} cannot be used: {error}; correct it, or leave it out"
            raise BackendError(ErrorClass.INVALID, text) from error
    if proxy := None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme):
        options["proxy_headers"] = proxy_login(proxy)
    return Way(address, make_connections(proxy, **options))


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a server."""

    method: str
    path: str
    seconds: float
    """Seconds allowed for the connection and the response. Of a stream, only the head counts."""
    query: Query = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    silence: float | None = None
    """Longest silence of a stream, whose body the caller reads; None for a usual response."""


def exchange(way: Way, request: Request, clock: PlaceClock) -> tuple[urllib3.response.BaseHTTPResponse, bytes]:
    """Send a request. Return the response and its body. If the request opens a stream, the body is empty, and the
    caller reads the stream.

    ``clock`` notes the server's ``Date`` and the duration of the call. If there is no response, raise BackendError with
    urllib3's error as its cause.
    """
    began = time.monotonic()
    try:
        reply = way.urlopen(
            request.method,
            request.path + (f"?{urlencode(request.query)}" if request.query else ""),
            body=request.body,
            headers={"Accept": JSON, **({"Content-Type": JSON} if request.body is not None else {}), **request.headers},
            timeout=urllib3.Timeout(connect=request.seconds, read=request.silence or request.seconds),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        content = b"" if request.silence and reply.status < 300 else read_body(reply)
    except urllib3.exceptions.HTTPError as error:
        clock.hear(None, time.monotonic() - began)
        raise unanswered_error(error) from error
    clock.hear(reply.headers.get("Date"), time.monotonic() - began)
    return reply, content


def unanswered_error(error: urllib3.exceptions.HTTPError) -> BackendError:
    """Return the failure of a request without a response. The request may have been applied."""
    reading = isinstance(error, urllib3.exceptions.ReadTimeoutError)
    kind = ErrorClass.TIMEOUT if reading else ErrorClass.UNAVAILABLE
    return failed_call(error, kind, words(f"{type(error).__name__}: {error}"))


def parse(body: bytes) -> Document:
    """Return the JSON object in a response. Raise BackendError if the body contains none, for example because the
    response was cut off."""
    try:
        return json_object(body)
    except ValueError as error:
        raise BackendError(ErrorClass.UNAVAILABLE, words(f"the answer is not JSON: {error}")) from error
