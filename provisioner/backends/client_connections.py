"""Connections of all HTTP clients. A connection limits the size of a response and the time until its end.

Calls to Kubernetes use the connection pools of this module. Calls to Google use sessions with such pools
(``google_auth``): Compute Engine, token servers and the metadata server.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import urllib3
import urllib3.connection

IDLE_SECONDS = 5.0
"""Seconds without a request after which a connection is replaced by a new one. Reason: a firewall may have forgotten an
idle connection. If so, the firewall silently drops the packets, and the call waits for its whole time-out. A new
connection costs only milliseconds."""

CONNECT_SECONDS = 5.0
"""Seconds in which an address must accept a connection. After this time, the next address of the name is tried."""

LONGEST_SECONDS = 120.0
"""Seconds for a response if the caller sets no limit. Google's clients usually have the same time-out."""

HEAD_BYTES = 1 << 18
"""Maximum number of bytes before a response's body, including each ``100 Continue``. Servers accept 8 to 64 kB in the
head of a request, and send less."""

BODY_BYTES = 20 << 20
"""Maximum number of bytes of a response's body after decompression. The largest list that we read has half as many
bytes: a page of 500 pods of 20 kB each. An unpaged list of the largest group has 6 MB."""

MOST_VALUES = 1_500_000
"""Maximum number of values in a document, counted by commas and brackets. The limit is needed because an empty list
takes twenty times as many bytes in memory as in a response. A page of 500 pods of 20 kB each has up to a million
values."""

LINE_BYTES = 4 << 20
"""Maximum number of bytes of a piece of a stream, such as a watch event. An API server accepts objects of up to 3
MB."""

PAGE, MOST_PAGES = 500, 400
"""Maximum number of objects in a page, and of pages in a list. These pages can hold the pods of the largest GKE
cluster."""

PIECE = 1 << 16
"""Bytes of a body that are read at once."""

Connections = TypeVar("Connections", bound=urllib3.PoolManager)


