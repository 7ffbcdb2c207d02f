"""Calls to a Kubernetes API server with the standard library alone. Each whole call is limited in time and size.

The scripts import this module at each call, so it imports only modules that load fast.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from provisioner.state.errors import StateDenied, StateError, StateMissing, StateUnreachable
from provisioner.state.kube.api_login import Access, proxy_for, read_text

if TYPE_CHECKING:
    from email.message import Message

IDLE_SECONDS = 5.0
"""Seconds without a call after which the next call opens a new connection, because a firewall may have forgotten the
old connection."""

CALL_SECONDS = 10.0
"""Seconds for a call with its repetitions, if the caller sets no limit."""

CONNECT_SECONDS = 5.0
"""Seconds within which an address must accept a connection."""

BODY_BYTES = 64 << 20
"""Maximum number of bytes of a response's body: three times the size of a list of a thousand requests with a hundred
machines each."""

EVENT_BYTES = 4 << 20
"""Maximum number of bytes of a watch event. The server accepts objects of up to 3 MB."""

PIECE = 1 << 18
"""Bytes of a body that are read at a time."""

AGENT = "hostfactory-provisioner"
BROKEN = (OSError, ValueError, http.client.HTTPException)
"""Errors of a connection that breaks off, or of a response that is not HTTP."""

MERGE = "application/merge-patch+json"
PARTIAL = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

OK, REDIRECT, UNAUTHORIZED, NOT_FOUND, BUSY, SERVER_ERROR = 200, 300, 401, 404, 429, 500
ANSWERED = frozenset({404, 409, 410, 422})
"""Statuses besides 2xx that the caller handles: no such object (404), conflict (409), too old (410), refused by a rule
(422)."""

COMPONENT = "deploy/kustomize/components/kubernetes-state"
ADVICE = {
    UNAUTHORIZED: "Renew the token or the certificate that the kubeconfig names",
    403: "Remove the cause that the server names",
}
ROLE = f"Bind this account to its Role in {COMPONENT}, which has the verb {{}} on {{}}"
SERVER_FORM = "is no address of an API server: expected `server: https://HOST:PORT` in the kubeconfig."
PROXY_FORM = "HTTPS_PROXY or proxy-url: expected http://proxy:3128 or http://name:password@proxy (%23, %2F for #, /)."
TOKEN_FORM = "expected one line with a token. Write the token again; let a timer write a new file and rename it."
PROXY_LOGIN = "The proxy wants another login: correct name and password in HTTPS_PROXY or proxy-url."
PEM_FORM = "Correct server, tls-server-name, CA, certificate and key of the kubeconfig; the key must have no password."
LACKS_RIGHT = re.compile(r'cannot (\w+) resource "([^"]+)"')
"""Pattern of the server's message about a call that no Role allows. Its groups are the verb and the resource."""


class Response(NamedTuple):
    """The server's response to a call, with a status that the caller handles."""

    status: int
    document: dict[str, Any]
    at: float
    """Time of the response by the server's clock, in epoch seconds."""


class _TimedBytes(io.RawIOBase):
    """The bytes that a connection receives. Each read may take only the time that the call has left."""

    def __init__(self, connection: Connection, source: io.RawIOBase) -> None:
        self._connection, self._source = connection, source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._connection.limit()
        return self._source.readinto(buffer)


