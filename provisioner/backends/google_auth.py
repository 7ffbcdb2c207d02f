"""The way to Google's servers: sessions with bounded responses, and credentials, which are a service account's key file
or what the surroundings offer; as tokens also for an API server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import google.auth
import google.auth.credentials
import requests
import urllib3
from google.auth import identity_pool, pluggable
from google.auth._cloud_sdk import get_application_default_credentials_path
from google.auth.environment_vars import CREDENTIALS
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request
from google.oauth2 import service_account
from requests.adapters import HTTPAdapter

from provisioner.backends import BackendError
from provisioner.backends.connections import body_of, bounded
from provisioner.backends.network import failed_call, signature
from provisioner.backends.responses import ODD_RESPONSES
from provisioner.model import ErrorClass

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
CLUSTER_SCOPES = (*SCOPES, "https://www.googleapis.com/auth/userinfo.email")
"""Without the second a cluster calls an account by its number, and no binding of its address holds: as Google's own
plug-in has it (kubernetes/cloud-provider-gcp, cmd/gke-gcloud-auth-plugin)."""

TOKEN_SECONDS = 10.0
"""How long the token server's response is waited for: the library's own two minutes would hold up every call of a pool.
"""

RETRY_SECONDS = 5.0
"""Seconds for which a valid token of an old file is used on after the token server did not answer for the new one."""

HINT = "let the pool's 'credentials' name a key file, or run 'gcloud auth application-default login'"


SIZE = 32
"""Connections that a session keeps: the calls and zones of all pools of a project share them."""

Session = TypeVar("Session", bound=requests.Session)

UNUSABLE = (GoogleAuthError, OSError, *ODD_RESPONSES)
"""What Google's library raises for a file that holds no credentials."""


class _WholeResponses(HTTPAdapter):
    """Reads each response to its end, follows no redirect, and tries nothing again."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        bounded(self.poolmanager)

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        return bounded(super().proxy_manager_for(*arguments, **options))

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        timeout = options.get("timeout")
        options |= {"stream": True, "timeout": timeout[1] if isinstance(timeout, tuple) else timeout}
        try:
            response = super().send(request, *arguments, **options)
            response._content = body_of(response.raw)
        except urllib3.exceptions.HTTPError as error:
            late = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            kind = requests.exceptions.ReadTimeout if late else requests.exceptions.ConnectionError
            raise kind(error, request=request) from error
        if response.is_redirect:
            where = f"{request.url}".partition("?")[0]
            text = f"{request.method} {where}: HTTP {response.status_code}, a redirect, which is not followed"
            raise requests.exceptions.TooManyRedirects(text, request=request, response=response)
        return response


def bounded_session(session: Session) -> Session:
    """The same session, and that of its credentials, with bounded responses."""
    tokens = getattr(session, "_auth_request_session", None)  # an AuthorizedSession's own, for its credentials
    for one in filter(None, (session, tokens)):
        for scheme in ("https://", "http://"):
            one.mount(scheme, _WholeResponses(pool_connections=1, pool_maxsize=SIZE))
    return session


def _request() -> Any:
    """Return the way by which Google's library asks token servers and the metadata server."""
    return partial(Request(bounded_session(requests.Session())), timeout=TOKEN_SECONDS)


def google_credentials(key_file: Path | None, scopes: Sequence[str] = SCOPES) -> google.auth.credentials.Credentials:
    """Of the key file, or else the application-default ones; BackendError when there are none."""
    try:
        if key_file is not None:
            return _in_file(key_file, scopes)
        return google.auth.default(scopes=scopes, request=_request())[0]
    except UNUSABLE as error:
        text = f"no Google credentials: {_source(key_file)}{_reason(error)}; {HINT}"
        raise failed_call(error, ErrorClass.DENIED, text) from error


def _in_file(file: Path, scopes: Sequence[str]) -> google.auth.credentials.Credentials:
    """Of a service account's key, or of a workload identity federation's configuration, which holds no secret."""
    described = json.loads(file.read_text(encoding="utf-8"))
    if described["type"] == "external_account":
        kind = pluggable if "executable" in described["credential_source"] else identity_pool
        return kind.Credentials.from_info(described, scopes=scopes)
    return service_account.Credentials.from_service_account_info(described, scopes=scopes)


