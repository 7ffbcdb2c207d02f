"""Address and credentials for an API server: in-cluster account, kubeconfig, or endpoint with Google's credentials."""

from __future__ import annotations

import logging
import math
import os
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import kubernetes.config
import urllib3
import yaml
from kubernetes.config import incluster_config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from provisioner.backends import BackendError
from provisioner.backends.gke.exec_plugin import ExecPlugin
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.google_auth import CREDENTIALS_ERRORS, GoogleToken, NoCredentials
from provisioner.backends.place_clock import PlaceClock
from provisioner.model import ErrorClass

log = logging.getLogger(__name__)

MALFORMED = (*CREDENTIALS_ERRORS, kubernetes.config.ConfigException, yaml.YAMLError, urllib3.exceptions.HTTPError)
"""Errors that the official client and its libraries raise for an invalid kubeconfig."""


KEEP_SECONDS = 5.0
"""Seconds for which the header from a kubeconfig is cached. Without the cache, the official client would need half the
time of a request to compute the header. A cached header stays valid, because the client renews credentials minutes
before they expire."""


class Credentials(Protocol):
    """A source of the header that identifies us. Only one thread at a time may use the source."""

    def header(self) -> str:
        """Return the value of the Authorization header; empty without credentials. Raise BackendError if the
        credentials are not available."""


class TokenFile:
    """A token in a file. Another program, such as a kubelet, replaces the token before it expires."""

    def __init__(self, path: Path) -> None:
        self.path, self._token = path, ""

    def header(self) -> str:
        """Return the header with the token that the file contains now."""
        try:
            # An empty file is being rewritten at this moment.
            self._token = self.path.read_text(encoding="utf-8").strip() or self._token
        except (OSError, UnicodeDecodeError) as error:
            raise BackendError(ErrorClass.DENIED, f"no credentials: {self.path}: {error}") from error
        if not self._token:
            raise BackendError(ErrorClass.DENIED, f"no credentials: {self.path} is empty")
        return f"Bearer {self._token}"


@dataclass(slots=True)
class Kubeconfig:
    """Credentials in a kubeconfig: a token, a password, a client certificate, or the token of an auth-provider."""

    configuration: Any
    """Configuration of the official client, filled from the file."""
    _header: str = ""
    _cached_until: float = -math.inf
    """Monotonic time until which the header is cached."""

    def header(self) -> str:
        """Return the value of the Authorization header. The file contains this value, or the file's auth-provider gives
        a newer value."""
        if time.monotonic() >= self._cached_until:
            try:
                self._header = str(self.configuration.auth_settings().get("BearerToken", {}).get("value") or "")
            except MALFORMED as error:
                raise BackendError(ErrorClass.DENIED, f"no credentials: {error}") from error
            self._cached_until = time.monotonic() + KEEP_SECONDS
        return self._header


def read_credentials(pool: GkePool, context: str | None, configuration: Any, clock: PlaceClock) -> Credentials:
    """Write the cluster's address into ``configuration``. Return the credentials for the cluster. ``clock``: reads the
    ``Date`` of the token server's responses."""
    if pool.endpoint is not None:
        return _at_endpoint(pool, pool.endpoint, configuration, clock)
    if pool.kubeconfig is not None:
        return _in_kubeconfig(pool.kubeconfig, context, configuration)
    kubernetes.config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return TokenFile(Path(incluster_config.SERVICE_TOKEN_FILENAME))


def current_context(path: Path) -> str:
    """Return the current context of a kubeconfig."""
    return str(_read_merged(path)["current-context"])


def _at_endpoint(pool: GkePool, endpoint: str, configuration: Any, clock: PlaceClock) -> Credentials:
    configuration.host = endpoint.rstrip("/")
    if endpoint.startswith("http://"):
        return NoCredentials(endpoint, "name a 'kubeconfig' instead")
    if pool.ca_file is not None:
        ssl.create_default_context(cafile=str(pool.ca_file))  # OSError for a file without authority
        configuration.ssl_ca_cert = str(pool.ca_file)
    return GoogleToken(pool.credentials, clock)


def _in_kubeconfig(path: Path, context: str | None, configuration: Any) -> Credentials:
    """Fill ``configuration`` from a kubeconfig and return the credentials. A server on plain HTTP gets no credentials.

    Our own code runs plugins and reads token files. The official client would read them only once and hide their
    failures.
    """
    merged = _read_merged(path)
    chosen = merged["contexts"].get_with_name(context)["context"]
    cluster = merged["clusters"].get_with_name(chosen["cluster"])["cluster"].value
    if isinstance(server := cluster.get("server"), str):
        # The client uses authorities and certificates only for a server that begins with ``https`` in lower case.
        cluster["server"] = re.sub(r"^\w+://", lambda scheme: scheme[0].lower(), server)
    user = merged["users"].get_with_name(chosen.safe_get("user"), safe=True)
    settings = (user and user.safe_get("user")) or {}
    plugin, token_file = settings.pop("exec", None), settings.pop("tokenFile", None)
    loader = KubeConfigLoader(config_dict=merged, active_context=context, config_base_path=None)  # type: ignore[no-untyped-call]
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    found: Credentials = Kubeconfig(configuration)
    if plugin is not None:
        found = ExecPlugin(plugin, Path(user.path).absolute().parent, _cluster_description(configuration))
    elif token_file is not None:
        found = TokenFile(Path(user.path).absolute().parent / token_file)
    if configuration.host.startswith("https://"):
        return found
    if plugin or token_file or settings:
        facts = {"kubeconfig": str(path), "server": configuration.host}
        log.warning("Credentials are not sent over plain HTTP", extra=facts)
    return NoCredentials(configuration.host, "let the kubeconfig's 'server' do so")


def _read_merged(path: Path) -> Any:
    """Return the kubeconfig. If KUBECONFIG names several files, return them merged into one."""
    merged = KubeConfigMerger(str(path)).config  # type: ignore[no-untyped-call]
    if merged is None:
        raise kubernetes.config.ConfigException("no such file")
    return merged


def _cluster_description(configuration: Any) -> Mapping[str, Any]:
    """Return the description of the cluster in the form that the protocol of the plugins requires."""
    authority = configuration.ssl_ca_cert
    data = b64encode(Path(authority).read_bytes()).decode() if authority and os.path.exists(authority) else ""
    return {"server": configuration.host, **({"certificate-authority-data": data} if data else {})}
