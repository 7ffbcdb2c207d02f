"""Raw requests to one Kubernetes API server, each tried once, with its own time-outs; refusals as few error classes.

The official client's typed models would cost three times the processor time of the request itself.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import urllib3

from provisioner.backends import BackendError
from provisioner.backends.concurrency import MOST, Flow
from provisioner.backends.connections import MOST_PAGES, PAGE, body_of
from provisioner.backends.network import failed_call, seconds_until
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.responses import class_of_status, json_object, smaller_page
from provisioner.model import ErrorClass, Failure

LIST_SECONDS = 300.0
"""Seconds that all pages of a list may take: after so long a server has forgotten the version that they are of."""
UNKNOWN_USER = 401
"""HTTP status."""
NOT_FOR_US = frozenset({403, 404, 405})
"""HTTP statuses of a server that takes other calls: we have no such right, or a proxy lets pods alone pass."""
MAX_WORDS = 400
"""Characters of the server's words that are kept: they are stored with each slot and shown to people."""

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Asks for the metadata of a list's objects alone."""

Document = dict[str, Any]
Query = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class KubeTimes:
    """How patient we are with an API server. Seconds."""

    call: float = 30.0
    """How long a response may take: above the server's limit for a slow admission webhook (10 s), below that for a
    request (60 s)."""
    silence: float = 90.0
    """How long a watch may be silent: servers send a bookmark about every 60 s; a longer silence is a dead stream."""
    blind: float = 10.0
    """How long a cache still counts without its stream: a stream that begins anew is no outage."""
    first_observation: float = 10.0
    """How long the first observation waits for the first list."""
    stream: float = 270.0
    """How long a stream lasts, ± 10 %, so that many watches do not begin anew together."""
    first_retry: float = 0.1
    """Pause before the first attempt after a failure; it doubles with each further one."""
    last_retry: float = 10.0
    """Longest pause between two attempts."""
    waiting: float = 3.0
    """Seconds that a pod must have waited, for a node or on it, before its Events are read. Most pods wait for less."""
    events: float = 15.0
    """Pause between two readings of events: an autoscaler looks about every 10 s, and its words are for people."""


USUAL_TIMES = KubeTimes()

_BY_A_POLICY = re.compile(r"\bdenied (the )?request\b")
"""Words of an admission webhook and of a ValidatingAdmissionPolicy."""
_BY_A_QUOTA: Mapping[str, ErrorClass] = {
    " is forbidden: exceeded quota: ": ErrorClass.QUOTA,
    " is forbidden: failed quota: ": ErrorClass.INVALID,
    " is forbidden: status unknown for quota: ": ErrorClass.UNAVAILABLE,
}
"""A namespace's quota is used up; counts what the pod spec does not name; was made a moment ago."""
_OWN = dict.fromkeys((413, 415, 422), ErrorClass.INVALID) | {504: ErrorClass.TIMEOUT}


class KubeError(BackendError):
    """The server answered, and refused."""

    def __init__(self, status: int, reason: str, failure: Failure, retry_after: float | None = None) -> None:
        super().__init__(failure.error, failure.text, retry_after)
        self.status = status
        """HTTP status."""
        self.reason = reason
        """Kubernetes' one word for it, such as AlreadyExists; empty when the response was not a Status object."""


class Way:
    """The address of an API server and the connections to it."""

    def __init__(self, host: str, connections: urllib3.PoolManager) -> None:
        """``host``: ``scheme://host[:port]``, perhaps with a path."""
        self.host = host
        # A proxy wants the whole address of a plain server.
        by_proxy = connections.proxy is not None and host.startswith("http://")
        self._prefix = host if by_proxy else urlsplit(host).path
        self._pool = connections.connection_from_url(host)
        """Kept, as to look the pool up would cost a quarter of a call."""

    def urlopen(self, method: str, path: str, **options: Any) -> urllib3.response.BaseHTTPResponse:
        """Send one request to a path of the server."""
        return self._pool.urlopen(method, self._prefix + path, assert_same_host=False, **options)


class Access(Protocol):
    """The way to a server and our identity there, both of which may change between two calls. Thread-safe."""

    def now(self) -> tuple[Way, Mapping[str, str]]:
        """The way to the server, and the headers that say who we are; BackendError when there are none to be had."""

    def host(self) -> str:
        """Return the address of the server now."""

    def rejected(self, way: Way) -> None:
        """The server does not know who came by this way. Raise BackendError if its own words would not help."""

    def failed(self, way: Way) -> None:
        """No server could be reached by this way, or it is not the one that it should be."""


