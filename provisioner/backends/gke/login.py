"""Logins to a pool's API server. A login follows the files that contain the server's address and our credentials.

All files are read again if one file changes or if the server rejects us. They are also read again if an unexpected
server responds.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kubernetes.client

from provisioner.backends import BackendError
from provisioner.backends.client_connections import limit_responses
from provisioner.backends.concurrency import MOST
from provisioner.backends.gke.api import USUAL_TIMES, KubeApi, KubeTimes
from provisioner.backends.gke.credentials import MALFORMED, Credentials, TokenFile, current_context, read_credentials
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.google_auth import GoogleToken, NoCredentials
from provisioner.backends.http import Way
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.proxies_and_authorities import get_ca_bundle, proxy_login, signature
from provisioner.backends.responses import words
from provisioner.model import ErrorClass, Failure

log = logging.getLogger(__name__)

INVALID_TOKEN = "no credentials: the token has a line break or an invalid character"
CONNECTIONS = 3 * MOST
"""Connections that are kept open for all pools of a cluster: for calls, for reads of single pods, and for the watch
and lists of each namespace."""
RENEW_SECONDS = 5.0
"""Minimum seconds between two readings of rejected credentials, and between two tries to get missing credentials.
Without this limit, each of thousands of failed calls would run a plugin for a second."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Address and credentials, as they were in the files when the files were read."""

    way: Way
    credentials: Credentials
    files: Sequence[str | None] = ()
    """Files whose content the reading contains. If one of these files changes, all are read again."""
    signature: object = ()
    """Key of the files' state, taken before the files were read (``signature`` in ``proxies_and_authorities``)."""
    login: str = ""
    """Text that names the files with the credentials; empty for a ``GoogleToken``, which has such a text of its own."""
    problem: str = ""
    """Reason why certificate, key or certificate authorities are unusable, perhaps because a file is being replaced."""


