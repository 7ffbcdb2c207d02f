"""The refusals of a Kubernetes API server: ``Status`` objects with the texts of a real server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
"""A JSON object."""

USER = "simulator"
"""The user in refusals. The embedded cloud has only this user and needs no credentials."""


class ApiError(Exception):
    """A refusal: HTTP code, reason and message, as in the ``Status`` object."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        extra = {} if retry_after is None else {"retryAfterSeconds": retry_after}
        self.status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            **({} if details is None and not extra else {"details": {**(details or {}), **extra}}),
            "code": code,
        }


@dataclass(frozen=True)
class Cause:
    """A mistake in an object: its field, its kind, and the message."""

    field: str
    reason: str
    message: str

    def as_json(self) -> Json:
        """Return the cause as an entry of ``details.causes`` in a ``Status`` object."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


def required(field: str, detail: str = "") -> Cause:
    """Return the cause for a missing value."""
    return Cause(field, "FieldValueRequired", "Required value" + (f": {detail}" if detail else ""))


def bad_value(field: str, value: object, detail: str) -> Cause:
    """Return the cause for a value of the wrong form."""
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_quote(value)}: {detail}")


def not_supported(field: str, value: object, supported: Sequence[str]) -> Cause:
    """Return the cause for a value outside the supported values."""
    words = ", ".join(f'"{word}"' for word in supported)
    return Cause(field, "FieldValueNotSupported", f"Unsupported value: {_quote(value)}: supported values: {words}")


def unknown_reference(field: str, value: object) -> Cause:
    """Return the cause for a value that names an unknown object."""
    return Cause(field, "FieldValueNotFound", f"Not found: {_quote(value)}")


def duplicate(field: str, value: object) -> Cause:
    """Return the cause for a value that occurs twice although it must be unique."""
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_quote(value)}")


def _quote(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def invalid(kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """Return the error 422 for an object that can be read but is wrong. The message lists all mistakes."""
    words = [f"{cause.field}: {cause.message}" for cause in causes]
    text = words[0] if len(words) == 1 else f"[{', '.join(words)}]"
    short, _, group = kind.partition(".")
    whose = ({"name": name} if name else {}) | ({"group": group} if group else {})
    details = {**whose, "kind": short, "causes": [cause.as_json() for cause in causes]}
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details=details)


def bad_request(message: str) -> ApiError:
    """Return the error 400 for a request that cannot be read."""
    return ApiError(400, "BadRequest", message)


def not_found(resource: str, name: str) -> ApiError:
    """Return the error 404 for an object that does not exist."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', details={"name": name, "kind": resource})


def no_such_path() -> ApiError:
    """Return the error 404 for a path at which the server has no resource."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", details={})


def method_not_allowed(detail: str = "") -> ApiError:
    """Return the error 405 for a resource that does not have the request's verb."""
    words = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", f"{words}: {detail}" if detail else words, details={})


def not_acceptable() -> ApiError:
    """Return the error 406: the server can write none of the requested media types."""
    words = "only the following media types are accepted: application/json"
    return ApiError(406, "NotAcceptable", words)


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    """Return the error 415 for a body of an unknown media type. ``accepted``: the known media types."""
    words = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return ApiError(415, "UnsupportedMediaType", words)


def already_exists(resource: str, name: str, *, ending: bool = False) -> ApiError:
    """Return the error 409 for a create whose object exists. ``ending``: True if the existing object is being
    deleted."""
    words = f'{"object is being deleted: " if ending else ""}{resource} "{name}" already exists'
    return ApiError(409, "AlreadyExists", words, details=_names(resource, name))


def conflict(resource: str, name: str, detail: str) -> ApiError:
    """Return the error 409 for an object with another uid or version than the caller gave.

    ``resource``: the resource, such as ``pods``; in a delete, the kind, such as ``Pod``.
    """
    words = f'Operation cannot be fulfilled on {resource} "{name}": {detail}'
    return ApiError(409, "Conflict", words, details=_names(resource, name))


def modified(resource: str, name: str) -> ApiError:
    """Return the error 409 for an update of an older version of the object."""
    words = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, words)


def expired(message: str) -> ApiError:
    """Return the error 410 for a resourceVersion that is no longer stored."""
    return ApiError(410, "Expired", message)


def too_large_version(asked: int, current: int) -> ApiError:
    """Return the error 504 for a resourceVersion that does not exist yet."""
    words = f"Timeout: Too large resource version: {asked}, current: {current}"
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    return ApiError(504, "Timeout", words, details=details, retry_after=1)


def over_quota(name: str, used: int, limit: int) -> ApiError:
    """Return the error 403 for a pod beyond a ResourceQuota on the number of pods."""
    numbers = f"requested: pods=1, used: pods={used}, limited: pods={limit}"
    words = f'pods "{name}" is forbidden: exceeded quota: pods, {numbers}'
    return ApiError(403, "Forbidden", words, details=_names("pods", name))


def denied(verb: str, resource: str, namespace: str, name: str) -> ApiError:
    """Return the error 403 for a call that RBAC does not allow."""
    what = f'{resource} "{name}"' if name else resource
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    words = f'{what} is forbidden: User "{USER}" cannot {verb} resource "{resource}" in API group "" {where}'
    return ApiError(403, "Forbidden", words, details=_names(resource, name))


def refused(params: Mapping[str, Any]) -> ApiError:
    """Return the error that the parameters of a fault ``http_error`` describe."""
    reason = str(params.get("reason", "Unauthorized"))
    return ApiError(int(params.get("status", 401)), reason, str(params.get("message", reason)))


def throttled(retry_after: int) -> ApiError:
    """Return the error 429 of API Priority and Fairness. ``retry_after``: seconds in the header Retry-After."""
    words = "Too many requests, please try again later."
    return ApiError(429, "TooManyRequests", words, retry_after=retry_after)


def unavailable() -> ApiError:
    """Return the error 503 of a server that has not applied the call."""
    return ApiError(503, "ServiceUnavailable", "the server is currently unable to handle the request")


def internal(detail: str) -> ApiError:
    """Return the error 500 with this detail."""
    return ApiError(500, "InternalError", f"Internal error occurred: {detail}")


def no_watch_progress() -> ApiError:
    """Return the error 500 of a watch in a cluster with an etcd older than 3.4.25. Such an etcd cannot report the
    progress of a watch."""
    words = (
        "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled"
    )
    return ApiError(500, "InternalError", words)


def watchlist_disabled() -> ApiError:
    """Return the error 422 for a watch that begins with a list, while the feature gate WatchList is off."""
    words = "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
    return invalid("ListOptions.meta.k8s.io", "", [Cause("sendInitialEvents", "FieldValueForbidden", words)])


def _names(resource: str, name: str) -> Json:
    return {"name": name, "kind": resource} if name else {"kind": resource}
