"""An API server in memory, with only the behaviour that the state in the Kubernetes API needs.

``ObjectServer`` keeps the objects and responds like the real server. ``MemoryApiServer`` is one client's connection to
the server, with the faults of this connection. Several clients can share one server.
``tests/kube/test_kube_state_server.py`` compares the server in memory with a real server.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.message import Message
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from provisioner.state.errors import StateUnreachable
from provisioner.state.kube.api_login import Access
from provisioner.state.kube.connection import MERGE as MERGE
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.connection import Response as Response
from tests.support.kube_schema import CRDS, INVALID, LEASE, Cause, Document, Kind, kinds

PARTIAL = "meta.k8s.io/v1"
NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
"""Pattern of a name that the server accepts."""
KEPT_EVENTS = 10_000
MOST_BYTES = 1_572_864
"""Size in bytes of the largest request that etcd accepts."""
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
LEASE_FIELDS: dict[str, type] = {
    "holderIdentity": str,
    "leaseDurationSeconds": int,
    "acquireTime": datetime,
    "renewTime": datetime,
    "leaseTransitions": int,
}
OBJECT_PATH = re.compile(r"/apis/([^/]+)/([^/]+)/namespaces/([^/]+)/([^/]+)(?:/([^/]+)(?:/([^/]+))?)?")


class Refusal(Exception):
    """A response that is no success."""

    def __init__(
        self, status: int, reason: str, message: str, named: Document | None = None, causes: list[Cause] | None = None
    ) -> None:
        """Make a refusal. ``named``: name, group and kind of the object that the refusal is about."""
        super().__init__(message)
        listed = [{"reason": one.reason, "message": one.message, "field": one.field} for one in causes or ()]
        self.document = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
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
    """A change of an object. ``old`` is None if the object was created. ``new`` is None if the object was deleted."""

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
        metadata = {name: one for name, one in document["metadata"].items() if one}
        # An empty one of the real server has null.
        return {
            "apiVersion": PARTIAL,
            "kind": "PartialObjectMetadataList",
            "metadata": metadata,
            "items": items or None,
        }
    if document.get("kind") == "Status":
        return document
    return {"kind": "PartialObjectMetadata", "apiVersion": PARTIAL, "metadata": document["metadata"]}


def selector(kind: Kind, text: str) -> Callable[[Document], bool]:
    """Return a function that is true for the objects that a field selector selects. Raises Refusal for an invalid
    selector."""
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
        """Version of the newest forgotten change. A watch cannot begin before this version."""
        self.changed = threading.Condition(threading.RLock())
        self.restarts = 0
        """Number that is raised to end every watch."""
        self.bookmarks = 0
        """Number that is raised to send a bookmark to every watch."""
        self._pages: dict[str, tuple[Document, list[Document]]] = {}
        self._ids = 0

    # --- what may happen to a server ----------------------------------------------------------------------------------

    def snapshot(self) -> tuple[int, dict[tuple[str, str], Document]]:
        """Return all objects, for ``restore``."""
        with self.changed:
            return self.version, dict(self._objects)

    def restore(self, snapshot: tuple[int, dict[tuple[str, str], Document]], *, bump: int = 0) -> None:
        """Restore a snapshot of etcd, and start the server again. ``bump``: value of the restore's option
        --bump-revision."""
        with self.changed:
            self.version, self._objects = snapshot[0] + bump, dict(snapshot[1])
            self.forget_events()
            self.cut_watches()

    def forget_events(self) -> None:
        """Forget all changes so far.

        A watch or page that continues from an older version then gets the error "too old".
        """
        with self.changed:
            self.events, self._forgotten = [], self.version
            self._pages.clear()

    def cut_watches(self) -> None:
        """End every watch."""
        with self.changed:
            self.restarts += 1
            self.changed.notify_all()

    def send_bookmarks(self) -> None:
        """Send a bookmark to every watch."""
        with self.changed:
            self.bookmarks += 1
            self.changed.notify_all()

    def remove_kind(self, resource: str) -> None:
        """Remove a kind, so that the server no longer knows it."""
        with self.changed:
            self._kinds = {key: kind for key, kind in self._kinds.items() if kind.resource != resource}

    def remove_kinds(self) -> None:
        """Remove the definitions of our kinds, with all of their objects."""
        with self.changed:
            self._kinds = {key: kind for key, kind in self._kinds.items() if kind is LEASE}
            self._objects = {key: one for key, one in self._objects.items() if key[0] == LEASE.resource}

    # --- calls --------------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Document:
        """Carry out a call. Raises Refusal."""
        with self.changed:
            return copied(self._answer(method, self.target(path), copied(body), content))

    def respond(self, method: str, path: str, body: Any, content: str) -> tuple[int, Document]:
        """Carry out a call. Return the status and the document of the response."""
        with self.changed:
            before = self.version
            try:
                document = self.answer(method, path, body, content)
            except Refusal as refused:
                return refused.document["code"], refused.document
            is_new = self.version > before and self.events[-1].old is None
            return 201 if is_new else 200, document

    def _answer(self, method: str, target: Target, body: Any, content: str) -> Document:
        if target.name:
            return self._answer_item(method, target, body, content)
        if method == "GET" and "watch" in target.query:
            selector(target.kind, target.query.get("fieldSelector", ""))
            return {"kind": "WatchEvent"}
        if method == "GET":
            return self._list(target)
        if method == "POST":
            return self._create(target, body)
        if method == "DELETE":
            doomed = self._selected(target)
            for one in doomed:
                self._delete(target.kind, one, {})
            return self._as_list(target, doomed)
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def target(self, path: str) -> Target:
        """Return the object or the list of objects that a path names. Raises Refusal."""
        parts = urlsplit(path)
        match = OBJECT_PATH.fullmatch(parts.path)
        kind = self._kinds.get((match[1], match[2], match[4])) if match else None
        if match is None or kind is None:
            raise Refusal(404, "", "404 page not found")
        if match[6] not in ((None, "status") if kind.has_status else (None,)):
            raise Refusal(404, "NotFound", "not found", _named(kind, match[5]))
        return Target(kind, match[3], match[5] or "", match[6] or "", dict(parse_qsl(parts.query)))

    def _answer_item(self, method: str, target: Target, body: Any, content: str) -> Document:
        current = self._objects.get((target.kind.resource, target.name)) if self._is_ours(target) else None
        if method == "PUT" and current is None and target.kind is LEASE:
            body["metadata"].pop("resourceVersion", None)
            return self._create(target, body)
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
                cause = Cause("metadata.resourceVersion", INVALID, "must be specified for an update")
                raise _invalid(_named(target.kind, target.name), [cause])
            return self._update(target, current, body)
        if method == "PATCH" and content == MERGE:
            return self._update(target, current, merged(current, body), is_patch=True)
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
            listed = self._as_list(target, items)
            items = listed["items"]
        page = {**listed, "metadata": dict(listed["metadata"]), "items": items[:limit] if limit else items}
        if limit and len(items) > limit:
            self._ids += 1
            has_count = "fieldSelector" not in target.query
            page["metadata"] |= {"remainingItemCount": len(items) - limit} if has_count else {}
            page["metadata"]["continue"] = f"page-{self._ids}"
            self._pages[f"page-{self._ids}"] = listed, items[limit:]
        return page

    def _as_list(self, target: Target, items: list[Document]) -> Document:
        kind, metadata = target.kind, {"resourceVersion": str(self.version)}
        if kind is LEASE:
            items = [{name: one[name] for name in ("metadata", "spec")} for one in items]
        else:
            metadata["continue"] = ""
        return {"apiVersion": kind.api_version, "kind": f"{kind.kind}List", "metadata": metadata, "items": items}

    def changes(self, target: Target, after: int) -> tuple[list[Document], int]:
        """Return the events of a watch after a version. Also return the version up to which the events are complete.
        Raises Refusal."""
        chosen = selector(target.kind, target.query.get("fieldSelector", ""))
        with self.changed:
            if after < self._forgotten:
                raise Refusal(410, "Expired", f"too old resource version: {after} ({self._forgotten + 1})")
            found = []
            for event in self.events:
                if event.version > after and event.kind is target.kind and self._is_ours(target):
                    was, is_ = (one is not None and chosen(one) for one in (event.old, event.new))
                    if was or is_:
                        shown = event.new if is_ else _at_version(event.old or {}, event.version)
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
        self._check(kind, new, None)
        if (kind.resource, name) in self._objects:
            message = f'{kind.resource}.{kind.group} "{name}" already exists'
            raise Refusal(409, "AlreadyExists", message, _named(kind, name))
        return self._store(kind, None, new)

    def _update(self, target: Target, old: Document, body: Document, *, is_patch: bool = False) -> Document:
        kind, given = target.kind, body["metadata"]
        if given.get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            raise Refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {kind.resource}.{kind.group} "{target.name}": the object has '
                "been modified; please apply your changes to the latest version and try again",
                _named(kind, target.name),
            )
        try:
            new = self._shaped(kind, body)
        except Refusal as refused:
            if is_patch:
                raise _invalid({}, [Cause("patch", INVALID, str(refused))]) from refused
            raise
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
        self._check(kind, new, old)
        return old if new == old else self._store(kind, old, new)

    def _delete(self, kind: Kind, old: Document, preconditions: Document) -> Document:
        for field, value in preconditions.items():
            if old["metadata"][field] != value:
                named = {**_named(kind, old["metadata"]["name"]), "kind": kind.kind}
                raise Refusal(409, "Conflict", f"the {field} in the precondition does not match", named)
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
        """Return the object in the form in which the server keeps it."""
        for text in (body["metadata"].get("annotations") or {}).values():
            if not isinstance(text, str):
                raise Refusal(400, "BadRequest", "json: cannot unmarshal into ObjectMeta.annotations of type string")
        if kind.schema:
            own = {name: body.get(name) for name in ("apiVersion", "kind", "metadata")}
            rest = {name: one for name, one in body.items() if name not in own}
            return own | kind.schema.prune(rest)
        given = body.get("spec") or {}
        if not isinstance(given, dict):
            raise Refusal(400, "BadRequest", "json: cannot unmarshal into LeaseSpec")
        spec = {name: one for name in LEASE_FIELDS if (one := given.get(name)) is not None}
        for name, value in spec.items():
            kind_of = LEASE_FIELDS[name]
            if kind_of is datetime and MICRO_TIME.fullmatch(str(value)):
                at = datetime.fromisoformat(value).astimezone(UTC)
                spec[name] = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            elif kind_of is datetime or isinstance(value, bool) or not isinstance(value, kind_of):
                raise Refusal(400, "BadRequest", f"json: cannot unmarshal {value!r} into LeaseSpec.{name}")
        return {name: body.get(name) for name in ("apiVersion", "kind", "metadata")} | {"spec": spec}

    def _check(self, kind: Kind, new: Document, old: Document | None) -> None:
        """Raise Refusal if the new object breaks a limit or a rule."""
        name = str(new["metadata"].get("name") or "")
        named = {**({"name": name} if name else {}), "group": kind.group, "kind": new["kind"]}
        causes = []
        if sum(len(key) + len(text) for key, text in new["metadata"].get("annotations", {}).items()) > 262_144:
            causes.append(Cause("metadata.annotations", "FieldValueTooLong", "may not be more than 262144 bytes"))
        if not re.fullmatch(NAME, name):
            causes.append(Cause("metadata.name", INVALID if name else "FieldValueRequired", "a name is required"))
        if kind.schema is None:
            for field, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
                if new["spec"].get(field, least) < least:
                    causes.append(Cause(f"spec.{field}", INVALID, f"must not be less than {least}"))
        else:
            if new["kind"] != kind.kind:
                raise _invalid(named, [Cause("kind", INVALID, f"must be {kind.kind}")])
            value, before = (
                one and {name: part for name, part in one.items() if name not in ("apiVersion", "kind", "metadata")}
                for one in (new, old)
            )
            causes += kind.schema.causes(value)
            if any(one.is_blocking() for one in causes):
                if kind.schema.has_rules():
                    causes.append(Cause("<nil>", INVALID, "some validation rules were not checked"))
            else:
                causes += kind.schema.broken_rules({**(value or {}), "metadata": {"name": name}}, before)
        if causes:
            raise _invalid(named, causes)

    def _store(self, kind: Kind, old: Document | None, new: Document | None) -> Document:
        """Store the new object or, if ``new`` is None, remove the old object."""
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


def _invalid(named: Document, causes: list[Cause]) -> Refusal:
    text = "; ".join(f"{one.field}: {one.message}" for one in causes)
    return Refusal(422, "Invalid", f'"{named.get("name", "")}" is invalid: {text}', named, causes)


def _named(kind: Kind, name: str) -> Document:
    return {"name": name, "group": kind.group, "kind": kind.resource}


def _at_version(document: Document, version: int) -> Document:
    return {**document, "metadata": {**document["metadata"], "resourceVersion": str(version)}}


def _governed(kind: Kind, document: Document) -> Document:
    """Return the fields whose changes raise the object's generation."""
    left_out = ("metadata", "status") if kind.has_status else ("metadata",)
    return {name: one for name, one in document.items() if name not in left_out}


