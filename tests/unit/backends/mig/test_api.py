"""Failed calls of Compute: the pause that a response asks for, and the message, which names the login or the clock as
the cause. Also the connections to the token server."""

from __future__ import annotations

import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import requests
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import RefreshError
from requests.adapters import BaseAdapter

from provisioner.backends import BackendError
from provisioner.backends.call_budget import CallBudget
from provisioner.backends.google_auth import FollowedCredentials
from provisioner.backends.mig.api import USUAL_TIMES, ComputeApi
from provisioner.backends.mig.settings import MigPool
from provisioner.model import ErrorClass

GROUP = MigPool(
    name="mig-a", project="p", zone="us-central1-a", group="mig-a", endpoint="https://compute.example", kind="mig"
)


class Busy(BaseAdapter):
    """A transport that gives every request the same response."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__()
        self._status, self._headers, self.calls = status, headers, 0

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        self.calls += 1
        response = requests.Response()
        response.status_code, response._content, response.request = self._status, b"{}", request
        response.headers.update(self._headers)
        return response

    def close(self) -> None:
        """Do nothing, because there is no connection."""


def reading(server: Busy, credentials: Credentials | None = None) -> ComputeApi:
    api = ComputeApi(
        GROUP,
        credentials or AnonymousCredentials(),  # type: ignore[no-untyped-call]
        "hf",
        CallBudget(100, 60.0),
        USUAL_TIMES,
    )
    api._session.mount("https://", server)
    return api


def failed(api: ComputeApi) -> BackendError:
    with pytest.raises(BackendError) as caught:
        api.group(GROUP, time.monotonic() + 60.0)
    return caught.value


@pytest.mark.parametrize("status", [429, 500, 503])
def test_the_time_that_a_response_asks_for_holds_for_every_call_of_the_project(status: int) -> None:
    server = Busy(status, **{"Retry-After": "40"})
    api = reading(server)
    assert failed(api).retry_after == 40.0
    assert failed(api).failure.error is ErrorClass.THROTTLED
    assert server.calls == 1, "the second call was not sent"


def test_a_response_that_asks_for_no_time_holds_up_nothing() -> None:
    server = Busy(503)
    api = reading(server)
    assert [failed(api).failure.error for _ in range(2)] == [ErrorClass.UNAVAILABLE] * 2
    assert server.calls == 2


def test_the_token_servers_connections_are_kept_as_shortly_as_those_to_compute() -> None:
    session = reading(Busy(200))._session
    tokens = session._auth_request_session
    assert type(tokens.get_adapter("https://oauth2.example")) is type(session.get_adapter("http://any.example"))
    pool = tokens.get_adapter("https://oauth2.example").poolmanager.connection_from_url("https://oauth2.example")
    assert pool.ConnectionCls.__module__ == "provisioner.backends.client_connections"


class Refused(FollowedCredentials):
    """Credentials that the token server refuses. The error itself does not contain the ``Date`` of the server's
    response."""

    def before_request(self, *_: object) -> None:
        raise RefreshError("invalid_grant: Invalid JWT")


def test_a_refused_token_leads_to_its_file_and_a_refused_host_to_its_clock() -> None:
    server = Busy(200, Date=formatdate(time.time() + 1500.0, usegmt=True))
    api = reading(server, Refused(Path("/etc/key.json")))
    assert "the login (/etc/key.json) is refused; " in failed(api).failure.text
    api._session._auth_request_session.mount("https://", server)
    api._session._auth_request_session.get("https://oauth2.example")
    assert "this host's clock is 25 min behind the place's" in failed(api).failure.text


class Untrusted(Busy):
    """A transport to a server whose certificate has expired."""

    def send(self, *_: Any, **__: Any) -> requests.Response:
        raise requests.exceptions.SSLError("certificate verify failed: certificate has expired")


def test_a_certificate_of_another_time_leads_to_a_wrong_clock() -> None:
    api = reading(Untrusted(0))
    assert failed(api).failure.text.endswith("certificate has expired")
    api.clock.hear(formatdate(time.time() - 1500.0, usegmt=True))
    assert "has expired: this host's clock is 25 min ahead of" in failed(api).failure.text


class Renewable(AnonymousCredentials):  # type: ignore[misc]
    """Credentials whose renewal changes nothing."""

    def refresh(self, _: object) -> None:
        """Keep the token."""


def test_a_login_that_compute_refuses_is_the_clocks_fault_if_the_clock_is_wrong() -> None:
    date = formatdate(time.time() - 1500.0, usegmt=True)
    assert "this host's clock is 25 min ahead of" in failed(reading(Busy(401, Date=date), Renewable())).failure.text
    assert "is refused; renew the login" in failed(reading(Busy(401), Renewable())).failure.text
