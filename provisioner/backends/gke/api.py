"""Raw requests to one Kubernetes API server. Each is tried once, with its own time-out. Refusals become few error
classes.

The typed models of the official client would take three times the processor time of the request.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import urllib3

from provisioner.backends import BackendError
from provisioner.backends.client_connections import MOST_PAGES, PAGE, read_body
from provisioner.backends.concurrency import MOST, Flow
from provisioner.backends.login_refusals import POLICY_WORDS, UNKNOWN_USER, LoginRefusals
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.proxies_and_authorities import failed_call, seconds_until
from provisioner.backends.responses import class_of_status, json_object, smaller_page
from provisioner.model import ErrorClass, Failure

LIST_SECONDS = 300.0
"""Seconds for all pages of a list. After that, a server has forgotten the version of the list."""
NOT_FOR_US = frozenset({403, 404, 405})
"""HTTP statuses of a server that accepts our other calls: we lack a right, or a proxy passes only calls about pods."""
MAX_CHARACTERS = 400
"""Most characters that are kept of a server's message. Messages are stored with each slot and shown to operators."""

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Media type of a list with only the metadata of its objects."""

Document = dict[str, Any]
Query = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class KubeTimes:
    """Time limits of an API server's calls, in seconds."""

    call: float = 30.0
    """Longest wait for a response. It is longer than the server allows a slow admission webhook (10 s), and shorter
    than the server allows a request (60 s)."""
    silence: float = 90.0
    """Longest silence of a watch. Servers send a bookmark about every 60 s, so after a longer silence the stream is
    dead."""
    blind: float = 10.0
    """Time for which a cache stays valid without its stream. A stream that is only restarted is not an outage."""
    first_observation: float = 10.0
    """Longest time that the first observation waits for the first list."""
    stream: float = 270.0
    """Length of a stream. It varies by 10 % so that many watches do not restart together."""
    first_retry: float = 0.1
    """Pause before the first attempt after a failure. The pause doubles with each further attempt."""
    last_retry: float = 10.0
    """Longest pause between two attempts."""
    waiting: float = 3.0
    """Time for which a pod must wait, for a node or on its node, before its Events are read. Most pods wait for
    less."""
    events: float = 15.0
    """Pause between two readings of Events. An autoscaler acts about every 10 s, and its messages only inform
    operators."""


USUAL_TIMES = KubeTimes()

_QUOTA_WORDS: Mapping[str, ErrorClass] = {
    " is forbidden: exceeded quota: ": ErrorClass.QUOTA,
    " is forbidden: failed quota: ": ErrorClass.INVALID,
    " is forbidden: status unknown for quota: ": ErrorClass.UNAVAILABLE,
}
"""Texts about a namespace's quota: it is used up, it counts resources that the pod spec lacks, or it is new."""
_OWN_STATUSES = dict.fromkeys((413, 415, 422), ErrorClass.INVALID) | {504: ErrorClass.TIMEOUT}


class KubeError(BackendError):
    """A refusal by the server."""

    def __init__(self, status: int, reason: str, failure: Failure, retry_after: float | None = None) -> None:
        super().__init__(failure.error, failure.text, retry_after)
        self.status = status
        """HTTP status."""
        self.reason = reason
        """Kubernetes' reason, such as AlreadyExists; empty if the response was not a Status object."""


class Way:
    """The address of an API server and the connections to it."""

    def __init__(self, host: str, connections: urllib3.PoolManager) -> None:
        """Prepare connections. ``host``: ``scheme://host[:port]``, perhaps followed by a path."""
        self.host = host
        # To reach a plain HTTP server, a proxy needs the whole address.
        by_proxy = connections.proxy is not None and host.startswith("http://")
        self._prefix = host if by_proxy else urlsplit(host).path
        self._pool = connections.connection_from_url(host)
        """Connection pool. It is kept, because finding it takes a quarter of the time of a call."""

    def urlopen(self, method: str, path: str, **options: Any) -> urllib3.response.BaseHTTPResponse:
        """Send one request to a path of the server."""
        return self._pool.urlopen(method, self._prefix + path, assert_same_host=False, **options)


class Access(Protocol):
    """Address and credentials for a server. Both may change between two calls. Thread-safe."""

    def now(self) -> tuple[Way, Mapping[str, str]]:
        """Return the address of the server and the headers with our credentials. Raise BackendError if there are
        none."""

    def host(self) -> str:
        """Return the server's present address."""

    def login(self) -> str:
        """Return the files and the account of the credentials, for operators."""

    def rejected(self, way: Way) -> None:
        """Note that the server has rejected our credentials. Raise BackendError if this names the cause better than
        the server."""

    def failed(self, way: Way) -> None:
        """Note that the address could not be reached, or that it belongs to a wrong server."""


