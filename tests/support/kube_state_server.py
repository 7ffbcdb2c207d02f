"""An API server in memory, with exactly the behaviour that the state in the Kubernetes API uses.

``ObjectServer`` keeps the objects and answers as the real server. ``MemoryApiServer`` is one client's way to it, with
the faults of that way; several clients can share one server. ``tests/kube/test_kube_state_server.py`` compares them
with a real server.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from provisioner.state import errors
from provisioner.state.errors import StateDenied, StateError, StateMissing
from provisioner.state.kube import objects
from tests.support.kube_schema import CRDS, LEASE, Cause, Document, Kind, kinds

MERGE = "application/merge-patch+json"
PARTIAL = "meta.k8s.io/v1"
KEPT_EVENTS = 10_000
MOST_BYTES = 1_572_864
"""Bytes of the largest request that etcd takes."""
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
LEASE_FIELDS = ("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions", "strategy")
OBJECT_PATH = re.compile(r"/apis/([^/]+)/([^/]+)/namespaces/([^/]+)/([^/]+)(?:/([^/]+)(?:/([^/]+))?)?")

Unreachable: type[StateError] = getattr(errors, "StateUnreachable", StateError)


class Response(NamedTuple):
    """A server's answer to a call. ``at``: the server's Date, in epoch seconds."""

    status: int
    document: Document
    at: float


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(
        self, status: int, reason: str, message: str, named: Document | None = None, causes: list[Cause] | None = None
    ) -> None:
        """``named``: name, group and kind of the object that the answer is about."""
        super().__init__(message)
        listed = [{"reason": one.reason, "message": one.message, "field": one.field} for one in causes or ()]
        self.document = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": (named or {}) | ({"causes": listed} if listed else {}),
            "code": status,
        }


class Target(NamedTuple):
    """The object, or the objects, that a path names."""

    kind: Kind
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]


class Event(NamedTuple):
    """A change. ``old`` and ``new``: None before and after the life of the object."""

    version: int
    kind: Kind
    old: Document | None
    new: Document | None


def copied(value: Any) -> Any:
    """Return a copy of a JSON value, with numbers as the server writes them."""
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [copied(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e21 else value


def merged(value: Any, patch: Any) -> Any:
    """Return the value after a merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, one in patch.items():
        if one is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), one)
    return result


def shortened(document: Document) -> Document:
    """Return an object, or a list of objects, without spec and status."""
    if "items" in document:
        items = [shortened(one) for one in document["items"]]
        return {**document, "apiVersion": PARTIAL, "kind": "PartialObjectMetadataList", "items": items}
    if document["kind"] == "Status":
        return document
    return {"kind": "PartialObjectMetadata", "apiVersion": PARTIAL, "metadata": document["metadata"]}


def selector(kind: Kind, text: str) -> Callable[[Document], bool]:
    """Return the function that a field selector defines."""
    terms = [re.fullmatch(r"([^=!]+)(==?|!=)(.*)", term) for term in text.split(",") if term]
    for term in terms:
        if term is None or term[1] not in kind.selectable | {"metadata.name", "metadata.namespace"}:
            raise Refusal(400, "BadRequest", f"field label not supported: {term[1] if term else text}")

    def value(document: Any, path: str) -> str:
        for name in path.split("."):
            document = document.get(name, {})
        return "" if document == {} else str(document)

    return lambda document: all((value(document, term[1]) == term[3]) == (term[2] != "!=") for term in terms if term)