class Login:
    """An ``Access`` that follows changes of the files with address and credentials."""

    def __init__(self, read: Callable[[], Reading], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Call ``read``, which reads the files. Raise the errors of ``read``."""
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._reading = read()
        self._signature = self._reading.signature
        self._last_failure: tuple[float, Failure] | None = None
        self._problem = self._reading.problem
        """Reason why the present files are not in use; empty if they are."""
        self._renewed_at = float("-inf")

    def now(self) -> tuple[Way, Mapping[str, str]]:
        """Return address and headers from the present files. Raise BackendError if there are no credentials."""
        with self._lock:
            self._follow()
            if self._last_failure and self._clock() < self._last_failure[0] + RENEW_SECONDS:
                failure = self._last_failure[1]
                raise BackendError(failure.error, failure.text)
            try:
                authorization, self._last_failure = self._reading.credentials.header(), None
            except BackendError as error:
                if not isinstance(self._reading.credentials, TokenFile):  # reading a token file again costs little
                    self._last_failure = (self._clock(), error.failure)
                raise
            if not (authorization.isascii() and authorization.isprintable()):
                raise BackendError(ErrorClass.DENIED, INVALID_TOKEN)
            return self._reading.way, {"Authorization": authorization} if authorization else {}

    def host(self) -> str:
        """Return the server's address from the present files."""
        with self._lock:
            self._follow()
            return self._reading.way.host

    def login(self) -> str:
        """Return a text for the operator that names the files and the account of the credentials."""
        credentials = self._reading.credentials
        return credentials.login() if isinstance(credentials, GoogleToken) else self._reading.login

    def note_rejection(self, way: Way) -> str:
        """Read all files again after the server has rejected us, and return an empty text. Raise BackendError if the
        files cannot be used.

        A server on plain HTTP gets no credentials. For such a server, read no file, and return advice for operators.
        """
        if isinstance(self._reading.credentials, NoCredentials):
            return self._reading.credentials.advice
        self.failed(way)
        return ""

    def failed(self, way: Way) -> None:
        """Read all files again, because a call to the server failed. ``way``: the address and the connections of this
        call.

        Do not read if newer files have replaced ``way``, or within ``RENEW_SECONDS`` after the last such reading. Raise
        BackendError if the present files cannot be used, because they are then the cause of the failed call.
        """
        with self._lock:
            if way is self._reading.way and self._clock() >= self._renewed_at + RENEW_SECONDS:
                self._renewed_at = self._clock()
                self._read_again()
            if self._problem:
                files = ", ".join(filter(None, self._reading.files))
                raise BackendError(ErrorClass.DENIED, f"{files} cannot be used: {self._problem}")

    def _follow(self) -> None:
        if signature(self._reading.files) != self._signature:
            self._read_again()

    def _read_again(self) -> None:
        """Read the files again. If they are unreadable or do not fit together, keep the old reading, because another
        program may be replacing the files."""
        self._signature = signature(self._reading.files)
        try:
            reading = self._read()
        except (BackendError, *MALFORMED) as error:
            self._problem = _one_line(error)
        else:
            self._problem = reading.problem
            if not reading.problem or self._reading.problem:
                self._reading, self._signature, self._last_failure = reading, reading.signature, None
        if self._problem:
            log.warning("Changed files of a login cannot be used", extra={"text": self._problem})


def connect(pool: GkePool, times: KubeTimes = USUAL_TIMES) -> KubeApi:
    """Return the ``KubeApi`` of a pool without making a call. Raise BackendError if the settings name no usable
    server."""
    clock = PlaceClock()
    try:
        # Choose a kubeconfig's current context only once, because another context is another cluster.
        context = pool.context
        if pool.kubeconfig is not None and pool.endpoint is None and context is None:
            context = current_context(pool.kubeconfig)
        return KubeApi(Login(lambda: _reading(pool, context, clock)), times, clock=clock)
    except (BackendError, *MALFORMED) as error:
        raise BackendError(ErrorClass.INVALID, _unusable_message(pool, error)) from error


def _reading(pool: GkePool, context: str | None, clock: PlaceClock) -> Reading:
    configuration = kubernetes.client.Configuration()
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.keep_alive = True
    named = [os.path.expanduser(part) for part in str(pool.kubeconfig or "").split(os.pathsep)]
    signed = signature(named)
    credentials = read_credentials(pool, context, configuration, clock)
    configuration.ssl_ca_cert = configuration.ssl_ca_cert or get_ca_bundle()
    configuration.proxy_headers = proxy_login(configuration.proxy) or configuration.proxy_headers
    files = [configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file]
    signed += signature(files)
    connections = limit_responses(kubernetes.client.ApiClient(configuration).rest_client.pool_manager)
    problem = ""
    if configuration.host.startswith("https:"):
        try:
            connections.connection_pool_kw["ssl_context"] = _tls(configuration)
        except OSError as error:
            problem = _one_line(error)
        else:  # So that new connections do not read the files, perhaps between two writes.
            for name in ("ca_certs", "cert_file", "key_file"):
                connections.connection_pool_kw.pop(name, None)
    token_file = f"token file {credentials.path}" if isinstance(credentials, TokenFile) else ""
    login = f"kubeconfig {pool.kubeconfig}, context {context}" if pool.kubeconfig and context else token_file
    return Reading(Way(configuration.host, connections), credentials, [*named, *files], signed, login, problem)


def _tls(configuration: Any) -> ssl.SSLContext:
    """Return the TLS context of a configuration. Raise OSError for unusable files, for example an encrypted key."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file, password=lambda: "")
    return context


def _unusable_message(pool: GkePool, error: Exception) -> str:
    """Return the message for a pool whose settings name no usable cluster. The message names the file or the address to
    correct."""
    reason, setting = _one_line(error), f"pools.{pool.name}"
    if pool.endpoint is not None:
        name = "ca_file" if isinstance(error, OSError) else "endpoint"
        return f"{name} {getattr(pool, name)} cannot be used: {reason}; correct {setting}.{name}"
    if pool.kubeconfig is not None:
        advice = f"correct it, or let {setting}.kubeconfig or KUBECONFIG name another"
        return f"kubeconfig {pool.kubeconfig} cannot be used: {reason}; {advice}"
    advice = f"let {setting}.kubeconfig or KUBECONFIG name one, or set {setting}.endpoint"
    return f"no kubeconfig is named, and this process is not in a pod of a cluster ({reason}); {advice}"


def _one_line(error: Exception) -> str:
    """Return the error's message on one line. If the document has an unexpected structure, an explanation comes first.
    Python's own message is unclear then."""
    if isinstance(error, BackendError):
        return words(error.failure.text)
    error_message = words(str(error)).rstrip(".")
    odd = isinstance(error, TypeError | AttributeError | KeyError | RecursionError)
    return f"it is no kubeconfig ({error_message})" if odd else error_message
