"""Advice on a refused login (HTTP 401) and on a missing right (HTTP 403): the login, the time, the host's clock."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from provisioner.backends import BackendError
from provisioner.backends.place_clock import PlaceClock, clock_message
from provisioner.model import Failure
from provisioner.utc import format_utc

UNKNOWN_USER = 401
"""HTTP status of a server that does not accept our credentials."""

POLICY_WORDS = re.compile(r"\bdenied (the )?request\b")
"""Words of an admission webhook and of a ValidatingAdmissionPolicy."""

_MISSING_RIGHT = re.compile(r"\bcannot [a-z*]+ resource \S+|\brequired ('[\w.]+' )?permission\b", re.IGNORECASE)
"""Words of Kubernetes' authorizer and of Google's IAM. Admission and quotas, which also answer 403, use other words."""

FORGET_SECONDS = 300.0
"""Seconds without the same refusal after which the next one counts as new. Observations repeat a refusal far sooner."""


def find_right(status: int, text: str) -> str | None:
    """Return the words on the missing right; empty if the login itself is refused, None for any other failure."""
    if status == UNKNOWN_USER:
        return ""
    found = None if status != 403 or POLICY_WORDS.search(text) else _MISSING_RIGHT.search(text)
    return found and found[0]


class LoginRefusals:
    """The refusals of one server, which lead an operator to the login and not to the machines."""

    def __init__(self, clock: PlaceClock, login: Callable[[], str]) -> None:
        """``login``: return the files and the account of the login."""
        self._clock, self._login = clock, login
        self._seen: dict[str, tuple[float, float]] = {}
        """Epoch seconds of the first refusal and monotonic time of the last refusal, by the words on the right."""

    def explain(self, error: BackendError, status: int) -> None:
        """Add advice on the login to the error's text if the login is the reason."""
        failure = error.failure
        if (right := find_right(status, failure.text)) is None:
            return
        now = time.monotonic()
        first, last = self._seen.get(right, (time.time(), now))
        self._seen[right] = (first if now - last < FORGET_SECONDS else time.time()), now
        remedy = "grant the right to its account" if right else "renew it"
        since = format_utc(self._seen[right][0])
        advice = f"the login ({self._login()}) is refused since {since}; {remedy}, or name another login"
        message = (not right and clock_message(self._clock.ahead())) or advice
        error.failure = Failure(failure.error, f"{failure.text}: {message}")
