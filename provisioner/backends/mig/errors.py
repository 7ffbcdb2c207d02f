"""Compute Engine's errors, translated into our few error classes. No I/O.

An error has one of these forms: an HTTP status with a body; the ``error`` of an operation; the last attempt of a
managed instance; an exception of Google's login or of ``requests``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import google.auth.exceptions as auth_errors
import requests.exceptions as request_errors
import urllib3.exceptions as connection_errors

from provisioner.backends import BackendError
from provisioner.backends.call_budget import TooManyCalls
from provisioner.backends.proxies_and_authorities import failed_call, seconds_until
from provisioner.backends.responses import class_of_status
from provisioner.model import ErrorClass, Failure

CALL_ERRORS = (auth_errors.GoogleAuthError, request_errors.RequestException, connection_errors.HTTPError)
"""All exceptions that a call to Compute raises."""

TEXT_LIMIT = 500
"""Maximum number of characters that are kept of Compute's messages. Messages are stored with each slot and shown to
operators."""


SIGNS: tuple[tuple[ErrorClass, tuple[str, ...], tuple[str, ...]], ...] = (
    # Lower case, codes without underscores: bodies have rateLimitExceeded, operations RATE_LIMIT_EXCEEDED. Texts
    # identify errors whose code is missing or general (CONDITION_NOT_MET). The order matters: the text of a rate limit
    # also contains "quota exceeded", and the code of an exhausted reservation is CONDITION_NOT_MET.
    (
        ErrorClass.THROTTLED,
        ("ratelimitexceeded", "operationrateexceeded", "concurrentoperationsquotaexceeded"),
        ("rate limit exceeded", "operation rate exceeded", "per minute", "per 100 seconds"),
    ),
    # If a Spot instance is preempted during its start, the zone is not necessarily out of stock.
    (ErrorClass.OTHER, ("preempted",), ("was preempted", "due to preemption")),
    (
        ErrorClass.STOCKOUT,
        ("resourcepoolexhausted", "insufficientcapacity", "resourceavailability", "vmmincountnotreached"),
        (
            # The first two texts are about zones, regions and reservations, the rest only about reservations.
            "sufficient capacity for the requested",
            "does not have enough resources available",
            "does not have available resources for the request",
            "no available resources in specified reservation",
        ),
    ),
    # Only an operator can fix these: a right, the organization's policy, a perimeter, the project's account.
    (
        ErrorClass.DENIED,
        (
            *("permissionserror", "permissiondenied", "accessdenied", "forbidden", "policyconstraint"),
            *("policyviolation", "billing", "accountdisabled", "accountclosed", "projectdisabled"),
            *("consumersuspended", "accessnotconfigured"),
        ),
        ("constraint constraints/", "prohibited by organization's policy", "vpcservicecontrols"),
    ),
    (ErrorClass.QUOTA, ("quotaexceeded", "ipspaceexhausted", "limitexceeded"), ()),
    # A resource that the call needs is being made or changed. The same call will soon succeed.
    (ErrorClass.UNAVAILABLE, ("resourcenotready",), ("requires reservation to be in ready state",)),
    (ErrorClass.INVALID, ("conditionnotmet", "invalid", "unsupportedoperation"), ()),
    (ErrorClass.NOT_FOUND, ("notfound",), ()),
)
"""Error classes, each with parts of error codes and parts of texts. An error that contains one of these parts has this
class, whatever the HTTP status. The first match decides. The parts come from Google's documentation and from
Kubernetes' autoscaler."""

OWN_STATUSES = {409: ErrorClass.UNAVAILABLE, 412: ErrorClass.INVALID}
"""Error classes of HTTP statuses that have a special meaning in Compute."""

RESOURCE_RATE_SIGNS = ("operationrateexceeded", "operation rate exceeded")
"""Signs of a rate limit on operations on one resource. The project's other calls are not affected."""


