"""Local copies of all objects of a resource. A cache makes them from lists alone, or keeps them up to date by the
server's watch.

The server ends each stream of the watch after ``STREAM_SECONDS``. The next stream goes on from the last version. If the
server is silent for longer, the contact is lost. The cache lists the objects again after ``410 Gone``. It also does so
if the server's version became lower, because etcd was then restored.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from provisioner.state.errors import StateDenied, StateError, StateUnreachable
from provisioner.state.kube.connection import ApiServer, Watch
from provisioner.state.kube.waits import SYSTEM, Waits

log = logging.getLogger(__name__)

Objects = Mapping[str, dict[str, Any]]

PAGE = 500
"""Maximum number of objects in a page of a list."""
STREAM_SECONDS = 20.0
"""Seconds after which the server ends a stream. While no object changes, only this end shows that the contact still
works."""
BLIND_SECONDS = 30.0
"""Seconds without any contact after which the objects count as unknown."""
STEADY_SECONDS = 0.5
"""Minimum duration of a stream in seconds. The end of a shorter stream counts as a failure."""
FIRST_RETRY, LAST_RETRY = 0.2, 10.0
"""Pauses in seconds before the next attempt: ``FIRST_RETRY`` after a success; after failures in a row twice as long
each time, up to ``LAST_RETRY``."""
CLOSE_SECONDS = 2.0
"""Seconds to wait for the end of the thread. If the thread takes longer, it ends with the process."""


class Disordered(StateError):
    """Raised if the cache cannot follow a stream any further. The cache must then list the objects again."""


class ListedObjects:
    """The objects of the last list. Commands and simulations use this class, because it needs no thread."""

    def __init__(self, api: ApiServer, path: str) -> None:
        self._api, self._path = api, path
        self._query = f"{path}{'&' if '?' in path else '?'}"
        self.objects: Objects = {}
        """The objects by their names. The mapping and its objects are never changed, because a new list replaces the
        mapping."""
        self.version = 0
        """A number that grows with each change of ``objects``."""
        self.resource_version = ""
        """The server's version up to which ``objects`` contains all changes; empty before the first list."""
        self.restores = 0
        """Number of restores of etcd that were noticed. After a restore, a list has a lower version than the previous
        list."""

    def start_following(self) -> None:
        """Do nothing, because this class lists the objects at each check. A subclass begins to follow the objects
        here."""

    def stop_following(self) -> None:
        """End what ``start_following`` began."""

    def wait_synced(self, seconds: float) -> None:
        """Wait for the end of the first list, at most ``seconds``. Raises StateError if the list failed or has not
        ended."""
        self.check()

    def check(self) -> None:
        """List the objects again. Raises StateError (law: a failed observation is not an empty observation)."""
        self.refresh()

    def _unknown(self, reason: object) -> StateUnreachable:
        return StateUnreachable(f"{self._path} of {self._api.name} is unknown: {reason}")

    def refresh(self) -> None:
        """List all objects, in pages. If this fails, the old objects stay. Raises StateError."""
        objects: dict[str, dict[str, Any]] = {}
        page: str | None = ""
        while page is not None:
            reply = self._api.call("GET", f"{self._query}limit={PAGE}{page}")
            try:
                objects |= {one["metadata"]["name"]: one for one in reply.document["items"]}
                version, token = _version(reply.document), reply.document["metadata"].get("continue")
            except (Disordered, KeyError, TypeError) as error:
                reason = reply.document.get("message") or f"the response is no list: {error!r}"
                raise self._unknown(f"HTTP {reply.status}: {reason}") from error
            page = f"&continue={quote(token, safe='')}" if token else None
        known = self.objects  # Keep the value of an unchanged object, because readers compare the values by identity.
        self.restores += version < int(self.resource_version or 0)  # before readers see the new objects
        self._replace({name: known[name] if known.get(name) == one else one for name, one in objects.items()})
        self.resource_version = str(version)

    def _replace(self, objects: Objects) -> None:
        old = self.objects
        if objects.keys() != old.keys() or any(one is not old[name] for name, one in objects.items()):
            self.objects, self.version = objects, self.version + 1


