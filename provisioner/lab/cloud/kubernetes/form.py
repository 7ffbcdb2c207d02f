"""The forms of objects in responses: full JSON, the metadata alone, or a table. The functions have no side effects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from provisioner.lab.cloud.kubernetes.errors import Json, not_acceptable
from provisioner.lab.cloud.kubernetes.store import Kind, Stored
from provisioner.lab.cloud.kubernetes.table import partial, table


class Shape(StrEnum):
    """The forms of an object in a response: the whole object, its metadata alone, or a table."""

    FULL = "full"
    PARTIAL = "partial"
    TABLE = "table"


@dataclass(frozen=True)
class Form:
    """The form in which a request asks for objects."""

    shape: Shape
    include: str = "Metadata"
    """The part of the object (None, Metadata or Object) that a row of a table contains in addition to its cells."""

    def one(self, stored: Stored, now: float) -> bytes:
        """Return the bytes of one object."""
        if self.shape is Shape.FULL:
            return stored.body
        if self.shape is Shape.PARTIAL:
            return encode(partial(stored))
        version = {"resourceVersion": str(stored.version)}
        return encode(table([stored], stored.kind.resource, now, self.include, version))

    def many(self, kind: Kind, objects: Sequence[Stored], metadata: Json, now: float) -> bytes:
        """Return the bytes of a list. ``metadata``: the metadata of the list itself."""
        if self.shape is Shape.TABLE:
            return encode(table(objects, kind.resource, now, self.include, metadata))
        if self.shape is Shape.FULL:
            head: Json = {"kind": f"{kind.kind}List", "apiVersion": "v1", "metadata": metadata}
            items = b",".join([stored.item for stored in objects])
        else:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
            items = b",".join([encode(partial(stored)) for stored in objects])
        return encode(head)[:-1] + b',"items":[' + items + b"]}"

    def event(self, change: str, stored: Stored, now: float) -> bytes:
        """Return the bytes of a line of a watch. ``change``: ADDED, MODIFIED or DELETED."""
        return b'{"type":"%s","object":%s}\n' % (change.encode(), self.one(stored, now))

    def bookmark(self, kind: Kind, version: int, *, initial_end: bool) -> bytes:
        """Return the bytes of a bookmark.

        A bookmark is a line with a version. The watch has reported all changes up to this version. ``initial_end``:
        True if this bookmark ends the list with which the watch began.
        """
        metadata: Json = {"resourceVersion": str(version)}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        if self.shape is Shape.TABLE:
            document: Json = table([], kind.resource, 0.0, self.include, metadata)
        elif self.shape is Shape.PARTIAL:
            document = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
        else:
            document = {"kind": kind.kind, "apiVersion": "v1", "metadata": metadata}
            if kind.resource == "pods":
                document |= {"spec": {"containers": None}, "status": {}}
        return encode({"type": "BOOKMARK", "object": document}) + b"\n"


def encode(document: Json) -> bytes:
    """Return compact JSON."""
    return json.dumps(document, separators=(",", ":")).encode()


def negotiate(accept: str, include: str) -> Form:
    """Return the form of the first requested media type that can be written; raise 406 if there is none."""
    for media in accept.split(",") if accept.strip() else ["*/*"]:
        name, *parameters = (part.strip() for part in media.split(";"))
        asked = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        if name not in ("application/json", "application/*", "*/*"):
            continue
        match asked.get("as", ""):
            case "":
                return Form(Shape.FULL)
            case "Table":
                return Form(Shape.TABLE, include or "Metadata")
            case "PartialObjectMetadata" | "PartialObjectMetadataList":
                return Form(Shape.PARTIAL)
    raise not_acceptable()
