"""Readers of cloud responses: JSON of limited size whose parts have the expected types. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from provisioner.backends import BackendError
from provisioner.hostfactory.provider_config import finite
from provisioner.model import ErrorClass

MOST_CHARACTERS = 1024
"""Maximum number of characters of a text that identifies something. Names, uids and addresses have at most 253."""

MAX_CHARACTERS = 400
"""Maximum number of characters that are kept of a server's message. Messages are stored with each slot and shown to
operators."""

LONGEST_DURATION = 1e10
"""Longest duration in seconds: three centuries."""

ODD_RESPONSES = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Errors that the reading of a response raises if its structure is not as documented."""


BY_STATUS: Mapping[int, ErrorClass] = {
    400: ErrorClass.INVALID,
    401: ErrorClass.DENIED,
    403: ErrorClass.DENIED,
    404: ErrorClass.NOT_FOUND,
    408: ErrorClass.TIMEOUT,
    429: ErrorClass.THROTTLED,
}
"""Error classes by HTTP status, for statuses that mean the same in all clouds."""


def class_of_status(status: int, own: Mapping[int, ErrorClass]) -> ErrorClass:
    """Return the error class of a refused call, by its HTTP status. ``own``: the classes of statuses that have a
    special meaning in this cloud."""
    known = own.get(status) or BY_STATUS.get(status)
    return known or (ErrorClass.UNAVAILABLE if status >= 500 else ErrorClass.OTHER)


_DECODER = json.JSONDecoder(parse_float=finite, parse_constant=finite)


def json_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object in a response. Raise ValueError if there is none, or if it is nested too deeply."""
    try:
        document = _DECODER.decode(content.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError(f"it is not a JSON object but a {type(document).__name__}")
    return document


def text(value: object) -> str:
    """Return ``value``, a text that identifies something. Raise TypeError if it is no text, and ValueError if it is too
    long."""
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, not {type(value).__name__}")
    if len(value) > MOST_CHARACTERS:
        raise ValueError(f"a text of {len(value)} characters identifies nothing")
    return value


def seconds(value: Any) -> float:
    """Return a duration in seconds. Raise TypeError or ValueError for any other value, and for a duration of
    centuries."""
    duration = float(value)
    if not abs(duration) <= LONGEST_DURATION:
        raise ValueError(f"{duration} s are no duration")
    return duration


@contextmanager
def translated_errors(odd: ErrorClass = ErrorClass.OTHER) -> Iterator[None]:
    """Raise BackendError of the class ``odd`` if a response's structure is not as documented. Use this function with
    ``with`` or as a decorator.

    For a call that changes something, callers set ``odd`` to UNAVAILABLE. The change may have been made although the
    response is unreadable, so the result is unknown.
    """
    try:
        yield
    except ODD_RESPONSES as error:
        raise BackendError(odd, f"answer not understood: {type(error).__name__}: {error}"[:MOST_CHARACTERS]) from error


def words(text: str) -> str:
    """Return a message on one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS - 1] + "…"
