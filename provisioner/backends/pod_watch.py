"""Keeps a pod cache up to date: lists all pods, then follows the server's watch, for as long as the backend lives.

A stream that ends is normal and is resumed from the last version; ``410 Gone`` means list again; silence means that the
stream is dead. The cache counts as live only while this thread can vouch for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator

import urllib3

from provisioner.backends import BackendError
from provisioner.backends.kube_api import Document, KubeApi, KubeError, unanswered
from provisioner.backends.pod_cache import PodCache
from provisioner.backends.pods import Identity, Reading
from provisioner.model import ErrorClass, Failure

log = logging.getLogger(__name__)

PAGE = 500
"""Pods per page of a list: 2.5 MB, 20 ms to parse."""
STEADY_SECONDS = 0.5
"""A stream that lived longer than this was no failure."""
CLOSE_SECONDS = 2.0
"""How long the end of the thread is waited for. It dies with the process anyway."""


class Disordered(Exception):
    """The server's stream cannot be followed any further: list again."""


class PodWatch:
    """One thread that follows the pods of one pool."""

    def __init__(
        self,
        api: KubeApi,
        path: str,
        identity: Identity,
        cache: PodCache,
        *,
        wake: Callable[[], None],
    ) -> None:
        self._api, self._path, self._identity, self._cache = api, path, identity, cache
        self._wake = wake
        self._closing = threading.Event()
        self._tried = threading.Event()
        """Set when the first list has succeeded or failed."""
        self._synced = False
        self._version = ""
        """From where the watch goes on; empty: list first."""
        self._heard = 0.0
        """Monotonic time when the server last told us something: a list, an event, a bookmark."""
        self._blind_since: float | None = None
        """Monotonic time since which there is no stream; None while there is one."""
        self._failure = Failure(ErrorClass.UNAVAILABLE, "the first list of pods has not ended yet")
        self._failures = 0
        """In a row."""
        self._stream: urllib3.response.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {identity.pool}", daemon=True)

    def start(self) -> None:
        """Begin to list and watch."""
        self._thread.start()

    def close(self) -> None:
        """End the stream and the thread."""
        self._closing.set()
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # It has just ended by itself.
                stream.shutdown()
        self._thread.join(CLOSE_SECONDS)

    def check(self) -> None:
        """Raise BackendError unless the cache is complete and current (law 4)."""
        if not self._synced:
            self._tried.wait(self._api.times.first_look)
        now, blind_since = time.monotonic(), self._blind_since
        if not self._synced or (blind_since is not None and now - blind_since > self._api.times.blind):
            raise BackendError(self._failure.error, self._failure.text)
        if now - self._heard > self._api.times.silence + self._api.times.blind:
            raise BackendError(ErrorClass.TIMEOUT, f"the watch has been silent for {now - self._heard:.0f} s")

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                if not self._version or time.monotonic() - self._heard > self._api.times.silence:
                    self._list()
                self._follow()
            except Disordered as error:
                self._version = ""
                self._retry_later("Pods are listed again", Failure(ErrorClass.OTHER, str(error)))
            except BackendError as error:
                if isinstance(error, KubeError) or error.failure.error is ErrorClass.TIMEOUT:
                    self._version = ""  # Refused or silent: what we know may be worthless. Broken off: it is not.
                self._retry_later("Watch failed", error.failure)
            except Exception as error:
                if not self._closing.is_set():  # A stream that is shut down under its reader fails in many ways.
                    log.exception("Watch failed unexpectedly", extra={"pool": self._identity.pool})
                self._version = ""
                self._retry_later("Watch failed", Failure(ErrorClass.OTHER, repr(error)))

    def _list(self) -> None:
        """Replace the cache by a complete list."""
        readings, version = list_pods(self._api, self._path, self._identity)
        news = self._cache.replace(readings, version) or not self._synced
        self._version, self._synced, self._heard = version, True, time.monotonic()
        self._tried.set()
        if news:
            self._wake()

    def _follow(self) -> None:
        """Follow one stream to its end, which is normal: servers cut slow readers off without a word."""
        query: dict[str, str | int] = {
            "watch": 1,
            "labelSelector": self._identity.selector,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": max(1, round(self._api.times.stream * random.uniform(0.9, 1.1))),
        }
        begun = time.monotonic()
        self._stream = stream = self._api.stream(self._path, query)
        try:
            if self._closing.is_set():
                return
            self._blind_since = None
            for event in events(stream):
                self._take(event)
                self._heard = time.monotonic()
        finally:
            self._blind_since, self._stream = time.monotonic(), None
            stream.close()
            if time.monotonic() - begun > STEADY_SECONDS:
                self._failures = 0
        self._closing.wait(self._api.times.first_retry)

    def _take(self, event: Document) -> None:
        """Apply one event."""
        kind, pod = event.get("type"), event.get("object")
        if kind == "ERROR" or not isinstance(pod, dict):
            raise Disordered(str((pod or {}).get("message") or event))
        version = pod.get("metadata", {}).get("resourceVersion")
        if not isinstance(version, str) or not version:
            raise Disordered(f"a {kind} event without a version")
        if kind == "BOOKMARK":
            self._cache.advance(version)
        elif self._cache.apply(str(kind), pod):
            self._wake()
        self._version = version

    def _retry_later(self, what: str, failure: Failure) -> None:
        """Remember a failure and wait before the next attempt, longer with each failure in a row."""
        if self._closing.is_set():
            return
        self._failure = failure
        self._blind_since = self._blind_since or time.monotonic()
        self._tried.set()
        delay = min(self._api.times.last_retry, self._api.times.first_retry * 2 ** min(self._failures, 20))
        self._failures += 1
        log.warning(what, extra={"pool": self._identity.pool, "error": str(failure.error), "text": failure.text})
        self._closing.wait(delay * random.uniform(0.5, 1.0))


def list_pods(api: KubeApi, path: str, identity: Identity) -> tuple[list[Reading], str]:
    """Every pod of ours, and the list's version; BackendError when it is not complete."""
    readings: list[Reading] = []
    query: dict[str, str | int] = {"labelSelector": identity.selector, "limit": PAGE}
    while True:
        page = api.get(path, query)
        metadata, items = page.get("metadata"), page.get("items")
        if not isinstance(metadata, dict) or not isinstance(items, list) or not metadata.get("resourceVersion"):
            raise BackendError(ErrorClass.UNAVAILABLE, f"the answer is no list of pods: kind {page.get('kind')!r}")
        readings += [reading for pod in items if (reading := identity.read(pod)) is not None]
        if not metadata.get("continue"):
            return readings, str(metadata["resourceVersion"])
        query["continue"] = str(metadata["continue"])


def events(stream: urllib3.response.BaseHTTPResponse) -> Iterator[Document]:
    """The events of a watch as they come; ends with the stream; BackendError when it breaks off or falls silent."""
    rest = b""
    try:
        for chunk in stream.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    yield _event(line)
    except urllib3.exceptions.HTTPError as error:
        raise BackendError(*unanswered(error)) from error


def _event(line: bytes) -> Document:
    """One line of a watch. An ERROR event with status 410 or a line that is no event means: list again."""
    try:
        event = json.loads(line)
    except ValueError as error:
        raise Disordered(f"an event that is not JSON: {error}") from error
    if not isinstance(event, dict):
        raise Disordered("an event that is no JSON object")
    return event
