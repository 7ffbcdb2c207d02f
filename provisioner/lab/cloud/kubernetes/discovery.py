"""The documents that clients read first: versions, groups, resources, and a small OpenAPI document. The functions have
no side effects."""

from __future__ import annotations

from typing import Any

from provisioner.lab.cloud.kubernetes.errors import Json
from provisioner.lab.cloud.kubernetes.pods import KINDS
from provisioner.lab.cloud.kubernetes.store import Kind

VERSION: Json = {
    "major": "1",
    "minor": "33",
    "gitVersion": "v1.33.5-simulator",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2025-09-09T00:00:00Z",
    "goVersion": "go1.24.6",
    "compiler": "gc",
    "platform": "linux/amd64",
}

_SUBRESOURCES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("pods/eviction", "Eviction", ("create",)),
    ("pods/status", "Pod", ("get", "patch", "update")),
)


def api_versions(address: str) -> Json:
    """Return the document at ``/api``. ``address``: host and port of the server."""
    servers = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": servers}


def api_groups() -> Json:
    """Return the document at ``/apis``. The document lists no groups, because the cluster has only the core group."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": []}


def resources() -> Json:
    """Return the document at ``/api/v1``."""
    listed = [_resource(kind) for kind in KINDS] + [_subresource(*sub) for sub in _SUBRESOURCES]
    listed.sort(key=lambda resource: str(resource["name"]))
    return {"kind": "APIResourceList", "groupVersion": "v1", "resources": listed}


def _resource(kind: Kind) -> Json:
    document: Json = {
        "name": kind.resource,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
        "shortNames": list(kind.short),
    }
    return {**document, "categories": list(kind.categories)} if kind.categories else document


def _subresource(name: str, kind: str, verbs: tuple[str, ...]) -> Json:
    document: Json = {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": list(verbs)}
    return {**document, "group": "policy", "version": "v1"} if kind == "Eviction" else document


def openapi_index() -> Json:
    """Return the document at ``/openapi/v3``, which lists the paths of the groups' documents."""
    return {"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=simulator"}}}


def openapi_document() -> Json:
    """Return the document at ``/openapi/v3/api/v1``.

    The document lists the resources. It also states that the server validates fields, so that kubectl does not validate
    them.
    """
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for kind in KINDS:
        base = "/api/v1/namespaces/{namespace}" if kind.namespaced else "/api/v1"
        paths[f"{base}/{kind.resource}"] = {"post": _operation(kind, "post")}
        paths[f"{base}/{kind.resource}/{{name}}"] = {"patch": _operation(kind, "patch")}
        schemas[f"io.k8s.api.core.v1.{kind.kind}"] = _schema(kind)
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _operation(kind: Kind, action: str) -> Json:
    names = ("dryRun", "fieldManager", "fieldValidation")
    return {
        "operationId": f"{action}CoreV1{kind.kind}",
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in names
        ],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _group_version_kind(kind),
    }


def _schema(kind: Kind) -> Json:
    return {
        "type": "object",
        "description": f"{kind.kind} as the embedded cloud knows it; fields are not described.",
        "x-kubernetes-preserve-unknown-fields": True,
        "x-kubernetes-group-version-kind": [_group_version_kind(kind)],
    }


def _group_version_kind(kind: Kind) -> Json:
    return {"group": "", "version": "v1", "kind": kind.kind}
