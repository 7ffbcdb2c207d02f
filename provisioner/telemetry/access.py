"""Who may read what the HTTP server says: a bearer token, and TLS. Both come from files that may change any time."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from provisioner.settings.advice import is_loopback

log = logging.getLogger(__name__)

Signature = tuple[tuple[int, int, int], ...]


class AccessError(Exception):
    """A file that access depends on cannot be used; the text says which and why."""


@dataclass(frozen=True, slots=True)
class AccessFiles:
    """Where token, certificate and key are; all absent: everybody who reaches the address may read, without TLS."""

    token: Path | None = None
    cert: Path | None = None
    key: Path | None = None


NOBODY_ASKED = AccessFiles()
"""Neither token nor TLS."""

LOGINS, LOGIN_SECONDS = 10, 60.0
"""Wrong tokens that a client may send in so many seconds; its further ones are not compared until they are over."""


class FailedLogins:
    """The wrong tokens of each client in the ``LOGIN_SECONDS`` since the first of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = 0.0
        self._failed: Counter[str] = Counter()

    def are_too_many(self, client: str) -> bool:
        """Return True if no further token of this client is compared."""
        return self._current()[client] >= LOGINS

    def add(self, client: str) -> None:
        """Count a wrong token. The first of them is logged, so at most one in ``LOGIN_SECONDS``."""
        if not self._current():
            self._end = self._clock() + LOGIN_SECONDS
            log.warning("Wrong token sent", extra={"client": client})
        self._failed[client] += 1

    def _current(self) -> Counter[str]:
        if self._clock() >= self._end:
            self._failed = Counter()
        return self._failed


class Access:
    """Judges each connection and question. Any thread."""

    def __init__(
        self, files: AccessFiles = NOBODY_ASKED, rejected: Callable[[str], None] = lambda reason: None
    ) -> None:
        """Raises AccessError when a file cannot be used now. A file that cannot be used later is logged.

        ``rejected`` is called with "token" for a wrong token, with "rate" for one that is not compared.
        """
        self._files, self._rejected = files, rejected
        self._failed = FailedLogins()
        self._read: Signature | None = None
        """The signature of the token file when it was last read."""
        self._token: bytes | None = None
        """A digest of the token; None refuses everybody."""
        self._loaded: Signature | None = None
        """The signatures of certificate and key when they were last loaded."""
        self._context: ssl.SSLContext | None = None
        if files.token is not None:
            self._token, self._read = _digest(_token(files.token)), _signature(files.token)
        if files.cert is not None and files.key is not None:
            self._loaded = _signature(files.cert, files.key)
            self._context = _context(files.cert, files.key)
            self._context.sni_callback = self._present_newest

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context of connections, whose handshakes present the newest certificate; None without TLS."""
        return self._context

    def allows(self, authorization: str, client: str = "") -> bool:
        """Return True if a client that sends this header may read; a browser's user sends the token as the password.

        A header that is not empty and not right counts as a failed login.
        """
        if self._files.token is None:
            return True
        if not authorization:  # a probe costs no look at a file
            return False
        self._refresh_token(self._files.token)
        given = _digest(_given(authorization))
        allowed = self._token is not None and hmac.compare_digest(given, self._token)
        if not allowed:
            self._rejected("token")
            self._failed.add(client)
        return allowed

    def is_limited(self, client: str) -> bool:
        """Return True if so many wrong tokens came from this client that its tokens are not compared for now."""
        return self._files.token is not None and self._failed.are_too_many(client)

    def _present_newest(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: object, _context: object) -> None:
        """Begin a handshake with the newest certificate."""
        if self._files.cert is not None and self._files.key is not None:
            self._refresh_context(self._files.cert, self._files.key)
        if self._context is not None:
            connection.context = self._context

    def _refresh_token(self, path: Path) -> None:
        """Read the token again when its file has changed. While the file cannot be read, everybody is refused."""
        try:
            signature = _signature(path)
            if signature == self._read:
                return
            self._token, self._read = _digest(_token(path)), signature
        except AccessError as error:
            if self._token is not None:
                log.warning("Token cannot be read, so nobody is let in", extra={"error": str(error)})
            self._token = self._read = None

    def _refresh_context(self, cert: Path, key: Path) -> None:
        """Load a renewed certificate. One that cannot be used leaves the earlier one in force."""
        try:
            signature = _signature(cert, key)
            if signature != self._loaded:
                self._loaded, self._context = signature, _context(cert, key)
        except AccessError as error:
            log.warning("Certificate cannot be used, the one before stays in force", extra={"error": str(error)})


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
    """The token in an Authorization header: after Bearer, or as the password of Basic; empty when there is none."""
    scheme, _, rest = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode("latin-1", "replace")  # as the server has read it
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _token(path: Path) -> bytes:
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise AccessError(f"server.token_file {path}: {error.strerror}") from error
    if not token:
        raise AccessError(f"server.token_file {path}: is empty")
    return token


def _digest(token: bytes) -> bytes:
    """A digest of the token, of one length, so that each comparison takes the same time."""
    return hashlib.sha256(token).digest()


def _signature(*paths: Path) -> Signature:
    try:
        stats = [os.stat(path) for path in paths]
    except OSError as error:
        raise AccessError(f"{error.filename}: {error.strerror}") from error
    return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in stats)


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise AccessError(f"server.tls_cert {cert} with server.tls_key {key}: {error}") from error
    return context