def _size(value: Any) -> int:
    """Return an upper bound of the size of a value in bytes. The bound is computed fast."""
    if isinstance(value, dict):
        return sum(_size(name) + _size(one) + 4 for name, one in value.items())
    if isinstance(value, list):
        return sum(_size(one) + 2 for one in value)
    return 4 * len(value) + 2 if isinstance(value, str) else 32


class Call(NamedTuple):
    """A call as the hooks of a client get it. ``number``: the number of the call among all calls of the client; a
    repeated call gets a new number."""

    number: int
    method: str
    path: str
    body: Any


class MemoryApiServer(ApiServer):
    """A client's connection to a server in memory, with the faults of this connection.

    The hooks may raise errors, for example to end a simulated process.
    """

    def __init__(self, server: ObjectServer | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.server = server or ObjectServer(clock=clock)
        super().__init__(lambda: Access("https://memory", self.server.namespace))
        self.is_unreachable = False
        """True while calls and watches get no response."""
        self.is_stale = False
        """True while watches stay open and get neither events nor bookmarks."""
        self.events_a_watch: int | None = None
        """Number of events after which each watch is cut."""
        self.before: Callable[[Call], int | None] = lambda call: None
        """Hook before each call. If the hook returns a status, the status is the response, and the call has no effect.
        0: there is no response."""
        self.after: Callable[[Call], int | None] = lambda call: None
        """Hook after each call that had its effect. If the hook returns a status, the status is the response. 0: there
        is no response."""
        self.calls: list[Call] = []
        """All calls and their repetitions."""

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, until: float
    ) -> tuple[int, Message, bytes]:
        with self.server.changed:
            call = Call(len(self.calls) + 1, method, path, json.loads(body) if body else None)
            self.calls.append(call)
        status = 0 if self.is_unreachable else self.before(call)
        document = refusal(status) if status else {}
        if status is None:
            status, document = self.server.respond(method, path, call.body, headers.get("Content-Type", ""))
            if status < 300 and "PartialObjectMetadata" in headers["Accept"]:
                document = shortened(document)
            if (other := self.after(call)) is not None:
                status, document = other, refusal(other)
        if not status:
            raise ConnectionError("a test demands no answer")
        text = json.dumps(document).encode()
        found = Message()
        found["Date"] = formatdate(self.server.clock(), usegmt=True)
        return status, found, text

    def watch(self, path: str, seconds: float) -> MemoryWatch:  # type: ignore[override]
        """Return the events of a watch."""
        return MemoryWatch(self, path, seconds)

    def set_unreachable(self, is_unreachable: bool = True) -> None:
        """Cut this client's connection to the server or, with False, repair it."""
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
    message = f"a test demands the status {status}"
    if status == 403:  # the words in which the server names a missing right
        message += ': User "a" cannot get resource "things" in API group "g"'
    return Refusal(status, reasons.get(status, "InternalError"), message).document


