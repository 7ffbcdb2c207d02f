"""The right that each of our calls needs, and the rights that ``deploy/`` gives.

The rights are roles of Google Cloud and RBAC of Kubernetes. A call is one line: a method of Compute such as
``instanceGroupManagers.get``, verb and resource of Kubernetes, or the path of a Pub/Sub method. This module imports no
cloud client, because each test's processes import it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
ROLES = ROOT / "deploy" / "terraform" / "roles"
KUSTOMIZE = ROOT / "deploy" / "kustomize"
RBAC = [
    KUSTOMIZE / "base" / "rbac.yaml",
    *(KUSTOMIZE / "components" / name / "cluster-role.yaml" for name in ("spot-nodes", "pod-demand")),
]

COMPUTE: Mapping[str, str] = {
    "autoscalers.get": "compute.autoscalers.get",
    "instanceGroupManagers.get": "compute.instanceGroupManagers.get",
    "instanceGroupManagers.list": "compute.instanceGroupManagers.list",
    "instanceGroupManagers.listManagedInstances": "compute.instanceGroupManagers.get",
    "instanceGroupManagers.createInstances": "compute.instanceGroupManagers.update",
    "instanceGroupManagers.deleteInstances": "compute.instanceGroupManagers.update",
    "instanceGroupManagers.testIamPermissions": "compute.instanceGroupManagers.list",
    "instances.list": "compute.instances.list",
    "instanceTemplates.get": "compute.instanceTemplates.get",
    "machineTypes.get": "compute.machineTypes.get",
    "regionAutoscalers.get": "compute.autoscalers.get",
    "regionInstanceGroupManagers.get": "compute.instanceGroupManagers.get",
    "regionInstanceGroupManagers.list": "compute.instanceGroupManagers.list",
    "regionInstanceGroupManagers.listManagedInstances": "compute.instanceGroupManagers.get",
    "regionInstanceGroupManagers.createInstances": "compute.instanceGroupManagers.update",
    "regionInstanceGroupManagers.deleteInstances": "compute.instanceGroupManagers.update",
    "regionInstanceGroupManagers.testIamPermissions": "compute.instanceGroupManagers.list",
    "regionInstanceTemplates.get": "compute.instanceTemplates.get",
    "regionOperations.get": "compute.regionOperations.get",
    "regionOperations.wait": "compute.regionOperations.get",
    "zoneOperations.get": "compute.zoneOperations.get",
    "zoneOperations.list": "compute.zoneOperations.list",
    "zoneOperations.wait": "compute.zoneOperations.get",
}
"""The permission of each method, for Google publishes no list of them; the methods are held to Google's.

