"""The watch of a namespace's pods. The watch keeps the caches of all its pools up to date.

The caches count as current only while the watch's thread can prove that they are.

* The watch begins with a list that the server streams. If a server does not stream lists, the list is read in pages.
* A stream that ends is resumed from the last version. After ``410 Gone``, the pods are listed again. A silent stream
  counts as dead.
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
from provisioner.backends.client_connections import BODY_BYTES, LINE_BYTES
from provisioner.backends.gke.api import LIST_SECONDS, KubeApi, KubeError
from provisioner.backends.gke.own_pods import Identity
from provisioner.backends.gke.shared_pod_caches import PodCaches, PodList
from provisioner.backends.http import Document, unanswered_error
from provisioner.backends.responses import ODD_RESPONSES, json_object, text, translated_errors, words
from provisioner.model import ErrorClass, Failure

log = logging.getLogger(__name__)

STEADY_SECONDS = 0.5
"""Seconds for which a stream must last. The end of a shorter stream counts as a failure."""
CLOSE_SECONDS = 2.0
"""Seconds to wait for the end of the thread. A thread that takes longer ends with the process."""
STREAMED_LIST: Mapping[str, str | int] = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
"""Query for a list at the beginning of a watch. The query names no version, so the list is as new as the request. With
version 0, the list could be older than events that we have seen (Kubernetes API concepts, "Streaming lists")."""
END_OF_LIST = "k8s.io/initial-events-end"
"""Annotation of the bookmark after the last pod of a streamed list."""
REFUSALS = frozenset({400, 422})
"""HTTP statuses of servers that do not stream lists: older than 1.27, or with the feature switched off."""
PASSING = frozenset({410, 429, 503, 504})
"""Codes of an ERROR event after which streamed lists are tried again. After any other code, lists are read in pages
from then on. For example, a server whose etcd does not report its progress sends 500."""


class Disordered(Exception):
    """Raised if a stream cannot be followed any further. The pods must then be listed again."""


class NoStreamedLists(Exception):
    """Raised if a server does not stream lists. The lists must then be read in pages."""


class PodWatch:
    """A thread that follows the pods of one namespace."""

    def __init__(self, api: KubeApi, namespace: str, selector: str, caches: PodCaches) -> None:
        self._api, self._selector, self._caches = api, selector, caches
        self._path, self._where = pods_path(namespace), {"namespace": namespace}
        self._closing = threading.Event()
        self._tried = threading.Event()
        """Set after the first list, whether it succeeded or failed."""
        self._is_list_wanted = threading.Event()
        """Set while a new list is requested as a check of a working stream."""
        self._began_at = self._listed_at = 0.0
        """Monotonic times: when the last list or stream began, and when the last complete list began."""
        self._is_synced = False
        self._host = ""
        """Address of the server that sent the list."""
        self._version = ""
        """Version from which the watch continues; empty if the pods must be listed first."""
        self._heard_at = 0.0
        """Monotonic time of the server's last message: a list, an event or a bookmark."""
        self._blind_since: float | None = None
        """Monotonic time since which no stream has updated the caches; None while a stream updates the caches."""
        self._last_failure = Failure(ErrorClass.UNAVAILABLE, "the first list of pods has not ended yet")
        self._failures = 0
        """Number of failures in a row."""
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
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # The stream may just have ended by itself.
                stream.shutdown()

    def check(self, oldest: float = math.inf) -> float:
        """Return the monotonic time of the caches' list. If the list is older than ``oldest`` seconds, request a new
        list.

        Raise BackendError if the caches are incomplete or old (law: a failed observation is not an empty observation).
        """
        if not self._is_synced:
            self._tried.wait(self._api.times.first_observation)
        elif self._api.access.host() != self._host:
            self._end_stream()
            raise BackendError(ErrorClass.UNAVAILABLE, "the server has another address now: its pods are listed first")
        now, blind_since = time.monotonic(), self._blind_since
        if not self._is_synced or (blind_since is not None and now - blind_since > self._api.times.blind):
            raise BackendError(self._last_failure.error, self._last_failure.text)
        if now - self._heard_at > self._api.times.silence + self._api.times.blind:
            raise BackendError(ErrorClass.TIMEOUT, f"the watch has been silent for {now - self._heard_at:.0f} s")
        if not self._is_list_wanted.is_set() and now - self._listed_at > oldest:  # first, because a list may end now
            log.info("Pods are listed again as a check", extra=self._where)
            self._is_list_wanted.set()
            self._end_stream()
        return self._listed_at

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._list_or_resume()
            except NoStreamedLists as error:
                self._api.streams_lists = False
                log.info("Server does not stream lists, asking for pages", extra={**self._where, "text": str(error)})
            except (Disordered, *ODD_RESPONSES) as error:
                self._version = ""
                text = str(error) if isinstance(error, Disordered) else f"an event is not understood: {error!r}"
                self._retry_later("Pods are listed again", Failure(ErrorClass.OTHER, words(text)))
            except BackendError as error:
                if isinstance(error, KubeError) or error.failure.error in (ErrorClass.TIMEOUT, ErrorClass.OTHER):
                    self._version = ""  # The caches may be wrong. After a stream that only broke off, they are right.
                self._retry_later("Watch failed", error.failure, error.retry_after or 0.0)
            except Exception as error:
                if not self._closing.is_set():  # To shut down a stream during a read raises various errors.
                    log.exception("Watch failed unexpectedly", extra=self._where)
                self._version = ""
                self._retry_later("Watch failed", Failure(ErrorClass.OTHER, repr(error)))

    def _list_or_resume(self) -> None:
        """Resume the watch from the last version. List the pods if the version is unknown or too old, or on request.

        A requested list is read in pages, because the server's stream or cache may be wrong.
        """
        self._began_at, wanted = time.monotonic(), self._is_list_wanted.is_set()
        if (host := self._api.access.host()) != self._host:
            self._host, self._version, self._is_synced = host, "", False
        if self._version and not wanted and self._began_at - self._heard_at <= self._api.times.silence:
            self._follow({"resourceVersion": self._version})
        elif self._api.streams_lists and not wanted:
            self._follow(STREAMED_LIST, self._caches.empty_list())
        else:
            self._replace(*self.list_pods())
            self._is_list_wanted.clear()

    @translated_errors(ErrorClass.UNAVAILABLE)
    def list_pods(self, pool: Identity | None = None) -> tuple[PodList, str]:
        """Return the list of the pods of ``pool`` (None: all pools), and its version. Raise BackendError on failure."""
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
        self._version, self._is_synced, self._heard_at = version, True, time.monotonic()
        self._listed_at = self._began_at
        self._blind_since = self._heard_at
        self._tried.set()

    def _follow(self, begin: Mapping[str, str | int], pods: PodList | None = None) -> None:
        """Follow one stream to its end. An ended stream is no error, because servers disconnect slow readers silently.

        ``pods``: if given, the stream begins with a list. This list counts only after the bookmark at its end.
        """
        self._stream = stream = self._open(begin, pods)
        try:
            if self._closing.is_set():
                return
            if pods is None:
                self._blind_since = None
            for event in events(stream):
                pods = self._apply_event(event, pods)
        except Exception:
            if not self._is_list_wanted.is_set():  # if a list is requested, we ended the stream ourselves
                raise
        finally:
            self._blind_since, self._stream = self._blind_since or time.monotonic(), None
            stream.close()
            if pods is None and time.monotonic() - self._began_at > STEADY_SECONDS:
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

    def _apply_event(self, event: Document, pods: PodList | None) -> PodList | None:
        """Apply an event to the caches, or to a list under way. Return this list while it is incomplete; else None."""
        kind, pod = str(event.get("type")), event.get("object")
        if kind == "ERROR" or not isinstance(pod, dict):
            raise _stream_error(event, pods)
        if not (version := text(pod["metadata"]["resourceVersion"])):
            raise Disordered(f"a {kind} event without a version")
        if pods is not None and kind != "BOOKMARK":
            if time.monotonic() > self._began_at + LIST_SECONDS:
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
        self._version, self._heard_at = version, time.monotonic()
        return None

    def _retry_later(self, event_message: str, failure: Failure, least: float = 0.0) -> None:
        """Remember a failure, and wait before the next attempt. The wait grows with each failure in a row.

        ``least``: seconds that the server asks us to wait.
        """
        if self._closing.is_set():
            return
        self._last_failure = failure
        self._blind_since = self._blind_since or time.monotonic()
        self._tried.set()
        delay = min(self._api.times.last_retry, self._api.times.first_retry * 2 ** min(self._failures, 20))
        self._failures += 1
        log.warning(event_message, extra={**self._where, **failure.log_fields})
        self._closing.wait(max(least, delay * random.uniform(0.5, 1.0)))


def pods_path(namespace: str) -> str:
    """Return the API server's path of the pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"


def events(stream: Any) -> Iterator[Document]:
    """Yield the events of a watch until its end. Raise BackendError if the stream breaks off or is silent for too long.

    Raise ValueError for a line that is not a JSON object.
    """
    rest = b""
    try:
        for chunk in stream.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LINE_BYTES:
                raise stream.allowance.size_error(f"{LINE_BYTES >> 20} MiB")
            for line in lines:
                stream.allowance.renew(BODY_BYTES)
                if line.strip():
                    yield json_object(line)
    except urllib3.exceptions.HTTPError as error:
        raise unanswered_error(error) from error


def _stream_error(event: Document, pods: PodList | None) -> Disordered | NoStreamedLists:
    """Return the exception for an ERROR event, or for an event without an object. ``pods``: the list under way; None
    after its end."""
    status = event.get("object")
    text = str(status.get("message") or event if isinstance(status, dict) else event)
    if pods is None or not isinstance(status, dict) or status.get("code") in PASSING:
        return Disordered(text)
    return NoStreamedLists(words(text))
