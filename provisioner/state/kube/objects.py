"""The custom resources of the state: their paths and names. The functions also pack large texts for the objects.

The scripts import this module at each call, so it imports only modules that load fast.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from provisioner.state.errors import StateUnreadable

GROUP = "provisioner.hostfactory.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

REQUESTS, RETURNS, ANSWERS = "machinerequests", "machinereturns", "machineanswers"
STATES, PARTS, NOTES = "provisionerstates", "stateparts", "hostfactorynotes"
KINDS = {
    REQUESTS: "MachineRequest",
    RETURNS: "MachineReturn",
    ANSWERS: "MachineAnswer",
    STATES: "ProvisionerState",
    PARTS: "StatePart",
    NOTES: "HostFactoryNote",
}
"""Kubernetes kind of each resource, by the resource's name in the path."""

READ = f"{GROUP}/read"
"""Annotation of a request's object: the digests of HF's two files as the script had read them."""

HOLDER, CYCLE = f"{GROUP}/holder", f"{GROUP}/cycle"
"""Annotations of the Lease: the signature of the loop, and the time of the loop's last cycle in epoch seconds by the
server's clock."""

MOST_PACKED = 700_000
"""Maximum number of characters of a packed text. The schemas have the same limit, because etcd accepts objects of up to
1.5 MiB."""


def collection(namespace: str, resource: str, **query: str) -> str:
    """Return the path of all objects of a resource in a namespace. ``query``: parameters of the call, such as a field
    selector."""
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/{resource}"
    return f"{path}?{urlencode(query)}" if query else path


def item(namespace: str, resource: str, name: str, subresource: str = "") -> str:
    """Return the path of an object, or of its subresource."""
    return f"{collection(namespace, resource)}/{name}" + (f"/{subresource}" if subresource else "")


def leases(namespace: str) -> str:
    """Return the path of all Leases in a namespace."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def own(provisioner: str) -> str:
    """Return the field selector that selects a provisioner's objects."""
    return f"spec.provisioner={provisioner}"


def body(resource: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """Return the document of a new object, for a create."""
    return {"apiVersion": API_VERSION, "kind": KINDS[resource], "metadata": {"name": name, **metadata}, "spec": spec}


def object_name(provisioner: str) -> str:
    """Return the name of a provisioner's own object in a form that the server accepts. HF's names may have capitals and
    ``_``."""
    plain = re.sub("[^a-z0-9-]", "-", provisioner.lower()).strip("-")
    if plain == provisioner:
        return plain
    return f"{plain or 'provisioner'}-{zlib.crc32(provisioner.encode()):08x}"  # two names may have the same plain form


def pack(value: object) -> str:
    """Return a JSON value as compressed text in base64."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogateescape"), 6)).decode()


def unpack(text: str, place: str = "", convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return the converted value of a packed text. ``place``: the object that contains the text. Raises StateUnreadable
    if the text is damaged, or if ``convert`` refuses the value."""
    try:
        packed = base64.b64decode(text, validate=True)
        return convert(json.loads(zlib.decompress(packed).decode("utf-8", "surrogateescape")))
    except (zlib.error, ValueError, TypeError) as error:
        raise StateUnreadable(f"{place}: has a damaged text: {error}. If this repeats, restore it.") from error
