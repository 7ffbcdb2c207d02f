"""A client's access to an API server at one address, without credentials."""

from __future__ import annotations

from collections.abc import Mapping

import urllib3

from provisioner.backends.client_connections import limit_responses
from provisioner.backends.http import Way


class Plain:
    """An ``Access`` without credentials."""

    def __init__(self, host: str, connections: urllib3.PoolManager | None = None) -> None:
        self._way = Way(host, limit_responses(connections or urllib3.PoolManager(maxsize=4)))

    def now(self) -> tuple[Way, Mapping[str, str]]:
        return self._way, {}

    def host(self) -> str:
        return self._way.host

    def login(self) -> str:
        return "no login"

    def note_rejection(self, way: Way) -> str:
        """Return an empty text, because there is no advice for operators."""
        return ""

    def failed(self, way: Way) -> None:
        """Do nothing after a call failed, because there is no other way to the server."""