* Read on the pages of the methods (such as
  https://cloud.google.com/compute/docs/reference/rest/v1/instanceGroupManagers/createInstances): create, delete and
  list of a group's instances.
* Taken from their likes: ``testIamPermissions`` needs the list of what it asks of, ``wait`` the get of the operation,
  ``get`` and ``list`` what they are called.
"""

PUBSUB: Mapping[str, str] = {
    "/google.pubsub.v1.Subscriber/StreamingPull": "pubsub.subscriptions.consume",
    "/google.pubsub.v1.Subscriber/Acknowledge": "pubsub.subscriptions.consume",
    "/google.pubsub.v1.Subscriber/ModifyAckDeadline": "pubsub.subscriptions.consume",
    "/google.pubsub.v1.Subscriber/GetSubscription": "pubsub.subscriptions.get",
    "/google.iam.v1.IAMPolicy/TestIamPermissions": "",
}
"""The permission of each Pub/Sub method (https://cloud.google.com/pubsub/docs/access-control#required_permissions)."""

CONNECT = "container.clusters.connect"
"""Permission that IAM requires for every request to a cluster's DNS endpoint, in addition to the rights that Kubernetes
requires
(https://cloud.google.com/blog/products/containers-kubernetes/new-dns-based-endpoint-for-the-gke-control-plane)."""

DNS_ENDPOINT = re.compile(r"https://[^/:]+\.gke\.goog(?![\w.-])")

EVERYBODYS = frozenset({"authorization.k8s.io/selfsubjectaccessreviews create anywhere"})
"""Rights that Kubernetes gives to every account (ClusterRole system:basic-user)."""

ANYWHERE = "anywhere"
"""Last word of a right that is not limited to one namespace."""

_COMPUTE_PATH = re.compile(
    r".*?projects/[^/]+/(zones|regions|global)(?:/[^/]+)?/"
    r"(autoscalers|instanceGroupManagers|instanceTemplates|instances|machineTypes|operations)(?:/([^/]+)(?:/(\w+))?)?"
)
_KUBE_PATH = re.compile(r"/(?:api|apis/([^/]+))/\w+(/namespaces/[^/]+)?/(\w+)(?:/([^/]+)(?:/(\w+))?)?")
_NAMESPACE = re.compile(r"/api/v1/(namespaces)(?:/([^/]+))?")
_VERBS = {
    "GET": ("list", "get"),
    "POST": ("create", "create"),
    "PUT": ("update", "update"),
    "PATCH": ("patch", "patch"),
    "DELETE": ("deletecollection", "delete"),
}
"""Kubernetes' verbs for each HTTP method: for a path without an object's name, and for a path with a name."""


@cache
def granted() -> frozenset[str]:
    """Return every right that ``deploy/`` gives."""
    permissions = [
        permission
        for name in ("machines.yaml", "events.yaml", "cluster.yaml")
        for permission in yaml.safe_load((ROLES / name).read_text())["includedPermissions"]
    ]
    verbs = [
        f"{_grouped(group, resource)} {verb}{f' {ANYWHERE}' if document['kind'] == 'ClusterRole' else ''}"
        for file in RBAC
        for document in yaml.safe_load_all(file.read_text())
        for rule in document.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    return frozenset([*permissions, *verbs])


def compute_call(verb: str, path: str) -> str:
    """Return the method of Compute that a request calls, by the name in Google's reference. Return verb and path if the
    path is unknown."""
    found = _COMPUTE_PATH.fullmatch(path)
    if found is None:
        return f"{verb} {path}"
    level, collection, name, action = found.groups()
    kind = {"zones": "", "regions": "region", "global": ""}[level]
    if collection == "operations":
        kind = {"zones": "zone", "regions": "region", "global": "global"}[level]
    resource = f"{kind}{collection[0].upper()}{collection[1:]}" if kind else collection
    if action is None and verb != "GET":
        return f"{verb} {path}"
    return f"{resource}.{action or ('get' if name else 'list')}"


def connect_call(host: str) -> str:
    """Return the call ``CONNECT`` if IAM demands a right to connect to this API server, otherwise an empty text."""
    return CONNECT if DNS_ENDPOINT.match(host) else ""


def kube_call(verb: str, path: str, query: Mapping[str, str | int] | None) -> str:
    """Return the resource and verb of a request, as RBAC names them. Return the HTTP verb and the path if the path is
    unknown."""
    if (found := _NAMESPACE.fullmatch(path)) is not None:
        group, space, (resource, name), part = "", found[2], found.groups(), None
    elif (found := _KUBE_PATH.fullmatch(path)) is not None:
        group, space, resource, name, part = found.groups()
    if found is None or verb not in _VERBS:
        return f"{verb} {path}"
    watches = verb == "GET" and str((query or {}).get("watch", "")).lower() in ("1", "true")
    what = f"{resource}/{part}" if part else resource
    words = f"{_grouped(group or '', what)} {'watch' if watches else _VERBS[verb][bool(name)]}"
    return words if space else f"{words} {ANYWHERE}"


def needed(call: str) -> str:
    """Return the right that a call needs; empty if it needs none.

    If the right is unknown, return the call itself. No role gives such a right, so the call is then reported.
    """
    if call in EVERYBODYS:
        return ""
    return COMPUTE.get(call, PUBSUB.get(call, call))


def _grouped(group: str, resource: str) -> str:
    return f"{group}/{resource}" if group else resource
