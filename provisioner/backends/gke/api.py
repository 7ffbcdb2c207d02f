"""Raw requests to one Kubernetes API server. Each request is tried once, with its own time-out. Each refusal gets one
of a few error classes.

The official client is not used. Its typed models would take three times the request's processor time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import urllib3

from provisioner.backends import BackendError
from provisioner.backends.client_connections import MOST_PAGES, PAGE
from provisioner.backends.concurrency import MOST, Flow
from provisioner.backends.google_auth import smaller_page
from provisioner.backends.http import JSON, Document, Query, Request, Way, exchange, parse
from provisioner.backends.login_refusals import POLICY_WORDS, UNKNOWN_USER, LoginRefusals
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.proxies_and_authorities import seconds_until
from provisioner.backends.responses import MAX_CHARACTERS, class_of_status, words
from provisioner.model import ErrorClass, Failure

LIST_SECONDS = 300.0
"""Seconds for all pages of a list. Soon after this time, a server forgets the version of the list and refuses the
remaining pages."""
NOT_FOR_US = frozenset({403, 404, 405})
"""HTTP statuses with which a call may be refused although the server accepts our other calls: we lack a right, or a
proxy passes only calls about pods."""
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Media type of a list with only the metadata of its objects."""


@dataclass(frozen=True, slots=True)
class KubeTimes:
    """Time limits of an API server's calls, in seconds."""

    call: float = 30.0
    """Longest wait for a response. The limit is longer than a server waits for a slow admission webhook (10 s), and
    shorter than a server's own limit for a request (60 s)."""
    silence: float = 90.0
    """Longest silence of a watch. Servers send a bookmark about every 60 s, so after a longer silence the stream is
    dead."""
    blind: float = 10.0
    """Time for which a cache stays valid without a stream of changes. This is long enough to restart a stream."""
    first_observation: float = 10.0
    """Longest wait of the first observation for the first list."""
    stream: float = 270.0
    """Length of a stream. The length varies by 10 %, so that many watches do not restart together."""
    first_retry: float = 0.1
    """Pause before the first new attempt after a failure. The pause doubles with each further attempt."""
    last_retry: float = 10.0
    """Longest pause between two attempts."""
    waiting: float = 3.0
    """The Events of a pod are read if the pod has waited this long, for a node or on its node. Most pods wait for a
    shorter time."""
    events: float = 15.0
    """Pause between two readings of Events. A shorter pause would not help: an autoscaler acts about every 10 s, and
    its messages only inform operators."""


USUAL_TIMES = KubeTimes()

_QUOTA_WORDS: Mapping[str, ErrorClass] = {
    " is forbidden: exceeded quota: ": ErrorClass.QUOTA,
    " is forbidden: failed quota: ": ErrorClass.INVALID,
    " is forbidden: status unknown for quota: ": ErrorClass.UNAVAILABLE,
}
"""Error classes by texts about a namespace's quota: the quota is used up; the quota counts a resource that the pod spec
does not set; or the quota is new."""
_OWN_STATUSES = dict.fromkeys((413, 415, 422), ErrorClass.INVALID) | {504: ErrorClass.TIMEOUT}


class KubeError(BackendError):
    """A refusal by the server."""

    def __init__(self, status: int, reason: str, failure: Failure, retry_after: float | None = None) -> None:
        super().__init__(failure.error, failure.text, retry_after)
        self.status = status
        """HTTP status."""
        self.reason = reason
        """Kubernetes' reason, such as AlreadyExists; empty if the response was not a Status object."""


class Access(Protocol):
    """Address and credentials for a server. Both may change between two calls. Thread-safe."""

    def now(self) -> tuple[Way, Mapping[str, str]]:
        """Return the address of the server and the headers with our credentials. Raise BackendError if there are no
        credentials."""

    def host(self) -> str:
        """Return the server's present address."""

    def login(self) -> str:
        """Return a text for the operator that names the files and the account of the credentials."""

    def note_rejection(self, way: Way) -> str:
        """Note that the server has refused our login. If the server is on plain HTTP, where we send no credentials,
        return advice for operators; else an empty text."""

    def failed(self, way: Way) -> None:
        """Note that no server responded at the address, or that a wrong server responded. Raise BackendError if the
        files of the login cannot be used."""


@dataclass(slots=True)
class KubeApi:
    """The calls to one API server. All pools on this server share the limits and threads of these calls."""

    access: Access
    times: KubeTimes = USUAL_TIMES
    flow: Flow = field(default_factory=Flow)
    """The limit of concurrent creates and deletes."""
    readers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(MOST, "looker"))
    """Threads that read single pods for all pools together. Their number limits how many reads the server gets at
    once."""
    streams_lists: bool = True
    """False once the server has refused to stream a list."""
    clock: PlaceClock = field(default_factory=PlaceClock)
    refusals: LoginRefusals = field(init=False)

    def __post_init__(self) -> None:
        self.refusals = LoginRefusals(self.clock, self.access.login)

    def get(self, path: str, query: Query | None = None, *, accept: str = JSON) -> Document:
        """Return the JSON object at ``path``. Raise the errors of ``send``."""
        return self.send("GET", path, query=query, accept=accept)

    def items(self, path: str, query: Query, *, accept: str = JSON) -> Iterator[Any]:
        """Yield the items of a list, page by page. Each page may raise the errors of ``send``."""
        for page in self.pages(path, query, accept=accept):
            yield from page.get("items") or ()

    def pages(self, path: str, query: Query, *, accept: str = JSON) -> Iterator[Document]:
        """Yield the pages of a list. Each page may raise the errors of ``send``. Raise BackendError if the list does
        not end.

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
        """Send one request. Return the JSON object in the response. Raise KubeError if the server refuses the request,
        and BackendError if there is no response."""
        _, content = self._exchange(Request(method, path, self.times.call, query or {}, body, {"Accept": accept}))
        return parse(content)

    def stream(self, path: str, query: Query) -> urllib3.response.BaseHTTPResponse:
        """Send a request. Return the open response. Reading the response raises an error of urllib3 if the server is
        silent for too long."""
        reply, _ = self._exchange(Request("GET", path, self.times.call, query, silence=self.times.silence))
        return reply

    def _exchange(self, request: Request) -> tuple[urllib3.response.BaseHTTPResponse, bytes]:
        """Send a request with our credentials. Return the response and its body; the body of a stream is empty. Raise
        the errors of ``send``."""
        try:
            way, authorization = self.access.now()
        except BackendError as error:
            self.refusals.blame_clock(error)
            raise
        try:
            reply, content = exchange(way, replace(request, headers={**request.headers, **authorization}), self.clock)
        except BackendError as error:
            if isinstance(error.__cause__, urllib3.exceptions.SSLError | urllib3.exceptions.NewConnectionError):
                self.access.failed(way)
            self.refusals.blame_clock(error)
            raise
        advice = self.access.note_rejection(way) if reply.status == UNKNOWN_USER else ""
        if reply.status >= 300:
            refused = refusal(reply.status, content, reply.headers.get("Retry-After"))
            self.refusals.explain(refused, reply.status, advice)
            raise refused
        return reply, content


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
    quotas = [quota_class for words, quota_class in _QUOTA_WORDS.items() if words in message]
    if status == 403 and quotas:
        return quotas[0]
    if status == 409 and reason == "Conflict":
        return ErrorClass.UNAVAILABLE  # Two writers collided, often at a quota's counter. The same call may succeed.
    return class_of_status(status, _OWN_STATUSES)
