"""The connections of all HTTP clients, which limit the time and the size of each response as a whole.

Kubernetes is reached by the pools here, and Google (Compute Engine, token servers, the metadata server) by sessions
whose adapter has such pools (``google_auth``).
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
"""A connection that was idle for longer is made anew: that takes milliseconds. A firewall that has forgotten it drops
what is sent without a word, and costs the whole time-out of a call."""

CONNECT_SECONDS = 5.0
"""An address that does not accept a connection within this is not there; the next one of its name is tried."""

LONGEST_SECONDS = 120.0
"""The time of a response that its caller does not limit: the usual time-out of Google's clients."""

HEAD_BYTES = 1 << 18
"""Bytes before a response's body, with each ``100 Continue``. Servers take 8 to 64 kB of a request's head, and send
less."""

BODY_BYTES = 20 << 20
"""Bytes of a response's body, unpacked. A page of 500 pods of 20 kB each, the largest list that we ask for, has half of
that; a whole one of the largest group has 6 MB."""

MOST_VALUES = 1_500_000
"""Values of a document, as commas and brackets count them: the smallest, empty lists, take twenty times as many bytes
in memory as in a response. A page of 500 pods of 20 kB each has a million if field managers' entries fill it."""

LINE_BYTES = 4 << 20
"""Bytes of a piece of a stream, such as an event of a watch: an API server takes no object of more than 3 MB."""

PAGE, MOST_PAGES = 500, 400
"""Objects of a page, and pages of a list: as many as the pods of the largest GKE cluster."""

PIECE = 1 << 16
"""Bytes of a body that are taken at once."""

Connections = TypeVar("Connections", bound=urllib3.PoolManager)


class LateResponse(urllib3.exceptions.ReadTimeoutError):
    """A response has not ended in its time."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)


class LargeResponse(urllib3.exceptions.HTTPError):
    """A response is larger than it may be."""


class LargeBody(LargeResponse):
    """The body of a response is what is larger than it may be."""


class Allowance:
    """The time and the bytes that a response has left."""

    def __init__(self, call: str, seconds: float | None, began: float) -> None:
        """``call``: address, method and path, for people. ``began``: the monotonic time of the request."""
        self._call, self._seconds = call, LONGEST_SECONDS if seconds is None else seconds
        self._deadline = began + self._seconds
        self.too_large = LargeResponse
        self.allow(HEAD_BYTES)

    def allow(self, size: int) -> None:
        """Let what follows have so many bytes in the time that is left."""
        self._size = self._left = size

    def renew(self, size: int) -> None:
        """Begin another part of the response, which has the same time again."""
        self._deadline = time.monotonic() + self._seconds
        self.allow(size)

    def seconds(self) -> float:
        """The seconds that are left. Raises LateResponse if there are none."""
        if (left := self._deadline - time.monotonic()) <= 0:
            raise self.late()
        return left

    def late(self) -> LateResponse:
        """The error for a response without an end."""
        return LateResponse(f"{self._call}: no complete response within {self._seconds:g} s")

    def take(self, count: int) -> None:
        """Count bytes. Raises LargeResponse for the first that is too many."""
        self._left -= count
        if self._left < 0:
            raise self.large(f"{self._size >> 10} KiB")

    def large(self, size: str) -> LargeResponse:
        """The error for a response, or a part of one, of more than ``size``."""
        return self.too_large(f"{self._call}: the response, or a part of it, has more than {size}")


class _Source(io.RawIOBase):
    """The bytes of a socket, within their allowance."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, allowance: Allowance) -> None:
        self._raw, self._sock, self._allowance = raw, sock, allowance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._allowance.seconds())
        try:
            count: int = self._raw.readinto(buffer)
        except TimeoutError as error:
            raise self._allowance.late() from error
        self._allowance.take(count)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """A response, also that of a proxy to CONNECT, that reads no more than it may."""

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
    """Return the result to come of ``getaddrinfo``, which has no time-out: one thread looks up a name for all calls."""

    def look_up() -> None:
        try:
            settle = partial(found.set_result, socket.getaddrinfo(*question))
        except Exception as error:  # noqa: BLE001 - each call that waits raises it
            settle = partial(found.set_exception, error)
        with _lookups_lock:  # first: a later call looks the name up anew
            del _lookups[question]
        settle()

    with _lookups_lock:
        if question in _lookups:
            return _lookups[question]
        found: Future[Any] = Future()
        threading.Thread(target=look_up, name="lookup", daemon=True).start()
        _lookups[question] = found
        return found


class _Bounded(urllib3.connection.HTTPConnection):
    """A connection whose time-outs are the time of a whole call: connecting (by a proxy and TLS), request, response."""

    _began, _called, _is_new = 0.0, "", False
    _allowance: Allowance

    @property
    def is_connected(self) -> bool:
        """False, too, after ``IDLE_SECONDS`` without a request: the pool connects anew."""
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
        """Let a response come, also that of a proxy, within the time of the call."""
        call = f"{self.host}:{self.port}: {self._called or 'CONNECT'}"
        self._allowance = Allowance(call, self.timeout, self._began)
        self.response_class = partial(_Response, self._allowance)  # type: ignore[assignment]

    def _new_conn(self) -> socket.socket:
        """Connect to the first address that accepts it; each has an equal part of the time that the call has left."""
        name, whole = self._dns_host, self.timeout
        addresses = self._addresses()
        failure: Exception = self._allowance.late()
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
        """The addresses of the host. Raises an error of urllib3 if it has none."""
        family = urllib3.util.connection.allowed_gai_family()
        lookup = _lookup(self._dns_host.strip("[]"), self.port, family, socket.SOCK_STREAM)
        try:
            found = lookup.result(self._allowance.seconds())
        except (TimeoutError, LateResponse) as error:
            text = f"{self.host}: the time of the call has ended before an address of this name was found"
            raise urllib3.exceptions.ConnectTimeoutError(self, text) from error
        except socket.gaierror as error:
            raise urllib3.exceptions.NameResolutionError(self.host, self, error) from error
        except UnicodeError as error:
            raise urllib3.exceptions.LocationParseError(f"{self._dns_host!r}: {error}") from error
        return [str(address[0]) for *_, address in found]

    def _tunnel(self) -> None:
        super()._tunnel()
        self.sock.settimeout(self._allowance.seconds())  # for TLS


class _BoundedTLS(_Bounded, urllib3.connection.HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Bounded


class _PoolTLS(urllib3.HTTPSConnectionPool):
    ConnectionCls = _BoundedTLS


def bounded(connections: Connections) -> Connections:
    """The same connections, bounded, and none of them used after ``IDLE_SECONDS`` without a call."""
    connections.pool_classes_by_scheme = {"http": _Pool, "https": _PoolTLS}
    return connections


def body_of(response: Any) -> bytes:
    """The whole body of a response, unpacked. Raises an error of urllib3 if it does not end as it should."""
    pieces, size = [], 0
    try:
        while piece := response.read1(PIECE, decode_content=True):
            pieces.append(piece)
            size += len(piece)
            if size > BODY_BYTES:
                raise response.allowance.large(f"{BODY_BYTES >> 20} MiB")
    except BaseException:
        response.close()
        raise
    body = b"".join(pieces)
    if size > MOST_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise response.allowance.large(f"{MOST_VALUES} values")
    return body
