"""Finds a pool's API server, and says who we are there: in-cluster account, kubeconfig, or endpoint with Google's.

All of it is read again as its files change, and when the server does not take us or we do not trust it.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import kubernetes.client
import kubernetes.config
import urllib3
import yaml
from google.auth.exceptions import GoogleAuthError
from kubernetes.config import incluster_config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from provisioner.backends import BackendError
from provisioner.backends.concurrency import MOST
from provisioner.backends.connections import bounded
from provisioner.backends.gke.api import USUAL_TIMES, KubeApi, KubeTimes, Way, words
from provisioner.backends.gke.exec_plugin import ExecPlugin
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.google_auth import GoogleToken, credentials_wanted
from provisioner.backends.network import authorities, proxy_login, signature
from provisioner.model import ErrorClass

log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
"""Seconds that the end waits for a plugin that is under way."""
CONNECTIONS = 3 * MOST
"""Connections kept alive for all pools of a cluster: for calls, for looks at single pods, and for what each namespace
watches and lists."""
RENEW_SECONDS = 5.0
"""Least time between two readings because the server rejects us, and between two attempts to get missing credentials: a
plugin takes a second, and a thousand deletes may be waiting."""
KEEP_SECONDS = 5.0
"""How long the official client's word on a kubeconfig's own credentials is kept: asking it costs half as much as a
request. It renews credentials minutes before they end."""

MALFORMED = (
    kubernetes.config.ConfigException,
    yaml.YAMLError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    urllib3.exceptions.HTTPError,
    GoogleAuthError,
)
"""What the official client, and those that it asks, raise for a file that is no kubeconfig."""


class UnusableAuthority(ValueError):
    """A ``ca_file`` that holds no certificate authority, or is not there."""


class Credentials(Protocol):
    """Where the words come from that say who we are. Called by one thread at a time."""

    def header(self) -> str:
        """The value of the Authorization header, empty without one; BackendError when there is none to be had."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A server and who we are there, as the files said when they were read."""

    way: Way
    credentials: Credentials
    files: Sequence[str | None] = ()
    """Files that the reading was made from. If one of them changes, all are read again."""
    signature: object = ()
    """The signature of the files before they were read."""
    usable: bool = True
    """False if certificate, key or authorities cannot be used (yet)."""