class MemoryWatch:
    """The events of a watch. The watch ends if the server ends it, or if any thread calls ``close``."""

    def __init__(self, client: MemoryApiServer, path: str, seconds: float) -> None:
        """Start a watch. ``seconds``: the longest time without an event; afterwards StateUnreachable is raised."""
        self._client, self._path, self._seconds = client, path, seconds
        self._is_closed = False
        client.call("GET", path)  # raises as the watch does
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
            query = urlencode({"fieldSelector": target.query.get("fieldSelector", "")})
            listed = server.answer("GET", f"{self._path.partition('?')[0]}?{query}")
            after = int(listed["metadata"]["resourceVersion"])
            yield from ({"type": "ADDED", "object": one} for one in listed["items"])
            if wants_marks:
                yield _bookmark(target.kind, after, annotations={"k8s.io/initial-events-end": "true"})
        while True:
            try:
                with server.changed:
                    now, events = time.monotonic(), []
                    if not client.is_stale:
                        events, after = server.changes(target, after)
                    is_over = now >= until or server.restarts != restarts or self._is_closed
                    # The real server sends neither to a watch from a version that it has not reached.
                    is_current = not client.is_stale and after <= server.version
                    has_mark = wants_marks and is_current and (bookmarks != server.bookmarks or now >= until)
                    if not (events or is_over or has_mark or client.is_unreachable or now >= silent):
                        server.changed.wait(min(until - now, silent - now))
                        continue
                    bookmarks = server.bookmarks
            except Refusal as error:
                yield {"type": "ERROR", "object": error.document}
                return
            if client.is_unreachable or (now >= silent and not (events or is_over or has_mark)):
                raise StateUnreachable(client.unreachable("a test demands no answer"))
            for event in events:
                yield event
                sent += 1
                if sent == client.events_a_watch:
                    return
            if has_mark:
                yield _bookmark(target.kind, after)
            if is_over:
                return
            silent = time.monotonic() + self._seconds


def _bookmark(kind: Kind, version: int, **metadata: Any) -> Document:
    body = {"apiVersion": kind.api_version, "kind": kind.kind, **({"spec": {}} if kind is LEASE else {})}
    return {"type": "BOOKMARK", "object": body | {"metadata": {"resourceVersion": str(version), **metadata}}}
