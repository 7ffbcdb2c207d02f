"""StateParts: objects of the state that only the loop writes.

A text that is too long for its object continues in *pieces*. The loop makes pieces before the object that names them.
It removes pieces after a later write of this object. So a crash leaves at most unused pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar

from provisioner.state.errors import StateMissing, StateStale, StateUnreadable, StateUnwritable
from provisioner.state.kube.cache import ListedObjects
from provisioner.state.kube.connection import MERGE, ApiServer, Response
from provisioner.state.kube.objects import MOST_PACKED, PARTS, body, collection, item, object_name, own, pack, unpack

Item = dict[str, Any]
"""An object of the server, as JSON."""

Marks = Mapping[str, int]
"""``epoch`` and ``generation`` of the loop's memory, which each write carries. The server refuses a write whose epoch
or generation is lower than the object's."""

T = TypeVar("T")


class Conflict(StateStale):
    """Raised if another write came first. The object then differs from what the caller knows."""


def refuse(reply: Response, path: str) -> None:
    """Raise Conflict, StateStale or StateUnwritable if the server has refused a write. Do nothing for any other
    response."""
    message = f"{path}: {reply.document.get('message', '')}"
    if reply.status == 409:
        raise Conflict(message)
    if reply.status == 422:
        is_stale = "this epoch" in message or "this generation" in message
        raise StateStale(message) if is_stale else StateUnwritable(message)


def patch(api: ApiServer, resource: str, name: str, change: Mapping[str, object], subresource: str = "") -> Item | None:
    """Change fields of an object. Return the object; None if it does not exist. Raises StateStale if a newer loop has
    written."""
    path = item(api.namespace, resource, name, subresource)
    reply = api.call("PATCH", path, change, content=MERGE)
    refuse(reply, path)
    return None if reply.status == 404 else reply.document


def list_items(api: ApiServer, resource: str, provisioner: str) -> Mapping[str, Item]:
    """List the objects of a resource now. Return those of a provisioner, by name. Raises StateError."""
    listed = ListedObjects(api, collection(api.namespace, resource, fieldSelector=own(provisioner)))
    listed.refresh()
    return listed.objects


def run_all(work: Callable[[T], object], items: Collection[T], threads: Executor | None) -> None:
    """Call ``work`` for each item. Raises the first error.

    With ``threads``, the calls run in parallel, and the error is raised after all calls. Without threads, no call is
    made after the first error.
    """
    if threads is None or len(items) < 2:
        for each in items:
            work(each)
        return
    errors = [error for done in [threads.submit(work, each) for each in items] if (error := done.exception())]
    for error in errors:
        raise error


class Parts:
    """The StateParts of one provisioner."""

    def __init__(self, api: ApiServer, provisioner: str) -> None:
        self._api, self._provisioner = api, provisioner
        self._pieces: dict[str, set[str]] = {}
        """Names of the pieces that may exist, by the name of the text that they continue."""

    def name(self, part: str) -> str:
        """Return the name of a part's object."""
        return f"{object_name(self._provisioner)}.{part}"

    def list(self) -> Mapping[str, Item]:
        """Return all parts and pieces by name, from a new list. Raises StateError."""
        items = list_items(self._api, PARTS, self._provisioner)
        for name in items:
            if piece := re.fullmatch(r"(.+)\.[0-9]+\.[0-9]+", name):
                self._pieces.setdefault(piece[1], set()).add(name)
        return items

    def get(self, part: str) -> Item | None:
        """Return the object of a part; None if it does not exist."""
        reply = self._api.call("GET", item(self._api.namespace, PARTS, self.name(part)))
        return None if reply.status == 404 else reply.document

    def read(self, part: str) -> Any:
        """Return the value of a part; None if it does not exist. Raises StateUnreadable."""
        return None if (found := self.get(part)) is None else self.join(self.name(part), found["spec"]["data"])

    def set_aside(self, part: str) -> str:
        """Move the content of a part into another object; return the name of that object. Raises StateMissing."""
        if (found := self.get(part)) is None:
            raise StateMissing(f"{self._api.name}: {self.name(part)} in {self._api.namespace} is gone")
        name, spec = f"{self.name(part)}.aside-{found['metadata']['resourceVersion']}", found["spec"]
        self._write(name, {**spec, "part": "aside"}, None)
        self._api.call("DELETE", item(self._api.namespace, PARTS, self.name(part)))
        return name

    def join(self, name: str, packed: str, items: Mapping[str, Item] | None = None) -> Any:
        """Return the value of a packed text, which may continue in pieces. Raises StateUnreadable.

        ``name``: the beginning of the pieces' names. ``items``: all parts and pieces, if the caller has listed them
        already.
        """
        place = f"{self._api.name}: {name} in {self._api.namespace}"
        value = unpack(packed, place)
        if isinstance(value, dict) and (count := value.get("pieces")):
            parts = self.list() if items is None else items
            names = [f"{name}.{value['generation']}.{number}" for number in range(count)]
            if lost := {*names} - parts.keys():
                raise StateUnreadable(f"{place}: lacks {min(lost)}. Restore a backup.")
            value = unpack("".join(parts[piece]["spec"]["data"] for piece in names), place)
        return value

    def split(self, name: str, packed: str, room: int, marks: Marks) -> str:
        """Return ``packed`` if it has at most ``room`` characters. If it is longer, write its content as pieces, and
        return a short packed text that names the pieces."""
        if len(packed) <= room:
            return packed
        generation = marks["generation"]
        pieces = [packed[begin : begin + MOST_PACKED] for begin in range(0, len(packed), MOST_PACKED)]
        for number, piece in enumerate(pieces):
            piece_name = f"{name}.{generation}.{number}"
            self._pieces.setdefault(name, set()).add(piece_name)
            self._write(piece_name, {"part": "piece", "data": piece, **marks}, None)
        return pack({"pieces": len(pieces), "generation": generation})

    def remove_pieces(self, name: str, generation: int = -1) -> None:
        """Remove the pieces that continue the text ``name``, except the pieces of ``generation``."""
        for piece in sorted(self._pieces.get(name, ())):
            if not piece.startswith(f"{name}.{generation}."):
                self._api.call("DELETE", item(self._api.namespace, PARTS, piece))
                self._pieces[name].discard(piece)

    def write(self, part: str, value: object, marks: Marks, version: str | None = None) -> Item:
        """Replace the value of a part. Return the object.

        ``version``: the version to replace; empty if the object must not exist; None for any version. Raises Conflict
        if the object has another version. Raises StateStale if a newer loop has written.
        """
        name = self.name(part)
        data = self.split(name, pack(value), MOST_PACKED, marks)
        written = self._write(name, {"part": part, "data": data, **marks}, version)
        self.remove_pieces(name, marks["generation"])
        return written

    def _write(self, name: str, spec: dict[str, Any], version: str | None) -> Item:
        path = item(self._api.namespace, PARTS, name)
        if version != "":
            precondition = {} if version is None else {"metadata": {"resourceVersion": version}}
            if (written := patch(self._api, PARTS, name, {**precondition, "spec": spec})) is not None:
                return written
            if version is not None:
                raise Conflict(f"{path}: is gone")
        new = body(PARTS, name, {"provisioner": self._provisioner, **spec})
        reply = self._api.call("POST", collection(self._api.namespace, PARTS), new)
        refuse(reply, path)
        if reply.status == 404:
            raise StateMissing(f"{path}: the namespace {self._api.namespace} does not exist; no object was written")
        return reply.document
