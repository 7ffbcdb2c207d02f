"""Authenticated access to Google's servers: sessions with limited responses, and credentials.

Credentials come from a key file, or else are the application-default credentials. From these credentials, this module
also makes tokens for clusters' API servers.
"""

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
from provisioner.backends.client_connections import LargeBody, limit_responses, read_body
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.proxies_and_authorities import failed_call, signature
from provisioner.backends.responses import ODD_RESPONSES
from provisioner.model import ErrorClass

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
CLUSTER_SCOPES = (*SCOPES, "https://www.googleapis.com/auth/userinfo.email")
"""Scopes for a cluster. Without the second scope, a cluster identifies an account by its number, so role bindings to
the account's address would not apply. Google's own plugin requests both (kubernetes/cloud-provider-gcp,
cmd/gke-gcloud-auth-plugin)."""

TOKEN_SECONDS = 10.0
"""Seconds to wait for the token server. The library's own two minutes would delay every call of a pool."""

RETRY_SECONDS = 5.0
"""Seconds between two tries to get a token for a changed file, if the token server does not respond. Between the tries,
the valid token of the old file stays in use."""

HINT = "let the pool's 'credentials' name a key file, or run 'gcloud auth application-default login'"


SIZE = 32
"""Number of connections that a session keeps. All calls and zones of a project's pools share these connections."""

Session = TypeVar("Session", bound=requests.Session)

CREDENTIALS_ERRORS = (GoogleAuthError, OSError, *ODD_RESPONSES)
"""Errors that Google's library raises for a file without credentials."""


class _WholeResponses(HTTPAdapter):
    """An adapter that reads each response to its end. The adapter does not follow redirects and does not retry."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        limit_responses(self.poolmanager)

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        return limit_responses(super().proxy_manager_for(*arguments, **options))

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        timeout = options.get("timeout")
        options |= {"stream": True, "timeout": timeout[1] if isinstance(timeout, tuple) else timeout}
        try:
            response = super().send(request, *arguments, **options)
            response._content = read_body(response.raw)
        except urllib3.exceptions.HTTPError as error:
            late = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            kind = requests.exceptions.ReadTimeout if late else requests.exceptions.ConnectionError
            raise kind(error, request=request) from error
        if response.is_redirect:
            where = f"{request.url}".partition("?")[0]
            text = f"{request.method} {where}: HTTP {response.status_code}, a redirect, which is not followed"
            raise requests.exceptions.TooManyRedirects(text, request=request, response=response)
        return response


def bounded_session(session: Session, clock: PlaceClock | None = None) -> Session:
    """Limit the time and size of a session's responses, and return the session. The limits also apply to the session's
    token server.

    ``clock``: reads the ``Date`` of each response.
    """
    tokens = getattr(session, "_auth_request_session", None)  # an AuthorizedSession uses it to get credentials
    for one in filter(None, (session, tokens)):
        for scheme in ("https://", "http://"):
            one.mount(scheme, _WholeResponses(pool_connections=1, pool_maxsize=SIZE))
        if clock is not None:
            one.hooks["response"] = lambda reply, **_: clock.hear(reply.headers.get("Date"))
    return session


def _request(clock: PlaceClock | None = None) -> Any:
    """Return the transport with which Google's library calls token servers and the metadata server."""
    return partial(Request(bounded_session(requests.Session(), clock)), timeout=TOKEN_SECONDS)


def google_credentials(key_file: Path | None, scopes: Sequence[str] = SCOPES) -> google.auth.credentials.Credentials:
    """Return the credentials of the key file, or the application-default credentials if ``key_file`` is None. Raise
    BackendError if there are none."""
    try:
        if key_file is not None:
            return _read_file(key_file, scopes)
        return google.auth.default(scopes=scopes, request=_request())[0]
    except CREDENTIALS_ERRORS as error:
        text = f"no Google credentials: {_unusable_file_message(key_file)}{_one_line(error)}; {HINT}"
        raise failed_call(error, ErrorClass.DENIED, text) from error


def _read_file(file: Path, scopes: Sequence[str]) -> google.auth.credentials.Credentials:
    """Return the credentials in a file. The file is a service account's key or the configuration of a workload identity
    federation."""
    described = json.loads(file.read_text(encoding="utf-8"))
    if described["type"] == "external_account":
        kind = pluggable if "executable" in described["credential_source"] else identity_pool
        return kind.Credentials.from_info(described, scopes=scopes)
    return service_account.Credentials.from_service_account_info(described, scopes=scopes)


def _unusable_file_message(key_file: Path | None) -> str:
    """Return the beginning of a message that names the unusable file; empty if the credentials are not from a named
    file."""
    named = os.environ.get(CREDENTIALS)
    if key_file is not None:
        return f"{key_file}, which 'credentials' names, cannot be used: "
    return f"{named}, which {CREDENTIALS} names, cannot be used: " if named else ""