class Login:
    """An ``Access`` that follows the files that it was made from."""

    def __init__(self, read: Callable[[], Reading], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises what ``read`` does."""
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._reading = read()
        self._signature = self._reading.signature
        self._failed: tuple[float, BackendError] | None = None
        self._renewed = float("-inf")

    def now(self) -> tuple[Way, Mapping[str, str]]:
        """Return the way and the headers by the present files. Raise BackendError if there are no credentials."""
        with self._lock:
            self._follow()
            if self._failed and self._clock() < self._failed[0] + RENEW_SECONDS:
                failure = self._failed[1].failure
                raise BackendError(failure.error, failure.text)
            try:
                given, self._failed = self._reading.credentials.header(), None
            except BackendError as error:
                if not isinstance(self._reading.credentials, TokenFile):  # which costs nothing to read again
                    self._failed = (self._clock(), error)
                raise
            if not (given.isascii() and given.isprintable()):
                raise BackendError(
                    ErrorClass.DENIED, "no credentials: the token has a line break or a strange character"
                )
            return self._reading.way, {"Authorization": given} if given else {}

    def host(self) -> str:
        """Return the address of the server by the present files."""
        with self._lock:
            self._follow()
            return self._reading.way.host

    def rejected(self, way: Way) -> None:
        """Read all again; for plain HTTP raise BackendError."""
        if isinstance(self._reading.credentials, Anonymous):
            self._reading.credentials.rejected()
        self.failed(way)

    def failed(self, way: Way) -> None:
        """Read all again, if this is still the way; kept connections are used no more."""
        with self._lock:
            if way is self._reading.way and self._clock() >= self._renewed + RENEW_SECONDS:
                self._renewed = self._clock()
                self._read_again()

    def close(self) -> None:
        """End the idle connections; a later call makes new ones."""
        if self._lock.acquire(timeout=CLOSE_SECONDS):  # a plugin may hold it up
            try:
                self._read_again()
            finally:
                self._lock.release()

    def _follow(self) -> None:
        if signature(self._reading.files) != self._signature:
            self._read_again()

    def _read_again(self) -> None:
        """Read the files again. Keep the old reading if they cannot be read or do not fit together (yet)."""
        self._signature = signature(self._reading.files)
        try:
            reading = self._read()
        except (BackendError, *MALFORMED) as error:
            log.warning("Changed files of a login cannot be used", extra={"text": _reason(error)})
            return
        if reading.usable or not self._reading.usable:
            self._reading, self._signature, self._failed = reading, reading.signature, None


def connect(pool: GkePool, times: KubeTimes = USUAL_TIMES) -> KubeApi:
    """The API server of a pool. Asks nobody yet; BackendError when the configuration leads to none."""
    try:
        # A kubeconfig's current context is chosen once: another one is another cluster.
        context = pool.context
        if pool.kubeconfig is not None and pool.endpoint is None and context is None:
            context = str(_merged(pool.kubeconfig)["current-context"])
        return KubeApi(Login(lambda: _reading(pool, context)), times)
    except (BackendError, *MALFORMED) as error:
        raise BackendError(ErrorClass.INVALID, _unusable(pool, error)) from error


def _reading(pool: GkePool, context: str | None) -> Reading:
    configuration = kubernetes.client.Configuration()
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.keep_alive = True
    named = [os.path.expanduser(part) for part in str(pool.kubeconfig or "").split(os.pathsep)]
    signed = signature(named)
    credentials = _credentials(pool, context, configuration)
    configuration.ssl_ca_cert = configuration.ssl_ca_cert or authorities()
    configuration.proxy_headers = proxy_login(configuration.proxy) or configuration.proxy_headers
    files = [configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file]
    signed += signature(files)
    connections = bounded(kubernetes.client.ApiClient(configuration).rest_client.pool_manager)
    usable = True
    if configuration.host.startswith("https:"):
        try:
            connections.connection_pool_kw["ssl_context"] = _tls(configuration)
        except OSError:
            usable = False
        else:  # or each new connection would read them, between two writes, too
            for name in ("ca_certs", "cert_file", "key_file"):
                connections.connection_pool_kw.pop(name, None)
    return Reading(Way(configuration.host, connections), credentials, [*named, *files], signed, usable)


def _tls(configuration: Any) -> ssl.SSLContext:
    """Return the TLS context of a configuration. Raise OSError for files that cannot be used, as an encrypted key."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file, password=lambda: "")
    return context


def _unusable(pool: GkePool, error: Exception) -> str:
    """That a pool's configuration leads to no cluster, with the file or address at fault and what to do."""
    reason = _reason(error)
    setting = f"pools.{pool.name}"
    if isinstance(error, UnusableAuthority):
        return f"pool {pool.name}: ca_file {pool.ca_file} cannot be used: {reason}; correct {setting}.ca_file"
    if pool.endpoint is not None:
        return f"pool {pool.name}: endpoint {pool.endpoint} cannot be used: {reason}; correct {setting}.endpoint"
    if pool.kubeconfig is not None:
        said = f"pool {pool.name}: kubeconfig {pool.kubeconfig} cannot be used: {reason}"
        return f"{said}; correct it, or let {setting}.kubeconfig or KUBECONFIG name another"
    said = f"pool {pool.name}: no kubeconfig is named, and this is no pod of a cluster ({reason})"
    return f"{said}; let {setting}.kubeconfig or KUBECONFIG name one, or set {setting}.endpoint"


def _reason(error: Exception) -> str:
    """On one line. What Python says of a document of another shape helps nobody by itself."""
    if isinstance(error, BackendError):
        return words(error.failure.text)
    said = words(str(error)).rstrip(".")
    odd = isinstance(error, TypeError | AttributeError | KeyError | RecursionError)
    return f"it is no kubeconfig ({said})" if odd else said


def _credentials(pool: GkePool, context: str | None, configuration: Any) -> Credentials:
    """Fills in where the cluster is; returns who we are there."""
    if pool.endpoint is not None:
        return _at_endpoint(pool, pool.endpoint, configuration)
    if pool.kubeconfig is not None:
        return _in_kubeconfig(pool.kubeconfig, context, configuration)
    kubernetes.config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return TokenFile(Path(incluster_config.SERVICE_TOKEN_FILENAME))


# --- an endpoint ------------------------------------------------------------------------------------------------------


class Anonymous:
    """No credentials: over plain HTTP no secret is sent."""

    def __init__(self, endpoint: str, otherwise: str) -> None:
        """``otherwise``: what else to do if the server wants credentials."""
        self._endpoint, self._otherwise = endpoint, otherwise

    def header(self) -> str:
        """An empty value: there is nobody to name."""
        return ""

    def rejected(self) -> None:
        """The server wants to know who we are; always BackendError."""
        raise credentials_wanted(self._endpoint, self._otherwise)


def _at_endpoint(pool: GkePool, endpoint: str, configuration: Any) -> Credentials:
    configuration.host = endpoint.rstrip("/")
    if endpoint.startswith("http://"):
        return Anonymous(endpoint, "name a 'kubeconfig' instead")
    if pool.ca_file is not None:
        try:
            ssl.create_default_context(cafile=str(pool.ca_file))
        except OSError as error:
            raise UnusableAuthority(error) from error
        configuration.ssl_ca_cert = str(pool.ca_file)
    return GoogleToken(pool.credentials)


# --- a file that holds a token ----------------------------------------------------------------------------------------


class TokenFile:
    """A token in a file that somebody replaces before it ends, as a kubelet does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signature: object = None
        self._token = ""

    def header(self) -> str:
        """The token that is in the file now."""
        try:
            now = signature([self._path])
            if now != self._signature:
                # An empty file is in the midst of being written.
                self._token = self._path.read_text(encoding="utf-8").strip() or self._token
                self._signature = now
        except (OSError, UnicodeDecodeError) as error:
            raise BackendError(ErrorClass.DENIED, f"no credentials: {self._path}: {error}") from error
        if not self._token:
            raise BackendError(ErrorClass.DENIED, f"no credentials: {self._path} is empty")
        return f"Bearer {self._token}"


# --- a kubeconfig -----------------------------------------------------------------------------------------------------


class Kubeconfig:
    """What a kubeconfig itself holds: a token, a password, a client certificate, an auth-provider's token."""

    def __init__(self, configuration: Any) -> None:
        """``configuration``: the official client's, which was filled from the file."""
        self._configuration = configuration
        self._header, self._kept_until = "", float("-inf")

    def header(self) -> str:
        """What the file says, or what its auth-provider renewed."""
        if time.monotonic() >= self._kept_until:
            try:
                setting = self._configuration.auth_settings().get("BearerToken")
            except MALFORMED as error:
                raise BackendError(ErrorClass.DENIED, f"no credentials: {error}") from error
            self._header = str(setting["value"] or "") if setting else ""
            self._kept_until = time.monotonic() + KEEP_SECONDS
        return self._header


def _in_kubeconfig(path: Path, context: str | None, configuration: Any) -> Credentials:
    """Plugins and token files are ours to follow, as the official client reads them once and hides their failures.

    For a server on plain HTTP there are no credentials.
    """
    user, directory = _user(path, context)
    _load_kubeconfig(path, context, configuration)
    found: Credentials = Kubeconfig(configuration)
    if "exec" in user:
        found = ExecPlugin(user["exec"], directory, _described(configuration))
    elif "tokenFile" in user:
        found = TokenFile(directory / user["tokenFile"])
    if configuration.host.startswith("https://"):
        return found
    if user:
        facts = {"kubeconfig": str(path), "server": configuration.host}
        log.warning("Credentials are not sent over plain HTTP", extra=facts)
    return Anonymous(configuration.host, "let the kubeconfig's 'server' do so")


def _user(path: Path, context: str | None) -> tuple[Mapping[str, Any], Path]:
    """The settings of a context's user, and the directory that its paths are relative to."""
    merged = _merged(path)
    chosen = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
    user = merged["users"].get_with_name(chosen.safe_get("user"), safe=True)
    return ((user.safe_get("user") or {}), Path(user.path).absolute().parent) if user else ({}, Path())


def _load_kubeconfig(path: Path, context: str | None, configuration: Any) -> None:
    """Fill in what the official client makes of a kubeconfig without its plugins and token files.

    The client takes authorities and certificates for a server of ``https`` in lower case alone.
    """
    merged = _merged(path)
    for cluster in merged["clusters"].value:
        settings = cluster.safe_get("cluster") or {}
        if isinstance(server := settings.get("server"), str):
            settings["server"] = re.sub(r"^\w+://", lambda scheme: scheme[0].lower(), server)
    for user in merged["users"].value:
        for name in ("exec", "tokenFile"):
            (user.safe_get("user") or {}).pop(name, None)
    loader = KubeConfigLoader(config_dict=merged, active_context=context, config_base_path=None)  # type: ignore[no-untyped-call]
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]


def _merged(path: Path) -> Any:
    """The kubeconfig, or several of them as the environment's KUBECONFIG may name, as one."""
    merged = KubeConfigMerger(str(path)).config  # type: ignore[no-untyped-call]
    if merged is None:
        raise kubernetes.config.ConfigException("no such file")
    return merged


def _described(configuration: Any) -> Mapping[str, Any]:
    """The cluster, as the protocol of plugins describes one."""
    authority = configuration.ssl_ca_cert
    data = b64encode(Path(authority).read_bytes()).decode() if authority and os.path.exists(authority) else ""
    return {"server": configuration.host, **({"certificate-authority-data": data} if data else {})}
