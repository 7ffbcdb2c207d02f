"""The address of an API server and our credentials there: in-cluster account, kubeconfig, or endpoint with Google's."""

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
from provisioner.backends.google_auth import UNUSABLE, GoogleToken, credentials_wanted
from provisioner.model import ErrorClass

log = logging.getLogger(__name__)

MALFORMED = (*UNUSABLE, kubernetes.config.ConfigException, yaml.YAMLError, urllib3.exceptions.HTTPError)
"""Errors that the official client, and those that it asks, raise for a file that is no kubeconfig."""


KEEP_SECONDS = 5.0
"""Seconds for which the header of a kubeconfig is kept: to ask the official client for it costs half as much as a
request. The client renews credentials minutes before they end."""


class Credentials(Protocol):
    """Source of the words that say who we are. Called by one thread at a time."""

    def header(self) -> str:
        """The value of the Authorization header, empty without one; BackendError when there is none to be had."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """No credentials: over plain HTTP no secret is sent."""

    endpoint: str
    otherwise: str
    """Advice for an operator if the server wants credentials."""

    def header(self) -> str:
        """Return an empty value."""
        return ""

    def rejected(self) -> None:
        """The server wants to know who we are; always BackendError."""
        raise credentials_wanted(self.endpoint, self.otherwise)


class TokenFile:
    """A token in a file that is replaced before the token ends, as by a kubelet."""

    def __init__(self, path: Path) -> None:
        self._path, self._token = path, ""

    def header(self) -> str:
        """The token that is in the file now."""
        try:
            # An empty file is in the midst of being written.
            self._token = self._path.read_text(encoding="utf-8").strip() or self._token
        except (OSError, UnicodeDecodeError) as error:
            raise BackendError(ErrorClass.DENIED, f"no credentials: {self._path}: {error}") from error
        if not self._token:
            raise BackendError(ErrorClass.DENIED, f"no credentials: {self._path} is empty")
        return f"Bearer {self._token}"


@dataclass(slots=True)
class Kubeconfig:
    """Credentials that a kubeconfig itself holds: token, password, client certificate, an auth-provider's token."""

    configuration: Any
    """The official client's, filled from the file."""
    _header: str = ""
    _kept_until: float = -math.inf
    """Monotonic time until which the header is kept."""

    def header(self) -> str:
        """Return the value from the file, or the one that its auth-provider renewed."""
        if time.monotonic() >= self._kept_until:
            try:
                self._header = str(self.configuration.auth_settings().get("BearerToken", {}).get("value") or "")
            except MALFORMED as error:
                raise BackendError(ErrorClass.DENIED, f"no credentials: {error}") from error
            self._kept_until = time.monotonic() + KEEP_SECONDS
        return self._header


def read_credentials(pool: GkePool, context: str | None, configuration: Any) -> Credentials:
    """Fill in where the cluster is; return who we are there."""
    if pool.endpoint is not None:
        return _at_endpoint(pool, pool.endpoint, configuration)
    if pool.kubeconfig is not None:
        return _in_kubeconfig(pool.kubeconfig, context, configuration)
    kubernetes.config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return TokenFile(Path(incluster_config.SERVICE_TOKEN_FILENAME))


def current_context(path: Path) -> str:
    """Return the context that a kubeconfig uses if none is named."""
    return str(_merged(path)["current-context"])


def _at_endpoint(pool: GkePool, endpoint: str, configuration: Any) -> Credentials:
    configuration.host = endpoint.rstrip("/")
    if endpoint.startswith("http://"):
        return Anonymous(endpoint, "name a 'kubeconfig' instead")
    if pool.ca_file is not None:
        ssl.create_default_context(cafile=str(pool.ca_file))  # raises OSError for a file without an authority
        configuration.ssl_ca_cert = str(pool.ca_file)
    return GoogleToken(pool.credentials)


def _in_kubeconfig(path: Path, context: str | None, configuration: Any) -> Credentials:
    """Plugins and token files are ours to follow, as the official client reads them once and hides their failures.

    For a server on plain HTTP there are no credentials.
    """
    merged = _merged(path)
    chosen = merged["contexts"].get_with_name(context)["context"]
    cluster = merged["clusters"].get_with_name(chosen["cluster"])["cluster"].value
    if isinstance(server := cluster.get("server"), str):
        # The client takes authorities and certificates for a server of ``https`` in lower case alone.
        cluster["server"] = re.sub(r"^\w+://", lambda scheme: scheme[0].lower(), server)
    user = merged["users"].get_with_name(chosen.safe_get("user"), safe=True)
    settings = (user and user.safe_get("user")) or {}
    plugin, token_file = settings.pop("exec", None), settings.pop("tokenFile", None)
    loader = KubeConfigLoader(config_dict=merged, active_context=context, config_base_path=None)  # type: ignore[no-untyped-call]
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    found: Credentials = Kubeconfig(configuration)
    if plugin is not None:
        found = ExecPlugin(plugin, Path(user.path).absolute().parent, _described(configuration))
    elif token_file is not None:
        found = TokenFile(Path(user.path).absolute().parent / token_file)
    if configuration.host.startswith("https://"):
        return found
    if plugin or token_file or settings:
        facts = {"kubeconfig": str(path), "server": configuration.host}
        log.warning("Credentials are not sent over plain HTTP", extra=facts)
    return Anonymous(configuration.host, "let the kubeconfig's 'server' do so")


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