@dataclass(frozen=True, slots=True)
class ComputeError:
    """An error as Compute reports it. ``status``: HTTP status; 0 if there was none."""

    status: int
    code: str
    text: str

    def failure(self) -> Failure:
        """Return the error's class and its text, preceded by its code."""
        words = self.text if not self.code or self.code in self.text else f"{self.code}: {self.text}".rstrip(": ")
        return Failure(classify(self), words[:TEXT_LIMIT] or f"HTTP {self.status}")


class AlreadyExists(BackendError):
    """Raised if a name of the call exists already. Compute does not report which name exists, or whether it accepted
    the other names. So the members must be listed again."""


def classify(error: ComputeError) -> ErrorClass:
    """Return the class of an error. The error's code and text decide. If they are unknown, the HTTP status decides."""
    code, text = _plain(error.code), error.text.lower()
    for known, codes, texts in SIGNS:
        if any(part in code for part in codes) or any(part in text for part in texts):
            return known
    return class_of_status(error.status, OWN_STATUSES)


def _plain(code: str) -> str:
    return code.replace("_", "").lower()


def raised(error: ComputeError, retry_after: str | None = None) -> BackendError:
    """Return the error as an exception. ``retry_after``: the Retry-After header of the response; None if there is
    none."""
    failure = error.failure()
    kind = BackendError
    if error.status == 409 or "alreadyexists" in _plain(error.code):
        kind = AlreadyExists
    elif failure.error is ErrorClass.THROTTLED:
        words = _plain(error.code), error.text.lower()
        kind = BackendError if any(sign in text for sign in RESOURCE_RATE_SIGNS for text in words) else TooManyCalls
    return kind(failure.error, failure.text, seconds_until(retry_after))


def http_error(status: int, body: object, text: str) -> ComputeError:
    """Return the error of an HTTP response. ``body``: its JSON (None if there is none). ``text``: the content as
    text."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return ComputeError(status, "", f"HTTP {status}: {text.strip()[:TEXT_LIMIT]}")
    return ComputeError(status, _reason_code(error), str(error.get("message", "")))


def _reason_code(error: Mapping[str, Any]) -> str:
    """Return the reason code of the first error. Newer responses have the code in an ErrorInfo."""
    listed = (error.get(key) for key in ("errors", "details"))
    parts = (part for parts in listed if isinstance(parts, list) for part in parts if isinstance(part, Mapping))
    return next((str(part["reason"]) for part in parts if part.get("reason")), "")


def operation_error(operation: Mapping[str, Any]) -> ComputeError | None:
    """Return the error of an operation; None if the operation did not fail."""
    status = int(operation.get("httpErrorStatusCode") or 0)
    error = _most_specific(operation.get("error"), status)
    if error is None and status >= 400:
        return ComputeError(status, "", str(operation.get("httpErrorMessage", "")))
    return error


def attempt_error(managed_instance: Mapping[str, Any]) -> ComputeError | None:
    """Return the error of the group's last attempt to create or delete an instance; None if the attempt did not
    fail."""
    return _most_specific(managed_instance.get("lastAttempt", {}).get("errors"), 0)


def _most_specific(holder: Mapping[str, Any] | None, status: int) -> ComputeError | None:
    """Return the first error in ``holder`` that ``SIGNS`` classifies. If ``SIGNS`` classifies none, return the first
    error; if there are no errors, None."""
    items = (holder or {}).get("errors") or []
    errors = [ComputeError(status, str(item.get("code", "")), str(item.get("message", ""))) for item in items]
    return next((error for error in errors if classify(error) is not ErrorClass.OTHER), errors[0] if errors else None)


def failed_call_error(error: BaseException) -> BackendError:
    """Return the BackendError for an exception in ``CALL_ERRORS``. If there was no response, the effect of the call is
    unknown."""
    kind = ErrorClass.UNAVAILABLE
    if isinstance(error, request_errors.Timeout | connection_errors.TimeoutError):
        kind = ErrorClass.TIMEOUT
    elif isinstance(error, auth_errors.GoogleAuthError) and not isinstance(error, auth_errors.TransportError):
        kind = ErrorClass.DENIED
    return failed_call(error, kind, f"{type(error).__name__}: {error}")