class Connection(http.client.HTTPConnection):
    """A connection that limits the time of each call. If the connection breaks off, its methods raise one of the errors
    in ``BROKEN``."""

    default_port = 443

    def __init__(self, access: Access, until: float) -> None:
        """Connect to the server, through a proxy if necessary. ``until``: monotonic time at which the first call must
        have ended. Raises StateDenied if the address or login of server or proxy cannot be used."""
        self.until, self.used = until, time.monotonic()
        server, port = _parse(access.server, ("http", "https"), f"{access.server}: {SERVER_FORM}")
        self._access, self._name, self._is_encrypted = access, server.hostname or "", server.scheme == "https"
        self._prefix, self._login = server.path.rstrip("/"), dict[str, str]()
        self._proxy = proxy_for(access, self._name, port) if self._is_encrypted else ""
        address, first_port = _parse(self._proxy, ("http",), PROXY_FORM) if self._proxy else (server, port)
        super().__init__(address.hostname or "", first_port, timeout=self._left(CONNECT_SECONDS))
        if self._proxy:
            login = unquote(f"{address.username}:{address.password or ''}").encode()
            headers = {"Proxy-Authorization": f"Basic {base64.b64encode(login).decode()}"} if address.username else {}
            self.set_tunnel(self._name, port, headers)
        try:
            self.connect()
        except (*BROKEN, StateError):
            self.close()
            raise

    def _left(self, most: float = math.inf) -> float:
        if (left := self.until - time.monotonic()) <= 0:
            raise TimeoutError("it has not answered in time")
        return min(most, left)

    def limit(self) -> None:
        """Limit the next read to the time that the call has left."""
        self.socket.settimeout(self._left())

    def connect(self) -> None:
        """Connect, through the proxy if there is one. Check the server's certificate before reading the token. So no
        other server gets the token."""
        self._connect_or_tunnel()
        if not self._is_encrypted:
            return
        import ssl  # imported here because the embedded cloud has no TLS

        access, pems = self._access, (self._access.authority, self._access.certificate, self._access.key)
        try:
            with _file(pems[0]) as authority, _file(pems[1]) as certificate, _file(pems[2]) as key:
                context = ssl.create_default_context(cafile=authority)
                if certificate:
                    context.load_cert_chain(certificate, key, "")  # a password, so that OpenSSL asks for none
        except OSError as error:
            files = ", ".join(one for one in pems if one and "-----BEGIN" not in one) or "its texts"
            raise StateDenied(f"{access.server}: no login with {files}: {error}. {PEM_FORM}") from error
        if access.is_insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.sock.settimeout(self._left())
        self.sock = context.wrap_socket(self.sock, server_hostname=access.tls_server_name or self._name)
        token = (read_text(access.token_file) if access.token_file else access.token).strip()
        if not re.fullmatch("[!-~]+" if access.token_file else "[!-~]*", token):  # http.client would show it
            raise StateDenied(f"{access.token_file or 'the token of the kubeconfig'}: {TOKEN_FORM}")
        self._login = {"Authorization": f"Bearer {token}"} if token else {}

    def _connect_or_tunnel(self) -> None:
        """Connect to the server, or let the proxy open a tunnel to the server."""
        try:
            super().connect()
        except BROKEN as error:
            if not self._proxy:
                raise
            text = f"proxy {self.host}:{self.port}: {error}"
            raise StateDenied(f"{text}. {PROXY_LOGIN}") if " 407 " in text else ConnectionError(text) from error

    def response_class(self, sock: socket.socket, *arguments: Any, **options: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        """Return a response whose reads are limited in time."""
        self.socket = sock  # http.client sets ``self.sock`` to None if the server will close the connection
        response = http.client.HTTPResponse(sock, *arguments, **options)
        response.fp = io.BufferedReader(_TimedBytes(self, response.fp.detach()))
        return response

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> http.client.HTTPResponse:
        """Send a call, and return the response before its body is read."""
        self.sock.settimeout(self._left())
        self.request(method, f"{self._prefix}{path}", body, {"User-Agent": AGENT, **self._login, **headers})
        return self.getresponse()


def _parse(text: str, schemes: Collection[str], message: str) -> tuple[SplitResult, int]:
    """Return the parts of an address, and its port. Raises StateDenied with ``message`` if the address is invalid. The
    message must not contain the address of a proxy, because this address may contain a password."""
    with suppress(ValueError):
        address = urlsplit(text)
        if address.hostname and address.scheme in schemes:
            return address, address.port or (443 if address.scheme == "https" else 80)
    raise StateDenied(message)


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the body of a response in pieces, as they arrive."""
    with response:  # the connection takes no other call before its response is closed
        try:
            while piece := response.read1(PIECE):
                yield piece
            if response.length:
                raise http.client.IncompleteRead(b"")
        except http.client.IncompleteRead as error:
            raise ConnectionError("its response is not complete") from error


def _body(response: http.client.HTTPResponse) -> bytearray:
    """Read the whole body of a response."""
    body = bytearray()
    for piece in _pieces(response):
        body += piece
        if len(body) > BODY_BYTES:
            raise ConnectionError(f"its response has more than {BODY_BYTES >> 20} MiB")
    return body


def _decode(body: bytes | bytearray) -> dict[str, Any]:
    """Return the object that a body contains. If there is none, return the body's beginning as a message."""
    with suppress(ValueError, RecursionError):
        if isinstance(document := json.loads(body), dict):
            return document
    return {"message": body[:80].decode("utf-8", "replace") or "no reason"}


@contextmanager
def _file(certificate: str) -> Iterator[str]:
    """Yield the path of a certificate or key. If ``certificate`` is a text in PEM form, put it into a file in
    memory."""
    if "-----BEGIN" not in certificate:
        yield certificate
        return
    with open(os.memfd_create("login"), "w", encoding="utf-8") as file:
        file.write(certificate)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


class ApiServer:
    """A client of an API server. Each thread has a connection of its own, which stays open between calls."""

    def __init__(self, read_access: Callable[[], Access], namespace: str = "") -> None:
        """Store how to reach the server.

        ``read_access``: function that returns the access. It is called at the first call to the server. It is called
        again after a refused login or a call without a response. ``namespace``: replaces the namespace of the access;
        empty to keep it.
        """
        self._read_access, self._namespace = read_access, namespace
        self._access: Access | None = None
        self._own = threading.local()

    @property
    def namespace(self) -> str:
        """Return the namespace of the state."""
        return self._namespace or self.access().namespace

    @property
    def name(self) -> str:
        """Return the address of the server, for messages."""
        return self.access().server

    def access(self) -> Access:
        """Return address and login. Raises StateError."""
        if self._access is None:
            self._access = self._read_access()
        return self._access

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content: str = "application/json",
        partial: bool = False,
        seconds: float = CALL_SECONDS,
    ) -> Response:
        """Call the server. Return the response if its status is 2xx or in ``ANSWERED``.

        Make only calls that may be repeated. A call is repeated once if the server does not respond, refuses the login
        or fails (429 or 5xx). If the server sends Retry-After, the call is repeated until ``seconds`` are over.
        ``content``: type of the body. ``partial``: list only the metadata of objects.

        Raises StateError, in particular StateUnreachable or StateDenied. Raises StateMissing if the resource kinds or
        the namespace are missing.
        """
        headers = {"Accept": PARTIAL if partial else "application/json"}
        sent = None
        if body is not None:
            headers["Content-Type"] = content
            sent = json.dumps(body, separators=(",", ":")).encode("utf-8", "surrogateescape")
        until, is_last = time.monotonic() + seconds, False
        while True:
            error, answered, pause = None, None, 0.0
            try:
                answered = self._exchange(method, path, headers, sent, until)
                pause = max(0.0, float(answered[1].get("retry-after") or 0.0))  # 0 for NaN, too
            except BROKEN as failed:
                error = failed
            if not answered or answered[0] == UNAUTHORIZED:
                self.close()
                self._access = None  # because the login may have been renewed
            elif answered[0] < SERVER_ERROR and answered[0] != BUSY:
                return self.judge(*answered)
            if (is_last and not pause) or time.monotonic() + pause >= until:
                if answered:
                    return self.judge(*answered)
                raise StateUnreachable(self.unreachable(error)) from error
            is_last = is_last or not pause
            time.sleep(pause)

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, until: float
    ) -> tuple[int, Message, bytes | bytearray]:
        connection: Connection | None = getattr(self._own, "connection", None)
        if connection is None or time.monotonic() - connection.used > IDLE_SECONDS:
            self.close()
            connection = self._own.connection = Connection(self.access(), until)
        connection.until = until
        response = connection.ask(method, path, headers, body)
        found = _body(response)
        connection.used = time.monotonic()
        if response.will_close:
            self.close()
        return response.status, response.headers, found

    def judge(self, status: int, headers: Message, body: bytes | bytearray) -> Response:
        """Return the response if its status is 2xx or in ``ANSWERED``. Raises StateError for any other status."""
        document = _decode(body)
        if status < REDIRECT and "kind" not in document:
            raise StateUnreachable(self.unreachable(f"no server of Kubernetes sent {bytes(body[:80])!r}"))
        message = " ".join(str(document.get("message", "no reason")).split())
        details = found if isinstance(found := document.get("details"), dict) else {}
        if status in ADVICE:
            right = LACKS_RIGHT.search(message)
            advice = ROLE.format(*right.groups()) if right else ADVICE[status]
            raise StateDenied(f"{self.name}: HTTP {status}: {message}. {advice}.")
        if status == BUSY or status >= SERVER_ERROR:
            raise StateUnreachable(self.unreachable(f"HTTP {status}: {message}"))
        if status == NOT_FOUND and not details.get("name"):
            raise StateMissing(f"{self.name}: the kinds of the state are unknown here: `kubectl apply -k {COMPONENT}`.")
        if status == NOT_FOUND and details.get("kind") == "namespaces":
            raise StateMissing(f"{self.name}: {message}: `kubectl create namespace {details['name']}`.")
        if status >= REDIRECT and status not in ANSWERED:
            raise StateError(f"{self.name}: HTTP {status}: {message}.")
        try:
            return Response(status, document, parsedate_to_datetime(headers.get("date", "")).timestamp())
        except ValueError as error:
            raise StateUnreachable(self.unreachable("its response has no date")) from error

    def unreachable(self, reason: object) -> str:
        """Return the message for a call without a usable response."""
        advice = PEM_FORM if "CERTIFICATE_VERIFY" in str(reason) else "The call may be repeated without any loss."
        return f"{self.name}: no usable response: {reason}. {advice}"

    def watch(self, path: str, seconds: float) -> Watch:
        """Open a watch and return its events. ``path`` must contain ``watch=true``. The watch has a connection of its
        own. Raises StateError if the server opens no watch.

        ``seconds``: if the server sends nothing for so long, the iteration over the events raises StateUnreachable.
        """
        return Watch(self, path, seconds)

    def close(self) -> None:
        """Close this thread's connection. The next call opens a new connection."""
        if connection := self._own.__dict__.pop("connection", None):
            connection.close()