@dataclass(slots=True)
class KubeApi:
    """An API server."""

    access: Access
    times: KubeTimes = USUAL_TIMES
    flow: Flow = field(default_factory=Flow)
    """The limit of concurrent creates and deletes."""
    readers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(MOST, "looker"))
    """Threads that read single pods for all pools together. Their number keeps the server from getting more reads
    than it can bear."""
    streams_lists: bool = True
    """False once the server has refused to stream a list."""
    clock: PlaceClock = field(default_factory=PlaceClock)
    refusals: LoginRefusals = field(init=False)

    def __post_init__(self) -> None:
        self.refusals = LoginRefusals(self.clock, self.access.login)

    def get(self, path: str, query: Query | None = None, *, accept: str = JSON) -> Document:
        """Return the JSON object at ``path``. Raise as ``send`` does."""
        return self.send("GET", path, query=query, accept=accept)

    def items(self, path: str, query: Query, *, accept: str = JSON) -> Iterator[Any]:
        """Yield the items of a list, page by page. Each page raises as ``get`` does."""
        for page in self.pages(path, query, accept=accept):
            yield from page.get("items") or ()

    def pages(self, path: str, query: Query, *, accept: str = JSON) -> Iterator[Document]:
        """Yield the pages of a list. Each page raises as ``get`` does. Raise BackendError for a list that does not end.

        If a page is too large, request it again with half as many objects.
        """
        query, deadline = {**query, "limit": PAGE}, time.monotonic() + LIST_SECONDS
        for _ in range(MOST_PAGES):
            if time.monotonic() > deadline:
                raise BackendError(ErrorClass.TIMEOUT, f"{path}: the list has not ended within {LIST_SECONDS:g} s")
            try:
                page = self.get(path, query, accept=accept)
            except BackendError as error:
                query["limit"] = smaller_page(int(query["limit"]), error)
                continue
            yield page
            continuation = (page.get("metadata") or {}).get("continue")
            if not continuation:
                return
            query["continue"] = str(continuation)
        raise BackendError(ErrorClass.OTHER, f"{path}: the list has more than {MOST_PAGES} pages")

    def send(
        self, method: str, path: str, *, query: Query | None = None, body: bytes | None = None, accept: str = JSON
    ) -> Document:
        """Send one request. Return the JSON object in the response. Raise KubeError if the server refuses it,
        BackendError if there is no response."""
        _, content = self._request(method, path, query, body, accept=accept)
        return parse(content)

    def stream(self, path: str, query: Query) -> urllib3.response.BaseHTTPResponse:
        """Return an open response. After a silence, reading it raises an error of urllib3."""
        reply, _ = self._request("GET", path, query, stream=True)
        return reply

    def _request(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None = None,
        *,
        accept: str = JSON,
        stream: bool = False,
    ) -> tuple[urllib3.response.BaseHTTPResponse, bytes]:
        """Return the response and its body. For a ``stream`` the body is empty. Raise as ``send`` does."""
        (way, authorization), began = self.access.now(), time.monotonic()
        headers = {"Accept": accept, **authorization, **({"Content-Type": JSON} if body is not None else {})}
        read_seconds = self.times.silence if stream else self.times.call
        try:
            reply = way.urlopen(
                method,
                path + (f"?{urlencode(query)}" if query else ""),
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=self.times.call, read=read_seconds),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            content = b"" if stream and reply.status < 300 else read_body(reply)
        except urllib3.exceptions.HTTPError as error:
            if isinstance(error, urllib3.exceptions.SSLError | urllib3.exceptions.NewConnectionError):
                self.access.failed(way)
            self.clock.hear(None, time.monotonic() - began)
            raise unanswered_error(error) from error
        self.clock.hear(reply.headers.get("Date"), time.monotonic() - began)
        if reply.status == UNKNOWN_USER:
            self.access.rejected(way)
        if reply.status >= 300:
            refused = refusal(reply.status, content, reply.headers.get("Retry-After"))
            self.refusals.explain(refused, reply.status)
            raise refused
        return reply, content


def unanswered_error(error: urllib3.exceptions.HTTPError) -> BackendError:
    """Return the failure of a request without a response. The request may have been applied."""
    reading = isinstance(error, urllib3.exceptions.ReadTimeoutError)
    kind = ErrorClass.TIMEOUT if reading else ErrorClass.UNAVAILABLE
    return failed_call(error, kind, words(f"{type(error).__name__}: {error}"))


def refusal(status: int, body: bytes, retry_after: str | None) -> KubeError:
    """Return the error of a response with a status of 300 or more."""
    response: Document = {}
    with contextlib.suppress(BackendError):
        response = parse(body)
    message = str(response.get("message") or f"HTTP {status} {body[:MAX_CHARACTERS].decode(errors='replace')}".strip())
    if retry_after:
        message += f" (retry after {retry_after} s)"
    reason = str(response.get("reason") or "")
    failure = Failure(_error_class(status, reason, message), words(message))
    return KubeError(status, reason, failure, seconds_until(retry_after))


def _error_class(status: int, reason: str, message: str) -> ErrorClass:
    if POLICY_WORDS.search(message):
        return ErrorClass.DENIED
    if status == 403 and (
        quota := next((quota_class for words, quota_class in _QUOTA_WORDS.items() if words in message), None)
    ):
        return quota
    if status == 409 and reason == "Conflict":
        return ErrorClass.UNAVAILABLE  # Two writers collided, often at a quota's counter. The same call may succeed.
    return class_of_status(status, _OWN_STATUSES)


def parse(body: bytes) -> Document:
    """Return the JSON object in a response. Raise BackendError if there is none, for example if the response was cut
    off."""
    try:
        return json_object(body)
    except ValueError as error:
        raise BackendError(ErrorClass.UNAVAILABLE, words(f"the answer is not JSON: {error}")) from error


def words(text: str) -> str:
    """Return a message on one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS - 1] + "…"
