"""Address and login of an API server. A kubeconfig or a pod's service account gives both.

The scripts import this module at each call, so it imports only modules that load fast.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from provisioner.state.errors import StateDenied, StateUnreadable

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Directory in which a kubelet keeps token, certificate authority and namespace of a pod's service account."""

PLUGIN = (
    "is refused, because a script would start the plug-in at each call: replace it by `tokenFile: FILE`, and let a "
    "timer write a fresh token into FILE before the old one ends (GKE: `gcloud auth print-access-token`, twice an hour)"
)

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Hosts that are never called through a proxy."""


class Access(NamedTuple):
    """Address and login of an API server. Files that the fields name are read at each new connection."""

    server: str
    """Address of the API server with a scheme, for example ``https://``."""
    namespace: str = "default"
    token_file: str = ""
    token: str = ""
    authority: str = ""
    """Path of a file with the server's certificate authorities, or their text in PEM form; empty for the system's
    certificate authorities."""
    certificate: str = ""
    """Path of a client certificate, or its text in PEM form."""
    key: str = ""
    """Path of the client certificate's key, or the key's text in PEM form."""
    tls_server_name: str = ""
    is_insecure: bool = False
    """True if the server's certificate is not checked."""
    proxy: str = ""
    """Address of the proxy that the kubeconfig names for the cluster; empty if environment variables decide."""


def in_cluster() -> Access:
    """Return the access from the pod in which this process runs. Raises StateDenied outside of a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise StateDenied("Outside of a pod, STATE_KUBECONFIG must name a kubeconfig (no KUBERNETES_SERVICE_HOST).")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace = read_text(f"{ACCOUNT}/namespace").strip()
    return Access(server, namespace, f"{ACCOUNT}/token", authority=f"{ACCOUNT}/ca.crt", proxy="direct")


def read_text(path: str) -> str:
    """Return the text of a file. Raises StateDenied."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise StateDenied(f"{path}: cannot be read: {reason}. The login of the Kubernetes API needs it.") from error


def from_kubeconfig(path: str) -> Access:
    """Return the access of the current context of a kubeconfig. Raises StateDenied or StateUnreadable."""
    document = _parse(path, read_text(path))
    try:
        context = _named(document, "contexts", "context", document["current-context"])
        cluster = _named(document, "clusters", "cluster", context["cluster"])
        user = _named(document, "users", "user", context["user"]) if context.get("user") else {}
        server = str(cluster["server"])
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise StateUnreadable(
            f"{path}: this kubeconfig lacks {error}: `kubectl --kubeconfig {path} config view --minify` must show "
            "context, cluster and user."
        ) from error
    if plugin := next((key for key in ("exec", "auth-provider") if user.get(key)), ""):
        raise StateDenied(f"{path}: the login by `{plugin}` {PLUGIN}.")

    def place(settings: Mapping[str, Any], key: str) -> str:
        """Return a part of the login, such as a certificate: the text that ``KEY-data`` contains, or else the path of
        the file that ``KEY`` names. A relative path begins at the kubeconfig's directory. Raises StateUnreadable."""
        try:
            text = base64.b64decode("".join(str(settings.get(f"{key}-data") or "").split()), validate=True).decode()
        except ValueError as error:
            raise StateUnreadable(f"{path}: {key}-data is no base64 text. Make the kubeconfig again.") from error
        name = str(settings.get(key) or "")
        return text or (name and os.path.join(os.path.dirname(os.path.abspath(path)), name))

    return Access(
        server,
        str(context.get("namespace") or "default"),
        place(user, "tokenFile"),
        str(user.get("token") or ""),
        place(cluster, "certificate-authority"),
        place(user, "client-certificate"),
        place(user, "client-key"),
        str(cluster.get("tls-server-name") or ""),
        cluster.get("insecure-skip-tls-verify") is True,
        str(cluster.get("proxy-url") or ""),
    )


def _parse(path: str, text: str) -> Any:
    try:
        return json.loads(text)  # a kubeconfig may be JSON, which is parsed twenty times as fast as YAML
    except ValueError:
        from yaml import YAMLError

        from provisioner.files.yaml_text import parse

    try:
        return parse(text)[0] or {}
    except YAMLError as error:
        raise StateUnreadable(f"{path}: is no YAML: {' '.join(str(error).split())}.") from error


def _named(document: Mapping[str, Any], table: str, field: str, name: str) -> Mapping[str, Any]:
    found = [entry[field] for entry in document[table] or () if entry["name"] == name]
    if not found or not isinstance(found[0], Mapping):
        raise KeyError(f"{table}: {name}")
    return found[0]


def proxy_for(access: Access, host: str, port: int) -> str:
    """Return the address of the proxy for TLS calls to a host; empty if these calls need no proxy. Raises
    StateDenied."""
    if access.proxy:
        return access.proxy.removeprefix("direct")
    environment = os.environ
    file = environment.get("HTTPS_PROXY_FILE")
    proxy = read_text(file).strip() if file else environment.get("https_proxy") or environment.get("HTTPS_PROXY") or ""
    names = [*(environment.get("no_proxy") or environment.get("NO_PROXY") or "").lower().split(","), *LOCAL]
    return "" if any(_covers(name.strip(), one) for name in names for one in (host, f"{host}:{port}")) else proxy


def _covers(name: str, host: str) -> bool:
    """Return True if an entry of NO_PROXY names this host. ``host``: with or without its port."""
    if "/" in name:
        import ipaddress  # imported here because it takes some milliseconds

        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
        except ValueError:
            return False
    name = name.lstrip("*").lstrip(".") if name != "*" else host
    return bool(name) and (host == name or host.endswith(f".{name}"))
