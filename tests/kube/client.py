"""Raw requests to an API server. They show what the server has, without any code of our backend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

Document = dict[str, Any]


class Refused(Exception):
    """The server refused the call."""

    def __init__(self, status: int, response: Mapping[str, Any]) -> None:
        super().__init__(f"{status} {response.get('reason')}: {response.get('message')}")
        self.status = status


class Client:
    """A client for the user and the API server of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        settings = client.Configuration()
        settings.connection_pool_maxsize = 16
        load: Any = config.load_kube_config
        load(str(kubeconfig), client_configuration=settings)
        self.server = str(settings.host)
        self.ca: str | None = settings.ssl_ca_cert
        token = settings.auth_settings().get("BearerToken", {}).get("value")
        self.headers = {"Authorization": token} if token else {}
        self._connections = client.ApiClient(settings).rest_client.pool_manager

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = "application/json",
        query: Mapping[str, object] | None = None,
    ) -> Document:
        """Make a call, and return the document of the response. Raises Refused if the server refuses the call, and an
        error of urllib3 if it does not respond."""
        response = self._connections.request(
            method,
            f"{self.server}{path}" + (f"?{urlencode(query)}" if query else ""),
            body=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": kind, **self.headers},
            timeout=urllib3.Timeout(connect=5, read=30),
            retries=False,
        )
        document: Document = (
            json.loads(response.data) if response.data.startswith(b"{") else {"message": response.data[:200]}
        )
        if response.status >= 300:
            raise Refused(response.status, document)
        return document

    def get(self, path: str, **query: object) -> Document:
        return self.call("GET", path, query=query)

    def create(self, path: str, body: object) -> Document:
        return self.call("POST", path, body)

    def patch(self, path: str, body: object) -> Document:
        """Change an object by a JSON merge patch."""
        return self.call("PATCH", path, body, kind="application/merge-patch+json")

    def delete(self, path: str, *, grace: int | None = None) -> None:
        """Delete an object, and let the server delete the objects that it owns, such as the pods of a Job. A missing
        object is no error."""
        options = {"propagationPolicy": "Background"} | ({} if grace is None else {"gracePeriodSeconds": grace})
        try:
            self.call("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})
        except Refused as error:
            if error.status != 404:
                raise

    def text(self, path: str) -> str:
        """Return the text of a resource that is not JSON."""
        url = f"{self.server}{path}"
        return self._connections.request("GET", url, headers=self.headers, timeout=30.0).data.decode()

    def alive(self) -> bool:
        """Return True if the server reports that it is ready."""
        try:
            return bool(
                self._connections.request(
                    "GET", f"{self.server}/readyz", headers=self.headers, retries=False, timeout=2.0
                ).status
                == 200
            )
        except urllib3.exceptions.HTTPError:
            return False