class Watch:
    """The events of a watch. Iteration ends when the server ends the watch, or when another thread closes it.

    Iteration raises StateUnreachable if the connection breaks, or if the server is silent for too long.
    """

    def __init__(self, server: ApiServer, path: str, seconds: float) -> None:
        self._server, self._seconds, self._is_closed = server, seconds, False
        try:
            self._connection = Connection(server.access(), time.monotonic() + CALL_SECONDS)
            response = self._connection.ask("GET", path, {"Accept": "application/json"})
            self._events = self._read(response)
            if response.status != OK:
                refusal = server.judge(response.status, response.headers, _body(response))
                self._events = iter([{"type": "ERROR", "object": refusal.document}])
        except BROKEN as error:
            self.close()
            raise StateUnreachable(server.unreachable(error)) from error
        except StateError:
            self.close()
            raise

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._events

    def close(self) -> None:
        """End the watch, even while another thread waits for the next event."""
        self._is_closed = True
        with suppress(AttributeError, OSError):  # not the method of the TLS socket, after which the reader would go on
            socket.socket.shutdown(self._connection.socket, socket.SHUT_RDWR)

    def _read(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        rest = b""
        try:
            self._connection.until = time.monotonic() + self._seconds
            for piece in _pieces(response):
                *lines, rest = (rest + piece).split(b"\n")
                yield from map(json.loads, filter(None, lines))
                if len(rest) > EVENT_BYTES:
                    raise ConnectionError(f"an event has more than {EVENT_BYTES >> 20} MiB")
                self._connection.until = time.monotonic() + self._seconds
        except BROKEN as error:
            if not self._is_closed:
                raise StateUnreachable(self._server.unreachable(error)) from error
        finally:
            response.close()
            self._connection.close()