def _one_line(error: Exception) -> str:
    """Return the message of Google's library on one line. If an error consists of a text and another error, return only
    the text."""
    message = error.args[0] if error.args and isinstance(error.args[0], str) else error
    return " ".join(str(message).split()).rstrip(".")


class FollowedCredentials(google.auth.credentials.Credentials):  # type: ignore[misc]
    """Google credentials that are read again for each new token, and when their file changes.

    Application-default credentials without a file are read again only if they yield no token, because another reading
    may need the network.
    """

    def __init__(self, key_file: Path | None, scopes: Sequence[str] = SCOPES) -> None:
        """Store the arguments without reading the file. If the file is missing, observations fail later, but the loop
        can start."""
        super().__init__()
        self._key_file, self._scopes = key_file, scopes
        named = key_file or os.environ.get(CREDENTIALS)
        self._is_read_always = named is not None
        """True if the file is read again for each token."""
        self._files = [named or get_application_default_credentials_path()]
        self._read_signature: object = None
        """Signature of the files when they were last read."""
        self._next_try_at = 0.0
        """Monotonic time of the next try after the token server did not respond."""
        self.source: Any = None
        """Credentials as last read."""

    @property
    def login(self) -> str:
        """Return a text for operators with the file of these credentials. The text also names the account, if known."""
        account = getattr(self.source, "service_account_email", None)
        source = str(self._files[0]) if self._is_read_always else "Google's application-default credentials"
        return f"account {account}, {source}" if account else source

    def before_request(self, request: object, method: str, url: str, headers: object) -> None:
        """Add the token to the headers of a request."""
        self.keep_valid(request)
        self.source.before_request(request, method, url, headers)

    def keep_valid(self, request: object) -> None:
        """Get a token if there is none, if it has expired, or if the file has changed. Raise the errors of ``refresh``.

        A changed file may be half written. So a valid token stays in use until there is a new token.
        """
        is_valid = self.source is not None and self.source.valid
        if is_valid and (signature(self._files) == self._read_signature or time.monotonic() < self._next_try_at):
            return
        try:
            self.refresh(request)
        except (BackendError, GoogleAuthError) as error:
            if isinstance(error, TransportError):
                self._next_try_at = time.monotonic() + RETRY_SECONDS
            if not is_valid:
                raise

    def refresh(self, request: object) -> None:
        """Get another token. Raise GoogleAuthError, or BackendError if the file no longer contains credentials."""
        now = signature(self._files)
        is_read = self._is_read_always or now != self._read_signature
        fresh = google_credentials(self._key_file, self._scopes) if is_read else self.source
        try:
            fresh.refresh(request)
        except GoogleAuthError as error:
            if self._is_read_always or isinstance(error, TransportError):
                raise
            fresh = google_credentials(None, self._scopes)
            fresh.refresh(request)
        self.source, self._read_signature = fresh, now


class NoCredentials(google.auth.credentials.AnonymousCredentials):  # type: ignore[misc]
    """The object that stands for credentials if the server is on plain HTTP. Such a server gets no credentials."""

    def __init__(self, endpoint: str, otherwise: str = "leave it out for Google's own") -> None:
        """Make the advice for operators whose endpoint wants credentials. ``otherwise``: the end of the advice, for
        operators who do not want HTTPS."""
        problem = f"{endpoint} wants credentials (HTTP 401), and over plain HTTP none are sent"
        self.advice = f"{problem}: let the pool's 'endpoint' begin with https://, or {otherwise}"
        """Advice for an operator if the server wants credentials."""

    def header(self) -> str:
        """Return an empty value of the Authorization header."""
        return ""


class GoogleToken:
    """A Google token for a cluster, renewed before it expires. Not thread-safe."""

    def __init__(self, key_file: Path | None, clock: PlaceClock | None = None) -> None:
        """Store the arguments and make no call. ``clock``: reads the ``Date`` of the token server's responses."""
        self._credentials, self._request = FollowedCredentials(key_file, CLUSTER_SCOPES), _request(clock)

    def login(self) -> str:
        """Return a text for operators with the file of the credentials. The text also names the account, if known."""
        return self._credentials.login

    def header(self) -> str:
        """Return the value of the Authorization header. Raise BackendError if no token is available."""
        try:
            self._credentials.keep_valid(self._request)
        except (GoogleAuthError, *ODD_RESPONSES) as error:
            kind = ErrorClass.UNAVAILABLE if isinstance(error, TransportError) else ErrorClass.DENIED
            raise failed_call(error, kind, f"no Google token: {error}") from error
        if not isinstance(token := self._credentials.source.token, str):
            raise BackendError(ErrorClass.DENIED, "no Google token: the token server returned no text")
        return f"Bearer {token}"


def smaller_page(limit: int, error: BackendError) -> int:
    """Return half of the page limit if ``error`` says that a list's page was too large. Raise any other error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, LargeBody | GoogleAuthError):
        cause = cause.__cause__
    if not isinstance(cause, LargeBody):
        raise error
    if limit > 1:
        return limit // 2
    text = f"{error.failure.text}, although the page has only one object"
    raise BackendError(error.failure.error, text) from error
