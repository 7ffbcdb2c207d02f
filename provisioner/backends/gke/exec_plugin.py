"""Tokens from a kubeconfig's exec plugin (such as gke-gcloud-auth-plugin), renewed before they expire.

The protocol is Kubernetes' client.authentication.k8s.io, without its client certificates.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from provisioner.backends import BackendError
from provisioner.backends.processes import TooMuchOutput, run_program
from provisioner.backends.responses import ODD_RESPONSES, json_object, words
from provisioner.model import ErrorClass

PLUGIN_SECONDS = 30.0
"""Longest run of a plugin in seconds. The plugin may call a token server, and repeat the call."""
MOST_OUTPUT = 1 << 20
"""Maximum number of bytes that a plugin may print. A token has a few thousand bytes."""
EARLY_SECONDS = 30.0
"""A token is renewed this many seconds before its expiry, or a quarter of the token's life before it if the quarter is
shorter. Reason: if a create is refused because the token has expired, its slot is lost."""
HINT = "install it where the provisioner runs, or let the pool name endpoint and credentials instead of a kubeconfig"


class ExecPlugin:
    """The plugin of one user of a kubeconfig. Not thread-safe."""

    def __init__(self, settings: Mapping[str, Any], directory: Path, cluster: Mapping[str, Any]) -> None:
        """Read the user's ``exec`` settings without running the plugin. Raise BackendError for invalid settings.

        ``directory``: directory of the kubeconfig. ``cluster``: description of the cluster for the plugin.
        """
        self._version, command = settings.get("apiVersion"), settings.get("command")
        if not isinstance(self._version, str) or not isinstance(command, str):
            raise BackendError(ErrorClass.INVALID, "kubeconfig: exec: expected a command and an apiVersion")
        if settings.get("interactiveMode") == "Always":
            raise BackendError(ErrorClass.INVALID, f"kubeconfig: exec plugin {command} wants a terminal; there is none")
        self._command = str(directory / command) if "/" in command else command
        self._arguments = [str(argument) for argument in settings.get("args") or ()]
        self._hint = str(settings.get("installHint") or HINT).strip()
        self._environment = {str(item["name"]): str(item["value"]) for item in settings.get("env") or ()}
        described = {"cluster": dict(cluster)} if settings.get("provideClusterInfo") else {}
        info = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False, **described}}
        self._environment["KUBERNETES_EXEC_INFO"] = json.dumps(info)
        self._token, self._renew_at = "", float("-inf")

    def header(self) -> str:
        """Return the value of the Authorization header. Raise BackendError if the plugin returns no token."""
        if (began_at := time.time()) >= self._renew_at:
            self._token, expires = self._get_token()
            self._renew_at = _renewal_at(began_at, expires)
        return f"Bearer {self._token}"

    def _get_token(self) -> tuple[str, object]:
        """Return a token, and its expiry in the form that the plugin prints."""
        try:
            code, output, errors = run_program(
                [self._command, *self._arguments],
                {**os.environ, **self._environment},
                seconds=PLUGIN_SECONDS,
                most_bytes=MOST_OUTPUT,
            )
        except FileNotFoundError as error:
            raise self._plugin_error(f"not found; {self._hint}") from error
        except (TimeoutError, TooMuchOutput) as error:
            raise self._plugin_error(str(error)) from error
        except OSError as error:
            raise self._plugin_error(f"cannot be run: {error.strerror}") from error
        if code != 0:
            reason = errors.decode(errors="replace").strip() or "it printed no error"
            raise self._plugin_error(f"ended with {code}: {reason}")
        return self._parse_output(output)

    def _parse_output(self, output: bytes) -> tuple[str, object]:
        """Return token and expiry from the output of a plugin. Error messages do not quote the output, because it may
        be secret."""
        try:
            credential = json_object(output)
            version, status = credential["apiVersion"], credential["status"]
            token, expires = status.get("token"), status.get("expirationTimestamp")
        except ODD_RESPONSES as error:
            raise self._plugin_error("did not print an ExecCredential") from error
        if version != self._version:
            raise self._plugin_error(f"printed version {version!r}, but the kubeconfig says {self._version!r}")
        if not isinstance(token, str) or not token:
            raise self._plugin_error("gave no token")
        return token, expires

    def _plugin_error(self, reason: str) -> BackendError:
        return BackendError(ErrorClass.DENIED, words(f"no credentials: exec plugin {self._command}: {reason}"))


def _renewal_at(began_at: float, expires: object) -> float:
    """Return the time (epoch seconds) from which a token is renewed; infinite if the token never expires."""
    if not isinstance(expires, str):
        return float("inf")
    try:
        ends = datetime.fromisoformat(expires).timestamp()
    except (ValueError, OverflowError):
        return began_at
    return ends - min(EARLY_SECONDS, (ends - began_at) / 4)