@dataclass(slots=True)
class KubeApi:
    """One API server."""

    access: Access
    times: KubeTimes = USUAL_TIMES
    flow: Flow = field(default_factory=Flow)
    """How many creates and deletes may be under way."""
    lookers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(MOST, "looker"))
    """Who looks at single pods, for all pools together: so no more looks are under way than the server bears."""
    streams_lists: bool = True
    """False once the server refused to stream a list."""
    clock: PlaceClock = field(default_factory=PlaceClock)

    def get(self, path: str, query: Query | None = None, *, accept: str = JSON) -> Document:
        """The JSON object at ``path``."""
        return self.send("GET", path, query=query, accept=accept)

    def items(self, path: str, query: Query, *, accept: str = JSON) -> Iterator[Any]:
        """The items of a list, page by page; each page raises as ``get``."""
        for page in self.pages(path, query, accept=accept):
            yield from page.get("items") or ()

    def pages(self, path: str, query: Query, *, accept: str = JSON) -> Iterator[Document]:
        """The pages of a list, each of which raises as ``get``; BackendError for a list without an end.

        A page that is too large is asked for again by half of its objects.
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
            mark = (page.get("metadata") or {}).get("continue")
            if not mark:
                return
            query["continue"] = str(mark)
        raise BackendError(ErrorClass.OTHER, f"{path}: the list has more than {MOST_PAGES} pages")

    def send(
        self, method: str, path: str, *, query: Query | None = None, body: bytes | None = None, accept: str = JSON
    ) -> Document:
        """One request and the JSON object that answers it; KubeError when refused, BackendError when not answered."""
        _, content = self._request(method, path, query, body, accept=accept)
        return parse(content)

    def stream(self, path: str, query: Query) -> urllib3.response.BaseHTTPResponse:
        """An open response to be read as it comes; reading raises an urllib3 error when it falls silent."""
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
        """Return the response and its body, which is left to be read from a ``stream``. Raises as ``send``."""
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
            content = b"" if stream and reply.status < 300 else body_of(reply)
        except urllib3.exceptions.HTTPError as error:
            if isinstance(error, urllib3.exceptions.SSLError | urllib3.exceptions.NewConnectionError):
                self.access.failed(way)
            self.clock.hear(None, time.monotonic() - began)
            raise unanswered(error) from error
        self.clock.hear(reply.headers.get("Date"), time.monotonic() - began)
        if reply.status == UNKNOWN_USER:
            self.access.rejected(way)
        if reply.status >= 300:
            raise refusal(reply.status, content, reply.headers.get("Retry-After"))
        return reply, content


def unanswered(error: urllib3.exceptions.HTTPError) -> BackendError:
    """Return the failure of a request without a response: it may have been applied, or not."""
    reading = isinstance(error, urllib3.exceptions.ReadTimeoutError)
    kind = ErrorClass.TIMEOUT if reading else ErrorClass.UNAVAILABLE
    return failed_call(error, kind, words(f"{type(error).__name__}: {error}"))


def refusal(status: int, body: bytes, retry_after: str | None) -> KubeError:
    """The error that a response with a status of 300 or more stands for."""
    response: Document = {}
    with contextlib.suppress(BackendError):
        response = parse(body)
    message = str(response.get("message") or f"HTTP {status} {body[:MAX_WORDS].decode(errors='replace')}".strip())
    if retry_after:
        message += f" (retry after {retry_after} s)"
    reason = str(response.get("reason") or "")
    failure = Failure(_error_class(status, reason, message), words(message))
    return KubeError(status, reason, failure, seconds_until(retry_after))


def _error_class(status: int, reason: str, message: str) -> ErrorClass:
    if _BY_A_POLICY.search(message):
        return ErrorClass.DENIED
    if status == 403 and (quota := next((said for words, said in _BY_A_QUOTA.items() if words in message), None)):
        return quota
    if status == 409 and reason == "Conflict":
        return ErrorClass.UNAVAILABLE  # Two writers met, often at the quota's counter: the same call may succeed.
    return class_of_status(status, _OWN)


def parse(body: bytes) -> Document:
    """The JSON object in a response; BackendError when there is none: half a response is no response."""
    try:
        return json_object(body)
    except ValueError as error:
        raise BackendError(ErrorClass.UNAVAILABLE, words(f"the answer is not JSON: {error}")) from error


def words(text: str) -> str:
    """A message on one line, cut to a bearable length."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 1] + "…"
