"""What Compute Engine says when something goes wrong, as our few classes.

An error reaches us in three forms: an HTTP status with a body, the ``error`` of an operation, and the last attempt of
a managed instance; and through two families of exceptions (Google's and those of ``requests``). No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import google.api_core.exceptions as google_errors
import google.auth.exceptions as auth_errors
import requests.exceptions as request_errors
import urllib3.exceptions as connection_errors
from google.protobuf.json_format import ParseError

from provisioner.backends import BackendError
from provisioner.model import ErrorClass, Failure

CALL_ERRORS = (
    google_errors.GoogleAPIError,
    auth_errors.GoogleAuthError,
    request_errors.RequestException,
    connection_errors.HTTPError,
    ParseError,
)
"""Everything that a call to Compute raises: network faults come through google-cloud-compute as they are, and some
through ``requests`` as well."""

ODD_ANSWERS = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What reading an answer of another shape than the documented one raises: a failed look, not a crash."""

TEXT_LIMIT = 500
"""Characters kept of Compute's words: they are stored with each slot and shown to people."""

PATTERNS: tuple[tuple[ErrorClass, tuple[str, ...]], ...] = (
    # Order matters: a rate limit also says "quota exceeded", and the class of a code is decided before its status.
    (ErrorClass.THROTTLED, ("ratelimitexceeded", "rate_limit_exceeded", "rate limit exceeded", "per minute")),
    # A Spot instance that was preempted while it started says nothing about the zone's stock.
    (ErrorClass.OTHER, ("preempted", "due to preemption")),
    (
        ErrorClass.STOCKOUT,
        (
            "resource_pool_exhausted",
            "resourcepoolexhausted",
            "insufficient_capacity",
            "insufficientcapacity",
            "vm_min_count_not_reached",
        ),
    ),
    (ErrorClass.QUOTA, ("quota", "ip_space_exhausted")),
    (ErrorClass.DENIED, ("permissions_error", "permission_denied", "forbidden")),
    (ErrorClass.INVALID, ("condition_not_met", "conditionnotmet", "invalid")),
    (ErrorClass.NOT_FOUND, ("resource_not_found", "notfound")),
)
"""Words in a code (or, for the first two classes, in a text) and the class they mean; the first that fits counts."""

SPOKEN = 2
"""How many of the first patterns are also looked for in the text: their codes are often general ones."""


@dataclass(frozen=True, slots=True)
class ComputeError:
    """One error in Compute's words. Status 0: none was given."""

    status: int
    code: str
    text: str

    def failure(self) -> Failure:
        """Its class, and the words with their code in front."""
        words = self.text if not self.code or self.code in self.text else f"{self.code}: {self.text}".rstrip(": ")
        return Failure(classify(self), words[:TEXT_LIMIT] or f"HTTP {self.status}")


class AlreadyExists(BackendError):
    """A name of the call is taken. Compute does not say which, nor whether the rest was done: look again."""


def classify(error: ComputeError) -> ErrorClass:
    """The class of an error: by its code, then by its HTTP status."""
    code, text = error.code.lower(), error.text.lower()
    for number, (kind, words) in enumerate(PATTERNS):
        if any(word in code or (number < SPOKEN and word in text) for word in words):
            return kind
    return _by_status(error.status)


def _by_status(status: int) -> ErrorClass:
    classes = {
        400: ErrorClass.INVALID,
        401: ErrorClass.DENIED,
        403: ErrorClass.DENIED,
        404: ErrorClass.NOT_FOUND,
        408: ErrorClass.TIMEOUT,
        409: ErrorClass.UNAVAILABLE,
        412: ErrorClass.INVALID,
        429: ErrorClass.THROTTLED,
    }
    return ErrorClass.UNAVAILABLE if status >= 500 else classes.get(status, ErrorClass.OTHER)


def raised(error: ComputeError) -> BackendError:
    """The error as an exception."""
    failure = error.failure()
    taken = error.status == 409 or "alreadyexists" in error.code.replace("_", "").lower()
    return (AlreadyExists if taken else BackendError)(failure.error, failure.text)


def http_error(status: int, body: object, text: str) -> ComputeError:
    """The error of an HTTP answer: ``body`` is its JSON (None when it has none), ``text`` its plain content."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return ComputeError(status, "", f"HTTP {status}: {text.strip()[:TEXT_LIMIT]}")
    details = error.get("errors") or [{}]
    return ComputeError(status, str(details[0].get("reason", "")), str(error.get("message", "")))


def operation_error(operation: Mapping[str, Any]) -> ComputeError | None:
    """Why an operation failed; None when it did not."""
    status = int(operation.get("httpErrorStatusCode") or 0)
    errors = list(_errors(operation.get("error"), status))
    if not errors and status >= 400:
        return ComputeError(status, "", str(operation.get("httpErrorMessage", "")))
    return most_specific(errors)


def attempt_error(managed_instance: Mapping[str, Any]) -> ComputeError | None:
    """Why the group's last attempt to create an instance failed; None when it did not."""
    return most_specific(list(_errors(managed_instance.get("lastAttempt", {}).get("errors"), 0)))


def most_specific(errors: list[ComputeError]) -> ComputeError | None:
    """The first error that has a class of its own, else the first."""
    return next((error for error in errors if classify(error) is not ErrorClass.OTHER), errors[0] if errors else None)


def _errors(holder: Mapping[str, Any] | None, status: int) -> Iterable[ComputeError]:
    for item in (holder or {}).get("errors") or []:
        yield ComputeError(status, str(item.get("code", "")), str(item.get("message", "")))


def of_exception(error: BaseException) -> BackendError:
    """What a call raised (one of ``CALL_ERRORS``), as ours."""
    if isinstance(error, google_errors.GoogleAPICallError):
        return raised(_of_google(error))
    return BackendError(_class_of(error), f"{type(error).__name__}: {error}")


def _of_google(error: google_errors.GoogleAPICallError) -> ComputeError:
    details = [detail for detail in error.errors if isinstance(detail, Mapping)] or [{}]
    return ComputeError(int(error.code or 0), str(details[0].get("reason", "")), str(error.message))


def _class_of(error: BaseException) -> ErrorClass:
    """A time-out may have been applied; so may anything else that broke on the way."""
    if isinstance(error, request_errors.Timeout | connection_errors.TimeoutError | google_errors.RetryError):
        return ErrorClass.TIMEOUT
    if isinstance(error, auth_errors.GoogleAuthError) and not isinstance(error, auth_errors.TransportError):
        return ErrorClass.DENIED
    return ErrorClass.UNAVAILABLE


@contextmanager
def understood() -> Iterator[None]:
    """An answer of another shape than the documented one is a BackendError."""
    try:
        yield
    except ODD_ANSWERS as error:
        raise BackendError(ErrorClass.OTHER, f"answer not understood: {type(error).__name__}: {error}") from error