class ObjectServer:
    """The objects of one namespace, their versions, and the changes that watches see."""

    def __init__(self, namespace: str = "hf", clock: Callable[[], float] = time.time, crds: Path = CRDS) -> None:
        self.namespace, self.clock = namespace, clock
        self._kinds = {(one.group, one.version, one.resource): one for one in kinds(crds)}
        self._objects: dict[tuple[str, str], Document] = {}
        self.version = 1
        self.events: list[Event] = []
        self._forgotten = 0
        """Version of the newest change that no watch can begin before."""
        self.changed = threading.Condition(threading.RLock())
        self.restarts = 0
        """Number that grows when every watch ends."""
        self.bookmarks = 0
        """Number that grows when every watch gets a bookmark."""
        self._pages: dict[str, tuple[Document, list[Document]]] = {}
        self._ids = 0

    # --- what may happen to a server ----------------------------------------------------------------------------------

    def snapshot(self) -> tuple[int, dict[tuple[str, str], Document]]:
        """Return all objects, for ``restore``."""
        with self.changed:
            return self.version, dict(self._objects)

    def restore(self, snapshot: tuple[int, dict[tuple[str, str], Document]], *, bump: int = 0) -> None:
        """Bring back a snapshot of etcd, and start the server again. ``bump``: --bump-revision of the restore."""
        with self.changed:
            self.version, self._objects = snapshot[0] + bump, dict(snapshot[1])
            self.forget_events()
            self.cut_watches()

    def forget_events(self) -> None:
        """Let each watch and page that begins before now be too old."""
        with self.changed:
            self.events, self._forgotten = [], self.version
            self._pages.clear()

    def cut_watches(self) -> None:
        """End every watch."""
        with self.changed:
            self.restarts += 1
            self.changed.notify_all()

    def send_bookmarks(self) -> None:
        """Let every watch get a bookmark."""
        with self.changed:
            self.bookmarks += 1
            self.changed.notify_all()

    def remove_kinds(self) -> None:
        """Remove the definitions of our kinds, with all of their objects."""
        with self.changed:
            self._kinds = {key: kind for key, kind in self._kinds.items() if kind is LEASE}
            self._objects = {key: one for key, one in self._objects.items() if key[0] == LEASE.resource}

    # --- calls --------------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Document:
        """Carry out a call. Raises Refusal."""
        with self.changed:
            target = self.target(path)
            if target.name:
                return copied(self._answer_item(method, target, body, content))
            if method == "GET":
                return copied(self._list(target))
            if method == "POST":
                return copied(self._create(target, copied(body)))
            if method == "DELETE":
                doomed = self._selected(target)
                for one in doomed:
                    self._delete(target.kind, one, {})
                return copied(self._as_list(target, doomed))
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def target(self, path: str) -> Target:
        """Return what a path names. Raises Refusal."""
        parts = urlsplit(path)
        match = OBJECT_PATH.fullmatch(parts.path)
        kind = self._kinds.get((match[1], match[2], match[4])) if match else None
        if match is None or kind is None or match[6] not in ((None, "status") if kind.has_status else (None,)):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        return Target(kind, match[3], match[5] or "", match[6] or "", dict(parse_qsl(parts.query)))

    def _answer_item(self, method: str, target: Target, body: Any, content: str) -> Document:
        current = self._objects.get((target.kind.resource, target.name)) if self._is_ours(target) else None
        if method == "PUT" and current is None and target.kind is LEASE:
            return self._create(target, copied(body))
        if current is None:
            kind = f"{target.kind.resource}.{target.kind.group}"
            raise Refusal(404, "NotFound", f'{kind} "{target.name}" not found', _named(target.kind, target.name))
        if method == "GET":
            return current
        if method == "DELETE":
            return self._delete(target.kind, current, (body or {}).get("preconditions") or {})
        if method == "PUT":
            version = body["metadata"].get("resourceVersion")
            if body["metadata"].get("name") != target.name:
                raise Refusal(400, "BadRequest", "the name of the object does not match the name on the URL")
            if not version:
                cause = Cause("metadata.resourceVersion", "FieldValueInvalid", "must be specified for an update")
                raise self._invalid(target, target.name, [cause])
            return self._update(target, current, copied(body))
        if method == "PATCH" and content == MERGE:
            return self._update(target, current, merged(current, copied(body)))
        raise Refusal(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content}")

    def _is_ours(self, target: Target) -> bool:
        return target.namespace == self.namespace

    # --- reads --------------------------------------------------------------------------------------------------------

    def _selected(self, target: Target) -> list[Document]:
        chosen = selector(target.kind, target.query.get("fieldSelector", ""))
        found = sorted((key[1], one) for key, one in self._objects.items() if key[0] == target.kind.resource)
        return [one for _, one in found if self._is_ours(target) and chosen(one)]

    def _list(self, target: Target) -> Document:
        version, limit = int(target.query.get("resourceVersion") or 0), int(target.query.get("limit") or 0)
        if version > self.version:
            raise Refusal(504, "Timeout", f"Too large resource version: {version}, current: {self.version}")
        if token := target.query.get("continue"):
            if token not in self._pages:
                raise Refusal(410, "Expired", "The provided continue parameter is too old")
            listed, items = self._pages.pop(token)
        else:
            items = self._selected(target)
            listed = self._as_list(target, [])
        page = {**listed, "metadata": dict(listed["metadata"]), "items": items[:limit] if limit else items}
        if limit and len(items) > limit:
            self._ids += 1
            page["metadata"] |= {"continue": f"page-{self._ids}", "remainingItemCount": len(items) - limit}
            self._pages[f"page-{self._ids}"] = listed, items[limit:]
        return page

    def _as_list(self, target: Target, items: list[Document]) -> Document:
        metadata = {"continue": "", "resourceVersion": str(self.version)}
        kind = target.kind
        return {"apiVersion": kind.api_version, "kind": f"{kind.kind}List", "metadata": metadata, "items": items}

    def changes(self, target: Target, after: int) -> tuple[list[Document], int]:
        """Return the events of a watch after a version, and the version up to which these are all. Raises Refusal."""
        chosen = selector(target.kind, target.query.get("fieldSelector", ""))
        with self.changed:
            if after < self._forgotten:
                raise Refusal(410, "Expired", f"too old resource version: {after} ({self._forgotten + 1})")
            found = []
            for event in self.events:
                if event.version > after and event.kind is target.kind and self._is_ours(target):
                    was, is_ = (one is not None and chosen(one) for one in (event.old, event.new))
                    if was or is_:
                        shown = event.new if is_ else _at_version(event.new or event.old or {}, event.version)
                        word = "MODIFIED" if was and is_ else "ADDED" if is_ else "DELETED"
                        found.append({"type": word, "object": copied(shown)})
            return found, max(self.version, after)

    # --- writes -------------------------------------------------------------------------------------------------------

    def _create(self, target: Target, body: Document) -> Document:
        kind, given = target.kind, body.get("metadata", {})
        if not self._is_ours(target):
            named = {"name": target.namespace, "kind": "namespaces"}
            raise Refusal(404, "NotFound", f'namespaces "{target.namespace}" not found', named)
        if given.get("resourceVersion"):
            raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
        if (body.get("apiVersion"), body.get("kind")) != (kind.api_version, kind.kind):
            raise Refusal(
                400, "BadRequest", f"{body.get('kind')} in version {body.get('apiVersion')} does not fit here"
            )
        self._ids += 1
        now = datetime.fromtimestamp(int(self.clock()), UTC)
        metadata = {
            **{name: given[name] for name in ("name", "annotations", "labels", "ownerReferences") if given.get(name)},
            "namespace": self.namespace,
            "uid": str(uuid.UUID(int=self._ids)),
            "creationTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            **({} if kind is LEASE else {"generation": 1}),
        }
        new = self._shaped(kind, {**body, "metadata": metadata})
        if kind.has_status:
            new.pop("status", None)
        name = str(given.get("name") or "")
        causes = self._causes(kind, new, None)
        if not re.fullmatch(objects.NAME, name):
            causes.insert(0, Cause("metadata.name", "FieldValueInvalid" if name else "FieldValueRequired", "name"))
        if causes:
            raise self._invalid(target, name, causes)
        if (kind.resource, name) in self._objects:
            message = f'{kind.resource}.{kind.group} "{name}" already exists'
            raise Refusal(409, "AlreadyExists", message, _named(kind, name))
        return self._store(kind, None, new)

    def _update(self, target: Target, old: Document, body: Document) -> Document:
        kind, given = target.kind, body["metadata"]
        for field in ("resourceVersion", "uid"):
            if given.get(field) and given[field] != old["metadata"][field]:
                raise Refusal(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on {kind.resource}.{kind.group} "{target.name}": the object has '
                    "been modified; please apply your changes to the latest version and try again",
                    _named(kind, target.name),
                )
        new = self._shaped(kind, body)
        if target.subresource:
            new = {**{name: one for name, one in old.items() if name != "status"}} | (
                {"status": new["status"]} if "status" in new else {}
            )
        else:
            if kind.has_status:
                new.pop("status", None)
                new |= {"status": old["status"]} if "status" in old else {}
            kept = {name: one for name, one in old["metadata"].items() if name not in ("annotations", "labels")}
            new["metadata"] = kept | {name: given[name] for name in ("annotations", "labels") if given.get(name)}
            if kind is not LEASE and _governed(kind, new) != _governed(kind, old):
                new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        if causes := self._causes(kind, new, old):
            raise self._invalid(target, target.name, causes)
        return old if new == old else self._store(kind, old, new)

    def _delete(self, kind: Kind, old: Document, preconditions: Document) -> Document:
        for field, value in preconditions.items():
            if old["metadata"][field] != value:
                raise Refusal(409, "Conflict", f"Precondition failed: {field}")
        self._store(kind, old, None)
        details = {"name": old["metadata"]["name"], "group": kind.group, "kind": kind.resource}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details | {"uid": old["metadata"]["uid"]},
        }

    def _shaped(self, kind: Kind, body: Document) -> Document:
        """Return the object as the server keeps it."""
        if kind.schema:
            own = {name: body[name] for name in ("apiVersion", "kind", "metadata")}
            rest = {name: one for name, one in body.items() if name not in own}
            return own | kind.schema.prune(rest)
        spec = {name: one for name in LEASE_FIELDS if (one := (body.get("spec") or {}).get(name)) is not None}
        for name in ("acquireTime", "renewTime"):
            if name in spec and not MICRO_TIME.fullmatch(str(spec[name])):
                raise Refusal(400, "BadRequest", f'parsing time "{spec[name]}" as "2006-01-02T15:04:05.000000Z07:00"')
        return {name: body[name] for name in ("apiVersion", "kind", "metadata")} | {"spec": spec}

    def _causes(self, kind: Kind, new: Document, old: Document | None) -> list[Cause]:
        if kind.schema is None:
            seconds = new["spec"].get("leaseDurationSeconds", 1)
            return [] if seconds > 0 else [Cause("spec.leaseDurationSeconds", "FieldValueInvalid", "greater than 0")]
        value, before = (
            one and {name: part for name, part in one.items() if name not in ("apiVersion", "kind", "metadata")}
            for one in (new, old)
        )
        causes = list(kind.schema.causes(value))
        if any(one.is_blocking() for one in causes):
            return causes
        return causes + list(kind.schema.broken_rules(value, before))

    def _invalid(self, target: Target, name: str, causes: list[Cause]) -> Refusal:
        text = "; ".join(f"{one.field or '<nil>'}: {one.message}" for one in causes)
        kind = target.kind
        named = {"name": name, "group": kind.group, "kind": kind.kind}
        return Refusal(422, "Invalid", f'{kind.kind}.{kind.group} "{name}" is invalid: {text}', named, causes)

    def _store(self, kind: Kind, old: Document | None, new: Document | None) -> Document:
        """Keep the new object, or remove the old one."""
        stored = new or old or {}
        if _size(new) > MOST_BYTES and len(json.dumps(new)) > MOST_BYTES:
            raise Refusal(500, "", "etcdserver: request is too large")
        self.version += 1
        key = (kind.resource, stored["metadata"]["name"])
        if new is None:
            del self._objects[key]
        else:
            stored = self._objects[key] = _at_version(new, self.version)
        self.events.append(Event(self.version, kind, old, None if new is None else stored))
        if len(self.events) > KEPT_EVENTS:
            self._forgotten = self.events[KEPT_EVENTS // 2].version
            del self.events[: KEPT_EVENTS // 2 + 1]
        self.changed.notify_all()
        return stored


def _named(kind: Kind, name: str) -> Document:
    return {"name": name, "group": kind.group, "kind": kind.resource}


def _at_version(document: Document, version: int) -> Document:
    return {**document, "metadata": {**document["metadata"], "resourceVersion": str(version)}}


def _governed(kind: Kind, document: Document) -> Document:
    """Return what the generation counts."""
    left_out = ("metadata", "status") if kind.has_status else ("metadata",)
    return {name: one for name, one in document.items() if name not in left_out}


def _size(value: Any) -> int:
    """Return at most the bytes of a value, fast."""
    if isinstance(value, dict):
        return sum(_size(name) + _size(one) + 4 for name, one in value.items())
    if isinstance(value, list):
        return sum(_size(one) + 2 for one in value)
    return 4 * len(value) + 2 if isinstance(value, str) else 32


class Call(NamedTuple):
    """A call, as the hooks of a client see it. ``number``: its number among the client's calls and repetitions."""

    number: int
    method: str
    path: str
    body: Any


class MemoryApiServer:
    """A client's way to a server in memory, in the place of an ``ApiServer``, with the faults of this way.

    The hooks may raise, for example to end a simulated process.
    """

    name = "https://memory"

    def __init__(self, server: ObjectServer | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.server = server or ObjectServer(clock=clock)
        self.namespace = self.server.namespace
        self.is_unreachable = False
        """True while no call and no watch gets an answer."""
        self.is_stale = False
        """True while watches stay open and get neither events nor bookmarks."""
        self.events_a_watch: int | None = None
        """Number of events after which each watch is cut."""
        self.before: Callable[[Call], int | None] = lambda call: None
        """Hook before each call. A status that it returns is the answer, and the call has no effect; 0: no answer."""
        self.after: Callable[[Call], int | None] = lambda call: None
        """Hook after each call that had its effect. A status that it returns is the answer; 0: no answer."""
        self.calls: list[Call] = []
        """All calls and their repetitions."""

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        partial: bool = False,
        seconds: float = 10.0,
    ) -> Response:
        """Make a call as ``ApiServer.call`` does. Raises StateError."""
        status, document = 0, {}
        for tries_left in (1, 0):
            status, document = self._try(method, path, body, content)
            if status not in (0, 429, 500, 502, 503, 504) or not tries_left:
                break
        if status in (0, 429) or status >= 500:
            raise Unreachable(f"{self.name}: {method} {path}: {document.get('message') or 'no answer'}. Try again.")
        if status in (401, 403):
            raise StateDenied(f"{self.name}: {method} {path}: {document.get('message')}. Check the Role.")
        if status == 404 and not document.get("details", {}).get("name") and "not found" not in document["message"]:
            raise StateMissing(f"{self.name}: {document['message']}: {path}. Apply the kinds.")
        if status >= 400 and status not in (404, 409, 410, 422):
            raise StateError(f"{self.name}: {method} {path}: {status}: {document.get('message')}.")
        at = float(int(self.server.clock()))
        return Response(status, shortened(document) if partial and status < 300 else document, at)

    def _try(self, method: str, path: str, body: Any, content: str) -> tuple[int, Document]:
        """Return status and document of one exchange; status 0 for no answer."""
        with self.server.changed:
            call = Call(len(self.calls) + 1, method, path, body)
            self.calls.append(call)
        if self.is_unreachable:
            return 0, {}
        if (status := self.before(call)) is not None:
            return status, refusal(status)
        try:
            document = self.server.answer(method, path, json.loads(json.dumps(body)), content)
            status = 201 if method == "POST" else 200
        except Refusal as error:
            document, status = error.document, error.document["code"]
        if (other := self.after(call)) is not None:
            return other, refusal(other)
        return status, document

    def watch(self, path: str, seconds: float) -> MemoryWatch:
        """Return the events of a watch, as ``ApiServer.watch`` does."""
        return MemoryWatch(self, path, seconds)

    def set_unreachable(self, is_unreachable: bool = True) -> None:
        """Cut this client's way to the server, or repair it."""
        with self.server.changed:
            self.is_unreachable = is_unreachable
            self.server.changed.notify_all()


def refusal(status: int) -> Document:
    """Return the document of a refusal that a hook demands."""
    reasons = {
        409: "Conflict",
        429: "TooManyRequests",
        403: "Forbidden",
        401: "Unauthorized",
        503: "ServiceUnavailable",
    }
    return Refusal(status, reasons.get(status, "InternalError"), f"a test demands the status {status}").document


class MemoryWatch:
    """The events of a watch. They end when the server ends it, or by ``close`` from any thread."""

    def __init__(self, client: MemoryApiServer, path: str, seconds: float) -> None:
        """``seconds``: the longest time without an event, after which StateUnreachable is raised."""
        self._client, self._path, self._seconds = client, path, seconds
        self._is_closed = False
        self._events = self._watch()

    def __iter__(self) -> Iterator[Document]:
        return self._events

    def close(self) -> None:
        """End the watch."""
        with self._client.server.changed:
            self._is_closed = True
            self._client.server.changed.notify_all()

    def _watch(self) -> Iterator[Document]:
        client, server, sent = self._client, self._client.server, 0
        target = server.target(self._path)
        until = time.monotonic() + float(target.query.get("timeoutSeconds") or 1800)
        silent = time.monotonic() + self._seconds
        wants_marks = target.query.get("allowWatchBookmarks") in ("1", "true")
        with server.changed:
            restarts, bookmarks = server.restarts, server.bookmarks
        after = int(target.query.get("resourceVersion") or "0")
        if not after:
            listed = client.call("GET", self._path.partition("?")[0]).document
            yield from ({"type": "ADDED", "object": one} for one in listed["items"])
            after = int(listed["metadata"]["resourceVersion"])
        while True:
            try:
                with server.changed:
                    now, events = time.monotonic(), []
                    if not client.is_stale:
                        events, after = server.changes(target, after)
                    is_over = now >= until or server.restarts != restarts or self._is_closed
                    has_mark = wants_marks and not client.is_stale and (bookmarks != server.bookmarks or now >= until)
                    if not (events or is_over or has_mark or client.is_unreachable or now >= silent):
                        server.changed.wait(min(until - now, silent - now))
                        continue
                    bookmarks = server.bookmarks
            except Refusal as error:
                yield {"type": "ERROR", "object": error.document}
                return
            if client.is_unreachable or (now >= silent and not (events or is_over or has_mark)):
                raise Unreachable(f"{client.name}: {self._path}: no answer. Try again.")
            for event in events:
                yield event
                sent += 1
                if sent == client.events_a_watch:
                    return
            if has_mark:
                mark = {"apiVersion": target.kind.api_version, "kind": target.kind.kind}
                yield {"type": "BOOKMARK", "object": mark | {"metadata": {"resourceVersion": str(after)}}}
            if is_over:
                return
            silent = time.monotonic() + self._seconds
