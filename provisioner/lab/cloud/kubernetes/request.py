"""A request to the Kubernetes API, read from its path, query, headers and body."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml
from aiohttp import web

from provisioner.lab.cloud.kubernetes.errors import (
    Json,
    bad_request,
    bad_value,
    conflict,
    invalid,
    method_not_allowed,
    not_supported,
    unsupported_media_type,
)
from provisioner.lab.cloud.kubernetes.form import Form
from provisioner.lab.cloud.kubernetes.selectors import selector
from provisioner.lab.cloud.kubernetes.store import Match, Store, Stored

_PROPAGATIONS = ("Foreground", "Background", "Orphan")
_BODY_TYPES = ("application/json", "application/yaml")


@dataclass(frozen=True)
class Call:
    """A parsed request: its verb, and the objects that it is about."""

    request: web.Request
    store: Store
    namespace: str
    name: str
    subresource: str
    verb: str
    form: Form
    body: Any
    """The JSON of the body; an empty object if there is no body."""

    @property
    def resource(self) -> str:
        """The resource with its subresource, as RBAC and the call counters name it."""
        return "/".join(part for part in (self.store.kind.resource, self.subresource) if part)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names that are matched against the ``target`` of faults."""
        method = f"{self.resource}.{self.verb}"
        return self.namespace, self.name, method, f"{self.namespace}/{method}"

    @property
    def counted_as(self) -> str:
        """The name under which ``world.calls`` counts the call, such as ``pods.create``. A watch that begins with a
        list counts as ``watchlist`` instead of ``watch``."""
        streamed = self.verb == "watch" and self.request.query.get("sendInitialEvents") == "true"
        return f"{self.resource}.{'watchlist' if streamed else self.verb}"

    @property
    def is_strict(self) -> bool:
        """True if the server must refuse an unknown field. False if the server drops it."""
        return self.request.query.get("fieldValidation") == "Strict"

    @property
    def is_dry_run(self) -> bool:
        """True if the server must only check the call and store nothing."""
        return "dryRun" in self.request.query or bool(isinstance(self.body, dict) and self.body.get("dryRun"))


def verb_of(request: web.Request, named: bool, subresource: str) -> str:
    """Return the verb as RBAC names it; raise 405 for a method that the path does not have."""
    match request.method:
        case "GET" if not named and request.query.get("watch", "").lower() in ("1", "true"):
            return "watch"
        case "GET":
            return "get" if named else "list"
        case "POST" if not named or subresource:
            return "create"
        case "PUT" if named:
            return "update"
        case "PATCH" if named:
            return "patch"
        case "DELETE":
            return "delete" if named else "deletecollection"
    raise method_not_allowed()


async def read_body(request: web.Request, verb: str) -> Any:
    """Return the JSON of the body.

    Raise 400 if the body is not JSON. Raise 415 if the verb does not accept the body's media type.
    """
    content = await request.read()
    if not content and verb in ("delete", "deletecollection"):
        return {}
    if not content:
        words = "couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)"
        raise bad_request(f"the object provided is unrecognized (must be of type Pod): {words}")
    media = request.content_type if "Content-Type" in request.headers else "application/json"
    if media not in _BODY_TYPES and verb != "patch":
        raise unsupported_media_type(_BODY_TYPES)
    try:
        return yaml.safe_load(content) if media.endswith("yaml") else json.loads(content)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error


def match_of(call: Call) -> Match | None:
    """Return the predicate for the query's selectors; None if the query has no selectors."""
    query = call.request.query
    return selector(call.store.kind.resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))


def delete_options(call: Call) -> Json:
    """Return the delete options from the body and from the query. Old clients send delete options in the query."""
    if not isinstance(call.body, dict):
        raise bad_request("json: cannot unmarshal the body into a DeleteOptions")
    grace = call.request.query.get("gracePeriodSeconds", "")
    options: Json = {"gracePeriodSeconds": int(grace), **call.body} if grace.isdecimal() else call.body
    policy = options.get("propagationPolicy")
    causes = []
    if policy is not None and "orphanDependents" in options:
        words = "orphanDependents and deletionPropagation cannot be both set"
        causes.append(bad_value("propagationPolicy", policy, words))
    if policy not in (None, *_PROPAGATIONS):
        causes.append(not_supported("propagationPolicy", policy, (*_PROPAGATIONS, "nil")))
    if causes:
        raise invalid("DeleteOptions.meta.k8s.io", "", causes)
    return options


def check_preconditions(options: Json, stored: Stored) -> None:
    """Raise 409 if the delete options name another uid or resourceVersion than the object has."""
    asked = options.get("preconditions") or {}
    for field, words, value, guess in (
        ("uid", "UID", stored.uid, "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", str(stored.version), "modified"),
    ):
        if asked.get(field, value) != value:
            given = f"the {words} in the precondition ({asked[field]}) does not match the {words} in record ({value})"
            raise conflict(stored.kind.kind, stored.name, f"{given}. The object might have been {guess}")
