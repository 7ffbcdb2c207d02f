"""Advice on a refused login (HTTP 401) and on a missing right (HTTP 403): to correct the login, or this host's
clock."""

from __future__ import annotations

import re
from collections.abc import Callable

from provisioner.backends import BackendError
from provisioner.backends.place_clock import PlaceClock, clock_message
from provisioner.model import ErrorClass, Failure

UNKNOWN_USER = 401
"""HTTP status of a server that does not accept our credentials."""

POLICY_WORDS = re.compile(r"\bdenied (the )?request\b")
"""Words of an admission webhook and of a ValidatingAdmissionPolicy."""

_MISSING_RIGHT = re.compile(r"\bcannot [a-z*]+ resource \S+|\brequired ('[\w.]+' )?permission\b", re.IGNORECASE)
"""Words of Kubernetes' authorizer and of Google's IAM. Refusals by admission and by quotas also have status 403, but
other words."""

_CERTIFICATE_TIME = re.compile(r"certificate (is not yet valid|has expired)")
"""Words of OpenSSL about a certificate that is not valid now."""


def find_right(status: int, text: str) -> str | None:
    """Return the words on the missing right; empty if the login itself is refused, None for any other failure."""
    if status == UNKNOWN_USER:
        return ""
    found = None if status != 403 or POLICY_WORDS.search(text) else _MISSING_RIGHT.search(text)
    return found and found[0]


class LoginRefusals:
    """The refusals of one server. Each is explained, so that an operator corrects the login and not the machines."""

    def __init__(self, clock: PlaceClock, login: Callable[[], str]) -> None:
        """``login``: a function that returns the files and the account of the login."""
        self._clock, self._login = clock, login

    def blame_clock(self, error: BackendError) -> bool:
        """If this host's clock is known to be wrong, name it in ``error`` as the cause of a failed login and return
        True. If not, return False."""
        failure, message = error.failure, clock_message(self._clock.ahead())
        if not message or not (failure.error is ErrorClass.DENIED or _CERTIFICATE_TIME.search(failure.text)):
            return False
        error.failure = Failure(failure.error, f"{failure.text}: {message}")
        return True

    def explain(self, error: BackendError, status: int, advice: str = "") -> None:
        """If the server refused the login or a right, add the likely cause to the error's text: this host's wrong
        clock; else ``advice``; else the files and the account of the login."""
        failure = error.failure
        if (right := find_right(status, failure.text)) is None or (not right and self.blame_clock(error)):
            return
        remedy = "grant the right to its account" if right else "renew it"
        login = f"the login ({self._login()}) is refused; {remedy}, or name another login"
        error.failure = Failure(failure.error, f"{failure.text}: {(not right and advice) or login}")