class ObjectCache(ListedObjects):
    """The objects of a resource, kept up to date by a thread."""

    def __init__(self, api: ApiServer, path: str, waits: Waits = SYSTEM) -> None:
        super().__init__(api, path)
        self._waits = waits
        self._problem: object = "the first list has not ended yet"
        """The reason why the last list or stream failed; empty after a success."""
        self._closing, self._tried = threading.Event(), threading.Event()
        self._heard_at = 0.0
        """Monotonic time of the server's last message: a list, an event, a bookmark or the end of a stream."""
        self._is_current = False
        """False if the objects must be listed before a watch goes on."""
        self._failures = 0
        """Number of failures in a row."""
        self._stream: Watch | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {path.partition('?')[0]}", daemon=True)

    def start_following(self) -> None:
        """Begin to list and watch."""
        self._thread.start()

    def stop_following(self) -> None:
        """End the stream and the thread."""
        self._closing.set()
        if (stream := self._stream) is not None:
            stream.close()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def wait_synced(self, seconds: float) -> None:
        """Wait for the end of the first list, at most ``seconds``. Raises StateError if the list failed or has not
        ended."""
        self._tried.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise StateError if the objects are unknown (law: a failed observation is not an empty observation).

        The objects are unknown after a denied call and before the end of the first list. They are also unknown if the
        server was silent for more than ``BLIND_SECONDS``.
        """
        if isinstance(self._problem, StateDenied):
            raise StateDenied(str(self._problem))
        if not self.resource_version:
            raise self._unknown(self._problem)
        if (silent := self._waits.now() - self._heard_at) > BLIND_SECONDS:
            raise self._unknown(f"no contact for {silent:.0f} s. {self._problem}".rstrip())

    def _run(self) -> None:
        while not self._closing.is_set():
            self.step()

    def step(self) -> None:
        """List the objects, or follow one stream to its end. Then wait until the next step is due."""
        began, was_current = self._waits.now(), self._is_current
        self._is_current = False  # List again after a failure, because another server may answer then.
        try:
            if was_current:
                self._follow(began)
            else:
                self.refresh()
                self._problem, self._heard_at = "", self._waits.now()
            self._is_current = True
        except StateError as error:
            self._note_failure(error)
        except Exception:
            log.exception("Watch failed unexpectedly", extra={"path": self._path})
        finally:
            self._tried.set()
        if self._is_current and not was_current:
            return  # After a list, the stream follows at once.
        self._failures = 0 if self._waits.now() - began > STEADY_SECONDS else min(self._failures + 1, 20)
        pause = min(LAST_RETRY, FIRST_RETRY * 2**self._failures)
        self._waits.wait(self._closing, pause * random.uniform(0.5, 1.0))

    def _note_failure(self, problem: StateError) -> None:
        if not self._closing.is_set() and str(problem) != str(self._problem):
            log.info("Watch failed", extra={"path": self._path, "text": str(problem)})
        self._problem = problem

    def _follow(self, began: float) -> None:
        """Follow one stream until it ends or the connection breaks. Raises StateError if the server opens no stream.
        Raises Disordered if the objects must be listed again."""
        # If etcd was restored, our version may be ahead of the server's, and the server then streams nothing.
        self._check_order(_version(self._api.call("GET", f"{self._query}limit=1", partial=True).document))
        seconds = round(STREAM_SECONDS * random.uniform(0.8, 1.0))
        watch = f"watch=true&allowWatchBookmarks=true&resourceVersion={self.resource_version}&timeoutSeconds={seconds}"
        self._stream = stream = self._api.watch(self._query + watch, BLIND_SECONDS)
        try:
            for event in () if self._closing.is_set() else stream:
                self._apply(event)
        except StateUnreachable as error:  # The stream broke off. The objects stay valid, and the next stream goes on.
            self._note_failure(error)
            return
        finally:
            self._stream = None
            stream.close()
        if self._waits.now() - began > STEADY_SECONDS:
            self._problem, self._heard_at = "", self._waits.now()
        elif self._heard_at <= began:
            raise Disordered("the stream ended at once and without an event")

    def _apply(self, event: dict[str, Any]) -> None:
        kind, found = event.get("type"), event.get("object") or {}
        version = _version(found)
        self._check_order(version)
        name = str(found["metadata"].get("name"))
        if kind in ("ADDED", "MODIFIED"):
            self._replace({**self.objects, name: found})
        elif kind == "DELETED":
            self._replace({known: one for known, one in self.objects.items() if known != name})
        elif kind != "BOOKMARK":
            raise Disordered(f"the server sent an event of the kind {kind!r}")
        self.resource_version, self._heard_at, self._problem = str(version), self._waits.now(), ""

    def _check_order(self, version: int) -> None:
        if version < int(self.resource_version):
            raise Disordered(f"the server's version went back from {self.resource_version} to {version}")


def _version(document: Any) -> int:
    """Return the version of an object or a list. Raises Disordered if the document has no version."""
    try:
        return int(document["metadata"]["resourceVersion"])
    except (KeyError, TypeError, ValueError):
        raise Disordered(f"the server sent {str(document)[:200]}") from None