class LateResponse(urllib3.exceptions.ReadTimeoutError):
    """Raised if a response is not complete within its time limit."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)


class LargeResponse(urllib3.exceptions.HTTPError):
    """Raised if a response is larger than allowed."""


class LargeBody(LargeResponse):
    """Raised if the body of a response is larger than allowed."""


class Allowance:
    """The seconds and bytes that are left for a response."""

    def __init__(self, call: str, seconds: float | None, began: float) -> None:
        """Limit a response. ``call``: address, method and path for messages. ``began``: monotonic time at which the
        request began."""
        self._call, self._seconds = call, LONGEST_SECONDS if seconds is None else seconds
        self._deadline = began + self._seconds
        self.too_large = LargeResponse
        self.allow(HEAD_BYTES)

    def allow(self, size: int) -> None:
        """Allow ``size`` bytes for the next part of the response, within the time that is left."""
        self._bytes_allowed = self._bytes_left = size

    def renew(self, size: int) -> None:
        """Allow ``size`` bytes for another part of the response. Start the response's time limit again."""
        self._deadline = time.monotonic() + self._seconds
        self.allow(size)

    def seconds(self) -> float:
        """Return the seconds that are left for the response. Raise LateResponse if none are left."""
        if (left := self._deadline - time.monotonic()) <= 0:
            raise self.late_error()
        return left

    def late_error(self) -> LateResponse:
        """Return the error for a response that was not complete within its time limit."""
        return LateResponse(f"{self._call}: no complete response within {self._seconds:g} s")

    def take(self, count: int) -> None:
        """Count the bytes that a read has returned. Raise LargeResponse if all reads together returned more bytes than
        allowed."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise self.size_error(f"{self._bytes_allowed >> 10} KiB")

    def size_error(self, size: str) -> LargeResponse:
        """Return the error for a response, or a part of a response, that is larger than ``size``."""
        return self.too_large(f"{self._call}: the response, or a part of it, has more than {size}")


class _Source(io.RawIOBase):
    """The bytes of a socket, within the limits of an allowance."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, allowance: Allowance) -> None:
        self._raw, self._sock, self._allowance = raw, sock, allowance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._allowance.seconds())
        try:
            count: int = self._raw.readinto(buffer)
        except TimeoutError as error:
            raise self._allowance.late_error() from error
        self._allowance.take(count)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """A response that reads no more than its allowance. A proxy's response to CONNECT is limited in the same way."""

    def __init__(self, allowance: Allowance, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.allowance = allowance
        self.fp = io.BufferedReader(_Source(self.fp.detach(), sock, allowance))

    def begin(self) -> None:
        super().begin()
        self.allowance.too_large = LargeBody
        self.allowance.allow(BODY_BYTES)


_lookups: dict[Any, Future[Any]] = {}
_lookups_lock = threading.Lock()


def _lookup(*question: Any) -> Future[Any]:
    """Return a future with the result of ``getaddrinfo``, which has no time-out. Concurrent calls for a name share
    one thread."""

    def look_up() -> None:
        try:
            settle = partial(found.set_result, socket.getaddrinfo(*question))
        except Exception as error:  # noqa: BLE001 - each waiting call raises it
            settle = partial(found.set_exception, error)
        with _lookups_lock:  # Remove the question first, so that a later call resolves again.
            del _lookups[question]
        settle()

    with _lookups_lock:
        if question in _lookups:
            return _lookups[question]
        found: Future[Any] = Future()
        threading.Thread(target=look_up, name="lookup", daemon=True).start()
        _lookups[question] = found
        return found


class Bounded(urllib3.connection.HTTPConnection):
    """A connection with one time-out for a whole call: connecting (including proxy and TLS), request and response."""

    _began, _called, _is_new = 0.0, "", False
    _allowance: Allowance

    @property
    def is_connected(self) -> bool:
        """Return True if the connection can be used again. After ``IDLE_SECONDS`` without a call, return False, so that
        the pool makes a new connection."""
        return super().is_connected and time.monotonic() - self._began < IDLE_SECONDS

    def putrequest(self, method: str, url: str, *arguments: Any, **options: Any) -> None:
        self._called = f"{method} {url.partition('?')[0]}"
        if not self._is_new:
            self._began = time.monotonic()
        elif self.sock is not None:
            self.sock.settimeout(self._allowance.seconds())
        super().putrequest(method, url, *arguments, **options)

    def connect(self) -> None:
        self._began, self._is_new = time.monotonic(), True
        self._allow()
        super().connect()

    def getresponse(self) -> Any:
        self._allow()
        self._is_new = False
        response = super().getresponse()
        response.allowance = self._allowance  # type: ignore[attr-defined]
        return response

    def _allow(self) -> None:
        """Limit the time and size of the next response, which may be a proxy's response to CONNECT. The time that the
        call has taken already counts."""
        call = f"{self.host}:{self.port}: {self._called or 'CONNECT'}"
        self._allowance = Allowance(call, self.timeout, self._began)
        self.response_class = partial(_Response, self._allowance)  # type: ignore[assignment]

    def _new_conn(self) -> socket.socket:
        """Connect to the first address that accepts. Each remaining address gets an equal part of the time that is
        left."""
        name, whole = self._dns_host, self.timeout
        addresses = self._addresses()
        failure: Exception = self._allowance.late_error()
        try:
            while addresses:
                part = self._allowance.seconds() / len(addresses)
                self._dns_host, self.timeout = addresses.pop(0), min(CONNECT_SECONDS, part)
                try:
                    connected = super()._new_conn()
                except (urllib3.exceptions.ConnectTimeoutError, urllib3.exceptions.NewConnectionError) as error:
                    failure = error
                else:
                    connected.settimeout(self._allowance.seconds())
                    return connected
        finally:
            self._dns_host, self.timeout = name, whole
        raise failure

    def _addresses(self) -> list[str]:
        """Return the addresses of the host. Raise an error of urllib3 if the host has none."""
        family = urllib3.util.connection.allowed_gai_family()
        lookup = _lookup(self._dns_host.strip("[]"), self.port, family, socket.SOCK_STREAM)
        try:
            found = lookup.result(self._allowance.seconds())
        except (TimeoutError, LateResponse) as error:
            text = f"{self.host}: the time of the call ended before the name was resolved"
            raise urllib3.exceptions.ConnectTimeoutError(self, text) from error
        except socket.gaierror as error:
            raise urllib3.exceptions.NameResolutionError(self.host, self, error) from error
        except UnicodeError as error:
            raise urllib3.exceptions.LocationParseError(f"{self._dns_host!r}: {error}") from error
        return [str(address[0]) for *_, address in found]

    def _tunnel(self) -> None:
        super()._tunnel()
        self.sock.settimeout(self._allowance.seconds())  # for TLS


class _BoundedTLS(Bounded, urllib3.connection.HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = Bounded


class _PoolTLS(urllib3.HTTPSConnectionPool):
    ConnectionCls = _BoundedTLS


def limit_responses(connections: Connections) -> Connections:
    """Limit responses in time and size, and reopen connections that were idle for ``IDLE_SECONDS``. Return
    ``connections``."""
    connections.pool_classes_by_scheme = {"http": _Pool, "https": _PoolTLS}
    return connections


def make_connections(proxy: str | None, **options: Any) -> urllib3.PoolManager:
    """Return a manager of connections whose responses are limited. The connections go through ``proxy`` if there is
    one. ``options``: options of ``urllib3.PoolManager``."""
    return limit_responses(urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options))


def read_body(response: Any) -> bytes:
    """Return the whole body of a response, decompressed. Raise an error of urllib3 if the body does not end
    properly."""
    pieces, size = [], 0
    try:
        while piece := response.read1(PIECE, decode_content=True):
            pieces.append(piece)
            size += len(piece)
            if size > BODY_BYTES:
                raise response.allowance.size_error(f"{BODY_BYTES >> 20} MiB")
    except BaseException:
        response.close()
        raise
    body = b"".join(pieces)
    if size > MOST_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise response.allowance.size_error(f"{MOST_VALUES} values")
    return body
