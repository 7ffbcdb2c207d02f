"""Who may read what the HTTP server says: a bearer token, and TLS. Both come from files that may change any time."""

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

from provisioner.backends.network import signature
from provisioner.settings.definitions import Server
from provisioner.settings.warnings import is_loopback

log = logging.getLogger(__name__)

Value = TypeVar("Value")


class AccessError(Exception):
    """A file that access depends on cannot be used; the text says which and why."""


NOBODY_ASKED = Server()
"""Neither token nor TLS."""

LOGINS, LOGIN_SECONDS = 10, 60.0
"""Wrong tokens that a client may send in so many seconds; further wrong ones are refused by a status of their own."""

WRONG_SECONDS = 1.0
"""Pause before the response to each further wrong token: it slows guesses down and holds no thread."""

LOGGED = 20
"""Clients whose wrong tokens are logged by name in ``LOGIN_SECONDS``; the others are only counted."""

FILE_SECONDS = 1.0
"""Between two looks at the files, in a thread of their own: a disk that hangs holds up no connection."""


class FailedLogins:
    """The wrong tokens of each client in the ``LOGIN_SECONDS`` since the first of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._end = 0.0
        self._failed: Counter[str] = Counter()

    def add(self, client: str) -> bool:
        """Count a wrong token, and return False if its client has sent more than ``LOGINS``.

        The first token of a client is logged; beyond ``LOGGED`` clients, their number is, as it grows tenfold.
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


class _FromFiles(Generic[Value]):
    """A value made from files, and made again after a change."""

    def __init__(
        self, make: Callable[..., Value], files: Sequence[Path], failed: str, *, is_kept: bool = False
    ) -> None:
        """Raises AccessError, as ``make`` does. For a change that cannot be used ``failed`` is logged, and the value is
        None, or with ``is_kept`` the earlier one.
        """
        self._make, self._files, self._failed, self._is_kept = make, files, failed, is_kept
        self._signature = signature(files)
        self.value: Value | None = make(*files)

    def refresh(self) -> None:
        """Make the value again if a file has changed."""
        if (now := signature(self._files)) == self._signature:
            return
        self._signature = now
        try:
            self.value = self._make(*self._files)
        except AccessError as error:
            self.value = self.value if self._is_kept else None
            log.warning(self._failed, extra={"error": str(error)})


class Access:
    """Judges each connection and question. Any thread."""

    def __init__(self, files: Server = NOBODY_ASKED, rejected: Callable[[str], None] = lambda reason: None) -> None:
        """Raises AccessError when a file cannot be used now. A file that cannot be used later is logged.

        ``rejected`` is called with "token" for a wrong token, with "rate" for one of a client that sent too many.
        """
        self._rejected = rejected
        self._failed = FailedLogins()
        self._closed = threading.Event()
        self._token: _FromFiles[bytes] | None = None
        """A digest of the token; without a value every token is refused."""
        self._tls: _FromFiles[ssl.SSLContext] | None = None
        if files.token_file is not None:
            self._token = _FromFiles(_token, [files.token_file], "Token cannot be read, every login is refused")
        if files.tls_cert is not None and files.tls_key is not None:
            words = "Certificate cannot be used, the one before stays in force"
            self._tls = _FromFiles(_context, [files.tls_cert, files.tls_key], words, is_kept=True)

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context of new connections, with the newest certificate; None without TLS."""
        return self._tls.value if self._tls else None

    def follow(self) -> None:
        """Take changes of the files from now on, until ``close``."""

        def refresh() -> None:
            while not self._closed.wait(FILE_SECONDS):
                self.refresh()

        if self._token or self._tls:
            threading.Thread(target=refresh, name="access", daemon=True).start()

    def refresh(self) -> None:
        """Take changes of the files."""
        if self._token:
            self._token.refresh()
        if self._tls:
            self._tls.refresh()

    def close(self) -> None:
        """Take no more changes."""
        self._closed.set()

    def judge(self, authorization: str, client: str = "") -> HTTPStatus:
        """Return OK if a client that sends this header may read.

        A header that is not empty and not right is a failed login: UNAUTHORIZED, after many TOO_MANY_REQUESTS.
        """
        if self._token is None:
            return HTTPStatus.OK
        if not authorization:
            return HTTPStatus.UNAUTHORIZED
        given, token = _digest(_given(authorization)), self._token.value
        if token is not None and hmac.compare_digest(given, token):
            return HTTPStatus.OK
        is_early = self._failed.add(client)
        self._rejected("token" if is_early else "rate")
        return HTTPStatus.UNAUTHORIZED if is_early else HTTPStatus.TOO_MANY_REQUESTS


def is_meant(host: str, listen: str) -> bool:
    """True when a request's Host header names this server, which listens on a loopback address. A foreign page whose
    name resolves to the loopback is refused by it: the header still has that page's name, and every browser sends it.
    """
    name, ours = (_without_port(text).casefold() for text in (host, listen))
    return name in ("", ours) or is_loopback(f"{name}:0")


def _without_port(address: str) -> str:
    """The host of ``HOST[:PORT]``, without the brackets of an IPv6 address."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0]


def _given(authorization: str) -> bytes:
    """The token in an Authorization header, after Bearer; empty if there is none."""
    scheme, _, rest = authorization.strip().partition(" ")
    # As the server has read it.
    return rest.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""


def _token(path: Path) -> bytes:
    """Return the digest of the token in a file. Raise AccessError if there is none."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise AccessError(f"server.token_file {path}: {error.strerror}") from error
    if not token:
        raise AccessError(f"server.token_file {path}: is empty")
    return _digest(token)


def _digest(token: bytes) -> bytes:
    """A digest of the token, of one length, so that each comparison takes the same time."""
    return hashlib.sha256(token).digest()


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise AccessError(f"server.tls_cert {cert} with server.tls_key {key}: {error}") from error
    return context
