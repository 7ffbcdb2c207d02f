"""Authentication at the HTTP server: a bearer token, and TLS. Token and certificate come from files that may change at
any time."""

from __future__ import annotations

import hashlib
import hmac
import logging
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Generic, TypeVar

from provisioner.backends.proxies_and_authorities import signature
from provisioner.settings.definitions import Server
from provisioner.settings.warnings import is_loopback

log = logging.getLogger(__name__)

Value = TypeVar("Value")


class AccessError(ValueError):
    """Raised if a file with the token, the certificate or the key is unusable. The text names the file and the
    reason."""


NO_AUTHENTICATION = Server()
"""Server settings with neither token nor TLS."""

LOGINS, LOGIN_SECONDS = 10, 60.0
"""``LOGINS``: number of wrong tokens that a client may send within ``LOGIN_SECONDS``. Each further wrong token gets
status 429."""

WRONG_SECONDS = 1.0
"""Seconds before the response to a wrong token if the client has sent more than ``LOGINS`` wrong tokens. The pause
slows down guessing, and does not block a thread."""

LOGGED = 20
"""Number of clients that the log names within ``LOGIN_SECONDS`` because of wrong tokens. Further clients are only
counted."""

FILE_SECONDS = 1.0
"""Seconds between two checks of the files. A separate thread checks them, so that a hanging disk does not block
connections."""


class FailedLogins:
    """A counter of wrong tokens by client. All counts are reset when ``LOGIN_SECONDS`` have passed since the first
    wrong token."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._end = 0.0
        self._failed: Counter[str] = Counter()

    def add(self, client: str) -> bool:
        """Count a wrong token. Return False if the client has sent more than ``LOGINS`` wrong tokens.

        The log names a client at its first wrong token. After ``LOGGED`` clients, the log gives only the number of
        further clients. It gives this number at 1, 10, 100 and so on.
        """
        with self._lock:
            if self._clock() >= self._end:
                self._failed, self._end = Counter(), self._clock() + LOGIN_SECONDS
            self._failed[client] += 1
            count, unnamed = self._failed[client], len(self._failed) - LOGGED
        if count == 1 and unnamed <= 0:
            log.warning("Wrong token sent", extra={"client": client})
        elif count == 1 and str(unnamed).rstrip("0") == "1":
            log.warning("Wrong tokens sent by clients that are not named", extra={"clients": unnamed})
        return count <= LOGINS


class _FileValue(Generic[Value]):
    """A value that is computed from files, and computed again when a file changes."""

    def __init__(
        self, make: Callable[..., Value], files: Sequence[Path], failure_message: str, *, is_kept: bool = False
    ) -> None:
        """Compute the value by calling ``make`` with the files. An AccessError of ``make`` is passed on.

        If ``make`` raises AccessError later, log ``failure_message``. ``is_kept``: True if the old value then stays;
        False if the value becomes None.
        """
        self._make, self._files, self._failure_message, self._is_kept = make, files, failure_message, is_kept
        self._signature = signature(files)
        self.value: Value | None = make(*files)

    def refresh(self) -> None:
        """Compute the value again if a file has changed."""
        if (now := signature(self._files)) == self._signature:
            return
        self._signature = now
        try:
            self.value = self._make(*self._files)
        except AccessError as error:
            self.value = self.value if self._is_kept else None
            log.warning(self._failure_message, extra={"error": str(error)})


class Access:
    """The rules for access to the server: the TLS context of connections, and the check of each request's token. Any
    thread may use them."""

    def __init__(self, files: Server = NO_AUTHENTICATION, rejected: Callable[[str], None] = lambda _: None) -> None:
        """Read the files. Raise AccessError if a file is unusable now. If a file becomes unusable later, log a warning.

        ``rejected``: function that is called for each wrong token. Its argument is "token" for a client's first
        ``LOGINS`` wrong tokens, and "rate" for further wrong tokens.
        """
        self._rejected = rejected
        self._failed = FailedLogins()
        self._closed = threading.Event()
        self._token: _FileValue[bytes] | None = None
        """The digest of the token; None if no token is required. If the token's file becomes unusable, the digest's
        value is None, and every token is refused."""
        self._tls: _FileValue[ssl.SSLContext] | None = None
        if files.token_file is not None:
            self._token = _FileValue(_token, [files.token_file], "Token cannot be read, every login is refused")
        if files.tls_cert is not None and files.tls_key is not None:
            message = "Certificate cannot be used, the previous certificate stays in force"
            self._tls = _FileValue(_tls_context, [files.tls_cert, files.tls_key], message, is_kept=True)

    @property
    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of new connections, with the newest certificate; None without TLS."""
        return self._tls.value if self._tls else None

    def follow(self) -> None:
        """Start a thread that follows changes of the files until ``close``."""

        def refresh() -> None:
            while not self._closed.wait(FILE_SECONDS):
                self.refresh()

        if self._token or self._tls:
            threading.Thread(target=refresh, name="access", daemon=True).start()

    def refresh(self) -> None:
        """Read the files again if they changed."""
        if self._token:
            self._token.refresh()
        if self._tls:
            self._tls.refresh()

    def close(self) -> None:
        """Stop following changes."""
        self._closed.set()

    def judge(self, authorization: str, client: str = "") -> HTTPStatus:
        """Return OK if the client may read. ``authorization``: the request's header of this name.

        For an empty header, return UNAUTHORIZED. A wrong token counts as a failed login. For a wrong token, return
        UNAUTHORIZED, or TOO_MANY_REQUESTS after ``LOGINS`` wrong tokens.
        """
        if self._token is None:
            return HTTPStatus.OK
        if not authorization:
            return HTTPStatus.UNAUTHORIZED
        given, token = _digest(_bearer_token(authorization)), self._token.value
        if token is not None and hmac.compare_digest(given, token):
            return HTTPStatus.OK
        is_below_limit = self._failed.add(client)
        self._rejected("token" if is_below_limit else "rate")
        return HTTPStatus.UNAUTHORIZED if is_below_limit else HTTPStatus.TOO_MANY_REQUESTS


def is_own_host(host: str, listen: str) -> bool:
    """Return True if a request's Host header names this server, which listens on a loopback address.

    The check stops DNS rebinding. In this attack, a foreign web page makes its own host name resolve to the loopback
    address. The browser then sends the foreign name in the header.
    """
    name, ours = (_without_port(text).casefold() for text in (host, listen))
    return name in ("", ours) or is_loopback(f"{name}:0")


def _without_port(address: str) -> str:
    """Return the host of ``HOST[:PORT]``. The brackets of an IPv6 address are removed."""
    return address[1:].partition("]")[0] if address.startswith("[") else address.partition(":")[0]


def _bearer_token(authorization: str) -> bytes:
    """Return the token after the word Bearer in an Authorization header; empty if there is no token."""
    scheme, _, rest = authorization.strip().partition(" ")
    # The server decodes headers as latin-1, so encoding by latin-1 restores the bytes that the client sent.
    return rest.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""


def _token(path: Path) -> bytes:
    """Return the digest of the token in a file. Raise AccessError if the file has no token."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise AccessError(f"server.token_file {path}: {error.strerror}") from error
    if not token:
        raise AccessError(f"server.token_file {path}: is empty")
    return _digest(token)


def _digest(token: bytes) -> bytes:
    """Return a digest of the token. All digests have the same length, so that each comparison takes the same time."""
    return hashlib.sha256(token).digest()


def _tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise AccessError(f"server.tls_cert {cert} with server.tls_key {key}: {error}") from error
    return context