def _source(key_file: Path | None) -> str:
    """Which file was meant, if one was named."""
    named = os.environ.get(CREDENTIALS)
    if key_file is not None:
        return f"{key_file}, which 'credentials' names, cannot be used: "
    return f"{named}, which {CREDENTIALS} names, cannot be used: " if named else ""


def _reason(error: Exception) -> str:
    """The library's words on one line: some of its errors hold a text and the error behind it."""
    said = error.args[0] if error.args and isinstance(error.args[0], str) else error
    return " ".join(str(said).split()).rstrip(".")


class FollowedCredentials(google.auth.credentials.Credentials):  # type: ignore[misc]
    """Google credentials, read anew for another token and when their file changes.

    Application-default ones without a file are read anew only once they get no token: to read them may ask the network.
    """

    def __init__(self, key_file: Path | None, scopes: Sequence[str] = SCOPES) -> None:
        """Read nothing yet: missing credentials make observations fail, not the loop."""
        super().__init__()
        self._key_file, self._scopes = key_file, scopes
        named = key_file or os.environ.get(CREDENTIALS)
        self._always = named is not None
        """The file is read for each token."""
        self._files = [named or get_application_default_credentials_path()]
        self._read: object = None
        """The signature of the files that were read last."""
        self._next_try = 0.0
        """Monotonic time of the earliest next attempt after the token server did not answer."""
        self.source: Any = None
        """The credentials that were read last."""

    def before_request(self, request: object, method: str, url: str, headers: object) -> None:
        """Add the token to the headers of a request."""
        self.keep_valid(request)
        self.source.before_request(request, method, url, headers)

    def keep_valid(self, request: object) -> None:
        """Get another token where there is none, where it has ended, or the file has changed. Raises as ``refresh``.

        A token that is still valid serves while no other can be had: the file may be in the midst of being written.
        """
        is_valid = self.source is not None and self.source.valid
        if is_valid and (signature(self._files) == self._read or time.monotonic() < self._next_try):
            return
        try:
            self.refresh(request)
        except (BackendError, GoogleAuthError) as error:
            if isinstance(error, TransportError):
                self._next_try = time.monotonic() + RETRY_SECONDS
            if not is_valid:
                raise

    def refresh(self, request: object) -> None:
        """Get another token. Raises GoogleAuthError, and BackendError where the file holds no credentials any more."""
        now = signature(self._files)
        fresh = google_credentials(self._key_file, self._scopes) if self._always or now != self._read else self.source
        try:
            fresh.refresh(request)
        except GoogleAuthError as error:
            if self._always or isinstance(error, TransportError):
                raise
            fresh = google_credentials(None, self._scopes)
            fresh.refresh(request)
        self.source, self._read = fresh, now


class NoCredentials(google.auth.credentials.AnonymousCredentials):  # type: ignore[misc]
    """For plain HTTP, over which nobody's secrets are sent. A server that wants some is named, with what to set."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def refresh(self, request: object) -> None:
        """The server did not know us; always BackendError."""
        raise credentials_wanted(self._endpoint, "leave it out for Google's own")


def credentials_wanted(endpoint: str, otherwise: str) -> BackendError:
    """A server on plain HTTP said that it does not know us; ``otherwise``: what else to do than to use HTTPS."""
    said = f"{endpoint} wants credentials (HTTP 401), and over plain HTTP none are sent"
    return BackendError(ErrorClass.DENIED, f"{said}: let the pool's 'endpoint' begin with https://, or {otherwise}")


class GoogleToken:
    """A token of Google's for a cluster, renewed when it has to be. Not thread-safe."""

    def __init__(self, key_file: Path | None) -> None:
        self._credentials, self._request = FollowedCredentials(key_file, CLUSTER_SCOPES), _request()

    def header(self) -> str:
        """The value of the Authorization header; BackendError when there is no token to be had."""
        try:
            self._credentials.keep_valid(self._request)
        except (GoogleAuthError, *ODD_RESPONSES) as error:
            kind = ErrorClass.UNAVAILABLE if isinstance(error, TransportError) else ErrorClass.DENIED
            raise failed_call(error, kind, f"no Google token: {error}") from error
        if not isinstance(token := self._credentials.source.token, str):
            raise BackendError(ErrorClass.DENIED, "no Google token: the token server gave something else")
        return f"Bearer {token}"
