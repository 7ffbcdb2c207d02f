"""Advice for operators after a refused login (HTTP 401) or a missing right (HTTP 403). The advice names the cause: the
login, or this host's clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from provisioner.backends import BackendError
from provisioner.backends.place_clock import PlaceClock, clock_message
from provisioner.model import ErrorClass, Failure

UNKNOWN_USER = 401
"""HTTP status of a server that does not accept our credentials."""

POLICY_WORDS = re.compile(r"\bdenied (the )?request\b")
"""Words with which an admission webhook or a ValidatingAdmissionPolicy refuses a call."""

_MISSING_RIGHT = re.compile(r"\bcannot [a-z*]+ resource \S+|\brequired ('[\w.]+' )?permission\b", re.IGNORECASE)
"""Words with which Kubernetes' authorizer or Google's IAM names a missing right. The words are needed because admission
and quotas also refuse calls with status 403."""

_CERTIFICATE_TIME = re.compile(r"certificate (is not yet valid|has expired)")
"""Words of OpenSSL about a certificate that is not valid now."""


def find_right(status: int, text: str) -> str | None:
    """Return the part of ``text`` that names the missing right; empty if the server refused the login itself, None for
    any other failure."""
    if status == UNKNOWN_USER:
        return ""
    found = None if status != 403 or POLICY_WORDS.search(text) else _MISSING_RIGHT.search(text)
    return found and found[0]


def read_secret(file: Path, setting: str, encoding: str = "ascii") -> str:
    """Return the text in the file that a setting names. Raise BackendError if the file cannot be read. With the
    encoding ASCII, the file must contain exactly one word. No error message contains the text."""
    try:
        text = file.read_text(encoding=encoding).strip()
        if encoding == "ascii" and len(text.split()) != 1:  # in a header, the text would be part of the library's error
            raise ValueError("expected one token, on one line")
        return text
    except (OSError, ValueError) as error:
        text = f"{setting} {file} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise BackendError(ErrorClass.DENIED, text) from error


class LoginRefusals:
    """The refusals of one server. Each refusal is explained, so that an operator corrects the login and not the
    machines."""

    def __init__(self, clock: PlaceClock, login: Callable[[], str]) -> None:
        """Store the place's clock and ``login``. ``login``: returns a text with the files and the account of the
        login."""
        self._clock, self._login = clock, login

    def blame_clock(self, error: BackendError) -> bool:
        """Name this host's clock in ``error`` as the cause of a failed login. The clock is named only if it is known to
        be wrong. Return True if the clock was named."""
        failure, message = error.failure, clock_message(self._clock.ahead())
        if not message or not (failure.error is ErrorClass.DENIED or _CERTIFICATE_TIME.search(failure.text)):
            return False
        error.failure = Failure(failure.error, f"{failure.text}: {message}")
        return True

    def explain(self, error: BackendError, status: int, advice: str = "") -> None:
        """Add advice to the text of a refusal. Leave any other error unchanged.

        If the server refused the login, name the likely cause: this host's wrong clock; else ``advice``; else the login
        itself. If a right is missing, name the login that needs the right.
        """
        failure = error.failure
        if (right := find_right(status, failure.text)) is None or (not right and self.blame_clock(error)):
            return
        remedy = "grant the right to this account" if right else "renew the login"
        login = f"the login ({self._login()}) is refused; {remedy}, or name another login"
        error.failure = Failure(failure.error, f"{failure.text}: {(not right and advice) or login}")
