"""Keeps pod caches up to date: lists all pods, then follows the server's watch, for as long as a pool needs it.

The caches count as live only while this thread can vouch for them.

* The list is streamed by the watch itself, which begins with all pods; a server that refuses this is asked for pages.
* A stream that ends is resumed from the last version; ``410 Gone`` means list again; silence means that it is dead.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import urllib3

from provisioner.backends import BackendError
from provisioner.backends.connections import BODY_BYTES, LINE_BYTES
from provisioner.backends.gke.api import LIST_SECONDS, Document, KubeApi, KubeError, unanswered, words
from provisioner.backends.gke.pod_caches import PodCaches, PodList
from provisioner.backends.gke.pods import Identity
from provisioner.backends.responses import ODD_RESPONSES, json_object, text, understood
from provisioner.model import ErrorClass, Failure

log = logging.getLogger(__name__)

STEADY_SECONDS = 0.5
"""A stream that lived longer than this was no failure."""
CLOSE_SECONDS = 2.0
"""How long the end of the thread is waited for. It dies with the process anyway."""
STREAMED_LIST: Mapping[str, str | int] = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
"""Asks for a list as the begin of a watch. Without a version it is as new as the request; from version 0 it could be
older than what we have seen (Kubernetes API concepts, "Streaming lists")."""
END_OF_LIST = "k8s.io/initial-events-end"
"""Annotates the bookmark after the last pod of a streamed list."""
REFUSALS = frozenset({400, 422})
"""HTTP statuses of servers that do not know streamed lists: older than 1.27, or with the feature switched off."""
PASSING = frozenset({410, 429, 503, 504})
"""Codes of an ERROR event that say nothing against streamed lists. Any other does: 500 comes from a server whose etcd
cannot tell how far it is."""


class Disordered(Exception):
    """The stream of the server cannot be followed any further: list again."""


class NoStreamedLists(Exception):
    """The server does not stream lists: ask for pages."""


class PodWatch:
    """One thread that follows the pods of one namespace."""

    def __init__(self, api: KubeApi, namespace: str, selector: str, caches: PodCaches) -> None:
        self._api, self._selector, self._caches = api, selector, caches
        self._path, self._where = pods_path(namespace), {"namespace": namespace}
        self._closing = threading.Event()
        self._tried = threading.Event()
        """Set when the first list has succeeded or failed."""
        self._anew = threading.Event()
        """Set while a list is wanted although the stream goes on."""
        self._begun = self._listed = 0.0
        """Monotonic times when the last list or stream began, and the last list that was complete."""
        self._synced = False
        self._host = ""
        """The address of the server that the list came from."""
        self._version = ""
        """The version from which the watch goes on; empty: list first."""
        self._heard = 0.0
        """Monotonic time when the server last told us something: a list, an event, a bookmark."""
        self._blind_since: float | None = None
        """Monotonic time of a list or of the end of a stream, when nothing follows it yet; None while a stream does."""
        self._failure = Failure(ErrorClass.UNAVAILABLE, "the first list of pods has not ended yet")
        self._failures = 0
        """Failures in a row."""
        self._stream: urllib3.response.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {namespace}", daemon=True)

    def start(self) -> None:
        """Begin to list and watch."""
        self._thread.start()

    def close(self) -> None:
        """End the stream and the thread."""
        self._closing.set()
        self._end_stream()
        self._thread.join(CLOSE_SECONDS)

    def _end_stream(self) -> None:
        if (stream := self._stream) is not None:
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # The stream has just ended by itself.
                stream.shutdown()

    def check(self, oldest: float = math.inf) -> float:
        """Monotonic time when the list began that the caches rest on; one of more than ``oldest`` seconds is replaced.

        BackendError unless they are complete and current (law: a failed look is not an empty look).
        """
        if not self._synced:
            self._tried.wait(self._api.times.first_look)
        elif self._api.access.host() != self._host:
            self._end_stream()
            raise BackendError(ErrorClass.UNAVAILABLE, "the server has another address now: its pods are listed first")
        now, blind_since = time.monotonic(), self._blind_since
        if not self._synced or (blind_since is not None and now - blind_since > self._api.times.blind):
            raise BackendError(self._failure.error, self._failure.text)
        if now - self._heard > self._api.times.silence + self._api.times.blind:
            raise BackendError(ErrorClass.TIMEOUT, f"the watch has been silent for {now - self._heard:.0f} s")
        if now - self._listed > oldest and not self._anew.is_set():
            log.info("Pods are listed again to make sure", extra=self._where)
            self._anew.set()
            self._end_stream()
        return self._listed

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._go_on()
            except NoStreamedLists as error:
                self._api.streams_lists = False
                log.info("Server streams no lists, asking for pages", extra={**self._where, "text": str(error)})
            except (Disordered, *ODD_RESPONSES) as error:
                self._version = ""
                text = str(error) if isinstance(error, Disordered) else f"an event is not understood: {error!r}"
                self._retry_later("Pods are listed again", Failure(ErrorClass.OTHER, words(text)))
            except BackendError as error:
                if isinstance(error, KubeError) or error.failure.error in (ErrorClass.TIMEOUT, ErrorClass.OTHER):
                    self._version = ""  # Unlike after a stream that broke off, the caches may be worthless.
                self._retry_later("Watch failed", error.failure, error.retry_after or 0.0)
            except Exception as error:
                if not self._closing.is_set():  # A stream that is shut down under its reader fails in many ways.
                    log.exception("Watch failed unexpectedly", extra=self._where)
                self._version = ""
                self._retry_later("Watch failed", Failure(ErrorClass.OTHER, repr(error)))

    def _go_on(self) -> None:
        """Resume the watch from the last version, or list when there is none, it is too old, or a list is wanted.

        A list that is wanted to make sure comes in pages: no stream, and no cache behind one, has a part in it.
        """
        self._begun, wanted = time.monotonic(), self._anew.is_set()
        if (host := self._api.access.host()) != self._host:
            self._host, self._version, self._synced = host, "", False
        if self._version and not wanted and self._begun - self._heard <= self._api.times.silence:
            self._follow({"resourceVersion": self._version})
        elif self._api.streams_lists and not wanted:
            self._follow(STREAMED_LIST, self._caches.empty_list())
        else:
            self._replace(*self.list_pods())
            self._anew.clear()

    @understood(ErrorClass.UNAVAILABLE)
    def list_pods(self, pool: Identity | None = None) -> tuple[PodList, str]:
        """Return a complete list of the pods of ``pool`` (None: all pools) and its version; else BackendError."""
        pods, version = PodList([pool]) if pool else self._caches.empty_list(), ""
        for page in self._api.pages(self._path, {"labelSelector": pool.selector if pool else self._selector}):
            items, version = page["items"], text(page["metadata"]["resourceVersion"])
            if not isinstance(items, list) or not version:
                raise BackendError(ErrorClass.UNAVAILABLE, f"the answer is no list of pods: kind {page.get('kind')!r}")
            for pod in items:
                pods.take("ADDED", pod)
        return pods, version

    def _replace(self, pods: PodList, version: str) -> None:
        """Replace the caches by a complete list."""
        self._caches.replace(pods, version)
        self._version, self._synced, self._heard = version, True, time.monotonic()
        self._listed = self._begun
        self._blind_since = self._heard
        self._tried.set()

    def _follow(self, begin: Mapping[str, str | int], pods: PodList | None = None) -> None:
        """Follow one stream to its end, which is normal: servers cut slow readers off without a word.

        With ``pods`` the stream begins with a list, which counts for nothing before its end is told.
        """
        self._stream = stream = self._open(begin, pods)
        try:
            if self._closing.is_set():
                return
            if pods is None:
                self._blind_since = None
            for event in events(stream):
                pods = self._take(event, pods)
        except Exception:
            if not self._anew.is_set():  # otherwise it was we who ended it
                raise
        finally:
            self._blind_since, self._stream = self._blind_since or time.monotonic(), None
            stream.close()
            if pods is None and time.monotonic() - self._begun > STEADY_SECONDS:
                self._failures = 0
        if pods is not None:
            raise BackendError(ErrorClass.UNAVAILABLE, "the streamed list of pods ended before it was complete")
        self._closing.wait(self._api.times.first_retry)

    def _open(self, begin: Mapping[str, str | int], pods: PodList | None) -> urllib3.response.BaseHTTPResponse:
        query: dict[str, str | int] = {
            "watch": 1,
            "labelSelector": self._selector,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": max(1, round(self._api.times.stream * random.uniform(0.9, 1.1))),
            **begin,
        }
        try:
            return self._api.stream(self._path, query)
        except KubeError as error:
            if pods is not None and error.status in REFUSALS:
                raise NoStreamedLists(error.failure.text) from error
            raise

    def _take(self, event: Document, pods: PodList | None) -> PodList | None:
        """Apply one event, or gather it in a list under way; the list while it is not complete."""
        kind, pod = str(event.get("type")), event.get("object")
        if kind == "ERROR" or not isinstance(pod, dict):
            raise _complaint(event, pods)
        if not (version := text(pod["metadata"]["resourceVersion"])):
            raise Disordered(f"a {kind} event without a version")
        if pods is not None and kind != "BOOKMARK":
            if time.monotonic() > self._begun + LIST_SECONDS:
                raise BackendError(ErrorClass.TIMEOUT, f"the streamed list has not ended within {LIST_SECONDS:g} s")
            pods.take(kind, pod)
            return pods
        if pods is not None:
            if (pod["metadata"].get("annotations") or {}).get(END_OF_LIST) != "true":
                raise NoStreamedLists("a bookmark came before the end of the list")
            self._replace(pods, version)
            self._blind_since = None
        elif kind == "BOOKMARK":
            self._caches.advance(version)
        else:
            self._caches.apply(kind, pod)
        self._version, self._heard = version, time.monotonic()
        return None

    def _retry_later(self, what: str, failure: Failure, least: float = 0.0) -> None:
        """Remember a failure and wait before the next attempt, longer with each failure in a row.

        ``least``: seconds that the server asks for.
        """
        if self._closing.is_set():
            return
        self._failure = failure
        self._blind_since = self._blind_since or time.monotonic()
        self._tried.set()
        delay = min(self._api.times.last_retry, self._api.times.first_retry * 2 ** min(self._failures, 20))
        self._failures += 1
        log.warning(what, extra={**self._where, **failure.facts})
        self._closing.wait(max(least, delay * random.uniform(0.5, 1.0)))


def pods_path(namespace: str) -> str:
    """Where the API server keeps the pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"


def events(stream: Any) -> Iterator[Document]:
    """The events of a watch as they come; ends with the stream; BackendError when it breaks off or falls silent.

    Raises ValueError for a line that is no JSON object.
    """
    rest = b""
    try:
        for chunk in stream.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LINE_BYTES:
                raise stream.allowance.large(f"{LINE_BYTES >> 20} MiB")
            for line in lines:
                stream.allowance.renew(BODY_BYTES)
                if line.strip():
                    yield json_object(line)
    except urllib3.exceptions.HTTPError as error:
        raise unanswered(error) from error


def _complaint(event: Document, pods: PodList | None) -> Disordered | NoStreamedLists:
    """What an ERROR event, or one without an object, means for a stream."""
    status = event.get("object")
    text = str(status.get("message") or event if isinstance(status, dict) else event)
    if pods is None or not isinstance(status, dict) or status.get("code") in PASSING:
        return Disordered(text)
    return NoStreamedLists(words(text))
