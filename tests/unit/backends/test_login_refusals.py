"""Advice on refused logins and missing rights."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from provisioner.backends import BackendError
from provisioner.backends.login_refusals import LoginRefusals, find_right
from provisioner.backends.place_clock import PlaceClock
from provisioner.model import ErrorClass

ROLE = 'pods is forbidden: User "grid" cannot create resource "pods" in API group "" in the namespace "symphony"'
LOGIN = "kubeconfig /etc/k, context c"


def explained(text: str, status: int, date: float | None = None, advice: str = "") -> str:
    clock = PlaceClock()
    clock.hear(None if date is None else formatdate(time.time() + date, usegmt=True))
    error = BackendError(ErrorClass.DENIED, text)
    LoginRefusals(clock, lambda: LOGIN).explain(error, status, advice)
    return error.failure.text


@pytest.mark.parametrize(
    ("status", "text", "right"),
    [
        pytest.param(401, "Unauthorized", "", id="the login"),
        pytest.param(403, ROLE, 'cannot create resource "pods"', id="a right in a cluster"),
        pytest.param(
            403,
            "Required 'compute.instances.list' permission for 'projects/p'",
            "Required 'compute.instances.list' permission",
            id="a right in a project",
        ),
        pytest.param(403, 'admission webhook "w" denied the request: cannot create resource "x"', None, id="a webhook"),
        pytest.param(403, 'pods "a" is forbidden: violates PodSecurity "restricted:latest"', None, id="an admission"),
        pytest.param(500, ROLE, None, id="another status"),
    ],
)
def test_only_the_login_and_its_rights_concern_the_login(status: int, text: str, right: str | None) -> None:
    assert find_right(status, text) == right
    assert (LOGIN in explained(text, status)) is (right is not None)


def test_a_refused_login_is_to_be_renewed_and_a_missing_right_to_be_granted() -> None:
    assert "; renew the login, or name another login" in explained("Unauthorized", 401)
    assert "; grant the right to this account, or name another login" in explained(ROLE, 403, advice="use TLS")
    assert explained("Unauthorized", 401, advice="use TLS") == "Unauthorized: use TLS"


@pytest.mark.parametrize(("ahead", "side"), [(1500.0, "25 min behind"), (-1500.0, "25 min ahead of")])
def test_a_login_refused_by_a_place_with_another_time_is_the_clocks_fault(ahead: float, side: str) -> None:
    text = explained("Unauthorized", 401, ahead)
    assert text.startswith(f"Unauthorized: this host's clock is {side} the place's")
    assert "renew" not in text
    assert text == explained("Unauthorized", 401, ahead, "use TLS"), "no other advice makes up for a wrong clock"
    assert "grant the right" in explained(ROLE, 403, ahead), "the place knows the login, so the clock is no reason"


@pytest.mark.parametrize(
    ("error", "text", "is_blamed"),
    [
        (ErrorClass.DENIED, "no Google token: Invalid JWT", True),
        (ErrorClass.UNAVAILABLE, "certificate verify failed: certificate is not yet valid", True),
        (ErrorClass.UNAVAILABLE, "certificate verify failed: certificate has expired", True),
        (ErrorClass.UNAVAILABLE, "certificate verify failed: self-signed certificate", False),
        (ErrorClass.TIMEOUT, "no complete response within 30 s", False),
    ],
)
def test_a_wrong_clock_is_the_cause_of_refused_logins_and_of_certificates_of_another_time(
    error: ErrorClass, text: str, is_blamed: bool
) -> None:
    clock = PlaceClock()
    refusals, failed = LoginRefusals(clock, lambda: LOGIN), BackendError(error, text)
    assert not refusals.blame_clock(failed), "no place has sent its time yet"
    clock.hear(formatdate(time.time() + 1500.0, usegmt=True))
    assert refusals.blame_clock(failed) is is_blamed
    assert ("this host's clock is 25 min behind" in failed.failure.text) is is_blamed
